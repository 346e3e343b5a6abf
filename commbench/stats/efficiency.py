"""Strong and weak scaling: efficiency by number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from commbench.stats.comparison import MIN_EFFECT, Side, compare_pairs, sides

if TYPE_CHECKING:
    from commbench.analysis.run import Run

KNEE = 0.5
"""The least efficiency at which more workers are said to pay."""
_SAME_WORK = 0.01
"""Work that differs relatively by no more is equal: blocks at the edges can be smaller."""


def scaling(run: Run) -> pd.DataFrame:
    """Return the efficiency of each case whose number of workers is varied.

    The efficiency of n workers is the work per second and worker relative to that of the fewest, m:
    ``(W_n / (n T_n)) / (W_m / (m T_m))``, where T is the time of an iteration and W its operations
    if the workload counts them, else its payload. With equal work it is that of strong scaling, the
    speedup over n / m (G. M. Amdahl, AFIPS 1967); with work in proportion to the workers that of
    weak scaling, ``T_m / T_n`` (J. L. Gustafson, Commun. ACM 31 (1988)).

    Returns
    -------
    Columns case_id, series (the backend and the other settings), kind ("strong", "weak" or
    "mixed"), n_workers, median_s, efficiency, and its 95 % interval ci_low and ci_high, which are
    nan with fewer than six launches. Sorted by series and workers.
    """
    columns = ["case_id", "series", "kind", "n_workers", "median_s", "efficiency", "ci_low",
               "ci_high"]  # fmt: skip
    series: dict[tuple[str, str], list[Side]] = {}
    for side in sides(run):
        if side.layer == "workload" and "workers" in side.case.varied:
            others = tuple(name for name in side.case.varied if name != "workers")
            name = replace(side.case, varied=others).variant or side.case.backend
            key = run.case_labels[side.case.id], name
            series.setdefault(key, []).append(side)
    rows: list[tuple[str | int | float, ...]] = []
    for (_, name), every in series.items():
        first, *more = sorted(every, key=lambda side: side.case.cluster.n_workers)
        works = [_work(run, side) for side in (first, *more)]
        workers = [side.case.cluster.n_workers for side in (first, *more)]
        kind = _kind(works, workers)
        rows.append((first.case.id, name, kind, workers[0], first.median_s, 1.0, 1.0, 1.0))
        pairs = [(first, side) for side in more]
        compared = compare_pairs(pairs, MIN_EFFECT, paired=True)
        for side, n, work, c in zip(more, workers[1:], works[1:], compared, strict=True):
            speed = work / works[0] * workers[0] / n
            shares = [speed / ratio for ratio in (c.ratio, c.ci_high, c.ci_low)]
            rows.append((side.case.id, name, kind, n, side.median_s, *shares))
    return pd.DataFrame(rows, columns=columns)


def _work(run: Run, side: Side) -> int:
    counted = run.samples["n_operations"][run.samples["case_id"] == side.case.id]
    return int(counted.max()) or side.payload_bytes or 1


def _kind(works: Sequence[float], workers: Sequence[int]) -> str:
    for kind, amounts in (
        ("strong", works),
        ("weak", [work / n for work, n in zip(works, workers, strict=True)]),
    ):
        if max(amounts) <= min(amounts) * (1 + _SAME_WORK):
            return kind
    return "mixed"
