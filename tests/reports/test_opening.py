"""The opening says which backend to use, why, and what to do next, in few lines."""

import copy
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import builders
import pandas as pd
import processes
import pytest
from builders import launches, sample

from commbench import stats
from commbench.analysis import warnings
from commbench.analysis.run import load
from commbench.model import USER_CODE, ClusterSpec, Effect, Stopping
from commbench.reports import opening, sentences, terminal
from commbench.reports.sections import Section, Table, differences, iteration_tables, provenance

pytestmark = pytest.mark.usefixtures("no_rules")

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/reference/20261125-make-run"
SAME = [1.0, 1.01, 1.02, 0.99, 1.0, 1.01, 0.98, 1.0]
TWO_SIDED = [0.4, 0.5, 0.6, 1.1, 1.15, 1.2, 1.2, 1.1]
"""Most are above 1, and the average of pairs is below."""
NOISY = [1.003, 2.0, 0.5, 1.5, 0.7, 1.2, 1.8, 0.9]


def run_of(recorded, medians, **given):
    """Return a run with these medians of launches, a number being one of tight launches."""
    times = {
        backend: some if isinstance(some, list) else [some * seconds for seconds in SAME]
        for backend, some in medians.items()
    }
    return recorded(*builders.rivals(times), **given)


@pytest.mark.parametrize(
    ("medians", "verdict"),
    [
        ({"tcp": 1.0}, "merge: tcp takes 1.00 s."),
        ({"tcp": 1.0, "mpi": 1.0}, "merge: tcp and mpi are the same."),
        ({"tcp": 2.0, "mpi": 1.0}, "merge: use mpi; tcp takes 2.00× as long as mpi."),
        ({"tcp": 2.0, "my ucx": 1.0}, "merge: use my ucx; tcp takes 2.00× as long as my ucx."),
        (
            {"tcp": 1.0, "mpi": 1.0, "ucx": 3.0},
            "merge: use tcp or mpi (the same); ucx takes 3.00× as long as tcp.",
        ),
        ({"tcp": 1.0, "mpi": NOISY}, "merge: no difference is shown between tcp and mpi."),
        ({"tcp": [1.0], "mpi": [9.0]}, "merge: 1 launch can't tell tcp and mpi apart."),
    ],
)
def test_the_verdict_names_the_fastest_and_those_that_are_slower(recorded, medians, verdict):
    assert [*opening.verdicts(run_of(recorded, medians))] == [verdict]


def test_the_same_have_the_interval_on_which_that_rests(recorded):
    # No ties, which old versions of SciPy can't rank exactly.
    mpi = [1.003, 1.018, 1.031, 0.982, 1.011, 1.004, 0.986, 0.993]
    run = run_of(recorded, {"tcp": 1.0, "mpi": mpi})
    (c,) = run.comparisons
    assert c.verdict == "same"
    assert c.ci_low <= c.same_low <= c.same_high <= c.ci_high
    (table,) = iteration_tables.time_opening(run)
    assert table.rows[1][-1] == f"{c.same_low:.2f}…{c.same_high:.2f} (90 %)"


def test_a_small_difference_is_not_rounded_to_none(recorded):
    run = run_of(recorded, {"tcp": 1.0, "mpi": 1.004})
    (c,) = run.comparisons
    vars(run)["comparisons"] = [
        replace(c, ratio=1.004, ci_low=1.0004, ci_high=1.12, verdict="slower")
    ]
    assert opening.verdicts(run) == ["merge: use tcp; mpi takes 1.004× as long as tcp."]
    (table,) = iteration_tables.time_opening(run)
    assert table.rows[1][-2:] == ("1.004×, slower", "1.0004…1.12")


def test_backends_that_moved_other_bytes_have_no_verdict(recorded):
    cases, records = builders.rivals({"tcp": SAME, "mpi": SAME})
    records += [
        builders.wire(case, nbytes, launch=launch)
        for case, nbytes in zip(cases, (100_000, 200_000), strict=True)
        for launch in range(len(SAME))
    ]
    (verdict,) = opening.verdicts(recorded(cases, records))
    assert verdict == "merge: not all did the same work."


VERDICTS = {
    "A beats all": ({"AB": 2.0, "AC": 3.0}, "use A; B takes 2.00×, C 3.00× as long as A"),
    "A and B beat C": (
        {"AC": 3.0, "BC": 2.5},
        "use B or A (no difference shown); C takes 3.00× as long as A",
    ),
    "only B beats C": ({"BC": 1.25}, "use B; C takes 1.25× as long as B; undecided: A"),
    "the slower median wins": (
        {"BA": 1.1},
        "use B; A takes 1.10× as long as B; undecided: C",
    ),
    "each beats another": (
        {"AB": 2.0, "BC": 2.0, "CA": 2.0},
        "B takes 2.00× as long as A; A takes",
    ),
    "nobody beats another": ({}, "no difference is shown between B, A and C"),
}


def comparisons(ratios, verdict=""):
    """Return comparisons of A, B and C, of which each key's first beats the second by a ratio."""
    return {
        (first, second): SimpleNamespace(
            baseline_id=first,
            candidate_id=second,
            verdict=said,
            ratio=ratio,
            ci_low=ratio / 1.1,
            ci_high=ratio * 1.1,
        )
        for first, second in itertools.combinations("ABC", 2)
        for said, ratio in [
            ("slower", ratios[first + second])
            if first + second in ratios
            else ("faster", 1 / ratios[second + first])
            if second + first in ratios
            else (verdict or "inconclusive", 1.0)
        ]
    }


