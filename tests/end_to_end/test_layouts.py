"""Layouts of hosts and links with known rates: the pair table recovers every one of them.

The hosts are network namespaces, so the launchers reach them as they reach others: by SSH, by
``mpiexec`` (with a remote shell of the test's own in place of ``ssh``), or as a cluster that runs
there already.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask_clusters
import namespaces
import processes
import pytest
import sshd
from namespaces import PAYLOAD_SHARE, Hosts, Layout, mesh

FAST, MIDDLE, SLOW = 40e6, 20e6, 10e6
"""Far enough apart to tell them, and far below what two busy cores let all links have."""
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
    "two racks mpirun": (TWO_RACKS, "mpirun"),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Layout, Any]]:
    """Return a layout, and the report of a run on it, its workers called by their numbers."""
    layout, launcher = request.param
    folder = tmp_path_factory.mktemp("layout")
    run = (
        "all-to-all", "--launcher", launcher, "--workers", str(layout.n_hosts), "--launches", "1",
        "--iterations", "2", "--sizes", f"64KiB,{BLOCK}", "--timeout", "500",
    )  # fmt: skip
    with namespaces.laid_out(layout) as there:
        if layout is TWO_RACKS:
            run += ("--racks", str(_racks_file(folder, there)))
        prefixes = [["ip", "netns", "exec", name] for name in there.names]
        with processes.command_line(folder, prefixes[0]) as line:
            if launcher == "ssh":
                ended = _over_ssh(folder, there, prefixes, line, run)
            elif launcher == "mpirun":
                ended = _by_mpiexec(folder, there, line, run)
            else:
                places = list(zip(prefixes, there.addresses, strict=True))
                with dask_clusters.started(folder, len(places), places=places) as cluster:
                    ended = line.run(*run, "--scheduler-file", cluster.file)
            assert ended.status == 0, ended.said
            yield layout, line.report(ended.run)


def _racks_file(folder: Path, there: Hosts) -> Path:
    path = folder / "racks.toml"
    rows = (
        f"{name} = {json.dumps([there.addresses[host] for host in hosts])}\n"
        for name, hosts in RACKS.items()
    )
    path.write_text("[racks]\n" + "".join(rows))
    return path


def _over_ssh(
    folder: Path, there: Hosts, prefixes: list[list[str]], line: processes.CommandLine,
    run: tuple[str, ...],
) -> processes.Ended:  # fmt: skip
    if importlib.util.find_spec("asyncssh") is None:
        pytest.skip("asyncssh is not installed")
    hosts = ",".join((there.addresses[0], *there.addresses))
    with sshd.server(folder / "sshd", there.addresses, prefixes) as server:
        return line.run(*run, "--hosts", hosts, *server.arguments)


def _by_mpiexec(
    folder: Path, there: Hosts, line: processes.CommandLine, run: tuple[str, ...]
) -> processes.Ended:
    if importlib.util.find_spec("dask_mpi") is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("dask-mpi is not installed")
    remote_shell = folder / "remote-shell"
    remote_shell.write_text(namespaces.remote_shell(there))
    remote_shell.chmod(0o755)
    line.environ["HYDRA_LAUNCHER_EXEC"] = str(remote_shell)
    namespaces.add_default_routes(there)
    hosts = ",".join((there.addresses[0], *there.addresses))
    return line.run(*run, "--hosts", hosts)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_pair_has_the_rate_of_its_way(measured: tuple[Layout, Any]) -> None:
    """Alone, the median bandwidth of each direction is within 10 % of what the way lets pass."""
    layout, report = measured
    found = _rates(report)
    assert set(found) == set(itertools.permutations(range(layout.n_hosts), 2))
    for (src, dst), rate in found.items():
        assert rate == pytest.approx(layout.rate_Bps(src, dst) * PAYLOAD_SHARE, rel=0.1), found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_pair_is_told_by_its_rate_from_those_of_other_links(
    measured: tuple[Layout, Any],
) -> None:
    """The slowest pair of each kind of way is faster than the fastest of the next slower kind."""
    layout, report = measured
    found = _rates(report)
    order = sorted(found, key=lambda pair: found[pair])
    kinds = [layout.rate_Bps(*pair) for pair in order]
    assert kinds == sorted(kinds)
    racks = RACKS.values() if layout is TWO_RACKS else ()
    for row in report["pairs"]:
        pair = {_number(row["src"]), _number(row["dst"])}
        near = any(pair <= {*hosts} for hosts in racks)
        assert row["link"] == ("same rack" if near else "network"), row


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_together_nothing_is_faster_than_the_links(measured: tuple[Layout, Any]) -> None:
    """All at once, what passes each link takes no less time than the link needs for it."""
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
        # What the buckets hold goes through at once.
        least_s = n_blocks * (BLOCK - 300_000) / (rate * PAYLOAD_SHARE)
        assert case["median_s"] > least_s, link


def test_the_rate_of_a_way_is_that_of_its_slowest_link() -> None:
    """Ways are the shortest, and hosts forward nothing."""
    assert TWO_RACKS.way(0, 3) == (0, 4, 5, 3)
    assert TWO_RACKS.rate_Bps(0, 1) == FAST
    assert TWO_RACKS.rate_Bps(3, 0) == MIDDLE
    assert SLOW_NIC.rate_Bps(1, 3) == SLOW_NIC.rate_Bps(3, 2) == SLOW
    assert mesh(3, {(0, 1): SLOW}).rate_Bps(0, 2) == float("inf")
    assert [sum(DGX_1.rate_Bps(gpu, other) == FAST for other in range(8) if other != gpu)
            for gpu in range(8)] == [2] * 8  # fmt: skip
    with pytest.raises(LookupError):
        Layout(3, {(0, 1): FAST, (1, 2): FAST}).way(0, 2)


def _rates(report: Any) -> dict[tuple[int, int], float]:
    return {
        (_number(row["src"]), _number(row["dst"])): row["q50_Bps"]
        for row in report["pairs"] if row["channel"] == "alone"
    }  # fmt: skip


def _number(name: str) -> int:
    # Rank 0 is the scheduler.
    return int(name.removeprefix("their-")) if "rank" not in name else int(name[5:]) - 1
