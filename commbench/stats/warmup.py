"""Warm-up that went on after the warm-ups: the samples at a launch's begin that are slower.

Two windows are compared, the first samples and the second half of the launch. The first one is
warm-up if its median is longer by more than ``FLOOR`` and a one-sided Mann–Whitney test finds it
slower at ``ALPHA``; then the next window takes its place. A launch that is still slow when its
first half is over never got warm: that is drift, and nothing is taken from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 10
"""The least samples in a window; of long launches it is a twentieth."""
FLOOR = 0.05
"""What is slower by less than this share is not called warm-up, however sure it is."""
ALPHA = 0.01


def n_warmup(seconds: np.ndarray[Any, Any]) -> int:
    """Return how many of the first samples of a launch are warm-up.

    Parameters
    ----------
    seconds
        Shape (n,): the samples in the order in which they were taken. Of fewer than
        four windows none is warm-up.

    Examples
    --------
    >>> steady = np.tile([1.0, 1.01, 1.02], 40)
    >>> n_warmup(steady), n_warmup(np.concatenate([steady[:18] * 3, steady]))
    (0, 20)
    """
    half = len(seconds) // 2
    window = max(WINDOW, len(seconds) // 20)
    if half < 2 * window:
        return 0
    late = seconds[half:]
    limit = (1 + FLOOR) * np.median(late)
    for begin in range(0, half - window + 1, window):
        early = seconds[begin : begin + window]
        if (
            np.median(early) <= limit
            or scipy.stats.mannwhitneyu(early, late, alternative="greater").pvalue > ALPHA
        ):
            return begin
    return 0


def found(samples: pd.DataFrame) -> pd.Series[bool]:
    """Return for each of the measured `samples` whether it is warm-up, by their index."""
    import pandas as pd

    flags = pd.Series(data=False, index=samples.index)
    key = ["case_id", "layer", "payload_bytes", "launch"]
    ordered = samples.sort_values("iteration", kind="stable")
    seconds = ordered["seconds"].to_numpy()
    for places in ordered.groupby(key, sort=False).indices.values():
        if n := n_warmup(seconds[places]):
            flags.loc[ordered.index[places[:n]]] = True
    return flags