@pytest.mark.parametrize(("ratios", "sentence"), VERDICTS.values(), ids=VERDICTS)
def test_no_sentence_contradicts_a_comparison(ratios, sentence):
    # The suite's order is another one than that of the medians.
    names = {name: name for name in "BAC"}
    assert opening._sentence(names, comparisons(ratios)).startswith(sentence)


def test_unequal_work_is_said_and_the_other_verdicts_remain():
    compared = comparisons({"BC": 2.0}, "unequal")
    assert opening._sentence({name: name for name in "ABC"}, compared) == (
        "not all did the same work; C takes 2.00× as long as B"
    )


def test_ratios_of_messages_have_their_interval():
    names = {name: name for name in "ABC"}
    compared = comparisons({"AB": 2.0, "AC": 3.0})
    assert opening._sentence(names, compared, advises=False, intervals=True) == (
        "fastest: A; B takes 2.00× (1.82 to 2.20), C 3.00× (2.73 to 3.30) as long as A"
    )


def test_a_backend_to_use_whose_bytes_went_another_way_is_marked():
    names = {name: name for name in "ABC"}
    sentence = opening._sentence(names, comparisons({"AB": 2.0, "AC": 3.0}), {"A"})
    assert sentence.startswith("use A ✗; B takes")


def differing(parts, verdict="slower"):
    """Return the title for backends A and B whose threads spend these seconds, by part."""
    medians = pd.DataFrame(
        {part: parts.get(part, (0.1, 0.1)) for part in iteration_tables.DOING}, index=["a", "b"]
    )
    comparison = SimpleNamespace(
        baseline_id="a", candidate_id="b", ratio=2.0, ci_low=1.9, ci_high=2.1, verdict=verdict
    )
    return iteration_tables._cause(medians, {"a": "A", "b": "B"}, [comparison])


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        ({"queue": (0.1, 0.5)}, "B takes 400 ms longer than A: 400 ms with no core"),
        (
            {"queue": (0.1, 0.5), "data": (0.1, 0.45), "idle": (0.1, 0.7)},
            "B takes 1.35 s longer than A: 400 ms with no core, 350 ms awaiting data, 600 ms idle",
        ),
        (
            {"queue": (0.1, 0.2), "idle": (0.1, 0.5)},
            "B takes 500 ms longer than A: 400 ms of it idle",
        ),
        ({"compute": (0.5, 0.1)}, ""),
        (
            {"queue": (0.1, 0.5), "compute": (0.4, 0.1)},
            "B takes 100 ms longer than A: 400 ms with no core",
        ),
    ],
)
def test_the_difference_names_what_threads_do_for_longer(parts, title):
    assert differing(parts) == title


def test_the_difference_is_that_to_the_backend_of_the_ratios():
    parts_s = pd.DataFrame({part: [0.1, 0.1, 0.3] for part in iteration_tables.DOING}, list("abc"))
    compared = [
        SimpleNamespace(
            baseline_id=fast,
            candidate_id="c",
            ratio=ratio,
            ci_low=1.9,
            ci_high=2.1,
            verdict="slower",
        )
        for fast, ratio in (("b", 3.0), ("a", 2.0))
    ]
    title = iteration_tables._cause(parts_s, {"a": "A", "b": "B", "c": "C"}, compared)
    assert title.startswith("C takes 1.00 s longer than A: ")


def test_an_open_comparison_has_no_why():
    assert differing({"queue": (0.1, 0.5)}, "inconclusive") == ""


@pytest.mark.parametrize(
    ("tuned", "unequal", "words"),
    [
        (0.5, "", "(in this run, it is the fastest)"),
        (0.5, "tcp", "(in this run, it is faster than ucx)"),
        (1.0, "", "(in this run, no difference to tcp is shown)"),
        (1.5, "", "(in this run, it takes 1.50× as long as tcp)"),
        (None, "", "use ucx:shm+thread-future"),
    ],
)
def test_a_backend_that_a_remedy_names_is_compared_with_the_recommended_one(
    recorded, tuned, unequal, words
):
    medians = {"tcp": 1.0, "ucx": 3.0} | ({"ucx:shm+thread-future": tuned} if tuned else {})
    run = run_of(recorded, medians)
    ucx = next(case for case in run.suite.cases if case.backend == "ucx")
    backend = "ucx:shm+thread-future"
    finding = builders.finding(ucx, remedy=f"use {backend}", trials=({"backend": backend},))
    vars(run)["findings"] = (finding,)
    vars(run)["comparisons"] = [
        replace(c, verdict="unequal") if unequal in (c.baseline, c.candidate) else c
        for c in run.comparisons
    ]
    (table,) = sentences.tables(run)
    (row,) = table.rows
    assert row[-1].endswith(words)


