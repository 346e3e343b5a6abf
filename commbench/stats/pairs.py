"""Bandwidth of every ordered pair of workers, and how much of the traffic it accounts for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.stats.intervals import newly_busy
from commbench.stats.selection import counted, in_suite_order

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData


_COVERAGE = (
    "case_id", "workload", "backend", "logged_bytes", "wire_bytes", "coverage", "self_bytes",
    "loopback_bytes", "n_logged", "n_started", "n_busy", "n_failed", "n_in_flight", "n_lost",
)  # fmt: skip


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
        ``n_untimed`` transfers whose clock stood or went back are in no bandwidth.
    """
    import pandas as pd

    key = ["case_id", "channel", "src", "dst"]
    log = counted(run.transfers, run)
    log = _largest_of_sweeps(log[log["nbytes"] >= run.run.min_transfer_bytes])
    seconds = log["stop_s"] - log["start_s"]
    timed = seconds > 0
    # Two launches may not share a clock: each is a stretch of time of its own.
    window = log.groupby([*key, "launch"], sort=False).ngroup().to_numpy()
    table = log[[*key, "nbytes"]].assign(
        seconds=seconds.where(timed),
        timed_bytes=log["nbytes"].where(timed),
        Bps=log["nbytes"] / seconds.where(timed),
        busy_s=newly_busy(window, log["start_s"].to_numpy(), log["stop_s"].to_numpy()),
    )
    grouped = table.groupby(key, sort=False)
    timed_bytes = grouped["timed_bytes"].sum()
    # Where nothing was timed, the bandwidth is unknown: neither 0 nor infinite.
    total_s = grouped["seconds"].sum(min_count=1)
    busy_s = grouped["busy_s"].sum().where(lambda length: length > 0)
    quantiles = grouped["Bps"].quantile([0.25, 0.5, 0.75]).unstack()
    out = pd.DataFrame(
        {
            "n": grouped.size(),
            "bytes": grouped["nbytes"].sum(),
            "q25_Bps": quantiles[0.25] if len(quantiles) else 0.0,
            "q50_Bps": quantiles[0.5] if len(quantiles) else 0.0,
            "q75_Bps": quantiles[0.75] if len(quantiles) else 0.0,
            "mean_Bps": timed_bytes / total_s,
            "busy_Bps": timed_bytes / busy_s,
            "concurrency": total_s / busy_s,
            "n_untimed": grouped.size() - grouped["seconds"].count(),
        }
    ).reset_index()
    cases = {case.id: case for case in run.run.suite.cases}
    for column in ("backend", "workload"):
        names = {case_id: getattr(case, column) for case_id, case in cases.items()}
        out.insert(1, column, out["case_id"].map(names))
    return in_suite_order(out, run, then=["channel", "src", "dst"])


def _largest_of_sweeps(log: pd.DataFrame) -> pd.DataFrame:
    swept = log[log["channel"] != "gather"]
    largest = swept.groupby("case_id")["nbytes"].transform("max")
    return log.drop(index=swept.index[swept["nbytes"] < largest])


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

    tables = [
        counted(table, run) for table in (run.wire, run.transfers, run.log_counts, run.network)
    ]
    rows = []
    for case in run.run.suite.cases:
        wire, log, counts, network = (table[table.case_id == case.id] for table in tables)
        if wire.empty and log.empty and counts.empty:
            continue
        own = wire.src == wire.dst
        totals = {
            name: int(counts[name].sum())
            for name in ("n_started", "n_busy", "n_failed", "n_in_flight")
        }
        wire_bytes, logged_bytes = int(wire[~own].nbytes.sum()), int(log.nbytes.sum())
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
                "n_logged": len(log),
                **totals,
                "n_lost": totals["n_started"]
                - totals["n_busy"]
                - totals["n_failed"]
                - totals["n_in_flight"]
                - len(log),
            }
        )
    return pd.DataFrame(rows, columns=list(_COVERAGE))
