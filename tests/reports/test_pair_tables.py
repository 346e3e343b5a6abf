import itertools
from dataclasses import replace

import builders
import pytest
from builders import end, exchanges, place, sample, transfer, wire
from shown import titled, titles

from commbench.reports.html import pair_matrix
from commbench.reports.sections.pair_tables import no_slow_pair

CASE = builders.case(workload="all-to-all", n_workers=3, params={"sizes": [1 << 20, 16 << 20]})
MIB = 1 << 20
PAIRS = list(itertools.permutations("012", 2))


def first_is(seconds):
    """Return times of transfers: 0.1 s, but from worker 0 to 1."""
    return lambda src, dst: seconds if (src, dst) == ("0", "1") else 0.1


def measured(slow=1.0):
    """Return 100 MB/s alone and half of it together, divided by `slow` from worker 2 to 0."""
    records = [end(CASE, launch=launch) for launch in range(6)]
    for launch, size in itertools.product(range(6), (MIB, 16 * MIB)):
        for channel, factor in (("alone", 1), ("together", 2)):
            times = [factor * size / 100e6 * (slow if pair == ("2", "0") else 1) for pair in PAIRS]
            given = {"launch": launch, "channel": channel}
            records += [
                transfer(CASE, 0, seconds, size, src=src, dst=dst, **given)
                for (src, dst), seconds in zip(PAIRS, times, strict=True)
            ]
            together = channel == "together"
            seconds = max(times) if together else sum(times) / 6
            given = {"payload_bytes": size * (6 if together else 1), "cpu_seconds": 0.5}
            records.append(sample(CASE, seconds, launch=launch, layer=channel, **given))
            records += [wire(CASE, size, src=src, dst=dst, launch=launch) for src, dst in PAIRS]
    return records


@pytest.fixture(scope="module")
def even(recorded):
    return recorded([CASE], measured())


@pytest.fixture(scope="module")
def slow(recorded):
    return recorded([CASE], measured(slow=8.0))


def test_each_size_has_its_time_and_bandwidth(even):
    alone = titled(even, "all-to-all, one pair at a time")
    assert alone.columns == ("block", "tcp\ntime", "tcp\nbandwidth")
    assert alone.rows == (("1 MiB", "10.5 ms", "100 MB/s"), ("16 MiB", "168 ms", "100 MB/s"))
    together = titled(even, "all-to-all, all pairs at once")
    assert together.rows == (("1 MiB", "21.0 ms", "300 MB/s"), ("16 MiB", "336 ms", "300 MB/s"))
    assert not any("ping" in title or "iteration" in title for title in titles(even))


def test_differences_of_all_to_all_are_by_block(recorded):
    cases = [replace(CASE, backend=name) for name in ("tcp", "mpi")]
    records = [replace(record, case_id=case.id) for case in cases for record in measured()]
    table = titled(recorded(cases, records), "all at once: time as a multiple of tcp's")
    assert table.columns == ("block", "mpi")
    assert [row[0] for row in table.rows] == ["1 MiB", "16 MiB"]


def test_alone_and_together_have_pair_tables_of_the_largest_size(even):
    for words, bandwidth in (("one at a time", "0.1"), ("all at once", "0.05")):
        table = titled(even, f"Bandwidth per pair of workers, {words}")
        assert len(table.rows) == 6
        assert {row[5] for row in table.rows} == {bandwidth}
        assert {row[2:4] for row in table.rows} == {("6", "101 MB")}
        assert "had none" not in table.note


def test_missing_pairs_are_counted_by_channel(recorded):
    records = [
        record for record in measured()
        if (getattr(record, "channel", ""), getattr(record, "dst", "")) != ("alone", "1")
    ]  # fmt: skip
    content = recorded([CASE], records)
    assert "2 of 6 pairs had none" in titled(content, "Bandwidth per pair of workers, one").note
    assert "had none" not in titled(content, "Bandwidth per pair of workers, all").note


def test_missing_pairs_are_those_of_all_workers_that_were_seen(recorded):
    case = builders.case(workload=CASE.workload, n_workers=1, params=CASE.params)
    records = [
        replace(record, case_id=case.id) for record in measured()
        if (getattr(record, "channel", ""), getattr(record, "dst", "")) != ("alone", "1")
    ]  # fmt: skip
    content = recorded([case], records)
    assert "2 of 6 pairs had none" in titled(content, "Bandwidth per pair of workers, one").note