def test_of_cases_that_are_compared_the_largest_cause_is_shown(recorded):
    run = run_of(recorded, {"ucx": 3.0, "tcp": 1.0})
    ucx, tcp = run.suite.cases
    vars(run)["findings"] = tuple(
        builders.finding(case, rule=rule, effect=Effect(share=share))
        for rule, share, case in (
            ("b", 0.2, ucx), ("a", 0.3, ucx), ("a", 0.1, tcp), ("c", 0.05, tcp)
        )
    )  # fmt: skip
    shown = [[each.rule for each in group] for group in sentences.largest(run, 3)]
    assert shown == [["a", "a"], ["b"], ["c"]]
    shown = [[each.rule for each in group] for group in sentences.largest(run, 3, {ucx.id})]
    assert shown == [["a"]]
    shown = [[each.rule for each in group] for group in sentences.largest(run, 3, {ucx.id, tcp.id})]
    assert shown == [["a", "a"]]


def test_of_regions_the_one_that_can_save_the_most_time_comes_first():
    cluster = ClusterSpec(launcher="user")
    cases = [builders.case(workload=name, cluster=cluster) for name in ("short", "long")]
    records = [
        record for case, seconds in zip(cases, (1.0, 10.0), strict=True)
        for record in (sample(case, seconds), builders.region(case, seconds), builders.end(case))
    ]  # fmt: skip
    run = builders.in_memory(cases, records)
    vars(run)["findings"] = tuple(
        builders.finding(case, rule=case.workload, effect=Effect(share=share))
        for case, share in zip(cases, (0.6, 0.2), strict=True)
    )
    assert [each.rule for (each,) in sentences.largest(run, 3)] == ["long", "short"]
    # What raised has another problem.
    errors = run.regions["name"].map({"short": "", "long": "it broke"})
    vars(run)["regions"] = run.regions.assign(error=errors)
    assert [each.rule for (each,) in sentences.largest(run, 3)] == ["short"]


def test_what_is_outside_of_the_run_comes_last(recorded):
    run = run_of(recorded, {"tcp": 1.0})
    (case,) = run.suite.cases
    vars(run)["findings"] = tuple(
        builders.finding(case, rule=rule, effect=Effect(share=share), is_external=rule == "others")
        for rule, share in (("others", 0.6), ("mine", 0.2))
    )
    assert [each.rule for (each,) in sentences.largest(run, 3)] == ["mine", "others"]
    _, first, second, *_ = sentences.details(run)
    assert (first[:6], second[:8]) == ("[mine]", "[others]")


@pytest.mark.parametrize("has_finding", [True, False])
def test_a_cause_of_the_fastest_is_named_or_warned_of(recorded, has_finding):
    cases, records = builders.rivals({"tcp": [3 * s for s in SAME], "mpi": SAME})
    records += [builders.spill(case, n * 10**9) for n, case in enumerate(cases, start=1)]
    run = recorded(cases, records)
    vars(run)["findings"] = tuple(
        builders.finding(case, rule="spilling", statement=text, effect=Effect(share=share))
        for case, text, share in zip(cases, ("1 GB", "2 GB"), (0.4, 0.2), strict=True)
    )[: 1 + has_finding]
    text = "\n".join(map(str, opening.opening(run)))
    named = "40% (no interval, estimated) less time: 1 GB (for the same reason, mpi 20%)"
    assert (named in text) == has_finding
    assert ("! merge over mpi: workers wrote 2.00 GB to disk" in text) != has_finding
    assert "! merge over tcp" not in text


@pytest.mark.parametrize(
    ("cure", "other", "shown"),
    [("tcp", "tcp", ["a"]), ("tcp", "mpi", ["a", "b"]), ("", "", ["a", "b"])],
)
def test_an_unknown_effect_is_shown_unless_the_same_cures_it(recorded, cure, other, shown):
    run = run_of(recorded, {"ucx": 3.0, "tcp": 1.0})
    ucx, _ = run.suite.cases
    one, two = (({"backend": name},) if name else () for name in (cure, other))
    known = {"rule": "a", "effect": Effect(share=0.3), "trials": one}
    unknown = {"rule": "b", "trials": two}
    vars(run)["findings"] = tuple(builders.finding(ucx, **each) for each in (known, unknown))
    groups = sentences.largest(run, 3, {ucx.id})
    assert [each.rule for group in groups for each in group] == shown


def test_findings_of_unknown_effect_name_their_cases(recorded):
    run = run_of(recorded, {"ucx": 3.0, "tcp": 1.0})
    ucx, tcp = run.suite.cases
    vars(run)["findings"] = tuple(
        builders.finding(case, rule="slow-links", statement=statement)
        for case, statement in ((ucx, "2 to 0 is slow"), (tcp, "1 to 0 is slow"), (ucx, "all are"),
                                (tcp, "all are"))
    )  # fmt: skip
    shown = [sentences.sentence(run, group) for group in sentences.largest(run, 3)]
    assert shown == [
        "ucx: 2 to 0 is slow. Change it.", "tcp: 1 to 0 is slow. Change it.",
        "ucx, tcp: all are. Change it.",
    ]  # fmt: skip


@pytest.mark.parametrize(("tuned", "words"), [(1.5, "R."), (4.0, "R (in this run, it takes")])
def test_a_remedy_that_was_no_faster_is_said_to_be_so(recorded, tuned, words):
    run = run_of(recorded, {"tcp": 1.0, "ucx": 3.0, "ucx:shm": tuned})
    ucx = run.suite.cases[1]
    finding = builders.finding(ucx, remedy="r ucx:shm", trials=({"backend": "ucx:shm"},))
    assert words.replace("R", "R ucx:shm") in sentences.sentence(run, [finding])


