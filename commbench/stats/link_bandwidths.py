"""Bandwidth of every class of links: of all the pairs of workers that such a link joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.stats.pairs import PairNumbers, counting
from commbench.stats.segments import begins_of, quantiles, sort, taken
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
        One row per case, channel and class, from the nearest to the farthest, where a case has
        several of them: ``n_pairs``, their
        ``n`` transfers and ``bytes``, and the quantiles ``q25_Bps``, ``q50_Bps``, ``q75_Bps`` of
        bytes / duration over single transfers, whichever pair they are of. ``slowest_Bps`` and
        ``fastest_Bps`` are the least and the largest of the pairs' medians.
    """
    import numpy as np
    import pandas as pd

    names = ("q25_Bps", "q50_Bps", "q75_Bps")
    n_classes = pairs.groupby(["case_id", "channel"])["link"].transform("nunique")
    several = n_classes.to_numpy() > 1
    if not several.any():
        return pd.DataFrame(
            columns=[*_GROUP, "n_pairs", "n", "bytes", "slowest_Bps", "fastest_Bps", *names]
        )
    by_class = pairs[several].groupby(_GROUP, sort=False)
    table = by_class.agg(
        n_pairs=("n", "size"),
        n=("n", "sum"),
        bytes=("bytes", "sum"),
        slowest_Bps=("q50_Bps", "min"),
        fastest_Bps=("q50_Bps", "max"),
    ).reset_index()
    log = counting(run)
    numbers = PairNumbers(log, run).numbers()
    class_of_pair = np.full(len(pairs), -1)
    class_of_pair[several] = by_class.ngroup()
    # The pairs are in the order of their numbers.
    group = class_of_pair[np.searchsorted(np.unique(numbers), numbers)]
    in_a_class = np.flatnonzero(group >= 0)
    order, group = sort(group[in_a_class])
    rows = in_a_class[order]
    begins = begins_of(group)
    nbytes, start_s, stop_s = taken(
        rows, [log[name].to_numpy() for name in ("nbytes", "start_s", "stop_s")]
    )
    seconds = stop_s - start_s
    speed = np.full(len(rows), np.nan)
    np.divide(nbytes, seconds, out=speed, where=seconds > 0)
    found = quantiles(speed, begins, [0.25, 0.5, 0.75])
    table = table.assign(**dict(zip(names, found, strict=True)))
    nearest_first = sorted(range(len(table)), key=lambda row: rank(table["link"].iloc[row]))
    return in_suite_order(table.iloc[nearest_first], run, ["channel"])
