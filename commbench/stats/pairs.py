"""Bandwidth of every ordered pair of workers, and how much of the traffic it accounts for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench import tables
from commbench.stats.links import link_classes
from commbench.stats.segments import begins_of, in_portions, quantiles, sort, union_lengths
from commbench.stats.selection import counted, counts

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from commbench.store import RunData

_NAMES = ("case_id", "workload", "backend", "channel", "src", "dst")
_COVERAGE = (
    "case_id", "workload", "backend", "logged_bytes", "wire_bytes", "coverage", "self_bytes",
    "loopback_bytes", "n_logged", "n_started", "n_busy", "n_failed", "n_in_flight", "n_lost",
)  # fmt: skip


@dataclass(frozen=True)
class PairBandwidths:
    """The ``table`` that ``pairs`` returns, its texts as categoricals, and what it is made of.

    ``single_Bps`` has the bandwidth of each transfer that counts, pair after pair in the order of
    the table, and nan for one without a duration.
    """

    table: pd.DataFrame
    single_Bps: np.ndarray[Any, Any]  # noqa: N815 - the unit's own spelling


def pairs(run: RunData) -> pd.DataFrame:
    """Return the bandwidth of every ordered pair of workers, from the transfer logs.

    Only transfers of at least the run's ``min_transfer_bytes`` in measured iterations count:
    a small one's duration is latency, not bandwidth. Of the sizes that all-to-all goes through,
    the largest counts.

    Returns
    -------
    DataFrame
        One row per case, channel, source and destination: ``n`` transfers, their ``bytes``; the
        quantiles ``q25_Bps``, ``q50_Bps``, ``q75_Bps`` of bytes / duration over single transfers;
        ``mean_Bps`` = Σ bytes / Σ duration; ``busy_Bps`` = Σ bytes / time in which at least one
        transfer of the pair was under way; ``concurrency`` = Σ duration / that time. The
        ``n_untimed`` transfers whose clock stood or went back are in no bandwidth. ``link`` is the
        class of the pair's link.
    """
    return pair_bandwidths(run).table.astype(dict.fromkeys([*_NAMES, "link"], "str"))


def pair_bandwidths(run: RunData) -> PairBandwidths:
    """Return what ``pairs`` does, with the bandwidth of each transfer besides."""
    import numpy as np
    import pandas as pd

    log = _counting(run)
    pairs = _PairNumbers(log, run)
    # Two launches may not share a clock: each is a stretch of time of its own.
    launch, launches = pd.factorize(log["launch"])
    n_launches = max(1, len(launches))
    window = pairs.numbers()
    window *= n_launches
    window += launch
    del launch
    order, window = sort(window)
    columns = [log[name].to_numpy() for name in ("nbytes", "start_s", "stop_s")]
    single_Bps = np.full(len(order), np.nan)  # noqa: N806 - the unit's own spelling

    def numbers(rows: slice) -> pd.DataFrame:
        nbytes, start_s, stop_s = (column[order[rows]] for column in columns)
        return _numbers(nbytes, start_s, stop_s, window[rows], n_launches, single_Bps[rows])

    table = pd.concat(in_portions(numbers, window, n_launches), ignore_index=True)
    table = pairs.names(table.pop("pair").to_numpy()).join(table)
    return PairBandwidths(table.assign(link=link_classes(table, run)), single_Bps)


def _numbers(
    nbytes: np.ndarray[Any, Any],
    start_s: np.ndarray[Any, Any],
    stop_s: np.ndarray[Any, Any],
    window: np.ndarray[Any, Any],
    n_launches: int,
    single_Bps: np.ndarray[Any, Any],  # noqa: N803 - the unit's own spelling
) -> pd.DataFrame:
    """Return the numbers of pairs by their number ``pair``; fill in each transfer's bandwidth."""
    import numpy as np
    import pandas as pd

    windows = begins_of(window)
    pair = window[windows] // n_launches
    of_pair = begins_of(pair)
    begins = windows[of_pair]
    busy_s = np.add.reduceat(union_lengths(start_s, stop_s, windows), of_pair)
    seconds = stop_s - start_s
    timed = seconds > 0
    np.divide(nbytes, seconds, out=single_Bps, where=timed)
    q25, q50, q75 = quantiles(single_Bps, begins, [0.25, 0.5, 0.75])
    n = np.diff(begins, append=len(nbytes))
    seconds[~timed] = 0
    n_timed, timed_bytes, total_s = (
        np.add.reduceat(values, begins, dtype=dtype)
        for values, dtype in ((timed, int), (nbytes * timed, int), (seconds, float))
    )
    # Where nothing was timed, the bandwidth is unknown: neither 0 nor infinite.
    total_s, busy_s = (np.where(length > 0, length, np.nan) for length in (total_s, busy_s))
    return pd.DataFrame(
        {
            "pair": pair[of_pair],
            "n": n,
            "bytes": np.add.reduceat(nbytes, begins),
            "q25_Bps": q25,
            "q50_Bps": q50,
            "q75_Bps": q75,
            "mean_Bps": timed_bytes / total_s,
            "busy_Bps": timed_bytes / busy_s,
            "concurrency": total_s / busy_s,
            "n_untimed": n - n_timed,
        }
    )