@pytest.mark.parametrize(("mpi", "has_note"), [(0.7, False), (TWO_SIDED, True)])
def test_medians_that_disagree_with_a_ratio_have_a_note(recorded, mpi, has_note):
    run = run_of(recorded, {"tcp": 1.0, "mpi": mpi})
    (table,) = iteration_tables.time_opening(run)
    assert ("not of the medians" in table.note) == has_note


@pytest.mark.parametrize(
    ("nbytes", "note"),
    [
        ((), ""), ((100_000, 100_000), "An iteration moves 100 kB between workers."),
        ((104_000, 100_000), "An iteration moves 100 kB to 104 kB between workers."),
    ],
)  # fmt: skip
def test_the_bytes_of_an_iteration_are_below_its_times(recorded, nbytes, note):
    cases, records = builders.rivals({"tcp": [1.0] * 6, "mpi": [2.0] * 6})
    for case, each in zip(cases, nbytes, strict=bool(nbytes)):
        at = [{"launch": launch, "iteration": i} for launch in range(6) for i in range(3)]
        records += [builders.wire(case, each, **where) for where in at]
    (table,) = iteration_tables.time_opening(recorded(cases, records))
    assert table.note == note


def test_a_case_of_two_modes_has_no_parts_and_is_no_reason(recorded):
    medians = {"tcp": [1.0 + n / 100 for n in range(6)], "ucx": [2.0, 7.0, 2.1, 7.1, 2.2, 7.2]}
    cases, records = builders.rivals(medians)
    records += [
        builders.thread_time(case, worker, launch=launch, iteration=i, cpu_seconds=0.5)
        for case in cases for worker in "01" for launch in range(6) for i in range(3)
    ]  # fmt: skip
    run = recorded(cases, records)
    assert [c.verdict for c in run.comparisons] == ["slower"]
    (table,) = iteration_tables.profile_opening(run)
    assert table.title == "Where the time of a task thread goes"
    assert ["—" in row[1:-1] for row in table.rows] == [False, True]


@pytest.mark.parametrize("zero", ["tcp", "mpi"])
def test_a_median_of_0_costs_no_table(recorded, zero):
    medians = {"tcp": 1.0, "mpi": 1.0} | {zero: [0.0] * 8}
    (table,) = iteration_tables.time_opening(run_of(recorded, medians))
    assert [row[0] for row in table.rows] == ["tcp", "mpi"]


def test_twins_are_a_control_and_no_choice(recorded):
    cases = [builders.case(backend) for backend in ("tcp", "tcp@2", "mpi")]
    records = [
        sample(case, seconds, launch=launch)
        for case in cases
        for launch, seconds in enumerate(SAME)
    ]
    verdict, *rest = opening.opening(recorded(cases, builders.ended(records)))
    assert verdict.startswith("merge: tcp and mpi are the same.")
    assert "Control: tcp and tcp@2 are the same backend, and no difference is found" in rest[-1]
    run = recorded(cases, builders.ended(records))
    vars(run)["comparisons"] = [replace(c, verdict="unequal") for c in run.comparisons]
    *_, trust = opening.opening(run)
    assert "the same backend, and they did unequal work, so that their times can't" in trust
    *_, trust = opening.opening(recorded(cases, builders.ended(records[::6])))
    assert "are the same backend, and it takes 6 launches to compare them" in trust


def test_two_twins_are_named_once(recorded):
    cases = [
        builders.case(backend, workload)
        for workload in ("merge", "svd")
        for backend in ("tcp", "tcp@2")
    ]
    records = launches(cases, SAME)
    (control,) = (
        text for text in map(str, opening.opening(recorded(cases, records))) if "Control" in text
    )
    assert control.count("tcp and tcp@2") == 1


def test_cases_of_two_schedulers_are_compared(recorded):
    cases = [
        builders.case(name, cluster=ClusterSpec(launcher="external", scheduler=f"{name}://a:{n}"))
        for n, name in enumerate(("tcp", "ucx"), 8786)
    ]
    records = builders.launches_by_case(cases, (SAME, [2 * each for each in SAME]))
    (verdict,) = opening.verdicts(recorded(cases, records))
    assert verdict == "merge: use tcp; ucx takes 2.00× as long as tcp."


@pytest.mark.parametrize("twin", [0.7, 1.4])
def test_twins_that_differ_take_no_part_in_the_verdict(recorded, twin):
    run = run_of(recorded, {"tcp": 1.0, "mpi": NOISY, "tcp@2": twin})
    (verdict,) = opening.verdicts(run)
    assert verdict == "merge: no difference is shown between tcp and mpi."


def test_copies_of_memory_are_a_control(recorded):
    cases = [builders.case(backend, workload="pingpong") for backend in ("tcp", "mpi")]

    def control(factor):
        records = [
            sample(case, each * seconds, launch=launch, layer=layer, payload_bytes=1)
            for case, each in zip(cases, (1.0, factor), strict=True)
            for launch, seconds in enumerate(SAME)
            for layer in ("memcpy", "comm")
        ]
        parts = opening.opening(recorded(cases, builders.ended(records)))
        return next(
            line
            for part in parts
            if isinstance(part, str)
            for line in part.split("\n")
            if line.startswith("Control")
        )

    assert control(1.0).endswith("should take the same time, and no difference is found")
    assert control(1.5).endswith("1 of 1 comparisons find a difference, up to 1.50×")


