"""How much two backends differ, how surely, and what that is called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from commbench.analysis.run import Run
from commbench.model import Comparison
from commbench.model.units import format_message_size
from commbench.reports.sections.cells import Quantity, Section, Table, number, quantity


def tables(run: Run) -> Iterator[Table]:
    """Yield per task the differences of all pairs of backends; of messages those to the first."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for found in run.comparisons:
        groups.setdefault((run.case_labels[found.baseline_id], found.layer), []).append(found)
    for (task, layer), group in groups.items():
        if layer == "workload":
            yield _by_pair(task, group)
        else:
            yield _by_size(f"{task}, {layer} layer", group)


def _by_pair(task: str, group: Sequence[Comparison]) -> Table:
    rows = (
        (f"{c.candidate} vs {c.baseline}", times(c), limits(c), probability(c), signed(c.delta),
         c.verdict)
        for c in group
    )  # fmt: skip
    return Table(
        f"{task}: differences between backends",
        ("backends", "time", "95%\ninterval", "p", "δ", "verdict"),
        tuple(rows),
        note(group, f"{len(group)} pairs" if len(group) > 1 else ""),
        text_columns=frozenset({"verdict"}),
    )


def _by_size(what: str, group: Sequence[Comparison]) -> Table:
    first = group[0].baseline_id
    of_first = [c for c in group if c.baseline_id == first]
    backends = list(dict.fromkeys(c.candidate for c in of_first))
    found = {(c.candidate, c.payload_bytes): ratio(c) for c in of_first}
    sizes = sorted({c.payload_bytes for c in of_first})
    return Table(
        f"{what}: time of a message as a multiple of {group[0].baseline}'s",
        ("size", *backends),
        tuple(
            (
                quantity(format_message_size, size),
                *(found.get((name, size), "—") for name in backends),
            )
            for size in sizes
        ),
        note(group, "the pairs of backends at a size"),
    )


def note(group: Sequence[Comparison], pairs: str) -> str:
    """Return what stands behind the verdicts of `group`, of which `pairs` were tested together."""
    adjusted = f", adjusted for {pairs} (Holm)" if pairs else ""
    limit, tests = 1 + group[0].min_effect, " or ".join(sorted({c.test for c in group}))
    return (
        "Ratio of the medians; its interval by resampling launches, then iterations; p: exact "
        f"{tests} test of the launches' medians{adjusted}; δ: Cliff's delta, from -1 (always "
        f"faster) to 1. faster, slower: beyond 1/{limit:.4g} or {limit:.4g}, the interval without "
        "1, p ≤ 0.05; same: the interval between those two; inconclusive: neither."
    )


def ratio(comparison: Comparison | None) -> str:
    """Return ``1.23× slower``; a dash where nothing was compared."""
    if comparison is None:
        return "—"
    return Quantity(f"{times(comparison)} {comparison.verdict}", comparison.ratio)


def times(comparison: Comparison) -> str:
    """Return the ratio."""
    known = not math.isnan(comparison.ratio)
    return Quantity(f"{comparison.ratio:.2f}×" if known else "—", comparison.ratio)


def limits(comparison: Comparison) -> str:
    """Return the interval of the ratio, which is sorted by its lower end."""
    known = not math.isnan(comparison.ci_low)
    text = f"{comparison.ci_low:.2f}…{comparison.ci_high:.2f}" if known else "none"
    return Quantity(text, comparison.ci_low)


def probability(comparison: Comparison) -> str:
    """Return the p-value."""
    tiny = comparison.p_value < 0.001
    return Quantity("<0.001", comparison.p_value) if tiny else number(comparison.p_value)


def signed(value: float) -> str:
    """Return a number with its sign.

    Examples
    --------
    >>> signed(-1.0), signed(0.5)
    ('-1.00', '+0.50')
    """
    return Quantity(f"{value:+.2f}", value)


SECTION = Section(title="Differences between backends", position=70, tables=tables)
