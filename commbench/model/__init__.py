"""The spine: what is measured, and the records that measuring leaves behind.

Data flows one way::

    Suite → Plan → Launch (a child process) → Record … → store → Summary → report

Times are seconds, sizes bytes, and every number's name ends in its unit. Points in time
(``*_at_s``, ``start_s``, ``stop_s``) are seconds since the epoch on the measuring host's clock.
Workers are known by name, which is the same in every launch, and not by address, which is not.
"""

from __future__ import annotations

from commbench.model.derived import (
    Comparison,
    Summary,
)
from commbench.model.observed import (
    GPU_MEMORY,
    Activity,
    CoreUse,
    Failure,
    IdleCost,
    LaunchEnd,
    Load,
    LogCount,
    NetworkCounter,
    Record,
    Region,
    Sample,
    Setting,
    Spill,
    TaskRecord,
    ThreadTime,
    TransferRecord,
    TransportUsed,
    WireBytes,
    WorkerAddress,
)
from commbench.model.plan import (
    FETCHES,
    LAYERS,
    RIGOROUS_LAUNCHES,
    SCHEMA_VERSION,
    Case,
    ClusterSpec,
    Launch,
    Manifest,
    Placement,
    Stopping,
    Suite,
    WorkerPlace,
)

__all__ = [
    "FETCHES",
    "GPU_MEMORY",
    "LAYERS",
    "RIGOROUS_LAUNCHES",
    "SCHEMA_VERSION",
    "Activity",
    "Case",
    "ClusterSpec",
    "Comparison",
    "CoreUse",
    "Failure",
    "IdleCost",
    "Launch",
    "LaunchEnd",
    "Load",
    "LogCount",
    "Manifest",
    "NetworkCounter",
    "Placement",
    "Record",
    "Region",
    "Sample",
    "Setting",
    "Spill",
    "Stopping",
    "Suite",
    "Summary",
    "TaskRecord",
    "ThreadTime",
    "TransferRecord",
    "TransportUsed",
    "WireBytes",
    "WorkerAddress",
    "WorkerPlace",
]