def test_slow_pairs_leave_room_for_the_verdicts(recorded, monkeypatch):
    processes.only(monkeypatch, "rule", "slow-links")
    times = {"tcp": SAME, "mpi": [2 * seconds for seconds in SAME]}
    cases, records = builders.rivals(times, n_workers=5)

    def seconds(*ends):
        return 0.9 if {*ends} in ({"0", "1"}, {"2", "3"}) else 0.1

    for case, launch, iteration in itertools.product(cases, range(len(SAME)), range(3)):
        records += builders.exchanges(case, seconds, launch=launch, iteration=iteration)
    run = recorded(cases, records)
    first, *_ = opening.opening(run)
    verdict, *slow = first.split("\n")
    assert verdict == "merge: use tcp; mpi takes 2.00× as long as tcp."
    # Those of the slower backend.
    assert len(slow) == 2
    assert all("times as long as" in line for line in slow)
    slow_links = [finding for finding in run.findings if finding.rule == "slow-links"]
    assert len(slow_links) == 4
    text = " ".join(terminal.render(run).split())
    assert "all 4 findings: commbench diagnose" in text


def test_sizes_of_messages_have_a_verdict_for_the_smallest_and_the_largest(recorded):
    cases = [builders.case(backend, workload="pingpong") for backend in ("tcp", "mpi")]
    records = [
        sample(case, factor * seconds, launch=launch, layer="comm", payload_bytes=size)
        for case, factor in zip(cases, (1.0, 2.0), strict=True)
        for launch, seconds in enumerate(SAME)
        for size in (1, 1024, 1 << 20)
    ]
    found = [*opening.verdicts(recorded(cases, builders.ended(records)))]
    assert [verdict.partition(": ")[0] for verdict in found] == [
        "pingpong, comm layer, 1 B", "pingpong, comm layer, 1 MiB",
    ]  # fmt: skip
    assert all("use tcp; mpi takes 2.00× (2.00 to 2.00) as long" in verdict for verdict in found)


def test_a_run_without_samples_has_no_opening_but_all_tables(recorded):
    run = recorded([builders.case()])
    assert [*opening.opening(run)] == []
    shown = terminal.render(run)
    assert shown.startswith(terminal.render_all(run))
    assert f"  measure the rest: commbench run --resume {run.path}\n" in shown


def test_the_opening_of_four_backends_has_at_most_35_rows_of_80_columns(monkeypatch):
    # As `make run` prints it, with a path that is relative to the clone.
    monkeypatch.chdir(ROOT)
    text = terminal.render(load(REFERENCE.relative_to(ROOT)))
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines if ": commbench " not in line)
    # A terminal folds the commands.
    assert sum(max(1, math.ceil(len(line) / 80)) for line in lines) <= 35
    assert lines[2].startswith("merge: use tcp or mpi")


def test_the_parts_of_a_time_add_up_to_the_median_beside_them():
    run = load(REFERENCE)
    (table,) = iteration_tables.profile_opening(run)
    medians_s = run.costs.set_index("backend")["median_s"]
    for backend, *parts, _ in table.rows:
        assert sum(part.value for part in parts) == pytest.approx(1000 * medians_s[backend])


def test_a_section_adds_lines_and_tables(recorded, installed):
    table = Table("Mine", ("one",), (("two",),))
    section = Section(
        title="Mine", position=5, tables=lambda _: (), opening=lambda _: ["a\nb", "c", table]
    )
    installed("section", {"mine": section})
    parts = [*opening.opening(run_of(recorded, {"tcp": 1.0}))]
    assert parts[1:3] == ["a b\nc", table]


def test_a_section_that_fails_is_named_and_the_rest_is_shown(recorded, installed):
    def fail(_):
        raise ZeroDivisionError("no lines")

    installed("section", {"mine": Section(title="Mine", position=5, tables=fail, opening=fail)})
    text = terminal.render(run_of(recorded, {"tcp": 1.0}))
    assert "this section could not be made: ZeroDivisionError" in " ".join(text.split())
    assert "What to do next" in text


def test_a_verdict_that_fails_costs_itself_alone(recorded, monkeypatch):
    monkeypatch.setattr(opening, "_sentence", lambda *_, **__: 1 / 0)
    text = terminal.render(run_of(recorded, {"tcp": 1.0, "mpi": 2.0}))
    assert "The verdict could not be made: ZeroDivisionError" in " ".join(text.split())
    assert "What to do next" in text


def test_a_backend_of_which_no_launch_ended_well_has_no_verdict(recorded):
    tcp, mpi = (builders.case(backend) for backend in ("tcp", "mpi"))
    records = [*launches(tcp, SAME), sample(mpi, 0.1), builders.end(mpi, ok=False)]
    assert [*opening.verdicts(recorded([tcp, mpi], records))] == ["merge: tcp takes 1.00 s."]


def test_failures_are_in_the_opening(recorded):
    case, other = (builders.case(backend) for backend in ("tcp", "mpi"))
    failures = [
        *(builders.failure(case, f"process {n} broke", launch=n % 4) for n in range(5)),
        builders.failure(other, "process 7 broke"),
        *(builders.failure(case, what, launch=5) for what in ("a", "b", "c")),
    ]
    text = terminal.render(recorded([case, other], [*launches(case, SAME), *failures]))
    assert "✗ merge over tcp, launch 0 and 3 more (launch): process 0 broke\n" in text
    assert "✗ merge over mpi, launch 0 (launch): process 7 broke\n" in text
    assert text.count("✗ merge over") == 3
    assert "✗ 2 more failures\n" in text


