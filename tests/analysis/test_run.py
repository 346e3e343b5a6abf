"""What every report says: costs per byte that really moved, and warnings with the worst first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import end, failure, launches, log_count, message, sample, transfer, transport, wire
from golden.runs import GENERATED

from commbench import load, stats
from commbench.analysis.run import Run
from commbench.model import Case, Record, registry
from commbench.reports import sections as parts
from commbench.store import tables
from commbench.store.records import TABLES

Recorded = Callable[..., Run]
CASE = builders.case()


def good(case: Case = CASE, n: int = 6) -> list[Record]:
    """Return launches that went well."""
    return launches(case, [1.0 + 0.01 * number for number in range(n)])


# --- costs -----------------------------------------------------------------------------------


def test_cpu_time_is_set_against_the_bytes_that_crossed(recorded: Recorded) -> None:
    """CPU seconds of a sample over the bytes on the wire in one, not over the payload."""
    records = [sample(CASE, 1.0, iteration=n, cpu_seconds=3.0) for n in range(2)]
    records += [wire(CASE, 500_000_000, iteration=n) for n in range(2)]
    records += [wire(CASE, 9 * 10**9, src="0", dst="0"), wire(CASE, 9 * 10**9, iteration=-1)]
    (cost,) = recorded([CASE], records).costs["cpu_s_per_GB"]
    assert cost == pytest.approx(6.0)


def test_what_warm_up_moved_makes_no_iteration_cheaper(recorded: Recorded) -> None:
    """Iterations that were found to be warm-up moved bytes, too: they are not the others'."""
    seconds = [3.0] * 10 + [1.0, 1.01, 1.02] * 20
    records = [sample(CASE, s, iteration=n, cpu_seconds=2.0) for n, s in enumerate(seconds)]
    records += [wire(CASE, 10**9, iteration=n) for n in range(len(seconds))]
    (row,) = recorded([CASE], records).costs.itertuples()
    assert row.n_warmup == 10
    assert row.cpu_s_per_GB == pytest.approx(2.0)


@pytest.mark.parametrize("records", [[], [wire(CASE, 5, src="0", dst="0")], [log_count(CASE)]])
def test_without_bytes_on_the_wire_there_is_no_cost_per_byte(
    records: list[Record], recorded: Recorded
) -> None:
    """Where the wire was not counted, or nothing crossed it, the cost is unknown."""
    (cost,) = recorded([CASE], [sample(CASE, 1.0), *records]).costs["cpu_s_per_GB"]
    assert math.isnan(cost)


def test_a_message_of_a_ping_pong_crosses_once(recorded: Recorded) -> None:
    """The CPU time of a message is set against its bytes."""
    case = builders.case(workload="pingpong")
    other = builders.case(workload="merge")
    records = [
        message(case, 1.0, 10**9, cpu_seconds=4.0),
        sample(other, 1.0, cpu_seconds=4.0),
        wire(other, 10**9),
    ]
    costs = recorded([case, other], records).costs.set_index("workload")["cpu_s_per_GB"]
    assert costs.to_dict() == {"pingpong": 4.0, "merge": 4.0}


def test_idle_cores_stand_beside_every_row_of_their_case(recorded: Recorded) -> None:
    """Each size of a ping-pong has the idle cost of its backend, unknown where not measured."""
    one, two = (builders.case(name, "pingpong") for name in ("tcp", "ucx"))
    records = [message(case, 1.0, size) for case in (one, two) for size in (1, 2)]
    table = recorded([one, two], [*records, builders.idle(one, 3.0)]).costs
    assert table["idle_cores"].tolist() == pytest.approx(
        [1.5, 1.5, math.nan, math.nan], nan_ok=True
    )


# --- warnings --------------------------------------------------------------------------------


def test_a_good_run_has_no_warnings(recorded: Recorded) -> None:
    """Complete, covered and uncontradicted: there is nothing to say."""
    records = [*good(), transfer(CASE, 0, 1, 100), wire(CASE, 100)]
    records += [log_count(CASE, n_started=1), transport(CASE)]
    assert recorded([CASE], records).warnings == ()


