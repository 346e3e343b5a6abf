"""P2P shuffles whose bytes converge on few workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_bytes
from commbench.stats import grouping

_MORE = 1.5
"""The bytes of the worker that receives the most, over the average."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if one worker receives much more of P2P shuffles than the average.

    While batches are under way, the time is that of the worker that receives the most.
    """
    log = case.transfers[case.transfers["channel"] == "p2p"]
    workers = case.profiles["worker"][case.profiles["process"] == "workers"].unique()
    if log.empty or len(workers) < 2:
        return
    window = ["launch", "iteration"]
    received = log.groupby([*window, log["dst"].astype("str")], observed=True)["nbytes"].sum()
    # In another iteration it may be another worker.
    most = received.groupby(level=window).max()
    more = most / (received.groupby(level=window).sum() / len(workers))
    if more.median() < _MORE:
        return
    busy = _busy_s(log) / case.wall_s
    yield Finding(
        statement=f"one worker receives {format_bytes(int(most.median()))} by P2P, "
        f"{more.median():.1f} times the average of the workers",
        evidence="transfers of the channel p2p: nbytes by iteration and dst",
        effect=case.effect((busy * (1 - 1 / more)).dropna()),
        remedy="divide the data evenly: more partitions, or another key",
        doubt="few partitions can't be divided evenly",
    )


def _busy_s(log: pd.DataFrame) -> pd.Series[float]:
    """Return the time of each iteration in which a batch is under way."""
    window = log.groupby(["launch", "iteration"], observed=True).ngroup().to_numpy()
    order = np.argsort(window, kind="stable")
    start_s, stop_s = log[["start_s", "stop_s"]].to_numpy()[order].T
    keys = log[["launch", "iteration"]].drop_duplicates().sort_values(["launch", "iteration"])
    lengths = grouping.union_lengths(start_s, stop_s, window[order])
    return pd.Series(lengths, pd.MultiIndex.from_frame(keys))


RULE = Rule(
    title="P2P is unbalanced",
    limit="1.5 times the average bytes, and 5 % of the time",
    find=find,
)
