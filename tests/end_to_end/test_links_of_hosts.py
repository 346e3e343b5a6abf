"""``commbench links`` names what is slow between hosts of known rates, and nothing else."""

import itertools
import json

import namespaces
import processes
import pytest
import sshd
from namespaces import PAYLOAD_SHARE, Layout

from commbench import load

FAST, SLOW = 30e6, 7e6
BLOCK = 3_000_000
"""What takes a tenth of a second on a fast link, of which latency is little."""


def layout(number, host=None, cable=None, direction=None):
    """Return hosts with a link for each pair, one host, link and direction of which are slow."""
    links = {
        pair: SLOW if host in pair or pair == cable else FAST
        for pair in itertools.combinations(range(number), 2)
    }  # fmt: skip
    if direction:
        links[direction] = SLOW
    return Layout(number, links, {direction: FAST} if direction else {})


CASES = {
    "4 hosts, a slow one": pytest.param(
        (layout(4, host=2), {"from and to worker 2"}), marks=pytest.mark.slow
    ),
    "12 hosts, slow: one, a cable, and a direction": pytest.param((
        layout(12, host=7, cable=(1, 5), direction=(3, 9)),
        {"from and to worker 7", "between workers 1 and 5", "from worker 3 to 9"},
    ), marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
}  # fmt: skip


def measured_on(layout, folder, *options):
    """Return the end of ``commbench links``, and its JSON."""
    folder.mkdir(exist_ok=True)
    with (
        namespaces.laid_out(layout) as there,
        namespaces.launches_on_host_0(folder, there),
    ):
        result = processes.invoke(
            "links", "--launcher", "namespaces", "--workers", layout.n_hosts, "--start-timeout",
            200, "--sizes", f"1,64KiB,{BLOCK}", "--format", "json", "--output", folder / "results",
            *options, figures=())  # fmt: skip
    assert result.stdout, result.output
    return result, json.loads(result.stdout)


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def measured(request, tmp_path_factory):
    layout, causes = request.param
    return (layout, causes, *measured_on(layout, tmp_path_factory.mktemp("links")))


def test_what_is_slow_is_named_and_nothing_else(measured):
    _, causes, result, document = measured
    assert {row["cause"] for row in document["slow_pairs"]} == causes, document["faults"]
    assert {fault["rule"] for fault in document["faults"]} == {"slow-links"}, document["faults"]
    assert (result.exit_code, document["outcome"]) == (3, "faulty")


def test_every_ordered_pair_has_the_rate_of_its_link(measured):
    layout, _, _, document = measured
    rates = {(int(row["src"]), int(row["dst"])): row["q50_Bps"] for row in document["links"]}
    assert set(rates) == set(itertools.permutations(range(layout.n_hosts), 2))
    for pair, rate in rates.items():
        assert rate == pytest.approx(layout.rate_Bps(*pair) * PAYLOAD_SHARE, rel=0.1), (pair, rate)


def test_pairs_of_a_round_share_no_host(measured):
    _, _, _, document = measured
    log = load(document["run"]).transfers.query("channel == 'rounds' and nbytes == @BLOCK")
    assert len(log)
    for begun in log.itertuples():
        others = log[(log["start_s"] < begun.stop_s) & (log["stop_s"] > begun.start_s)]
        others = others.drop(begun.Index)
        ends = {begun.src, begun.dst}
        assert not others["src"].isin(ends).any()
        assert not others["dst"].isin(ends).any()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_over_ssh_one_worker_of_each_host_takes_part(tmp_path):
    pytest.importorskip("asyncssh")
    with namespaces.laid_out(layout(4, host=2)) as there:
        prefixes = [["ip", "netns", "exec", name] for name in there.names]
        # Two workers on each host.
        hosts = ",".join((there.addresses[0], *sorted(2 * there.addresses)))
        with (
            processes.command_line(tmp_path, prefixes[0]) as line,
            sshd.server(tmp_path / "sshd", there.addresses, prefixes) as server,
        ):
            line.environ["COMMBENCH_TEST_RULES"] = "slow-links"
            ended = line.start(
                "links", "--hosts", hosts, "--start-timeout", "200", "--sizes",
                f"1,64KiB,{BLOCK}", "--format", "json", *server.arguments,
            ).finish()  # fmt: skip
    assert ended.status == 3, ended.said
    document = json.loads(ended.stdout)
    assert {(row["src"], row["dst"]) for row in document["links"]} == set(
        itertools.permutations("0246", 2)
    )
    assert {row["cause"] for row in document["slow_pairs"]} == {"from and to worker 4"}


def iteration_s(document):
    log = load(document["run"]).transfers.query("iteration >= 0").groupby("iteration")
    return (log["stop_s"].max() - log["start_s"].min()).median()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twice_the_hosts_take_little_more_than_twice_the_time(tmp_path):
    """They have 11 rounds instead of 5, and 132 pairs instead of 30."""
    few, many = (iteration_s(measured_on(layout(n, host=0), tmp_path / str(n))[1]) for n in (6, 12))
    assert few * 11 / 5 * 0.8 < many < few * 132 / 30 * 0.7