def test_a_run_of_failures_begins_with_them():
    case = builders.case(launches=1)
    command = "commbench run merge --launches 1"
    run = builders.in_memory([case], [builders.failure(case), builders.end(case, ok=False)])
    run = run.replace(replace(run.manifest, command=command))
    lines = terminal.render(run).splitlines()
    assert lines[2:4] == [
        "No launch ended well: there is nothing to report.",
        "✗ merge over tcp, launch 0 (launch): it broke",
    ]
    logs = run.path / "logs"
    assert lines[5:] == [
        opening.NEXT, f"  read why: {logs}", f"  measure again, when it is mended: {command}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("medians", "command"),
    [
        ({"tcp": 1.0, "mpi": NOISY}, "commbench run merge --backends tcp,mpi --rigorous"),
        ({"tcp": 1.0, "mpi": 2.0}, None),
    ],
)
def test_what_is_open_has_a_command(recorded, medians, command):
    run = run_of(recorded, medians, command="commbench run merge --launches 8 --backends tcp,mpi")
    text = opening.next_steps(run)
    assert (f"settle what is open (up to 1 h): {command}" in text) == (command is not None)
    assert f"commbench report -v {run.path}" in text


def test_a_change_of_a_script_is_compared_with_the_run(recorded):
    run = run_of(recorded, {"tcp": 1.0}, command="etl.py", script_s=2.0)
    step = f"after a change: commbench profile etl.py; commbench compare {run.path} latest"
    assert step not in opening.next_steps(run)
    (case,) = run.suite.cases
    vars(run)["findings"] = (builders.finding(case, rule="gil", effect=Effect(share=0.2)),)
    assert step in opening.next_steps(run)


@pytest.mark.parametrize(
    ("detect", "more"), [(0.05, ""), (0.02, " --detect 2%"), (0.0004, " --detect 0.04%")]
)
def test_what_a_budget_left_open_has_a_longer_one_and_no_warning(recorded, detect, more):
    # 16 launches of 9 s.
    run = run_of(
        recorded, {"tcp": 1.0, "mpi": NOISY}, command="commbench run merge --budget 150s",
        stopping=Stopping(budget_s=150.0, detect=detect),
    )  # fmt: skip
    step = f"go on (may not settle all): commbench run merge --budget 60m{more}\n"
    assert step in opening.next_steps(run)
    undecided = f"undecided for differences of {100 * detect:g}% after launches of 144 s"
    assert any(undecided in text for text in run.warnings)
    assert "undecided" not in terminal.render(run)
    vars(run)["ended_by"] = "decided"
    table, *_ = provenance.tables(run)
    decided = f"blocks of launches until every comparison was decided (--detect {100 * detect:g}%)"
    assert dict(table.rows)["launches"] == decided
    # A run of commbench prove has no such step.
    run = run_of(recorded, {"tcp": 1.0, "mpi": NOISY}, stopping=run.manifest.stopping)
    assert "undecided" in terminal.render(run)


def test_a_budget_without_a_verdict_has_a_longer_one_for_the_same_difference(recorded):
    run = run_of(
        recorded, {"tcp": [1.0, 1.1], "mpi": [1.0, 1.2]}, command="commbench run merge --budget 9s",
        stopping=Stopping(budget_s=9.0, detect=0.02),
    )  # fmt: skip
    assert re.search(r"have a verdict: commbench run merge --budget \d+m --detect 2%\n",
                     opening.next_steps(run))  # fmt: skip


def test_spreads_between_and_within_launches_are_one_line(recorded):
    noisy = [*NOISY, *NOISY]
    case = builders.case()
    records = [
        record
        for launch, median in enumerate(noisy)
        for record in (
            *(sample(case, median * factor, launch=launch, iteration=number)
              for number, factor in enumerate((1.0, 2.0, 0.5, 1.5))),
            builders.end(case, launch=launch),
        )
    ]  # fmt: skip
    run = recorded([case], records)
    assert sum(" spread by " in text for text in run.warnings) == 2
    lines = [line for line in terminal.render(run).splitlines() if line.startswith("! ")]
    assert len(lines) == 1
    assert re.fullmatch(
        r"! times spread by up to \d+% between launches, \d+% within a launch", lines[0]
    )


@pytest.mark.parametrize(("name", "longest"), [("tcp", 16), ("ucx:shm+thread-future", 15)])
def test_bars_take_the_room_that_is_left_in_80_columns(recorded, name, longest):
    run = run_of(recorded, {"ucx": 1.0, name: 4.0})
    (table,) = iteration_tables.time_opening(run)
    bars = [row[2] for row in table.rows]
    assert len(bars[1]) == longest
    lines = terminal.render(run).partition(opening.NEXT)[0].splitlines()
    assert max(map(len, lines)) <= 80


def test_a_quick_run_is_followed_by_one_of_the_full_size(recorded):
    command = "commbench run merge --quick --backends tcp,mpi"
    run = run_of(recorded, {"tcp": 1.0}, command=command, stopping=Stopping(quick=True))
    assert "measure the full size: commbench run merge --backends tcp,mpi\n" in (
        opening.next_steps(run)
    )
    assert "Its problem is small (--quick)" not in "\n".join(map(str, opening.opening(run)))
    run = run_of(recorded, {"tcp": 1.0, "mpi": 2.0}, command=command, stopping=Stopping(quick=True))
    assert "Its problem is small (--quick)" in "\n".join(map(str, opening.opening(run)))


