"""The data model: suites and cases to measure, and the records of measurements.

Data flows one way::

    Suite → Plan → Launch (a child process) → Record … → store → Summary → report

Times are in seconds, sizes in bytes, and the name of every number ends in its unit. Points in time
(``*_at_s``, ``start_s``, ``stop_s``) are seconds since the epoch on the measuring host's clock.
Workers are identified by name, because their addresses differ between launches.
"""

from __future__ import annotations

from commbench.model.derived import Comparison, Summary
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
    WorkerPlace,
)
from commbench.model.plan import (
    FETCHES,
    LAYERS,
    SCHEMA_VERSION,
    Case,
    ClusterSpec,
    Launch,
    Manifest,
    Placement,
    Stopping,
    Suite,
)

__all__ = [
    "FETCHES", "GPU_MEMORY", "LAYERS", "SCHEMA_VERSION", "Activity", "Case", "ClusterSpec",
    "Comparison", "CoreUse", "Failure", "IdleCost", "Launch", "LaunchEnd", "Load", "LogCount",
    "Manifest", "NetworkCounter", "Placement", "Record", "Region", "Sample", "Setting", "Spill",
    "Stopping", "Suite", "Summary", "TaskRecord", "ThreadTime", "TransferRecord", "TransportUsed",
    "WireBytes", "WorkerAddress", "WorkerPlace",
]  # fmt: skip