def test_pairs_that_rounds_leave_out_are_not_missing(recorded):
    records = [
        replace(record, channel="rounds" if record.channel == "together" else record.channel)
        if hasattr(record, "channel") else record
        for record in measured()
        if (getattr(record, "channel", ""), getattr(record, "dst", "")) != ("alone", "1")
    ]  # fmt: skip
    content = recorded([CASE], records)
    assert "had none" not in titled(content, "Bandwidth per pair of workers, one").note


def test_slow_pairs_come_before_the_pair_tables(slow):
    i = titles(slow).index("Slow pairs of workers")
    assert titles(slow)[i + 1].startswith("Bandwidth per pair of workers, one at a time")
    (alone, together) = titled(slow, "Slow pairs").rows
    assert alone == (
        "tcp", "from worker 2 to 0", "one pair at a time", "unknown", "1", "0.0125", "0.1", "8.0",
        "8.0…8.0 (97%)",
    )  # fmt: skip
    assert together[2:8] == ("all pairs at once", "unknown", "1", "0.00625", "0.05", "8.0")


def test_a_slow_pair_is_a_finding(slow):
    alone, together = slow.findings
    assert alone.statement == (
        "transfers from worker 2 to 0, one pair at a time, take 8.0 (8.0 to 8.0) times as long as "
        "ordinary ones (12.5 MB/s against 100 MB/s)"
    )
    assert alone.remedy == (
        "both are fast with others, and so is the way back: check routes and shaping"
    )
    assert together.statement.startswith(
        "transfers from worker 2 to 0, all pairs at once, take 8.0"
    )


def test_no_table_and_no_finding_without_slow_pairs(even):
    assert "Slow pairs of workers" not in titles(even)
    assert even.findings == ()


def test_a_slow_worker_is_one_finding(recorded):
    case = builders.case(n_workers=8)
    records = exchanges(case, lambda _, dst: 1.0 if dst == "7" else 0.1)
    (finding,) = recorded([case], 3 * records).findings
    assert "transfers to worker 7 take 10.0" in finding.statement
    assert "only what it receives is slow" in finding.remedy


@pytest.mark.parametrize(
    ("n_workers", "times", "launches", "n_ok", "lines"),
    [
        (2, 3, 6, 6, []),
        (3, 3, 6, 6, ["No pair of workers is slow (1.5 times the usual time, and beyond chance): "
                      "a transfer of the slowest one takes 1.0 times as long as that of the "
                      "median one"]),
        (3, 3, 5, 5, ["No pair of workers stands out in 5 launches; one that is little slower "
                      "takes more to be named (--launches 6)"]),
        (3, 3, 6, 1, ["No pair of workers stands out in 1 launch; one that is little slower "
                      "takes more to be named (--launches 6)"]),
        (3, 2, 1, 1, ["No pair of workers is named: a pair with fewer than 3 transfers is not "
                      "tested: more --iterations"]),
    ],
)  # fmt: skip
def test_the_opening_answers_whether_a_pair_is_slow(
    n_workers, times, launches, n_ok, lines, recorded
):
    case = builders.case(n_workers=n_workers)
    records = []
    for launch in range(launches):
        records += times * exchanges(case, 0.1, launch=launch)
        records.append(end(case, launch=launch, ok=launch < n_ok))
    assert [*no_slow_pair(recorded([case], records))] == lines


@pytest.mark.parametrize(
    ("channel", "expected_Bps", "left_out"),
    [
        ("gather", {}, " (2 pairs can't be compared)"),
        ("gather", {"same NUMA": 8e6}, ""),
        ("rounds", {}, " (2 pairs can't be compared)"),
    ],
)
def test_pairs_of_a_small_class_are_not_called_fast(channel, expected_Bps, left_out, recorded):  # noqa: N803
    case = builders.case(n_workers=3)
    records = [
        place(case, worker, host_id="AAB"[int(worker)], launch=launch)
        for worker in "012"
        for launch in range(6)
    ]
    for launch in range(6):
        records += 3 * exchanges(case, first_is(1.0), launch=launch, channel=channel)
        for name in ("alone", "again") * (channel == "rounds"):
            records += exchanges(case, 0.1, launch=launch, channel=name)
    (line,) = no_slow_pair(recorded([case], records, expected_Bps=expected_Bps))
    assert line.endswith("1.0 times as long as that of the median one" + left_out)


