"""The kinds of records that a launch emits.

Records of kinds with ``in_parts``, of which there may be millions, are in folders of the run's
directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.model.plan import WorkerPlace


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One timed call, or one message of a ping-pong.

    ``seconds`` is the wall time from submission to the last result; ``submit_seconds`` is the part
    of it until the scheduler had the graph; ``build_seconds`` precedes it and is not included.
    For a ping-pong, ``seconds`` and ``cpu_seconds`` are of one message (half the round trip, or the
    window's share) and ``payload_bytes`` is its size.
    ``cpu_seconds`` sums over all processes of the cluster, including the client; for a ping-pong
    over both ends. It is 0 if it could not be measured.
    ``verified`` says whether received data were compared with sent data. It is false if another
    program, the ``tool``, exchanged the messages.
    """

    table: ClassVar = "samples"

    case_id: str
    launch: int
    iteration: int
    layer: str
    warmup: bool
    started_at_s: float
    seconds: float
    cpu_seconds: float
    payload_bytes: int
    verified: bool
    build_seconds: float = 0.0
    submit_seconds: float = 0.0
    tool: str = ""


@dataclass(frozen=True, kw_only=True)
class Region:
    """A named part of a user's code; ``iteration`` numbers the regions of a launch.

    Other records refer to the innermost region by this number. The timed calls of a workload are
    numbered in the same way, without regions. ``parent`` is the number of the enclosing region, or
    -1. If a region raised, ``error`` describes the exception; its records are kept.
    """

    table: ClassVar = "regions"

    case_id: str
    launch: int
    iteration: int
    parent: int
    name: str
    started_at_s: float
    seconds: float
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """One entry of a worker's incoming transfer log: ``dst`` fetched ``n_keys`` from ``src``.

    ``nbytes`` is the data's size in memory. The duration is ``stop_s - start_s``, because the
    duration in the log is at least 1 ms. ``channel`` is ``gather`` for fetches of computations, and
    for those of all-to-all ``alone`` (one pair at a time) or ``together`` (all pairs at once).
    """

    table: ClassVar = "transfers"
    in_parts: ClassVar = True

    case_id: str
    launch: int
    iteration: int
    src: str
    dst: str
    nbytes: int
    start_s: float
    stop_s: float
    n_keys: int
    channel: str = "gather"


@dataclass(frozen=True, kw_only=True)
class WireBytes:
    """The serialized bytes that ``src`` wrote to its comms with ``dst`` within one iteration."""

    table: ClassVar = "wire"
    in_parts: ClassVar = True

    case_id: str
    launch: int
    iteration: int
    src: str
    dst: str
    nbytes: int
    n_messages: int


@dataclass(frozen=True, kw_only=True)
class LogCount:
    """The number of fetches that one worker started within one iteration, and their outcomes.

    ``n_started`` is the worker's ``transfer_incoming_count_total``. Fetches in none of the other
    counts were lost from the log.
    """

    table: ClassVar = "log_counts"

    case_id: str
    launch: int
    iteration: int
    worker: str
    n_started: int
    n_logged: int
    n_busy: int
    n_failed: int
    n_in_flight: int


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """One bar of the task stream; ``action`` is compute, transfer, deserialize or disk-read."""

    table: ClassVar = "tasks"
    in_parts: ClassVar = True

    case_id: str
    launch: int
    iteration: int
    worker: str
    thread: int
    name: str
    action: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, kw_only=True)
class TransportUsed:
    """The transport that carried the bytes from ``src`` to ``dst``, and the evidence."""

    table: ClassVar = "transports"
    in_parts: ClassVar = True

    case_id: str
    launch: int
    src: str
    dst: str
    transport: str
    evidence: str
    contradiction: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerAddress:
    """The address on which a worker listened."""

    table: ClassVar = "addresses"

    case_id: str
    launch: int
    worker: str
    address: str