def _counting(run: RunData) -> pd.DataFrame:
    """Return the transfers that count for the bandwidth of pairs."""
    log = run.transfers
    keep = counts(log, run) & (log["nbytes"] >= run.run.min_transfer_bytes)
    keep &= ~_below_the_largest(log)
    # Of ten million rows a copy takes as long as much of what is done with them.
    return log if keep.all() else log[keep]


class _PairNumbers:
    """Numbers for pairs: in the order of the suite's cases, then by channel, sender, receiver."""

    def __init__(self, log: pd.DataFrame, run: RunData) -> None:
        self._columns = [
            log[name].astype("category").cat for name in ("case_id", "channel", "src", "dst")
        ]
        self._cases = run.run.suite.cases
        _, channel, src, dst = self._columns
        self._channels = sorted(channel.categories)
        self._workers = sorted({*src.categories, *dst.categories})

    def numbers(self) -> np.ndarray[Any, Any]:
        """Return the number of the pair of each row."""
        import numpy as np

        number = np.zeros(len(self._columns[0].codes), dtype=np.int64)
        ids = [case.id for case in self._cases]
        known = (ids, self._channels, self._workers, self._workers)
        for column, names in zip(self._columns, known, strict=True):
            number *= len(names)
            number += column.set_categories(names).cat.codes.to_numpy()
        return number

    def names(self, pair: np.ndarray[Any, Any]) -> pd.DataFrame:
        """Return the columns that name these pairs."""
        import numpy as np
        import pandas as pd

        n_workers = max(1, len(self._workers))
        sender, dst = np.divmod(pair, n_workers)
        channels, src = np.divmod(sender, n_workers)
        case, channel = np.divmod(channels, max(1, len(self._channels)))
        columns = {
            "case_id": ([one.id for one in self._cases], case),
            "channel": (self._channels, channel),
            "src": (self._workers, src),
            "dst": (self._workers, dst),
        }
        names = pd.DataFrame(
            {
                name: pd.Categorical.from_codes(codes, texts)
                for name, (texts, codes) in columns.items()
            }
        )
        for place, name in enumerate(("workload", "backend"), 1):
            of_case = {one.id: getattr(one, name) for one in self._cases}
            names.insert(place, name, tables.renamed(names["case_id"], of_case))
        return names


def _below_the_largest(log: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are of a sweep over sizes, and not of its largest."""
    swept = log["channel"] != "gather"
    if not swept.any():
        return swept
    largest = log["nbytes"][swept].groupby(log["case_id"][swept], observed=True).transform("max")
    return swept & (log["nbytes"] < largest.reindex(log.index))


def coverage(run: RunData) -> pd.DataFrame:
    """Return how much of the traffic between workers the transfer logs saw, per case.

    Returns
    -------
    DataFrame
        ``logged_bytes`` (in memory) and ``wire_bytes`` (serialized, counted where the comms write
        them, between different workers), ``coverage`` = logged / wire, ``self_bytes`` that workers
        sent to themselves over a comm, ``loopback_bytes`` that the kernel counted on ``lo``
        meanwhile; ``n_started`` fetches, of which ``n_logged``, ``n_busy``
        (the sender asked to come later), ``n_failed``, and ``n_lost`` that no count explains.
        Measured iterations only; cases without a record of any of it have no row.
    """
    import pandas as pd

    place = ["case_id", "launch", "iteration"]
    log = counted(run.transfers[[*place, "nbytes"]], run)
    logged = log.groupby("case_id", observed=True)["nbytes"].agg(["sum", "size"])
    tables = [counted(table, run) for table in (run.wire, run.log_counts, run.network)]
    rows = []
    for case in run.run.suite.cases:
        wire, fetches, network = (table[table.case_id == case.id] for table in tables)
        seen = case.id in logged.index
        logged_bytes, n_logged = map(int, logged.loc[case.id] if seen else (0, 0))
        if wire.empty and fetches.empty and not n_logged:
            continue
        own = wire.src == wire.dst
        totals = {
            name: int(fetches[name].sum())
            for name in ("n_started", "n_busy", "n_failed", "n_in_flight")
        }
        wire_bytes = int(wire[~own].nbytes.sum())
        rows.append(
            {
                "case_id": case.id,
                "workload": case.workload,
                "backend": case.backend,
                "logged_bytes": logged_bytes,
                "wire_bytes": wire_bytes,
                "coverage": logged_bytes / wire_bytes if wire_bytes else float("nan"),
                "self_bytes": int(wire[own].nbytes.sum()),
                "loopback_bytes": int(network[network.interface == "lo"].nbytes.sum()),
                "n_logged": n_logged,
                **totals,
                "n_lost": totals["n_started"]
                - totals["n_busy"]
                - totals["n_failed"]
                - totals["n_in_flight"]
                - n_logged,
            }
        )
    return pd.DataFrame(rows, columns=list(_COVERAGE))