def test_a_pair_that_is_slow_in_rounds_only_is_not_called_chance(recorded):
    case = builders.case(n_workers=4)
    records = [end(case, launch=launch) for launch in range(6)]
    for launch, channel in itertools.product(range(6), ("alone", "again", "rounds")):
        seconds = first_is(0.3 if channel == "rounds" else 0.1)
        records += 3 * exchanges(case, seconds, channel=channel, launch=launch)
    run = recorded([case], records)
    assert run.slow_pairs.empty
    (line,) = no_slow_pair(run)
    assert line == (
        "No pair of workers is slow alone; in rounds of all, a transfer of the slowest one takes "
        "3.0 times as long as that of the median one"
    )


def test_a_pair_that_is_slow_alone_in_most_launches_is_not_called_fast(recorded):
    case = builders.case(n_workers=4)
    records = [end(case, launch=launch) for launch in range(6)]
    for launch, channel in itertools.product(range(6), ("alone", "again", "rounds")):
        seconds = first_is(0.1 if channel == "alone" else 0.3 if launch else 0.09)
        records += 3 * exchanges(case, seconds, channel=channel, launch=launch)
    run = recorded([case], records)
    assert "slow alone" not in "".join(no_slow_pair(run))


def test_many_slow_links_have_four_findings(recorded):
    case = builders.case(n_workers=16)
    records = exchanges(case, lambda src, dst: 1.0 if int(dst) - int(src) == 1 else 0.1)
    texts = [finding.statement for finding in recorded([case], 3 * records).findings]
    assert ["as long as ordinary" in text for text in texts] == [True, True, True, False]
    assert texts[3].count("from") == 6
    assert texts[3].endswith("are slow, too, and 6 others")


@pytest.fixture(scope="module")
def shuffled(recorded):
    """Return a merge whose input a worker fetched, and whose rows moved by P2P."""
    case = builders.case(n_workers=2)
    p2p = {"channel": "p2p", "queue_s": 0.001, "handling_s": 0.25}
    names = [f"hash-join-transfer-{letter * 32}" for letter in "ab"]
    records = [
        *(transfer(case, 0, 2, MIB // 2, shuffle=name, **p2p) for name in names),
        transfer(case, 0, 1, MIB // 2, src="1", dst="0", shuffle=names[0], **p2p),
        transfer(case, 0, 1, 28),
        wire(case, 2 * MIB),
        builders.log_count(case, n_started=1, n_logged=1),
    ]
    return recorded([case], builders.ended([sample(case, 1.0), *records]))


def test_batches_have_a_pair_table_with_the_parts_of_their_time(shuffled):
    table = titled(shuffled, "Bandwidth per pair of workers")
    assert table.title == "Bandwidth per pair of workers, by P2P (transfers ≥ 250 kB)"
    titles = ("median\nGB/s", "busy\nGB/s", "at\nonce", "queue\nms", "handling\nms")
    assert table.columns[-5:] == titles
    assert [row[1:3] + row[-4:] for row in table.rows] == [
        ("0 → 1", "2", "0.000524", "2.0", "1", "250"),
        ("1 → 0", "1", "0.000524", "1.0", "1", "250"),
    ]  # fmt: skip
    assert "had none" not in table.note


def test_each_shuffle_has_a_row_with_a_short_name(shuffled):
    table = titled(shuffled, "P2P shuffles")
    assert [row[1:3] for row in table.rows] == [
        ("hash-join-aaaaaa", "2"),
        ("hash-join-bbbbbb", "1"),
    ]


def test_coverage_says_how_much_was_p2p(shuffled, even):
    table = titled(shuffled, "Coverage")
    assert dict(zip(table.titles, table.rows[0], strict=True))["by P2P"] == "1.57 MB"
    assert "by P2P" not in titled(even, "Coverage").titles


def test_the_page_has_the_queue_and_the_handling_of_a_pair(shuffled):
    (block,) = pair_matrix.blocks(shuffled)
    cell = block.matrices[0].rows[0][1][1]
    assert "queue 1.00 ms\nhandling 250 ms" in cell.description
    assert "≥ 250 kB; src → dst: src sent to dst" in block.note
