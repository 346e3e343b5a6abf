"""What measuring leaves behind: one kind of record for each thing that is seen.

Those of which there may be millions are ``in_parts``: in a folder of the run's directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.model.plan import WorkerPlace


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One timed call, or one message of a ping-pong.

    ``seconds`` is wall time from submission to the last result; ``submit_seconds`` is the part
    of it until the scheduler had the graph; ``build_seconds`` came before it and is not in it.
    For a ping-pong ``seconds`` and ``cpu_seconds`` are of one message (half the round trip, or the
    window's share) and ``payload_bytes`` is its size.
    ``cpu_seconds`` sums over all processes of the cluster, the client included; for a ping-pong
    over both ends. It is 0 where nobody could count it.
    ``verified`` says that what arrived was compared with what was sent. Where another program
    exchanged the messages, which nobody could look into, it is false, and ``tool`` names that.
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

    Other records refer to the innermost region by that number. The timed calls of a workload are
    numbered likewise, and have no region. ``parent`` is the number of the enclosing region, or -1.
    A region that raised has its ``error``, and its records are kept.
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

    ``nbytes`` is the data's size in memory; the duration is ``stop_s - start_s``, not the log's
    own, which is floored at 1 ms. ``channel`` is ``gather`` for what a computation made Dask
    fetch, and for what all-to-all fetched on purpose ``alone``, with no other fetch under way,
    or ``together``, with every other pair's at once.
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
    """What ``src`` wrote to its comms with ``dst`` within one iteration, serialized."""

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
    """How many fetches one worker began within one iteration, and what became of them.

    ``n_started`` is the worker's own ``transfer_incoming_count_total``: what it has over the
    other counts was lost from the log.
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
    """The transport that carried the bytes from ``src`` to ``dst``, and how that is known."""

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
    """Where a worker listened: its host tells which pairs of workers share one."""

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
    """CPU time that a cluster with nothing to do burned in ``seconds`` of wall time."""

    table: ClassVar = "idle"

    case_id: str
    launch: int
    seconds: float
    cpu_seconds: float
    n_processes: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was streamed from one process to the other while a layer's latency was measured."""

    table: ClassVar = "loads"

    case_id: str
    launch: int
    layer: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CoreUse:
    """What the ``n_cores`` that a launch may use did in the ``seconds`` from its begin to its end.

    CPU time is summed over these cores: ``busy`` is everybody's, ``own`` that of the launch's
    processes, ``stolen`` what a hypervisor gave to others while a process here was ready to run.
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
    """What one worker wrote to disk within one iteration because its memory was full.

    Workers that wrote nothing have no record; ``nbytes`` is the size on disk.
    """

    table: ClassVar = "spills"

    case_id: str
    launch: int
    iteration: int
    worker: str
    n_values: int
    nbytes: int


GPU_MEMORY = "gpu.memory"
"""The name of the setting that tells where the memory of GPUs comes from."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of Dask that was in effect, as live processes tell it; not what was asked for."""

    table: ClassVar = "settings"

    case_id: str
    launch: int
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class ThreadTime:
    """What the operating system and the event loop counted of some threads of one process.

    ``worker`` is a worker's name, ``"scheduler"`` or ``"client"``; ``role`` is ``loop`` (the
    thread of the event loop), ``tasks``, ``offload``, ``native`` (no thread of Python's: a UCX
    progress thread, BLAS) or ``other``. ``seconds`` is the wall time between the two readings,
    which lie just outside of the sample's; the threads' times are summed over the ``n_threads``:
    ``cpu_seconds`` on a core, ``wait_seconds`` ready to run with no core free. ``n_turns``
    counts the turns of the event loop, 0 where they can't be counted. The ``idle_*`` are the same
    of the wall time right after the iteration in which nothing was asked of the process.
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
    """One of Dask's fine performance metrics: what one worker added to it within one iteration.

    ``context`` is ``execute``, ``gather-dep``, ``get-data`` or ``p2p``, summed over tasks and
    spans; ``label`` is Dask's own (``thread-cpu``, ``serialize``, ``network`` …).
    ``gil``, ``contention`` is there only where gilknocker is installed.
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
    """A launch that went wrong, at which stage and why."""

    table: ClassVar = "failures"

    case_id: str
    launch: int
    stage: str
    message: str


@dataclass(frozen=True, kw_only=True)
class LaunchEnd:
    """A launch that ended, well or not; a run resumes after the launches that ended well."""

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