def test_a_contradicted_transport_is_the_first_thing_that_is_said(recorded: Recorded) -> None:
    """Numbers of another transport than the name's are worse than anything else, and said once."""
    case = builders.case("ucx:shm")
    records = [
        sample(case, math.nan), sample(case, 1.0), failure(case), end(case, ok=False),
        wire(case, 10**9), log_count(case, n_started=3), transfer(case, 1, 0),
        *(transport(case, contradiction="ucx:shm moves over tcp/lo", launch=n) for n in range(3)),
        transport(case, contradiction="another", src="1", dst="0"), transport(case, "sysv"),
    ]  # fmt: skip
    warnings = recorded([case], records).warnings
    assert warnings[:2] == ("ucx:shm moves over tcp/lo", "another")
    assert len(warnings) == len(set(warnings))
    for word in (
        "samples.jsonl line",
        "failed",
        "--resume",
        "ended well",
        "clocks",
        "missing",
        "saw",
    ):
        assert sum(word in text for text in warnings) == 1, word


def test_failed_and_missing_launches_are_counted(recorded: Recorded) -> None:
    """The report says how many launches failed, how many were never run, and how to go on."""
    case = builders.case(launches=8)
    records = [*good(case), failure(case, launch=6), end(case, launch=6, ok=False)]
    content = recorded([case], records)
    assert content.warnings == (
        "1 of 8 launches failed; see Failures",
        f"only 7 of 8 launches were run; go on with commbench run --resume {content.path}",
    )


@pytest.mark.parametrize(("n", "text"), [(1, "1 launch gives no"), (5, "5 launches give no")])
def test_too_few_launches_are_told(n: int, text: str, recorded: Recorded) -> None:
    """Fewer than six launches are said to allow no 95 % interval, and no verdict."""
    case = builders.case(launches=n)
    (warning,) = recorded([case], good(case, n)).warnings
    assert warning.startswith(text)


@pytest.mark.parametrize(
    ("logged", "warned"), [(0, "0.0%"), (94, "94.0%"), (95, ""), (100, ""), (130, "")]
)
def test_traffic_that_the_logs_missed_is_told(logged: int, warned: str, recorded: Recorded) -> None:
    """Below 95 % coverage the report says what share is missing, and that pairs lack it."""
    records = [*good(), wire(CASE, 100), transfer(CASE, 0, 1, logged)]
    records.append(log_count(CASE, n_started=1))
    warnings = recorded([CASE], records).warnings
    assert [f"saw {warned} of the bytes" in text for text in warnings] == [True] * bool(warned)


@pytest.mark.parametrize(
    ("n_started", "text"),
    [(5, "4 of 5 fetches are missing in the log"), (0, "the logs have 1 fetches that no worker")],
)
def test_fetches_that_don_t_add_up_are_told(n_started: int, text: str, recorded: Recorded) -> None:
    """More fetches than entries, and more entries than fetches, are both said."""
    records = [*good(), transfer(CASE, 0, 1, 100), wire(CASE, 100)]
    (warning,) = recorded([CASE], [*records, log_count(CASE, n_started=n_started)]).warnings
    assert warning.startswith(f"merge over tcp: {text}")


def test_transfers_without_duration_are_told(recorded: Recorded) -> None:
    """Clocks that went back are said, with how many transfers they cost."""
    records = [*good(), transfer(CASE, 1, 0), transfer(CASE, 0, 1), wire(CASE, 1)]
    (warning,) = recorded([CASE], [*records, log_count(CASE, n_started=2)]).warnings
    assert warning.startswith("merge over tcp: 1 of 2 transfers")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1.0, "1 of 25 samples ended before they began"), (0.0, "1 of 25 samples took no time")],
)
def test_a_clock_that_can_t_be_trusted_is_told(
    seconds: float, text: str, recorded: Recorded
) -> None:
    """Samples of negative and of no duration are counted, and said to be left out or too short."""
    records = [*good(), sample(CASE, seconds, iteration=7)]
    content = recorded([CASE], records)
    (warning,) = content.warnings
    assert warning.startswith(text)
    (row,) = content.costs.itertuples()
    assert (row.n_samples, row.min_s >= 0) == (18 + (seconds == 0), True)


def test_warnings_name_the_case_by_what_sets_it_apart(recorded: Recorded) -> None:
    """Of two merges over the same backend the warning tells which it is about."""
    cases = [builders.case(params={"rows": 1, "shuffle": name}) for name in ("tasks", "p2p")]
    records = [record for case in cases for record in good(case)] + [wire(cases[1], 100)]
    (warning,) = recorded(cases, records).warnings
    assert warning.startswith("merge (shuffle=p2p) over tcp: the transfer logs saw 0.0%")


# --- tables ----------------------------------------------------------------------------------


