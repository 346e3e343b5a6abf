"""The opening of a report: the verdict, why, how far to trust it, and what to do next.

Each section contributes its ``opening``. All tables follow on request.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby

from commbench.analysis import warnings
from commbench.analysis.run import Run
from commbench.model import LAYERS, Comparison
from commbench.model.units import format_message_size, format_seconds
from commbench.reports.sections import CHANNELS, Table, guarded, sections
from commbench.reports.sections.differences import resolution

_MAX_VERDICTS = 6
_MAX_DISTURBANCES = 4
_DESIGN = {"--launches": 1, "--iterations": 1, "--budget": 1, "--detect": 1, "--rigorous": 0}
"""The options that fix the design of a run, and the number of their values."""


def opening(run: Run) -> Iterator[str | Table]:
    """Yield the paragraphs and tables of the opening; without samples there are none.

    Each line of a paragraph is a statement.
    """
    found = [*warnings.slow_pairs(run), *verdicts(run)]
    if not found:
        return
    more = f"{len(found) - _MAX_VERDICTS} more verdicts are in the tables of differences."
    yield _paragraph([*found[:_MAX_VERDICTS], *[more] * (len(found) > _MAX_VERDICTS)])
    for section in sections():
        parts: list[str | Table] = []
        problems: list[Table] = []
        with guarded(section.title, problems):
            parts += section.opening(run)
        for is_table, group in groupby(parts, lambda part: isinstance(part, Table)):
            several = list(group)
            yield from several if is_table else [_paragraph(map(str, several))]
        yield from problems
    if text := _paragraph(_trust(run)):
        yield text


def _paragraph(lines: Iterable[str]) -> str:
    # Names and messages in the records may have several lines.
    return "\n".join(" ".join(line.split()) for line in lines)


def verdicts(run: Run) -> Iterator[str]:
    """Yield a sentence per task and layer: which backend is fastest, and by how much.

    Tasks with several sizes of messages have one for the smallest and one for the largest, those of
    the layer closest to Dask's users first.
    """
    table = run.summaries[(run.summaries["n_launches"] > 0) & (run.summaries["layer"] != "memcpy")]
    depth = {layer: -number for number, layer in enumerate(LAYERS)}
    table = table.sort_values("layer", key=lambda layer: layer.map(depth), kind="stable")
    compared = {
        (c.baseline_id, c.candidate_id, c.layer, c.payload_bytes): c for c in run.comparisons
    }
    tasks = table["case_id"].map(run.case_labels)
    for (task, layer), rows in table.groupby([tasks, "layer"], sort=False, observed=True):
        sizes = sorted({rows["payload_bytes"].min(), rows["payload_bytes"].max()})
        for size in sizes:
            group = rows[rows["payload_bytes"] == size].sort_values("median_s", kind="stable")
            what = str(task)
            if layer != "workload":
                words = "" if layer in CHANNELS else " layer"
                what += f", {layer}{words}, {format_message_size(int(size))}"
            first, *others = group.itertuples()
            if not others:
                yield f"{what}: {first.backend} takes {format_seconds(first.median_s)}."
                continue
            relations = []
            for other in others:
                key = first.case_id, other.case_id, layer, size
                backwards = other.case_id, first.case_id, layer, size
                relations.append(
                    (other.backend, *_relation(compared.get(key), compared.get(backwards)))
                )
            yield f"{what}: {_sentence(first.backend, relations)}."


def _relation(comparison: Comparison | None, backwards: Comparison | None) -> tuple[str, float]:
    """Return the verdict on a slower backend, and its time as a multiple of the faster one's."""
    if comparison is not None:
        return comparison.verdict, comparison.ratio
    if backwards is not None:
        verdict = {"faster": "slower", "slower": "faster"}.get(backwards.verdict, backwards.verdict)
        return verdict, 1 / backwards.ratio
    return "inconclusive", float("nan")


def _sentence(fastest: str, others: Iterable[tuple[str, str, float]]) -> str:
    by_verdict: dict[str, list[str]] = {}
    for backend, verdict, ratio in others:
        text = f"{backend} {ratio:.2f}×" if verdict == "slower" else backend
        by_verdict.setdefault(verdict if verdict != "faster" else "inconclusive", []).append(text)
    same, slower = by_verdict.get("same", []), by_verdict.get("slower", [])
    unclear, unequal = by_verdict.get("inconclusive", []), by_verdict.get("unequal", [])
    best = [fastest, *same]
    if not slower and not unclear and not unequal:
        return f"{_listed(best)} are the same"
    if not slower and not unequal:
        return f"no difference is shown between {_listed([*best, *unclear])}"
    parts = []
    if slower:
        kind = "not told apart" if unclear else "the same" if same else ""
        parts.append(f"use {_listed([*best, *unclear], 'or')}" + f" ({kind})" * bool(kind))
        first, *rest = slower
        parts.append(f"{', '.join([first.replace(' ', ' takes ', 1), *rest])} as long")
    elif unclear or same:
        parts.append(f"no difference is shown between {_listed([*best, *unclear])}")
    if unequal:
        parts.append(f"{_listed(unequal)} moved other bytes than {fastest} and can't be compared")
    return "; ".join(parts)


def _listed(names: list[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _trust(run: Run) -> Iterator[str]:
    yield from filter(None, [resolution(run)])
    copies = [c for c in run.comparisons if c.layer == "memcpy" and c.ratio > 0]
    if copies:
        worst = max(copies, key=lambda c: abs(math.log(c.ratio)))
        yield (
            "Control: memory copies, the same for all backends, differ by up to "
            f"{max(worst.ratio, 1 / worst.ratio):.2f}× "
            f"({format_message_size(worst.payload_bytes)}): so may other times"
        )
    disturbances = warnings.disturbances(run)
    known = {*disturbances, *warnings.slow_pairs(run), *run.pair_transports["contradiction"]}
    yield from (f"⚠ {text}" for text in run.warnings if text not in known)
    yield from (f"! {each.statement}" for each in disturbances[:_MAX_DISTURBANCES])
    if (n_more := len(disturbances) - _MAX_DISTURBANCES) > 0:
        yield f"! {n_more} more"


def next_steps(run: Run) -> str:
    """Return what to do next, a command per line."""
    return "\n".join(["What to do next", *(f"  {what}: {how}" for what, how in _steps(run))])


def _steps(run: Run) -> Iterator[tuple[str, str]]:
    if len(run.ends) < sum(case.launches for case in run.suite.cases):
        yield "measure the rest", f"commbench run --resume {run.path}"
    elif run.manifest.command and any(c.verdict == "inconclusive" for c in run.comparisons):
        yield "settle what is open", _with_budget(run.manifest.command)
    if (page := run.path / "report.html").exists():
        yield "figures", str(page)
    yield "all tables", f"commbench report -v {run.path}"


def _with_budget(command: str) -> str:
    """Return a command that repeats a run for as long as it takes.

    Examples
    --------
    >>> _with_budget("commbench run merge --launches 6 --backends tcp,mpi --budget=2m")
    'commbench run merge --backends tcp,mpi --rigorous'
    """
    words, kept = iter(shlex.split(command)), []
    for word in words:
        n_values = _DESIGN.get(word)
        if n_values is None and re.match("(--[a-z]+)=", word) and word.split("=")[0] in _DESIGN:
            continue
        if n_values is None:
            kept.append(word)
        for _ in range(n_values or 0):
            next(words, None)
    return shlex.join([*kept, "--rigorous"])