@dataclass(frozen=True, kw_only=True)
class NetworkCounter:
    """Bytes that the kernel counted on one network interface during one iteration."""

    table: ClassVar = "network"

    case_id: str
    launch: int
    iteration: int
    host: str
    interface: str
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class IdleCost:
    """The CPU time that an idle cluster used in ``seconds`` of wall time."""

    table: ClassVar = "idle"

    case_id: str
    launch: int
    seconds: float
    cpu_seconds: float
    n_processes: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load that was streamed between two processes while a layer's latency was measured."""

    table: ClassVar = "loads"

    case_id: str
    launch: int
    layer: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CoreUse:
    """The use of the ``n_cores`` that a launch may use, during its ``seconds``.

    CPU time is summed over these cores: ``busy`` is that of all processes, ``own`` that of the
    processes of the launch. ``stolen`` is the time in which a process was ready to run and the
    hypervisor ran another machine.
    """

    table: ClassVar = "core_use"

    case_id: str
    launch: int
    host: str
    n_cores: int
    seconds: float
    busy_cpu_seconds: float
    own_cpu_seconds: float
    stolen_cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Spill:
    """The data that one worker spilled to disk within one iteration.

    Workers that spilled nothing have no record; ``nbytes`` is the size on disk.
    """

    table: ClassVar = "spills"

    case_id: str
    launch: int
    iteration: int
    worker: str
    n_values: int
    nbytes: int


GPU_MEMORY = "gpu.memory"
"""The name of the setting for the source of GPU memory."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting that was in effect, as reported by live processes."""

    table: ClassVar = "settings"

    case_id: str
    launch: int
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class ThreadTime:
    """The times of the threads of one process with the same role.

    ``worker`` is a worker's name, ``"scheduler"`` or ``"client"``; ``role`` is ``loop`` (the
    thread of the event loop), ``tasks``, ``offload``, ``native`` (not created by Python: a UCX
    progress thread, BLAS) or ``other``. ``seconds`` is the wall time between two readings, just
    before and after the sample. The threads' times are summed over ``n_threads``: ``cpu_seconds``
    on a core, ``wait_seconds`` ready to run without a free core. ``n_turns`` counts the turns of
    the event loop; it is 0 if they can't be counted. The ``idle_*`` fields are the same for an idle
    period right after the iteration.
    """

    table: ClassVar = "threads"

    case_id: str
    launch: int
    iteration: int
    worker: str
    role: str
    n_threads: int
    seconds: float
    cpu_seconds: float
    wait_seconds: float
    n_turns: int
    idle_seconds: float
    idle_cpu_seconds: float
    idle_wait_seconds: float
    idle_n_turns: int


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The increase of one of Dask's fine performance metrics on one worker within one iteration.

    ``context`` is ``execute``, ``gather-dep``, ``get-data`` or ``p2p``, summed over tasks and
    spans; ``label`` is that of Dask (``thread-cpu``, ``serialize``, ``network`` …).
    ``gil``, ``contention`` is only recorded if gilknocker is installed.
    """

    table: ClassVar = "activities"

    case_id: str
    launch: int
    iteration: int
    worker: str
    context: str
    label: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of a launch: its stage and a message."""

    table: ClassVar = "failures"

    case_id: str
    launch: int
    stage: str
    message: str


@dataclass(frozen=True, kw_only=True)
class LaunchEnd:
    """The end of a launch; ``ok`` launches are not repeated when a run is resumed."""

    table: ClassVar = "ends"

    case_id: str
    launch: int
    block: int
    position: int
    ok: bool
    seconds: float


Record = (
    Sample
    | Region
    | TransferRecord
    | WireBytes
    | LogCount
    | TaskRecord
    | TransportUsed
    | WorkerAddress
    | WorkerPlace
    | NetworkCounter
    | IdleCost
    | Load
    | CoreUse
    | Spill
    | Setting
    | ThreadTime
    | Activity
    | Failure
    | LaunchEnd
)
