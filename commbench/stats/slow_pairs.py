"""Pairs of workers that are far slower than the others on the same kind of link.

The test is the modified z-score of Iglewicz and Hoaglin on the logarithm of the pairs' median
bandwidths, one-sided: a pair is slow where ::

    (median(ln B) - ln B) / (1.4826 * MAD(ln B)) > 3.5    and    B <= typical / 1.5

with MAD the median absolute deviation and ``typical = exp(median(ln B))``. The logarithm makes
"three times slower" as far away whatever the bandwidth; the second condition keeps a pair that is
a little behind a homogeneous rest from being named. Median and MAD bear with fewer than half of
the values being outliers: where half of the pairs are slow, slow is what is typical, and none is
named.

Source: B. Iglewicz and D. C. Hoaglin, How to Detect and Handle Outliers, ASQC Quality Press, 1993,
which recommends 3.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commbench.stats.links import link_classes

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData

MIN_SCORE = 3.5
MIN_SLOWDOWN = 1.5
MIN_PAIRS = 4
"""Of two there is no telling which is the odd one, and of three hardly."""
_RESOLUTION = 0.01
"""Pairs that agree better than to 1 % are no reason to call one that is 4 % off an outlier."""


def slow_pairs(pairs: pd.DataFrame, run: RunData) -> pd.DataFrame:
    """Return the slow ones of the `pairs` that ``stats.pairs`` found, the slowest first.

    Pairs are compared with those of the same case, channel and class of link.

    Returns
    -------
    DataFrame
        The case's and pair's names, ``link``, the pair's ``q50_Bps``, the ``typical_Bps`` of its
        ``n_pairs`` peers, itself included, ``slowdown`` = typical / its own, and ``score``. In
        the order of the suite's cases, then by channel.
    """
    import pandas as pd

    known = pairs[pairs["q50_Bps"] > 0]
    known = known.assign(link=link_classes(known, run))
    names = ["case_id", "workload", "backend", "channel", "link", "src", "dst", "q50_Bps"]
    found: list[pd.DataFrame] = []
    for _, group in known.groupby(["case_id", "channel", "link"], sort=False):
        typical_Bps, slowdown, score = _compare(group["q50_Bps"].to_numpy())  # noqa: N806
        group = group[names].assign(
            typical_Bps=typical_Bps, n_pairs=len(group), slowdown=slowdown, score=score
        )
        slow = (group["score"] > MIN_SCORE) & (group["slowdown"] >= MIN_SLOWDOWN)
        if len(group) >= MIN_PAIRS and slow.any():
            found.append(group[slow])
    if not found:
        return pd.DataFrame(columns=[*names, "typical_Bps", "n_pairs", "slowdown", "score"])
    place = {case.id: number for number, case in enumerate(run.run.suite.cases)}
    table = pd.concat(found, ignore_index=True)
    keys = [table["case_id"].map(place), table["channel"], -table["slowdown"]]
    order = pd.concat(keys, axis=1, keys=range(3)).sort_values([0, 1, 2], kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _compare(bandwidths_Bps: Any) -> tuple[float, Any, Any]:  # noqa: N803 - the unit's own spelling
    """Return the typical bandwidth, and of each how often it is in it and the modified z-score."""
    import numpy as np
    from scipy.stats import median_abs_deviation

    logs = np.log(bandwidths_Bps)
    below = np.median(logs) - logs
    spread = median_abs_deviation(logs, scale="normal")
    return float(np.exp(np.median(logs))), np.exp(below), below / max(spread, _RESOLUTION)
