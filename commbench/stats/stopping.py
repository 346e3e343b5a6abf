"""When a run that adds launches has enough of them; a function of its records alone.

The run and its reports ask the same question of the same records, so a report can say why a run
ended, also of one that was resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.stats.comparison import CONFIDENCE

if TYPE_CHECKING:
    import pandas as pd

    from commbench.analysis.run import Run


def relative_half_widths(table: pd.DataFrame) -> pd.Series[float]:
    """Return of each of ``summaries`` the half of its interval over its median.

    Infinite where the interval doesn't reach 95 %, or the median is 0.
    """
    sure = (table["confidence"] >= CONFIDENCE) & (table["median_s"] > 0)
    half = (table["ci_high_s"] - table["ci_low_s"]) / 2 / table["median_s"]
    return half.where(sure, float("inf"))


def ended_by(run: Run) -> str:
    """Return which condition of ``run.manifest.stopping`` is met; an empty string where none is.

    Returns
    -------
    str
        ``"precision"``, ``"launches"`` or ``"time"``, the first of them that holds; a case
        without a good launch can't become precise and is not waited for.
    """
    rule = run.manifest.stopping
    if rule is None:
        return ""
    ends = run.ends.groupby("case_id").size()
    if any(ends.get(case.id, 0) < case.launches for case in run.suite.cases):
        return ""
    table = run.summaries
    table = table[table["n_launches"] > 0]
    if (relative_half_widths(table) <= rule.rel_ci).all():
        return "precision"
    if (ends >= rule.max_launches).any():
        return "launches"
    return "time" if run.ends["seconds"].sum() >= rule.time_budget_s else ""


def widest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the one of ``summaries`` with the widest interval, with its ``half_width``."""
    table = table[table["n_launches"] > 0]
    widths = relative_half_widths(table)
    return table.assign(half_width=widths).nlargest(1, "half_width")