def test_two_cases_of_one_backend_keep_their_own_numbers(recorded: Recorded) -> None:
    """Tasks and p2p of one workload, with equal payloads, have tables and ratios of their own."""
    cases = [
        builders.case(name, params={"shuffle": shuffle})
        for shuffle in ("tasks", "p2p")
        for name in ("tcp", "ucx")
    ]
    records = [
        record
        for case, seconds in zip(cases, (1.0, 2.0, 10.0, 50.0), strict=True)
        for record in launches(case, [seconds] * 6)
    ]
    found = [table for table in parts.tables(recorded(cases, records)) if "time per" in table.title]
    assert ["shuffle=tasks" in table.title for table in found] == [True, False]
    assert [[row[0] for row in table.rows] for table in found] == [["tcp", "ucx"]] * 2
    assert [[row[1] for row in table.rows] for table in found] == [
        ["1.00 s", "2.00 s"], ["10.0 s", "50.0 s"],
    ]  # fmt: skip
    assert [[row[3] for row in table.rows] for table in found] == [
        ["1", "2.00× slower"], ["1", "5.00× slower"],
    ]  # fmt: skip


def test_ping_pongs_on_two_devices_keep_their_own_numbers(recorded: Recorded) -> None:
    """Host memory and GPU memory of one backend don't end up in one table."""
    from commbench.model import ClusterSpec

    cases = [
        builders.case("ucx", "pingpong", cluster=ClusterSpec(device=device))
        for device in ("cpu", "gpu")
    ]
    records = [message(case, 1.0 + place, 1) for place, case in enumerate(cases)]
    found = [table for table in parts.tables(recorded(cases, records)) if "latency" in table.title]
    assert [(table.title, table.rows) for table in found] == [
        ("pingpong (device=cpu), comm layer: latency", (("1 B", "1.00 s"),)),
        ("pingpong (device=gpu), comm layer: latency", (("1 B", "2.00 s"),)),
    ]


def test_a_size_that_a_backend_lacks_is_a_dash(recorded: Recorded) -> None:
    """Backends with different sizes share a table, with dashes where nothing was measured."""
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx")]
    records = [message(cases[0], 1e-6, 1), message(cases[0], 1e-6, 2), message(cases[1], 1e-6, 2)]
    table = next(parts.tables(recorded(cases, records)))
    assert table.rows == (("1 B", "1.00 µs", "—"), ("2 B", "1.00 µs", "1.00 µs"))


def test_every_pair_of_backends_has_its_difference(recorded: Recorded) -> None:
    """Ratio, interval, p, delta and verdict of each pair, and below it what they mean."""
    cases = [builders.case(name) for name in ("tcp", "ucx", "mpi")]
    records = [
        record
        for case, factor in zip(cases, (1.0, 2.0, 2.0), strict=True)
        for record in launches(case, [factor * (1 + n / 1000) for n in range(6)])
    ]
    (table,) = (t for t in parts.tables(recorded(cases, records)) if "differences" in t.title)
    assert [row[:2] for row in table.rows] == [
        ("ucx vs tcp", "2.00×"), ("mpi vs tcp", "2.00×"), ("mpi vs ucx", "1.00×"),
    ]  # fmt: skip
    assert [row[-1] for row in table.rows] == ["slower", "slower", "same"]
    assert table.rows[0][4] == "+1.00"
    assert "Mann-Whitney test of the launches' medians, adjusted for 3 pairs" in table.note


def test_latencies_are_compared_with_the_first_backend_s_by_size(recorded: Recorded) -> None:
    """A row per size, a column per backend, and dashes for what was not measured in both."""
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx", "mpi")]
    records = [
        message(case, (1 + n / 1000) * (1 + place), size, launch=n)
        for place, case in enumerate(cases)
        for size in (1, 1024)
        for n in range(6)
        if (place, size) != (2, 1)
    ]
    found = parts.tables(recorded(cases, builders.ended(records)))
    (table,) = (table for table in found if "multiple" in table.title)
    assert table.columns == ("size", "ucx", "mpi")
    assert table.rows == (
        ("1 B", "2.00× slower", "—"), ("1 KiB", "2.00× slower", "3.00× slower"),
    )  # fmt: skip


@pytest.mark.parametrize(("n_workers", "n_rows"), [(5, 20), (6, 24)])
def test_many_pairs_are_cut_with_a_note(n_workers: int, n_rows: int, recorded: Recorded) -> None:
    """Beyond 24 pairs the slowest are shown, and the note says of how many."""
    case = builders.case(n_workers=n_workers)
    names = [str(number) for number in range(n_workers)]
    records = [
        transfer(case, 0, 1, (1 + int(src) + int(dst)) * 10**7, src=src, dst=dst)
        for src in names
        for dst in names
        if src != dst
    ]
    (table,) = (t for t in parts.tables(recorded([case], records)) if "per pair" in t.title)
    assert len(table.rows) == n_rows
    assert ("The 24 slowest of 30 pairs. The format json has all." in table.note) == (
        n_workers == 6
    )
    if n_workers == 6:
        assert {row[1] for row in table.rows}.isdisjoint({"4 → 5", "5 → 4", "3 → 5", "5 → 3"})
        medians = [float(row[5]) for row in table.rows]
        assert medians == sorted(medians)


