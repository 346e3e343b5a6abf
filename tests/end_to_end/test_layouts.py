"""The pair table recovers the rates of known layouts of hosts and links.

The hosts are network namespaces, which launchers reach by SSH or as a cluster that runs there.
"""

import itertools
import json

import dask_clusters
import namespaces
import processes
import pytest
import sshd
from namespaces import PAYLOAD_SHARE, Layout, mesh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FAST, MIDDLE, SLOW = 40e6, 20e6, 10e6
"""Far apart, and far below what two busy cores let all links have."""
BLOCK = 5_000_000
NV2 = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
NV1 = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
DGX_1 = mesh(
    8,
    dict.fromkeys(itertools.combinations(range(8), 2), SLOW)
    | dict.fromkeys(NV1, MIDDLE)
    | dict.fromkeys(NV2, FAST),
)
"""Two sockets of four GPUs: pairs with two NVLinks, with one, and those that cross the system."""
TWO_RACKS = Layout(4, {(0, 4): FAST, (1, 4): FAST, (2, 5): FAST, (3, 5): FAST, (4, 5): MIDDLE})
"""Hosts 0 and 1 at one switch, 2 and 3 at another, and a slower link between the switches."""
RACKS = {"left": (0, 1), "right": (2, 3)}
SLOW_NIC = Layout(4, {(0, 4): FAST, (1, 4): FAST, (2, 4): FAST, (3, 4): SLOW})
"""Four hosts at one switch, the link of the last of which is slow."""
CASES = {
    "dgx-1 external": (DGX_1, "external"),
    "two racks ssh": (TWO_RACKS, "ssh"),
    "slow nic ssh": (SLOW_NIC, "ssh"),
    "slow nic external": (SLOW_NIC, "external"),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def measured(request, tmp_path_factory):
    """Return a layout, and the report of a run on it, its workers called by their numbers."""
    layout, launcher = request.param
    folder = tmp_path_factory.mktemp("layout")
    run = (
        "all-to-all", "--launcher", launcher, "--workers", str(layout.n_hosts), "--launches", "1",
        "--iterations", "2", "--sizes", f"64KiB,{BLOCK}", "--timeout", "500",
    )  # fmt: skip
    with namespaces.laid_out(layout) as there:
        if layout is TWO_RACKS:
            run += ("--racks", str(write_racks(folder, there)))
        prefixes = [["ip", "netns", "exec", name] for name in there.names]
        with processes.command_line(folder, prefixes[0]) as line:
            if launcher == "ssh":
                ended = run_over_ssh(folder, there, prefixes, line, run)
            else:
                hosts = list(zip(prefixes, there.addresses, strict=True))
                with dask_clusters.started(folder, len(hosts), hosts=hosts) as cluster:
                    ended = line.run(*run, "--scheduler", cluster.file)
            assert ended.status == 0, ended.said
            yield layout, line.report(ended.run)


def write_racks(folder, there):
    path = folder / "racks.toml"
    rows = (
        f"{name} = {json.dumps([there.addresses[host] for host in hosts])}\n"
        for name, hosts in RACKS.items()
    )
    path.write_text("[racks]\n" + "".join(rows))
    return path


def run_over_ssh(
    folder, there, prefixes, line,
    run
):  # fmt: skip
    pytest.importorskip("asyncssh")
    hosts = ",".join((there.addresses[0], *there.addresses))
    with sshd.server(folder / "sshd", there.addresses, prefixes) as server:
        return line.run(*run, "--hosts", hosts, *server.arguments)


def payload_rates(report):
    """Return the median rate of each pair alone."""
    return {
        (number_of(row["src"]), number_of(row["dst"])): row["q50_Bps"]
        for row in report["pairs"] if row["channel"] == "alone"
    }  # fmt: skip


def number_of(worker):
    return int(worker.removeprefix("their-"))


def test_every_pair_has_the_rate_of_its_slowest_link(measured):
    layout, report = measured
    rates = payload_rates(report)
    assert set(rates) == set(itertools.permutations(range(layout.n_hosts), 2))
    for (src, dst), rate in rates.items():
        assert rate == pytest.approx(layout.rate_Bps(src, dst) * PAYLOAD_SHARE, rel=0.1), rates


def test_pairs_in_a_rack_have_the_link_class_of_racks(measured):
    layout, report = measured
    racks = RACKS.values() if layout is TWO_RACKS else ()
    for row in report["pairs"]:
        pair = {number_of(row["src"]), number_of(row["dst"])}
        near = any(pair <= {*hosts} for hosts in racks)
        assert row["link"] == ("same rack" if near else "network"), row


def test_all_pairs_together_are_not_faster_than_the_links(measured):
    layout, report = measured
    (case,) = [
        row for row in report["cases"]
        if row["layer"] == "together" and row["payload_bytes"] > BLOCK
    ]  # fmt: skip
    for link, rate in layout.links.items():
        n_blocks = sum(
            link in itertools.pairwise(layout.way(*pair))
            for pair in itertools.permutations(range(layout.n_hosts), 2)
        )
        # The content of the buckets passes at once.
        least_s = n_blocks * (BLOCK - 300_000) / (rate * PAYLOAD_SHARE)
        assert case["median_s"] > least_s, link
