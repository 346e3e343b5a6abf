"""Data that a client gathers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.analysis.warnings import MESSAGE_BYTES
from commbench.model import Finding
from commbench.model.units import format_bandwidth, format_bytes

_LEAST = 10_000_000
"""The smallest number of bytes that is worth a finding."""
_LARGE = 1_000_000
_DIRECT = "distributed.client.direct-to-workers"
_USUAL_BPS = 100e6
"""A low bandwidth, where there is no large fetch between workers to compare with."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers send many bytes to the scheduler and the client.

    They take as long as between workers, while task threads have no task. By default they take the
    way over the scheduler, and so twice that.
    """
    wire = case.measured_rows("wire")
    # Each finished task is a message to the scheduler.
    payload = wire["nbytes"] - MESSAGE_BYTES * wire["n_messages"]
    totals = payload.groupby([wire["launch"], wire["iteration"], wire["dst"] == ""]).sum()
    totals = totals.unstack(fill_value=0).reindex(
        case.wall_s.index, columns=[True, False], fill_value=0
    )
    sent = totals[True]
    if not sent.median() >= _LEAST:
        return
    log = case.transfers[case.transfers["nbytes"] >= _LARGE]
    rate_Bps = (log["nbytes"] / log["seconds"]).median() if len(log) else _USUAL_BPS  # noqa: N806
    # All of them together can't be faster than one.
    rate_Bps = np.maximum(rate_Bps, sent / case.wall_s)  # noqa: N806 - the spelling of the unit
    config = {key.replace("_", "-"): v for key, v in case.case.cluster.dask_config.items()}
    is_direct = case.case.params.get("direct") or config.get(_DIRECT)
    idle = case.share("idle_s")
    ways = (1,) if is_direct else (1, 2)
    estimates = [np.minimum(idle, n * sent / rate_Bps / case.wall_s) for n in ways]
    if log.empty:
        # Nothing shows how much faster they are than they have to be.
        estimates = [0 * idle, estimates[-1]]
    # Dask pickles lists of many objects one by one, in another thread.
    is_result = (totals[False] < sent) & (case.sent_data < sent)
    coded = case.offloaded.where(is_result, 0.0)
    are_objects = bool(coded.median() > (sent / rate_Bps / case.wall_s).median())
    if are_objects:
        estimates = [np.minimum(idle, each) for each in (coded, coded + estimates[-1])]
        estimates.append(np.minimum(idle, coded + case.message_work("scheduler")))
    yield Finding(
        statement=f"{format_bytes(int(sent.median()))} go from workers to the client, all through "
        "its one process" + ", and take long to pickle, as lists of many objects do" * are_objects,
        evidence="wire: nbytes from workers to others; profile: idle"
        + "; threads: cpu_seconds of the workers' offload threads" * are_objects,
        effect=case.effect(*estimates),
        remedy="let tasks return arrays, bytes, or frames without Python objects; " * are_objects
        + "keep results on the cluster: reduce or write them there, or persist and use them"
        + f"; or, if the client can reach all workers, set {_DIRECT}: true" * (not is_direct),
        doubt="connections between workers that were busy when the recording began count as well"
        + f"; at least {format_bandwidth(_USUAL_BPS)} is assumed, as no large fetch was recorded"
        * log.empty,
    )


RULE = Rule(
    title="the client gathers",
    limit="10 MB, and 5 % of the time, 10 % where their rate is assumed; or 5 % to pickle them",
    find=find,
)