def test_the_time_table_withholds_what_it_cannot_know(recorded: Recorded) -> None:
    """One launch: no interval, an uncertain ratio, unknown costs as dashes."""
    cases = [builders.case(name, launches=1) for name in ("tcp", "ucx")]
    records = [sample(case, 1.0 + place) for place, case in enumerate(cases)]
    table = next(parts.tables(recorded(cases, builders.ended(records))))
    assert [row[2] for row in table.rows] == ["none", "none"]
    assert [row[3] for row in table.rows] == ["1", "2.00× inconclusive"]
    assert {row[5:] for row in table.rows} == {("—", "—")}
    cut_short = next(parts.tables(recorded(cases, records)))
    assert [row[3] for row in cut_short.rows] == ["1", "—"]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1.0, 1.5, "1.00…1.50 s"), (0.9, 1.5, "900 ms…1.50 s"), (0.0009, 0.02, "900 µs…20.0 ms")],
)
def test_an_interval_names_its_units(
    low: float, high: float, text: str, recorded: Recorded
) -> None:
    """A unit is left out only where both ends share it."""
    middle = (low + high) / 2
    table = next(parts.tables(recorded([CASE], launches(CASE, [low, *[middle] * 4, high]))))
    assert table.rows[0][2] == text


def test_every_failure_is_listed(recorded: Recorded) -> None:
    """Each failure has a row with its case, launch, stage and whole message."""
    records = [failure(CASE, f"reason {number}\nmore", launch=number) for number in range(9)]
    (table,) = (t for t in parts.tables(recorded([CASE], records)) if t.title == "Failures")
    assert [row[1] for row in table.rows] == [str(number) for number in range(9)]
    assert [row[3] for row in table.rows] == [f"reason {number}\nmore" for number in range(9)]


def test_every_transport_of_a_case_is_listed(recorded: Recorded) -> None:
    """Pairs over the same transport share a row; an unknown transport is called so."""
    records = [
        transport(CASE, "tcp/lo"), transport(CASE, "tcp/lo", src="1", dst="0"),
        transport(CASE, "", src="0", dst="2"),
    ]  # fmt: skip
    (table,) = (
        t for t in parts.tables(recorded([CASE], records)) if t.title.startswith("Transport")
    )
    assert [row[1:3] for row in table.rows] == [("tcp/lo", "0→1, 1→0"), ("unknown", "0→2")]


@pytest.mark.parametrize("records", [[], [failure(CASE)]])
def test_a_run_without_samples_still_makes_a_report(
    records: list[Record], recorded: Recorded
) -> None:
    """Nothing measured yet, or failures only: no table of numbers, and no error."""
    content = recorded([CASE, builders.case("ucx", "pingpong")], records)
    assert len(content.costs) == len(content.pairs) == len(content.comparisons) == 0
    titles = [table.title for table in parts.tables(content)]
    assert titles == ["Failures"] * len(records) + ["Provenance"]


# --- each once ---------------------------------------------------------------------------------

COMPUTED = (
    "case_labels", "comparisons", "costs", "coverage", "ended_by", "launch_medians",
    "link_bandwidths", "pair_bandwidths", "profile_shares", "slow_pairs", "summaries",
    "worker_profiles",
)  # fmt: skip


def test_everything_is_computed_once_for_all_formats_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where figures, tables and warnings want the same."""
    calls = Counter[str]()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in COMPUTED:
        computed = vars(Run)[name]
        function = counted(name, computed.func)
        if computed.func is getattr(stats, name, None):
            monkeypatch.setattr(stats, name, function)
        monkeypatch.setattr(computed, "func", function)
    monkeypatch.setattr(Run, "_frame", counted("frames", Run._frame))
    run = load(GENERATED["failures"](tmp_path))
    for form in ("terminal", "markdown", "html", "json", "csv"):
        registry.load("report", form)(run)
    assert calls == Counter(frames=len(TABLES), **dict.fromkeys(COMPUTED, 1))


def test_only_what_is_asked_for_is_read(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of transfers are not read for a median."""
    run = recorded([CASE], [*good(), transfer(CASE, 0, 1, 100)])
    monkeypatch.setattr(tables, "frame_from_parts", None)
    assert len(run.summaries) == 1
    assert run.ended_by == ""