@pytest.mark.parametrize("budget_s", [1e4, 9.0])
def test_a_run_that_was_interrupted_between_blocks_can_go_on(recorded, budget_s):
    run = run_of(recorded, {"tcp": 1.0, "mpi": 1.0}, stopping=Stopping(budget_s=budget_s))
    assert ("measure the rest: commbench run --resume" in opening.next_steps(run)) == (
        budget_s > 9.0
    )
    # Later looks have larger levels than the first one.
    assert differences.design_for_verdict(run)[0] == 6


@pytest.mark.parametrize(
    "command", ["", "commbench run 'merge", "rm -rf x", "commbench ab --base a --head b merge"]
)
def test_only_a_command_that_made_a_run_is_repeated(command):
    assert opening._without_design(command) == ""


def test_options_of_the_design_are_left_out_with_their_values():
    command = "commbench run x --launches=3 --iterations 4 --rigorous --quick --rows 5"
    assert opening._without_design(command) == "commbench run x --iterations 4 --rows 5"


def test_a_disturbance_can_be_copied():
    text = warnings.Disturbance("it was loud", ": be quiet", "loud")
    assert copy.deepcopy(text) == text == "it was loud: be quiet"
    assert copy.copy(text).statement == "loud"


def test_where_all_is_decided_nothing_can_be_missed(recorded):
    decided = run_of(recorded, {"tcp": 1.0, "mpi": 2.0})
    assert not any("can be missed" in str(part) for part in opening.opening(decided))
    open_ = run_of(recorded, {"tcp": 1.0, "mpi": NOISY})
    assert any(
        "Where no difference is shown, up to" in str(part) for part in opening.opening(open_)
    )


@pytest.mark.parametrize(
    ("detectable", "ratio", "step"),
    [
        (1.2, 1.19, "settle the rest: commbench run merge --budget 5m"),
        # (ln 1.5 / ln 1.1)² = 18 times as long.
        (1.5, 1.1, "settle the rest: commbench run merge --budget 46m"),
        (1.5, 1.01, "go on (may not settle all): commbench run merge --budget 60m"),
    ],
)
def test_the_next_budget_is_what_the_undecided_differences_take(recorded, detectable, ratio, step):
    run = run_of(
        recorded, {"tcp": 1.0, "mpi": NOISY}, command="commbench run merge --budget 150s",
        stopping=Stopping(budget_s=150.0),
    )  # fmt: skip
    (comparison,) = run.comparisons
    vars(run)["comparisons"] = [replace(comparison, detectable=detectable, ratio=ratio)]
    assert step in opening.next_steps(run)


@pytest.mark.parametrize(("budget_s", "minutes"), [(3600.0, 120), (7200.0, 240)])
def test_a_long_budget_that_was_too_short_is_followed_by_a_longer_one(recorded, budget_s, minutes):
    run = run_of(
        recorded, {"tcp": 1.0, "mpi": NOISY}, command="commbench run merge --rigorous",
        stopping=Stopping(budget_s=budget_s),
    )  # fmt: skip
    vars(run)["comparisons"] = [replace(run.comparisons[0], detectable=1.5, ratio=1.01)]
    vars(run)["ended_by"] = "time"
    assert f"commbench run merge --budget {minutes}m" in opening.next_steps(run)


def test_a_control_that_few_launches_can_not_show_says_so():
    def said(*detectable):
        return opening._differences([
            SimpleNamespace(n_launches=6, verdict="inconclusive", detectable=each)
            for each in detectable
        ])  # fmt: skip

    assert said(1.2, math.inf) == "2 comparisons find no difference (any can be missed)"
    assert said(1180.0) == "no difference is found (any can be missed)"
    assert said(1.2) == "no difference is found (one below 1.2× can be missed)"


def test_a_region_with_others_in_it_says_which(recorded):
    outer, inner = (
        builders.case(workload=name, cluster=ClusterSpec(launcher=USER_CODE))
        for name in ("sum", "transpose")
    )
    records = [
        builders.region(case, seconds, iteration=n, parent=n - 1)
        for n, (case, seconds) in enumerate(((outer, 0.26), (inner, 0.256)))
    ]
    records += [sample(outer, 0.26, tool="your code"),
                sample(inner, 0.256, iteration=1, tool="your code")]  # fmt: skip
    records += [
        record
        for n, case in enumerate((outer, inner)) for worker in ("0", "1")
        for record in (
            builders.thread_time(case, worker, iteration=n, cpu_seconds=1.0),
            *[builders.log_count(case, worker, iteration=n)] * 2,
        )
    ]  # fmt: skip
    records += [builders.wire(outer, 0), builders.wire(inner, 5_000_000_000, iteration=1)]
    run = recorded([outer, inner], builders.ended(records))
    first, _ = opening.verdicts(run)
    assert first == "sum took 260 ms, 256 ms of it in transpose."
    for table in (run.worker_profiles, stats.worker_times(run)):
        assert table[["workload", "worker"]].to_numpy().tolist() == [
            ["transpose", "0"], ["transpose", "1"],
        ]  # fmt: skip
    (table,) = iteration_tables.time_opening(run)
    assert [row[table.columns.index("between\nworkers")] for row in table.rows] == [
        "0 B",
        "5.00 GB",
    ]
    assert table.note == "between workers: without the regions within a region; CPU s: with them."


