"""Bandwidth of every class of links: of all the pairs of workers that such a link joins."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from commbench.stats import grouping
from commbench.stats.pairs import PairBandwidths
from commbench.stats.selection import in_suite_order
from commbench.topology import rank

if TYPE_CHECKING:
    import pandas as pd

    from commbench.analysis.run import Run

_NAMES = ["case_id", "workload", "backend", "channel", "link"]


def link_bandwidths(run: Run, found: PairBandwidths) -> pd.DataFrame:
    """Return the bandwidth of every class of links, from the transfers of its pairs.

    Parameters
    ----------
    found
        What ``stats.pair_bandwidths`` returned of `run`.

    Returns
    -------
    DataFrame
        One row per case, channel and class, from the nearest to the farthest: ``n_pairs``, their
        ``n`` transfers and ``bytes``, and the quantiles ``q25_Bps``, ``q50_Bps``, ``q75_Bps`` of
        bytes / duration over single transfers, whichever pair they are of. ``slowest_Bps`` and
        ``fastest_Bps`` are the least and the largest of the pairs' medians.
    """
    import numpy as np

    by_class = found.table.groupby(["case_id", "channel", "link"], sort=False, observed=True)
    table = by_class.agg(
        workload=("workload", "first"),
        backend=("backend", "first"),
        n_pairs=("n", "size"),
        n=("n", "sum"),
        bytes=("bytes", "sum"),
        slowest_Bps=("q50_Bps", "min"),
        fastest_Bps=("q50_Bps", "max"),
    ).reset_index()
    class_of = np.repeat(by_class.ngroup().to_numpy(), found.table["n"])
    known = ~np.isnan(found.single_Bps)
    single_Bps, class_of = found.single_Bps[known], class_of[known]  # noqa: N806
    order = grouping.sort_order(class_of)
    single_Bps, class_of = single_Bps[order], class_of[order]  # noqa: N806
    first = grouping.starts(class_of)
    quartiles = np.full((len(table), 3), np.nan)
    for begin, end in pairwise([*first.tolist(), len(class_of)]):
        quartiles[class_of[begin]] = np.quantile(single_Bps[begin:end], [0.25, 0.5, 0.75])
    table[["q25_Bps", "q50_Bps", "q75_Bps"]] = quartiles
    table = table[[*_NAMES, *table.columns.drop(_NAMES)]]
    nearest_first = sorted(range(len(table)), key=lambda row: rank(table["link"].iloc[row]))
    return in_suite_order(table.iloc[nearest_first], run, ["channel"])
