"""Bandwidth of every class of links: of all the pairs of workers that such a link joins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
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
    # Of numbers as short as these the stable sort is by digits: linear in the transfers.
    of_pair = by_class.ngroup().to_numpy(dtype=np.uint16)
    group = np.repeat(of_pair, found.table["n"])
    # pandas is for one thread alone; what goes through all transfers is NumPy's.
    with ThreadPoolExecutor(1) as beside:
        quartiles = beside.submit(_quartiles, found.single_Bps, group)
        table = by_class.agg(
            n_pairs=("n", "size"),
            n=("n", "sum"),
            bytes=("bytes", "sum"),
            slowest_Bps=("q50_Bps", "min"),
            fastest_Bps=("q50_Bps", "max"),
        ).reset_index()
    names = ("q25_Bps", "q50_Bps", "q75_Bps")
    table = table.assign(**dict(zip(names, quartiles.result().T, strict=True)))
    nearest_first = sorted(range(len(table)), key=lambda row: rank(table["link"].iloc[row]))
    return in_suite_order(table.iloc[nearest_first], run, ["channel"])


def _quartiles(
    single_Bps: np.ndarray[Any, Any],  # noqa: N803 - the unit's own spelling
    group: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return the quartiles of each group, of shape (n_groups, 3); nan where nothing is known."""
    import numpy as np

    order = np.argsort(group, kind="stable")
    begins = begins_of(group[order])
    found = np.full((len(begins), 3), np.nan)
    for row, values in enumerate(np.split(single_Bps[order], begins[1:])[: len(begins)]):
        known = values[~np.isnan(values)]
        if len(known):
            found[row] = np.quantile(known, [0.25, 0.5, 0.75], overwrite_input=True)
    return found