def test_regions_of_a_program_that_was_killed_are_said(recorded):
    case = builders.case(workload="sum", cluster=ClusterSpec(launcher=USER_CODE))
    run = recorded([case], [sample(case, 0.26, tool="your code")])
    assert run.ends.empty
    assert opening.verdicts(run)[0].startswith("sum took 260 ms")


def test_a_program_that_raised_is_not_said_to_be_fast(recorded):
    case = builders.case(workload="job", cluster=ClusterSpec(launcher=USER_CODE))
    error = "ValueError: " + "no such column " * 30
    records = [
        builders.region(case, 0.03, error=error), sample(case, 0.03, tool="your code"),
    ]  # fmt: skip
    run = recorded([case], builders.ended(records))
    assert opening.verdicts(run)[0].startswith("job raised an exception after 30.0 ms")
    (text,) = warnings.raised(run)
    assert text.startswith("job over tcp raised ValueError: no such column no such ")
    assert text.endswith(" …: its time is until then")
    # Regions around it pass it on.
    whole = builders.case(workload="whole", cluster=ClusterSpec(launcher=USER_CODE))
    around = [
        builders.region(whole, 0.04, iteration=9, error=error), sample(whole, 0.04, iteration=9),
        builders.region(case, 0.03, error=error, parent=9),
    ]  # fmt: skip
    run = recorded([case, whole], builders.ended([*around, records[1]]))
    assert [text.partition(" over ")[0] for text in warnings.raised(run)] == ["job"]
    again = [builders.region(case, 0.5, iteration=1), sample(case, 0.5, iteration=1, tool="x")]
    run = recorded([case], builders.ended([*records, *again]))
    assert opening.verdicts(run)[0].startswith("job took 500 ms")
    (text,) = warnings.raised(run)
    assert text.endswith(" … 1 of 2 times: these are left out of its times")


def test_a_core_is_one_also_outside_of_tasks(recorded):
    case = builders.case(cluster=ClusterSpec(launcher=USER_CODE))
    records = builders.ended([sample(case, 1.0, tool="your code")])
    run = recorded([case], records)
    parts = dict.fromkeys(iteration_tables.TASKS, 0.1) | {"compute": 0.2, "other_cpu": 0.4}
    vars(run)["profile_shares"] = pd.DataFrame([{"case_id": case.id, "process": "workers"} | parts])
    assert "task threads were on a core for 60% of it, " in opening.verdicts(run)[0]


@pytest.mark.parametrize(
    ("inner_s", "error", "first", "note"),
    [
        ((0.0, 0.5, 9.5), "", "step took 1.00 s (the median of 3), 500 ms of it in retry.", ""),
        ((0.0, 0.0, 9.5), "", "step took 1.00 s (the median of 3).", ""),
        ((9.0, 9.0, 9.5), "", "step took 1.00 s (the median of 3).", ""),
        ((0.5, 0.5, 9.5), "it broke", "step took 1.00 s (the median of 2), 500 ms of it in retry.",
         "1 of 6 entries raised, and don't count."),
    ],
)  # fmt: skip
def test_entries_of_a_region_are_its_median_and_those_that_raised_are_counted(
    inner_s, error, first, note, recorded
):
    step, retry = (
        builders.case(workload=name, cluster=ClusterSpec(launcher=USER_CODE))
        for name in ("step", "retry")
    )
    records = []
    for n, (seconds, within_s) in enumerate(zip((1.0, 1.0, 10.0), inner_s, strict=True)):
        records += [
            builders.region(step, seconds, iteration=2 * n, error=error * (n == 2), start=20 * n),
            builders.region(retry, within_s, iteration=2 * n + 1, parent=2 * n, start=20 * n),
            sample(step, seconds, iteration=2 * n, tool="your code"),
            sample(retry, within_s, iteration=2 * n + 1, tool="your code"),
        ]
    run = recorded([step, retry], builders.ended(records))
    assert opening.verdicts(run)[0] == first
    assert next(iteration_tables.time_tables(run)).note.partition("between")[0].strip() == note


@pytest.mark.parametrize(("seconds", "minutes"), [([], 5), ([20.0, 30.0, 40.0], 14)])
def test_the_time_of_a_proof_follows_from_that_of_launches(seconds, minutes):
    case = builders.case()
    ends = [builders.end(case, launch=n, seconds=s) for n, s in enumerate(seconds)]
    # Neither other cases nor launches that failed count.
    other = builders.case("mpi")
    ends += [builders.end(other, seconds=500.0)]
    ends += [builders.end(case, launch=9, seconds=900.0, ok=False)]
    run = builders.in_memory([case, other], [sample(case, 1.0), sample(other, 1.0), *ends])
    run.__dict__["findings"] = tuple(
        builders.finding(each, trials=({"backend": name},))
        for each, name in ((case, "mpi"), (other, "tcp"))
    )
    assert f"prove what helps ({minutes} min or longer): commbench prove" in opening.next_steps(run)
    pair = builders.case(workload="pingpong")
    run = builders.in_memory([pair], [sample(pair, 1.0, layer="comm"), *ends])
    run.__dict__["findings"] = (builders.finding(pair, trials=({"backend": "mpi"},)),)
    assert "prove what helps" not in opening.next_steps(run)
