"""Bandwidth of every class of links: of all the pairs of workers that such a link joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commbench.stats.pairs import PairBandwidths
from commbench.stats.segments import begins_of
from commbench.stats.selection import in_suite_order
from commbench.topology import rank

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from commbench.store import RunData

_GROUP = ["case_id", "workload", "backend", "channel", "link"]


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
    import numpy as np

    by_class = found.table.groupby(_GROUP, sort=False, observed=True)
    table = by_class.agg(
        n_pairs=("n", "size"),
        n=("n", "sum"),
        bytes=("bytes", "sum"),
        slowest_Bps=("q50_Bps", "min"),
        fastest_Bps=("q50_Bps", "max"),
    ).reset_index()
    # Of numbers as short as these the stable sort is by digits: linear in the transfers.
    of_pair = by_class.ngroup().to_numpy(dtype=np.uint16)
    group = np.repeat(of_pair, found.table["n"])
    order = np.argsort(group, kind="stable")
    single_Bps = found.single_Bps[order]  # noqa: N806 - the unit's own spelling
    classes = np.split(single_Bps, begins_of(group[order])[1:])
    quartiles = np.array([_quartiles(values) for values in classes if len(table)]).reshape(-1, 3)
    names = ("q25_Bps", "q50_Bps", "q75_Bps")
    table = table.assign(**dict(zip(names, quartiles.T, strict=True)))
    nearest_first = sorted(range(len(table)), key=lambda row: rank(table["link"].iloc[row]))
    return in_suite_order(table.iloc[nearest_first], run, ["channel"])


def _quartiles(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    known = values[~np.isnan(values)]
    if len(known) == 0:
        return np.full(3, np.nan)
    found: np.ndarray[Any, Any] = np.quantile(known, [0.25, 0.5, 0.75], overwrite_input=True)
    return found
