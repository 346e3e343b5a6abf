"""Figure of the efficiency of more workers."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from commbench.analysis.run import Run
from commbench.reports.figures import style
from commbench.stats.efficiency import KNEE

_HEIGHT_IN = 3.0
_ASIDE = 1.03
"""How far intervals at the same number of workers are drawn apart."""


@style.styled
def plot(run: Run) -> Figure | None:
    """Return a figure of efficiency against workers; None if their number isn't varied."""
    table = run.scaling
    groups = [*table.groupby([table["case_id"].map(run.case_labels), "series"], sort=False)]
    if not any(len(rows) > 1 for _, rows in groups):
        return None
    figure, (part,) = style.new_figure(
        [_HEIGHT_IN],
        "Efficiency of more workers",
        "Work per second and worker, relative to the fewest workers. From ratios as in "
        "comparisons" + "; bar = 95 % confidence interval" * bool(table["ci_low"].lt(1).any())
        + f". Below the dashed line, {KNEE:.0%}, half of each worker is lost.",
    )  # fmt: skip
    tasks = {task for (task, _), _ in groups}
    names = [series if len(tasks) == 1 else f"{task} {series}" for (task, series), _ in groups]
    ax, looks = part.subplots(), style.styles(names)
    for index, (name, (_, rows)) in enumerate(zip(names, groups, strict=True)):
        aside = _ASIDE ** (index - (len(groups) - 1) / 2)
        ends = np.abs(rows[["ci_low", "ci_high"]].to_numpy().T - rows["efficiency"].to_numpy())
        look = looks[name]
        ax.errorbar(
            rows["n_workers"] * aside, rows["efficiency"], yerr=ends, color=look.colour,
            marker=look.marker, markersize=4.5, linewidth=1.4,
            label=name,
        )  # fmt: skip
    ax.axhline(KNEE, color="0.4", linestyle="--", linewidth=0.8)
    ax.set_xscale("log", base=2)
    style.fixed_ticks(ax, {n: str(n) for n in sorted({*table["n_workers"]})})
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set_ylim(0, max(1.1, 1.05 * style.largest(table["efficiency"], table["ci_high"])))
    ax.set_xlabel("workers (log scale)")
    ax.set_ylabel("efficiency")
    ax.grid(visible=True)
    ax.legend()
    return figure
