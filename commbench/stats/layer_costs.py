"""The time that each layer of the software adds to the layer below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commbench.model import LAYERS, Case
from commbench.stats import selection
from commbench.stats.inference import CONFIDENCE

if TYPE_CHECKING:
    from commbench.analysis.run import Run


LATENCY_MODES = ("latency", "loaded-latency")
"""The modes in which a connection has one message under way at a time."""


def pingpong_mode(case: Case) -> str:
    """Return a ping-pong's mode; workloads without modes measure latency."""
    return str(case.params.get("mode", "latency"))


def load_bandwidths(run: Run) -> pd.Series[float]:
    """Return the bandwidth of the load that streamed during latencies under load, in B/s.

    Returns
    -------
    Series
        The median over launches of bytes / seconds, by case id and layer.
    """
    loads = selection.counted(run.loads.assign(iteration=0), run)
    return (loads["nbytes"] / loads["seconds"]).groupby([loads["case_id"], loads["layer"]]).median()


def additions(run: Run) -> pd.DataFrame:
    """Return the summaries of latency per layer with the time that each layer adds.

    Returns
    -------
    DataFrame
        The rows of ``summaries`` whose case and size have at least two layers, from the wire up,
        with ``below``, the next lower measured layer (empty for the lowest); ``added_s``, the
        median minus that layer's (nan for the lowest, and where the launches of either split into
        two modes; negative if this layer is faster); and ``apart``, whether the two medians'
        intervals are disjoint, and of at least 95 %.
    """
    latency = [case.id for case in run.suite.cases if pingpong_mode(case) == "latency"]
    table = run.summaries
    table = table[table["layer"].isin(LAYERS) & table["case_id"].isin(latency)]
    key = ["case_id", "payload_bytes"]
    table = table[table.duplicated(key, keep=False)]
    table = table.sort_values("layer", key=lambda names: names.map(LAYERS.index), kind="stable")
    names = ["layer", "median_s", "ci_low_s", "ci_high_s", "confidence", "low_mode_s"]
    below = table.groupby(key)[names].shift()
    # A comparison with nan, for a missing interval, is false.
    apart = (table["ci_low_s"] > below["ci_high_s"]) | (table["ci_high_s"] < below["ci_low_s"])
    apart &= np.minimum(table["confidence"], below["confidence"]) >= CONFIDENCE
    # A difference to a median between modes is that of no launch.
    has_modes = table["low_mode_s"].notna() | below["low_mode_s"].notna()
    return table.assign(
        below=below["layer"].fillna(""),
        added_s=(table["median_s"] - below["median_s"]).mask(has_modes),
        apart=apart,
    )


def shown_sizes(sizes: list[int], n_most: int) -> list[int]:
    """Return at most `n_most` of the `sizes`, evenly spaced from the first to the last.

    Examples
    --------
    >>> shown_sizes([1, 2, 4, 8, 16, 32, 64], 3)
    [1, 8, 64]
    """
    ordered = sorted(set(sizes))
    if len(ordered) <= n_most:
        return ordered
    step = (len(ordered) - 1) / (n_most - 1)
    return [ordered[round(number * step)] for number in range(n_most)]
