"""Bandwidth of every ordered pair of workers, and how much of the traffic it accounts for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench import tables
from commbench.stats.links import link_classes
from commbench.stats.segments import Groups, begins_of, quantiles, union_lengths
from commbench.stats.selection import counted, counts

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from commbench.store import RunData

    _Array = np.ndarray[Any, Any]

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
    single_Bps: _Array  # noqa: N815 - the unit's own spelling


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

    log = run.transfers
    pairs = _PairNumbers(run)
    # Two launches may not share a clock: each is a stretch of time of its own.
    launch = log["launch"].to_numpy()
    launches = np.sort(log["launch"].unique())
    n_launches = max(1, len(launches))

    def number_of(rows: slice) -> _Array:
        number = pairs.numbers(rows)
        number *= n_launches
        number += np.searchsorted(launches, launch[rows])
        return number

    windows = Groups(number_of, pairs.n_numbers * n_launches, _counting(run))
    columns = [log[name].to_numpy() for name in ("nbytes", "start_s", "stop_s")]
    single_Bps = np.empty(len(windows))  # noqa: N806 - the unit's own spelling

    def work(begin: int, rows: _Array, window: _Array) -> dict[str, _Array]:
        nbytes, start_s, stop_s = (column.take(rows) for column in columns)
        single = single_Bps[begin : begin + len(rows)]
        measured = _measured(nbytes, start_s, stop_s, window, n_launches, single)
        return pairs.codes(measured.pop("pair")) | measured

    portions = windows.in_portions(work, n_launches)
    found = {
        name: np.concatenate([portion.pop(name) for portion in portions])
        for name in list(portions[0])
    }
    table = pd.DataFrame(pairs.named(found), copy=False)
    return PairBandwidths(table.assign(link=link_classes(table, run)), single_Bps)


def _measured(
    nbytes: _Array,
    start_s: _Array,
    stop_s: _Array,
    window: _Array,
    n_launches: int,
    single_Bps: _Array,  # noqa: N803 - the unit's own spelling
) -> dict[str, _Array]:
    """Return what is known of pairs, by number (``pair``); fill in each transfer's bandwidth."""
    import numpy as np

    windows = begins_of(window)
    pair = window[windows] // n_launches
    of_pair = begins_of(pair)
    begins = windows[of_pair]
    busy_s = np.add.reduceat(union_lengths(start_s, stop_s, windows), of_pair)
    seconds = stop_s - start_s
    timed = seconds > 0
    single_Bps.fill(np.nan)
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
    return {
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


def _counting(run: RunData) -> _Array:
    """Return which transfers count for the bandwidth of pairs."""
    log = run.transfers
    keep = counts(log, run) & (log["nbytes"] >= run.run.min_transfer_bytes)
    keep &= ~_below_the_largest(log)
    which: _Array = keep.to_numpy(dtype=bool)
    return which


class _PairNumbers:
    """Numbers for pairs: in the order of the suite's cases, then by channel, sender, receiver."""

    def __init__(self, run: RunData) -> None:
        import pandas as pd

        names = ("case_id", "channel", "src", "dst")
        columns = {name: run.transfers[name].astype("category").cat for name in names}
        workers = columns["src"].categories.union(columns["dst"].categories)
        self._cases = run.run.suite.cases
        self._texts = {
            "case_id": pd.Index([case.id for case in self._cases]),
            "channel": columns["channel"].categories.sort_values(),
            "src": workers,
            "dst": workers,
        }
        self._sizes = [len(texts) for texts in self._texts.values()]
        self._codes = [
            columns[name].set_categories(texts).cat.codes.to_numpy()
            for name, texts in self._texts.items()
        ]

    @property
    def n_numbers(self) -> int:
        """What every number is below."""
        return math.prod(self._sizes)

    def numbers(self, rows: slice) -> _Array:
        """Return the numbers of the pairs of these rows."""
        import numpy as np

        number = np.zeros(len(self._codes[0][rows]), dtype=np.int64)
        for size, codes in zip(self._sizes, self._codes, strict=True):
            number *= size
            number += codes[rows]
        return number

    def codes(self, pair: _Array) -> dict[str, _Array]:
        """Return for each part of these pairs' names the places of its texts."""
        import numpy as np

        found = {}
        for name, size in reversed([*zip(self._texts, self._sizes, strict=True)]):
            pair, place = np.divmod(pair, max(1, size))
            found[name] = place.astype(np.min_scalar_type(-max(1, size)))
        return found

    def named(self, found: dict[str, _Array]) -> dict[str, Any]:
        """Return the columns of a table with texts in the place of ``codes``."""
        import pandas as pd

        names = {
            name: pd.Categorical.from_codes(found.pop(name), texts)
            for name, texts in self._texts.items()
        }
        case_id = pd.Series(names.pop("case_id"))
        of_case = {
            name: tables.renamed(case_id, {case.id: getattr(case, name) for case in self._cases})
            for name in ("workload", "backend")
        }
        return {"case_id": case_id} | of_case | names | found


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
