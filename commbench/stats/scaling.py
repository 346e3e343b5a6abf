"""Scaling: what more workers make of the time, for the same work (strong) or for more (weak)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commbench.stats.comparison import MIN_EFFECT, Side, compare_pairs, sides

if TYPE_CHECKING:
    import pandas as pd

    from commbench.analysis.run import Run

KNEE = 0.5
"""The least efficiency at which more workers are said to pay."""
_SAME_WORK = 0.01
"""Payloads that differ relatively by no more are equal: blocks at the edges can be smaller."""


def scaling(run: Run) -> pd.DataFrame:
    """Return the efficiency of each case whose number of workers is varied.

    The efficiency of n workers is the work per second and worker relative to that of the fewest, m:
    ``(W_n / (n T_n)) / (W_m / (m T_m))``, where T is the time of an iteration and W its payload, or
    1 for workloads without one. With equal payloads it is that of strong scaling, the speedup over
    n / m (G. M. Amdahl, AFIPS 1967); with payloads in proportion to the workers that of weak
    scaling, ``T_m / T_n`` (J. L. Gustafson, Commun. ACM 31 (1988)).

    Returns
    -------
    Columns case_id, series (the backend and the other settings), kind ("strong", "weak" or
    "mixed"), n_workers, median_s, efficiency, and its 95 % interval ci_low and ci_high, which are
    nan with fewer than six launches. Sorted by series and workers.
    """
    import pandas as pd

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
        first, *more = sorted(every, key=_n_workers)
        kind = _kind([first, *more])
        rows.append((first.case.id, name, kind, _n_workers(first), first.median_s, 1.0, 1.0, 1.0))
        paired = all(side.blocks == first.blocks for side in more)
        pairs = [(first, side) for side in more]
        for side, c in zip(more, compare_pairs(pairs, MIN_EFFECT, paired=paired), strict=True):
            work = _work(side) / _work(first) * _n_workers(first) / _n_workers(side)
            shares = [work / ratio for ratio in (c.ratio, c.ci_high, c.ci_low)]
            rows.append((side.case.id, name, kind, _n_workers(side), side.median_s, *shares))
    return pd.DataFrame(rows, columns=columns)


def _n_workers(side: Side) -> int:
    return side.case.cluster.n_workers


def _work(side: Side) -> int:
    return side.payload_bytes or 1


def _kind(every: list[Side]) -> str:
    for kind, amounts in (
        ("strong", [_work(side) for side in every]),
        ("weak", [_work(side) / _n_workers(side) for side in every]),
    ):
        if max(amounts) <= min(amounts) * (1 + _SAME_WORK):
            return kind
    return "mixed"
