"""Pairs of workers that are far slower than the others on the same kind of link.

The test is Rosner's for several outliers (generalised ESD): each pair is compared with those alone
that are more ordinary than it, so that slow pairs don't hide one another. Of the logarithms x of
the median bandwidths those n that are nearest to median(x) have a mean and a spread ::

    s² = (sum((x - mean)²) + PRIOR_PAIRS * PRIOR_NOISE²) / (n - 1 + PRIOR_PAIRS)

and the next one after them, if it is lower, is slow where ::

    (mean - x) / s > sqrt(1 + 1 / n) * t(1 - ALPHA / (n + 1), n - 1 + PRIOR_PAIRS)

with t the quantile of Student's distribution, and if it is at least 1.5 times slower than the
typical pair, exp(median(x)). So are all that are slower. The smallest n above half of the pairs for
which that holds decides: where half of them are slow, slow is what is typical, and none is named.

Four or five pairs hardly tell how far equal pairs lie apart, and may agree well by chance. The
spread is therefore moderated as in Smyth's t: it counts two more pairs whose noise is a usual one.
docs/measurements.md says how often the test errs with these constants.

Sources: B. Rosner, Percentage Points for a Generalized ESD Many-Outlier Procedure, Technometrics
25, 1983, 165-172, one-sided; G. K. Smyth, Linear Models and Empirical Bayes Methods for Assessing
Differential Expression in Microarray Experiments, Statistical Applications in Genetics and
Molecular Biology 3, 2004, article 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from commbench.analysis.run import Run

ALPHA = 0.02
PRIOR_NOISE = 0.15
PRIOR_PAIRS = 2
MIN_SLOWDOWN = 1.5
MIN_PAIRS = 4
"""Of two there is no telling which is the odd one, and of three hardly."""


def slow_pairs(pairs: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the slow ones of the `pairs` that ``stats.pairs`` found, the slowest first.

    Pairs are compared with those of the same case, channel and class of link.

    Returns
    -------
    DataFrame
        The case's and pair's names, ``link``, the pair's ``q50_Bps``, the ``typical_Bps`` of its
        ``n_pairs`` peers, itself included, ``slowdown`` = typical / its own, and ``score``: by how
        many times the spread of the ordinary pairs it is behind their mean, in logarithms. In
        the order of the suite's cases, then by channel.
    """
    import pandas as pd

    known = pairs.loc[pairs["q50_Bps"] > 0, ["case_id", "channel", "link", "q50_Bps"]]
    names = ["case_id", "workload", "backend", "channel", "link", "src", "dst", "q50_Bps"]
    found: list[pd.DataFrame] = []
    peers = known.groupby(["case_id", "channel", "link"], sort=False, observed=True)["q50_Bps"]
    for _, bandwidths_Bps in peers:  # noqa: N806 - the unit's own spelling
        if len(bandwidths_Bps) < MIN_PAIRS:
            continue
        typical_Bps, slow, slowdown, score = _compare(bandwidths_Bps.to_numpy())  # noqa: N806
        if slow.any():
            group = pairs.loc[bandwidths_Bps.index[slow], names].assign(
                typical_Bps=typical_Bps, n_pairs=len(bandwidths_Bps),
                slowdown=slowdown[slow], score=score[slow],
            )  # fmt: skip
            found.append(group)
    if not found:
        return pd.DataFrame(columns=[*names, "typical_Bps", "n_pairs", "slowdown", "score"])
    place = {case.id: number for number, case in enumerate(run.suite.cases)}
    table = pd.concat(found, ignore_index=True).astype(dict.fromkeys(names[:-1], "str"))
    keys = [table["case_id"].map(place), table["channel"], -table["slowdown"]]
    order = pd.concat(keys, axis=1, keys=range(3)).sort_values([0, 1, 2], kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _compare(bandwidths_Bps: Any) -> tuple[float, Any, Any, Any]:  # noqa: N803 - the unit's own spelling
    """Return the typical bandwidth, and of each if it is slow, its slowdown and its score."""
    import numpy as np
    from scipy.special import stdtrit

    logs = np.log(bandwidths_Bps)
    typical = np.median(logs)
    behind = typical - logs
    typical_Bps, slowdown = float(np.exp(typical)), np.exp(behind)  # noqa: N806
    ordered = behind[np.argsort(np.abs(behind), kind="stable")]
    n = np.arange(len(ordered) // 2 + 1, len(ordered))
    n = n[ordered[n] >= np.log(MIN_SLOWDOWN)]
    mean, square = (np.cumsum(ordered**power)[n - 1] / n for power in (1, 2))
    squares = np.maximum(square - mean**2, 0) * n + PRIOR_PAIRS * PRIOR_NOISE**2
    freedom = n - 1 + PRIOR_PAIRS
    spread = np.sqrt(squares / freedom)
    limit = -np.sqrt(1 + 1 / n) * stdtrit(freedom, ALPHA / (n + 1))
    far = (ordered[n] - mean) / spread > limit
    if not far.any():
        return typical_Bps, far[:0], slowdown, behind
    first = int(np.argmax(far))
    score = (behind - mean[first]) / spread[first]
    return typical_Bps, behind >= ordered[n[first]], slowdown, score
