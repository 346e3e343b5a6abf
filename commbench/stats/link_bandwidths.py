"""Bandwidth of every class of links: of all the pairs of workers that such a link joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.stats.pairs import PairNumbers, bandwidths, counting
from commbench.stats.segments import begins_of, quantiles, sort
from commbench.stats.selection import in_suite_order
from commbench.topology import rank

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData

_GROUP = ["case_id", "workload", "backend", "channel", "link"]


def link_bandwidths(run: RunData, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the bandwidth of every class of links, from the transfers that made `pairs`.

    Parameters
    ----------
    pairs
        What ``stats.pairs`` returned of `run`.

    Returns
    -------
    DataFrame
        One row per case, channel and class, from the nearest to the farthest: ``n_pairs``, their
        ``n`` transfers and ``bytes``, and the quantiles ``q25_Bps``, ``q50_Bps``, ``q75_Bps`` of
        bytes / duration over single transfers, whichever pair they are of. ``slowest_Bps`` and
        ``fastest_Bps`` are the least and the largest of the pairs' medians.
    """
    import numpy as np

    by_class = pairs.groupby(_GROUP, sort=False)
    table = by_class.agg(
        n_pairs=("n", "size"),
        n=("n", "sum"),
        bytes=("bytes", "sum"),
        slowest_Bps=("q50_Bps", "min"),
        fastest_Bps=("q50_Bps", "max"),
    ).reset_index()
    log = counting(run)
    numbers = PairNumbers(log, run).numbers()
    # The pairs are in the order of their numbers.
    group = by_class.ngroup().to_numpy()[np.searchsorted(np.unique(numbers), numbers)]
    del numbers
    order, group = sort(group)
    begins = begins_of(group)
    del group
    seconds = (log["stop_s"] - log["start_s"]).to_numpy()
    speed = bandwidths(log["nbytes"].to_numpy(), seconds)[order]
    del seconds, order
    found = quantiles(speed, begins, [0.25, 0.5, 0.75])
    names = ("q25_Bps", "q50_Bps", "q75_Bps")
    table = table.assign(**dict(zip(names, found, strict=True)))
    nearest_first = sorted(range(len(table)), key=lambda row: rank(table["link"].iloc[row]))
    return in_suite_order(table.iloc[nearest_first], run, ["channel"])
