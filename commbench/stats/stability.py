"""The spread of samples within and between launches, and their drift.

Spread is measured by quartiles, which are robust against outliers, and given as the standard
deviation of a normal distribution with these quartiles, relative to the median.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commbench.stats import inference
from commbench.stats.selection import GROUP, in_suite_order

if TYPE_CHECKING:
    from commbench.analysis.run import Run

MIN_SAMPLES, MIN_LAUNCHES = 3, 4
"""The minimum samples of a launch, and launches of a case, for quartiles."""
MIN_DRIFT_LAUNCHES = 6
"""With fewer launches, even a monotonic rise has a p-value above 1 %."""
MIN_MODE_LAUNCHES = 6
_MODES_APART = 1.5
_SIGMA = 1.3489795
"""Standard deviations from the lower to the upper quartile of a normal distribution."""


def relative_spread(values: np.ndarray[Any, Any]) -> float:
    """Return (upper − lower quartile) / 1.349 / median.

    The quartiles are definition 8 of R. J. Hyndman and Y. Fan, Sample quantiles in statistical
    packages, The American Statistician 50 (1996) 361, which is not biased for few samples.

    Examples
    --------
    >>> round(relative_spread(np.random.default_rng(0).normal(10, 2, 100_000)), 2)
    0.2
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], method="median_unbiased")
    return float((high - low) / _SIGMA / middle) if middle > 0 else float("nan")


def spreads(run: Run) -> pd.DataFrame:
    """Return the relative spread of the samples of each case, layer and payload size.

    Returns
    -------
    DataFrame
        Columns case_id, layer, payload_bytes; ``within``, the median over launches of the relative
        spread of a launch's samples; ``between``, the relative spread of the launches' medians.
        Nan if there are too few samples or launches.
    """

    def spread(least: int) -> Any:
        return lambda values: relative_spread(values.to_numpy()) if len(values) >= least else np.nan

    by_launch = run.measured.groupby([*GROUP, "launch"])["seconds"].agg(spread(MIN_SAMPLES))
    within = by_launch.groupby(GROUP).median().rename("within")
    between = run.launch_medians.groupby(GROUP)["median_s"].agg(spread(MIN_LAUNCHES))
    return in_suite_order(within.to_frame().join(between.rename("between")).reset_index(), run)


def modes(medians: np.ndarray[Any, Any]) -> tuple[float, float, float] | None:
    """Return the modes of launches that split into two groups; None if they don't.

    Both groups have at least two launches. Between them is a gap of a factor of ``_MODES_APART`` or
    more, of which the wider group spans the square root at most, unless the gap is in the middle,
    where it would contain the median. Of six log-normal launches with a standard deviation of 20 %,
    one run in 250 splits so by chance.

    Returns
    -------
    (low_s, high_s, share)
        The median of the faster and of the slower group, and the share of the faster.

    Examples
    --------
    >>> modes(np.array([0.88, 7.84, 1.10, 7.90, 1.25, 7.91]))
    (1.1, 7.9, 0.5)
    >>> modes(np.array([0.9, 1.0, 1.1, 1.2, 1.3, 7.9]))
    """
    if len(medians) < MIN_MODE_LAUNCHES or not medians.min() > 0:
        return None
    values = np.sort(medians)
    logs = np.log(values)
    gaps, half = np.diff(logs), len(logs) // 2
    number = int(np.argmax(gaps[1:-1])) + 2
    widest = max(np.ptp(logs[:number]), np.ptp(logs[number:]))
    if gaps[number - 1] < 2 * widest and len(logs) % 2 == 0:
        number, widest = half, 0.0
    if gaps[number - 1] < max(np.log(_MODES_APART), 2 * widest):
        return None
    one, two = (float(np.median(group)) for group in (values[:number], values[number:]))
    return one, two, number / len(values)


def drifts(run: Run, least: float = 0.0) -> pd.DataFrame:
    """Return the drift of each case: the change of its launches in the course of the run.

    The value of a launch is the median over sizes of its median relative to that of all launches.

    Parameters
    ----------
    least
        The smallest relative change that has a row.

    Returns
    -------
    DataFrame
        Columns case_id, n_launches; ``change``, the relative change from the first to the last
        launch along the Theil–Sen line (the median slope of all pairs of launches); ``p_value`` of
        Kendall's τ against the order of launches. Cases with fewer than 6 launches have no row.
    """
    medians = run.launch_medians
    usual = medians.groupby(GROUP)["median_s"].transform("median")
    medians = medians.assign(relative=medians["median_s"] / usual.where(usual > 0))
    rows = []
    for case_id, ends in run.ends.groupby("case_id", sort=False):
        mine = medians[medians["case_id"] == case_id].dropna(subset="relative")
        blocks = ends.set_index("launch")["block"]
        course = mine.groupby("launch")["relative"].median()
        course.index = course.index.map(blocks[~blocks.index.duplicated(keep="last")])
        course = course[course.index.notna()].sort_index()
        if len(course) < MIN_DRIFT_LAUNCHES:
            continue
        values, (first, second) = course.to_numpy(), np.triu_indices(len(course), 1)
        slope = float(np.median((values[second] - values[first]) / (second - first)))
        change = slope * (len(course) - 1)
        if abs(change) >= least:
            rows.append((case_id, len(course), change, inference.trend(values)))
    return pd.DataFrame(rows, columns=["case_id", "n_launches", "change", "p_value"])
