"""The quantities that papers and posts print, of every case of a run, in one table."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from commbench.model import LAYERS
from commbench.stats.layers import mode_of
from commbench.stats.selection import counted, in_suite_order
from commbench.stats.summary import interval_of
from commbench.stats.worker_profile import worker_times

if TYPE_CHECKING:
    import pandas as pd

    from commbench.analysis.run import Run

_COLUMNS = (
    "case_id", "quantity", "workload", "backend", "layer", "device", "n_workers", "message_bytes",
    "low", "mid", "high",
)  # fmt: skip


def measured(
    run: Run, summaries: pd.DataFrame, pairs: pd.DataFrame, wanted: Collection[str]
) -> pd.DataFrame:
    """Return the `wanted` quantities, in s or B/s.

    Parameters
    ----------
    summaries, pairs
        What the functions of these names return of the run.
    wanted
        Of the names in ``published.UNITS``.

    Returns
    -------
    DataFrame
        One row per case and quantity, for a ping-pong per layer and ``message_bytes`` too (0 for
        other workloads, whose ``n_workers`` is 0 for a ping-pong), in the order of the suite:
        ``mid`` and what it lies between.
        For ``time``, ``throughput``, ``communication time``, ``transfer throughput``, ``latency``
        and ``bandwidth`` that is the median and its interval, nan where there is none; for
        ``pair bandwidth`` the median, the least and the largest of the medians of the ordered
        pairs; for ``transfer time`` the median and the quartiles of single transfers.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for quantity in wanted:
        rows += _KINDS[quantity](run, summaries, pairs, quantity)
    cases = {case.id: case for case in run.suite.cases}
    for row in rows:
        case = cases[row["case_id"]]
        is_pair = run.kinds[case.id] == "pair"
        row |= {
            "workload": case.workload, "backend": case.backend, "device": case.cluster.device,
            "n_workers": 0 if is_pair else case.cluster.n_workers,
        }  # fmt: skip
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return in_suite_order(table, run, ["quantity", "layer", "message_bytes"])


def _row(
    case_id: Any, quantity: str, low: float, mid: float, high: float, *, layer: str = "workload",
    message_bytes: int = 0,
) -> dict[str, Any]:  # fmt: skip
    return {
        "case_id": str(case_id), "quantity": quantity, "layer": layer,
        "message_bytes": message_bytes, "low": low, "mid": mid, "high": high,
    }  # fmt: skip


def _summarized(
    run: Run, summaries: pd.DataFrame, pairs: pd.DataFrame, quantity: str
) -> Iterator[dict[str, Any]]:
    del pairs
    of_messages = quantity in ("latency", "bandwidth")
    in_latency_mode = [case.id for case in run.suite.cases if mode_of(case) == "latency"]
    keep = summaries["layer"] == "workload"
    if of_messages:
        keep = summaries["layer"].isin(LAYERS) & summaries["case_id"].isin(in_latency_mode)
    for row in summaries[keep & (summaries["median_s"] > 0)].itertuples():
        low, mid, high = row.ci_low_s, row.median_s, row.ci_high_s
        if quantity in ("throughput", "bandwidth"):
            low, mid, high = (
                row.payload_bytes / seconds if seconds else math.inf for seconds in (high, mid, low)
            )
        yield _row(
            row.case_id, quantity, low, mid, high, layer=row.layer,
            message_bytes=row.payload_bytes if of_messages else 0,
        )  # fmt: skip


def _communication_times(
    run: Run, summaries: pd.DataFrame, pairs: pd.DataFrame, quantity: str
) -> Iterator[dict[str, Any]]:
    del summaries, pairs
    times = worker_times(run)
    receiving_s = (times["transfer_only_s"] + times["overlap_s"]).astype("float64")
    each = receiving_s.groupby([times["case_id"], times["launch"], times["iteration"]]).mean()
    yield from _medians_of_launches(each.groupby(["case_id", "launch"]).median(), quantity)


def _transfer_throughputs(
    run: Run, summaries: pd.DataFrame, pairs: pd.DataFrame, quantity: str
) -> Iterator[dict[str, Any]]:
    del summaries, pairs
    log = _transfers(run)
    log = log[log["nbytes"] >= run.manifest.min_transfer_bytes]
    sums = log.groupby(["case_id", "launch"])[["nbytes", "seconds"]].sum()
    yield from _medians_of_launches(sums["nbytes"] / sums["seconds"], quantity)


def _transfer_times(
    run: Run, summaries: pd.DataFrame, pairs: pd.DataFrame, quantity: str
) -> Iterator[dict[str, Any]]:
    del summaries, pairs
    for case_id, seconds in _transfers(run).groupby("case_id")["seconds"]:
        low, mid, high = seconds.quantile([0.25, 0.5, 0.75])
        yield _row(case_id, quantity, low, mid, high)


def _pair_bandwidths(
    run: Run, summaries: pd.DataFrame, pairs: pd.DataFrame, quantity: str
) -> Iterator[dict[str, Any]]:
    del run, summaries
    medians = pairs[(pairs["channel"] == "gather") & pairs["q50_Bps"].notna()]
    for case_id, speed in medians.groupby("case_id", observed=True)["q50_Bps"]:
        yield _row(case_id, quantity, speed.min(), speed.median(), speed.max())


def _transfers(run: Run) -> pd.DataFrame:
    log = counted(run.transfers, run)
    log = log[["launch", "nbytes"]].assign(
        case_id=log["case_id"].astype("str"), seconds=log["stop_s"] - log["start_s"]
    )
    return log[log["seconds"] > 0]


def _medians_of_launches(launches: pd.Series[float], quantity: str) -> Iterator[dict[str, Any]]:
    for case_id, medians in launches.groupby(level="case_id"):
        low, high, _ = interval_of(medians.tolist())
        yield _row(case_id, quantity, low, float(medians.median()), high)


_KINDS = {
    "time": _summarized,
    "throughput": _summarized,
    "latency": _summarized,
    "bandwidth": _summarized,
    "communication time": _communication_times,
    "transfer throughput": _transfer_throughputs,
    "transfer time": _transfer_times,
    "pair bandwidth": _pair_bandwidths,
}
