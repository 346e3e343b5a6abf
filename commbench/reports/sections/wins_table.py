"""The table of a run with several tasks: which backend is the fastest, by how much, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from commbench.analysis.run import Run
from commbench.model import Case, Comparison
from commbench.reports.sections import Section, Table, plural
from commbench.reports.sections.differences import name, ranked, slowdowns, subject, task
from commbench.reports.sections.iteration_tables import causes
from commbench.stats.inference import MIN_LAUNCHES
from commbench.stats.selection import good_launches

_LEAST_TASKS = 3
_COLUMNS = ("task", "fastest", "the others take", "why")
_Row = tuple[str, str, str, str]


def tables(run: Run) -> Iterator[Table]:
    """Yield the table, if several backends did at least three different tasks."""
    rows, _ = _rows(run)
    if rows:
        yield Table(
            "Where each backend wins",
            _COLUMNS,
            tuple(rows),
            "Multiples of the time of the fastest, if the difference is significant.",
            text_columns=frozenset(_COLUMNS),
        )


def verdict(run: Run) -> str:
    """Return how many tasks each backend wins, or an empty string if there is no table."""
    rows, failed = _rows(run)
    wins = Counter(fastest for _, fastest, _, _ in rows)
    undecided = wins.pop("", 0)
    parts = [f"{name} won {n}" for name, n in wins.most_common()]
    parts += [f"{undecided} had no winner"] * bool(undecided)
    failures = "".join(f"; {name} failed in {n}" for name, n in failed.items())
    tasks = plural(wins.total() + undecided, "task")
    return f"Of {tasks}: {', '.join(parts)}{failures}." if parts else ""


def _rows(run: Run) -> tuple[list[_Row], Counter[str]]:
    """Return the rows, and in how many of them each backend failed."""
    tasks, missing = _tasks(run), _without_comparison(run)
    ids = [*(group[0].baseline_id for group in tasks.values()), *missing.values()]
    if not tasks or len({run.case_labels[case_id] for case_id in ids}) < _LEAST_TASKS:
        return [], Counter()
    why, good, failed = causes(run), good_launches(run), _failed(run)
    rows, n_failed = list[_Row](), Counter[str]()
    for what, group in tasks.items():
        label, fastest, others, reason = _row(what, group, why.get(what, ""))
        without = failed.get(task(run, group[0].baseline_id), [])
        n_failed.update(without)
        others = ", ".join([others, *(f"{each} failed" for each in without)])
        rows.append((label, fastest, others, reason))
    for what, case_id in missing.items():
        ended_well = f"only {name(run.cases[case_id])}" if case_id in good else "none"
        rows.append((what, "", f"{ended_well} ended well", ""))
        n_failed.update(failed.get(task(run, case_id), []))
    return rows, n_failed


def _failed(run: Run) -> dict[str, list[str]]:
    """Return the backends of each task of which every launch failed."""
    good, ended = good_launches(run), set(run.ends["case_id"])
    failed: dict[str, list[str]] = {}
    for case in run.suite.cases:
        if not case.original and case.id in ended and case.id not in good:
            failed.setdefault(task(run, case.id), []).append(name(case))
    return failed


def _without_comparison(run: Run) -> dict[str, str]:
    """Return the tasks of several backends of which fewer than two ended well, with a case of each.

    That is the one that ended well, if there is one.
    """
    good, cases = good_launches(run), dict[str, list[Case]]()
    for case in run.suite.cases:
        if not case.original and (run.ends["case_id"] == case.id).any():
            cases.setdefault(task(run, case.id), []).append(case)
    return {
        what: next((case.id for case in several if case.id in good), several[0].id)
        for what, several in cases.items()
        if len({name(case) for case in several}) > 1
        and len({name(case) for case in several if case.id in good}) < 2
    }


def _tasks(run: Run) -> dict[str, list[Comparison]]:
    """Return the comparisons by task; of messages those of the smallest and the largest size."""
    twins = {case.id for case in run.suite.cases if case.original}
    by_size: dict[tuple[str, str], dict[int, list[Comparison]]] = {}
    for c in run.comparisons:
        one, two = run.cases[c.baseline_id], run.cases[c.candidate_id]
        same_size = one.cluster.n_workers == two.cluster.n_workers
        if same_size and c.layer != "memcpy" and not {c.baseline_id, c.candidate_id} & twins:
            named = replace(c, baseline=name(one), candidate=name(two))
            sizes = by_size.setdefault((task(run, one.id), c.layer), {})
            sizes.setdefault(c.payload_bytes, []).append(named)
    tasks = {}
    for (label, layer), sizes in by_size.items():
        for size in sorted({min(sizes), max(sizes)}):
            tasks[subject(run, label, sizes[size][0].baseline_id, layer, size)] = sizes[size]
    return tasks


def _row(what: str, group: list[Comparison], why: str) -> _Row:
    names = {c.baseline_id: c.baseline for c in group}
    names |= {c.candidate_id: c.candidate for c in group}
    ratios = slowdowns(group)
    best, beaten, left = ranked(names, ratios)
    if any(c.verdict == "unequal" for c in group):
        return (what, "", "did other work", "")
    if not beaten:
        if max(c.n_launches for c in group) < MIN_LAUNCHES:
            return (what, "", "too few launches", "")
        same = all(c.verdict == "same" for c in group)
        return (what, "", "all are the same" if same else "no difference shown", "")
    if not best:
        pairs = (f"{names[slow]} {ratio} {names[fast]}" for (fast, slow), ratio in ratios.items())
        return (what, "", ", ".join(pairs), why)
    others = [f"{names[slow]} {ratios[best[0], slow]}" for slow in beaten]
    others += [f"{names[case]} undecided" for case in left]
    # With others that may be as fast there is no winner.
    fastest = "" if left else " or ".join(names[case] for case in best)
    return (what, fastest, ", ".join(others), why)


SECTION = Section(
    title="Where each backend wins",
    position=15,
    tables=tables,
    opening=tables,
    to_read="The fastest backend is slower than no other, and all that are slower than any are "
    "slower than it; there may be several.",
    not_to_conclude="That the backend with the most wins is the best for you: look at the tasks "
    "that yours resemble. Where no difference is shown, there may be one that this run can't see.",
)
