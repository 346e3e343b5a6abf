"""P2P shuffles whose bytes converge on few workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import WAITS, CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_bytes

_TRANSFERS = ("shuffle-transfer", "hash-join-transfer", "rechunk-transfer")
"""How the names of tasks end that send what is shuffled; others may be fused with these."""
_MOST = 0.9
_MORE = 1.5
"""The bytes of the worker that receives the most, over the average."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if one worker gets much more of P2P shuffles than the average.

    While batches are under way, the time is that of the worker that receives the most.
    """
    log = case.transfers[case.transfers["channel"] == "p2p"]
    window = ["launch", "iteration"]
    workers = case.profiles[case.profiles["process"] == "workers"].groupby(window).size()
    if log.empty or workers.empty or workers.max() < 2:
        return
    names = [*window, "worker"]
    log = log.assign(worker=log["dst"].astype("str"))
    received = log.groupby(names)["nbytes"].sum()
    # A worker with less of the input receives more of the same output.
    tasks = case.tasks.astype({"name": "str", "worker": "str"})
    inputs = tasks[tasks["name"].str.endswith(_TRANSFERS)].groupby(names).size()
    share = inputs / inputs.groupby(level=window).transform("sum")
    # What a worker with nearly all of it keeps is not known.
    known = ~received.droplevel("worker").index.isin(share[share > _MOST].droplevel("worker").index)
    received = received[known]
    output = received / (1 - share.reindex(received.index).fillna(0.0))
    total = output.groupby(level=window).sum()
    more = (output.groupby(level=window).max() / (total / workers)).dropna()
    if more.empty or more.median() < _MORE:
        return
    # In another iteration it may be another worker.
    most = received.loc[output.groupby(level=window).idxmax()]
    busy = case.busy_s(log, *window) / case.wall_s
    # Tasks that run go on.
    unused = case.share(*WAITS, how="max")
    saved = np.minimum(busy * (1 - 1 / more), unused)
    yield Finding(
        statement=f"one worker has {more.median():.1f} times the average output of P2P shuffles, "
        f"and receives {format_bytes(int(most.median()))} of it",
        evidence="transfers of the channel p2p: nbytes by iteration and dst; tasks that send them",
        effect=case.effect(saved.reindex(case.wall_s.index, fill_value=0.0)),
        remedy="divide the data evenly: more partitions, or another key",
        doubt="few partitions can't be divided evenly",
    )


RULE = Rule(
    title="P2P is unbalanced",
    limit="1.5 times the average bytes, and 5 % of the time",
    find=find,
)
