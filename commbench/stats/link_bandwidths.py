"""Bandwidth of every class of links: of all the pairs of workers that such a link joins."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from commbench.stats.pairs import PairBandwidths
from commbench.stats.selection import in_suite_order
from commbench.topology import rank

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from commbench.store import RunData

_NAMES = ["case_id", "workload", "backend", "channel", "link"]
_AT_ONCE = 1 << 17
"""Transfers that are gone through at a time: few enough for a processor's cache."""


def link_bandwidths(run: RunData, found: PairBandwidths) -> pd.DataFrame:
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
    quartiles = _quartiles(found, by_class.ngroup().to_numpy(), table["n"].tolist())
    table[["q25_Bps", "q50_Bps", "q75_Bps"]] = quartiles
    table = table[[*_NAMES, *table.columns.drop(_NAMES)]]
    nearest_first = sorted(range(len(table)), key=lambda row: rank(table["link"].iloc[row]))
    return in_suite_order(table.iloc[nearest_first], run, ["channel"])


def _quartiles(
    found: PairBandwidths, class_of: np.ndarray[Any, Any], sizes: list[int]
) -> np.ndarray[Any, Any]:
    """Return the quartiles of classes of pairs, of shape (n_classes, 3); nan where none is known.

    Parameters
    ----------
    class_of
        The number of each pair's class.
    sizes
        How many transfers each class has.
    """
    import numpy as np

    n = found.table["n"].to_numpy()
    edges = np.concatenate([[0], np.cumsum(n)])
    values, filled = [np.empty(size) for size in sizes], [0] * len(sizes)
    first = np.searchsorted(edges, np.arange(0, edges[-1], _AT_ONCE))
    for begin, end in pairwise(np.unique([*first, len(n)]).tolist()):
        single_Bps = found.single_Bps[edges[begin] : edges[end]]  # noqa: N806
        number, known = np.repeat(class_of[begin:end], n[begin:end]), ~np.isnan(single_Bps)
        for place in np.unique(class_of[begin:end]):
            chosen = single_Bps[known & (number == place)]
            values[place][filled[place] : filled[place] + len(chosen)] = chosen
            filled[place] += len(chosen)
    quartiles = np.full((len(sizes), 3), np.nan)
    for row, (all_Bps, size) in enumerate(zip(values, filled, strict=True)):  # noqa: N806
        if size:
            quartiles[row] = np.quantile(all_Bps[:size], [0.25, 0.5, 0.75], overwrite_input=True)
    return quartiles
