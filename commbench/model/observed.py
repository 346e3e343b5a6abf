"""The kinds of records that a launch emits.

Records of kinds with ``in_parts``, of which there may be millions, are in folders of the run's
directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

LOCAL = "local"
"""The name in records of the host on which the run was started."""


@dataclass(frozen=True, kw_only=True)
class _LaunchKeys:
    case_id: str
    launch: int


@dataclass(frozen=True, kw_only=True)
class Record(_LaunchKeys):
    """A row of what was measured; each kind is a subclass with a ``table``.

    Attributes
    ----------
    kinds
        All kinds, by name.
    table
        The name of the frame of the kind.
    in_parts
        Whether there may be millions of the kind.
    """

    kinds: ClassVar[dict[str, type[Record]]] = {}
    table: ClassVar[str]
    in_parts: ClassVar[bool]

    def __init_subclass__(cls, *, table: str = "", in_parts: bool = False) -> None:
        cls.table, cls.in_parts = table, in_parts
        if table:
            cls.kinds[cls.__name__] = cls


@dataclass(frozen=True, kw_only=True)
class _IterationRecord(Record):
    iteration: int


@dataclass(frozen=True, kw_only=True)
class Sample(_IterationRecord, table="samples"):
    """One timed call, or one message of a ping-pong.

    ``seconds`` is the wall time from submission to the last result; ``submit_seconds`` is the part
    of it until the scheduler had the graph; ``build_seconds`` precedes it and is not included.
    For a ping-pong, ``seconds`` and ``cpu_seconds`` are of one message (half the round trip, or the
    window's share) and ``payload_bytes`` is its size.
    ``cpu_seconds`` sums over all processes of the cluster, including the client; for a ping-pong
    over both ends. It is 0 if it could not be measured.
    ``verified`` says whether received data were compared with sent data. It is false if another
    program, the ``tool``, exchanged the messages.
    ``n_operations`` and ``operations`` are those of the workload, if it counts them: 1000 tasks.
    """

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
    n_operations: int = 0
    operations: str = ""


@dataclass(frozen=True, kw_only=True)
class Region(_IterationRecord, table="regions"):
    """A named part of a user's code; ``iteration`` numbers the regions of a launch.

    Other records refer to the innermost region by this number. The timed calls of a workload are
    numbered in the same way, without regions. ``parent`` is the number of the enclosing region, or
    -1. If a region raised, ``error`` describes the exception; its records are kept.
    """

    parent: int
    name: str
    started_at_s: float
    seconds: float
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class TransferRecord(_IterationRecord, table="transfers", in_parts=True):
    """One entry of a worker's incoming transfer log, or one batch of shards of a P2P shuffle.

    ``dst`` fetched ``n_keys`` from ``src``, or ``src`` sent ``n_keys`` shards. ``nbytes`` is the
    data's size in memory. The duration is ``stop_s - start_s``, because the duration in the log is
    at least 1 ms. ``channel`` is ``gather`` for fetches of computations; ``alone`` (one pair at a
    time) or ``together`` (all pairs at once) for those of all-to-all; ``alone``, ``rounds`` or
    ``again`` (alone, if slow in rounds) for those of links; and ``p2p`` for batches.
    Of these, ``queue_s`` is the time that the oldest shard waited at the sender, ``handling_s``
    that of the receiver's handler, which includes unpickling of shards below 64 KiB, and
    ``shuffle`` the name of the tasks that made the shards. ``start_s`` is when the batch leaves the
    queue, and ``stop_s`` when the answer is back, less ``handling_s``; both are of the sender's
    clock. Attempts that fail are part of this time.
    """

    src: str
    dst: str
    nbytes: int
    start_s: float
    stop_s: float
    n_keys: int
    channel: str = "gather"
    queue_s: float = 0.0
    handling_s: float = 0.0
    shuffle: str = ""


@dataclass(frozen=True, kw_only=True)
class RoundTrip(_IterationRecord, table="round_trips", in_parts=True):
    """The time from an empty request of ``dst`` until the answer of ``src``, without any fetch.

    The request is Dask's ``echo`` on the connection of the fetches. In rounds others ask, too.
    """

    src: str
    dst: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class WireBytes(_IterationRecord, table="wire", in_parts=True):
    """The serialized bytes that ``src`` wrote to its comms with ``dst`` within one iteration.

    ``dst`` is empty for the scheduler and clients, together.
    """

    src: str
    dst: str
    nbytes: int
    n_messages: int


@dataclass(frozen=True, kw_only=True)
class LogCount(_IterationRecord, table="log_counts"):
    """The number of fetches that one worker started within one iteration, and their outcomes.

    ``n_started`` is the worker's ``transfer_incoming_count_total``. Fetches in none of the other
    counts were lost from the log.
    """

    worker: str
    n_started: int
    n_logged: int
    n_busy: int
    n_failed: int
    n_in_flight: int


@dataclass(frozen=True, kw_only=True)
class TaskRecord(_IterationRecord, table="tasks", in_parts=True):
    """One bar of the task stream; ``action`` is compute, transfer, deserialize or disk-read.

    ``name`` is the prefix that ``key`` has in common with others, ``nbytes`` the size of the
    task's result in memory. ``graph`` is the ``number`` of the `Graph` with which the
    task came to the scheduler; -1 if it is unknown.
    """

    worker: str
    thread: int
    name: str
    action: str
    start_s: float
    stop_s: float
    key: str = ""
    nbytes: int = 0
    graph: int = -1


@dataclass(frozen=True, kw_only=True)
class Graph(_IterationRecord, table="graphs", in_parts=True):
    """One graph that the scheduler received, by a call of compute, persist, submit or map.

    ``code`` is the file, the line and the text of the statement with that call: ``etl.py:7
    x.compute()``. It is "" if a library, a task or another client made the call. ``n_tasks``
    includes those of earlier graphs that it contains. ``nbytes`` is the pickled graph's size, with
    the data in it, and ``send_seconds`` the time in which the client pickled it; 0 if another
    client sent it. Times are on the scheduler's clock.
    """

    number: int
    received_s: float
    n_tasks: int
    code: str
    nbytes: int
    send_seconds: float


@dataclass(frozen=True, kw_only=True)
class LineTime(_IterationRecord, table="line_times", in_parts=True):
    """The time in a line of a user's code, by samples of the task threads or of the script.

    Attributes
    ----------
    role
        ``task``; of the script ``script``, ``graph`` if Dask makes or sends a graph for it,
        ``wait`` if it waits for the cluster, or ``blocked`` for other threads.
    name
        That of the tasks, as in `TaskRecord`, or "".
    code
        The file, the line and the text of the innermost statement that is no library's; without
        any, the function of a library that Dask called: ``pandas.io.parsers.readers.read_csv``. It
        is "" if that is Dask or compiled.
    """

    role: str
    name: str
    code: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TransportUsed(Record, table="transports", in_parts=True):
    """The transport that carried the bytes from ``src`` to ``dst``, and the evidence."""

    src: str
    dst: str
    transport: str
    evidence: str
    contradiction: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerAddress(Record, table="addresses"):
    """The address on which a worker listened."""

    worker: str
    address: str


@dataclass(frozen=True, kw_only=True)
class WorkerPlace(Record, table="places"):
    """The location of a worker as reported by its kernel and driver; unknown fields are empty.

    ``host_id`` is the same for processes that share a kernel and a network: a container or a
    namespace with a separate network is a separate host. ``cpus`` are those that the worker may
    use, ``numa_nodes`` and ``sockets`` those of these CPUs. The GPU is recorded if the workload's
    data are in its memory: ``gpu`` is its number in nvidia-smi, ``gpu_links`` its links to the
    others (``"GPU1=NV1 GPU2=PIX"``). ``nic`` is the value of ``UCX_NET_DEVICES``, else the
    interface on which the worker listens. ``file_system`` is the type of the one to which the
    worker spills (``ext4``, ``nfs4``, ``tmpfs``).
    """

    worker: str
    host: str
    host_id: str
    pid: int
    cpus: str
    numa_nodes: str
    sockets: str
    gpu: str
    gpu_uuid: str
    gpu_pci: str
    gpu_links: str
    nic: str
    file_system: str = ""


@dataclass(frozen=True, kw_only=True)
class NetworkCounter(_IterationRecord, table="network"):
    """Bytes that the kernel counted on one network interface during one iteration."""

    host: str
    interface: str
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class IdleCost(Record, table="idle"):
    """The CPU time that an idle cluster used in ``seconds`` of wall time."""

    seconds: float
    cpu_seconds: float
    n_processes: int


@dataclass(frozen=True, kw_only=True)
class Load(Record, table="loads"):
    """The load that was streamed between two processes while a layer's latency was measured."""

    layer: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CoreUse(Record, table="core_use"):
    """The use of the ``n_cores`` that a launch may use, during its ``seconds``.

    CPU time is summed over these cores: ``busy`` is that of all processes, ``own`` that of the
    processes of the launch. ``stolen`` is the time in which a process was ready to run and the
    hypervisor ran another machine.
    """

    host: str
    n_cores: int
    seconds: float
    busy_cpu_seconds: float
    own_cpu_seconds: float
    stolen_cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Spill(_IterationRecord, table="spills"):
    """The data that one worker spilled to disk within one iteration, and its pauses.

    ``nbytes`` is the size on disk, ``paused_seconds`` the time in which the worker began no task
    because its memory was full. Workers with neither have no record.
    """

    worker: str
    n_values: int
    nbytes: int
    paused_seconds: float = 0.0


GPU_MEMORY = "gpu.memory"
"""The name of the setting for the source of GPU memory."""


@dataclass(frozen=True, kw_only=True)
class Setting(Record, table="settings"):
    """A setting that was in effect, as reported by live processes."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class ThreadTime(_IterationRecord, table="threads"):
    """The times of the threads of one process with the same role.

    ``worker`` is a worker's name, ``"scheduler"``, or ``"client"`` if the scheduler is in another
    process; ``role`` is ``loop`` (the thread of the event loop), ``tasks``, ``offload``,
    ``shuffle`` (P2P's), ``actors`` (their methods), ``native`` (not created by Python: a UCX
    progress thread, BLAS; or ended) or ``other``. ``seconds`` is the wall time between two
    readings, just before and after the sample. The threads' times are summed over ``n_threads``:
    ``cpu_seconds`` on a core, ``wait_seconds`` ready to run without a free core. ``n_turns`` counts
    the turns of the event loop; it is 0 if they can't be counted. ``long_turn_seconds`` sums the
    turns of 0.1 s and more, ``long_turn_cpu_seconds`` what the loop's thread is on a core in them.
    The ``idle_*`` fields are the same for an idle period right after the iteration.
    """

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
    long_turn_seconds: float = 0.0
    long_turn_cpu_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LongTurn(_IterationRecord, table="long_turns"):
    """A turn of a process's event loop of 0.1 s or more, in which the loop did nothing else.

    ``worker`` is as in `ThreadTime`; the times are on the scheduler's clock. Of a region with more
    than 1,000, the last ones are recorded.
    """

    worker: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, kw_only=True)
class ProcessUse(_IterationRecord, table="process_use", in_parts=True):
    """The use of a process between two readings of Dask's system monitor, half a second apart.

    ``n_cores`` is its CPU time over the time between the readings, and ``memory_bytes`` its
    resident memory at the second one. ``worker`` is a worker's name or ``"scheduler"``. The times
    are on the scheduler's clock. Of an iteration of more than an hour, the last hour is recorded.
    """

    worker: str
    start_s: float
    stop_s: float
    n_cores: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Activity(_IterationRecord, table="activities"):
    """The increase of one of Dask's fine performance metrics on one worker within one iteration.

    ``context`` is ``execute``, ``gather-dep``, ``get-data`` or ``p2p``, summed over tasks and
    spans; ``label`` is that of Dask (``thread-cpu``, ``serialize``, ``network`` …).
    ``gil``, ``contention`` is only recorded if gilknocker is installed. ``memory``, ``page-faults``
    is commbench's: the number of minor page faults × the time of one
    on pages that are given back. So are ``cores``, ``busy`` and ``stolen``: CPU seconds of the
    cores that the worker may use, by all processes and by other machines; see `CoreUse`.
    """

    worker: str
    context: str
    label: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Failure(Record, table="failures"):
    """The failure of a launch: its stage and a message."""

    stage: str
    message: str


@dataclass(frozen=True, kw_only=True)
class LaunchEnd(Record, table="ends"):
    """The end of a launch; ``ok`` launches are not repeated when a run is resumed."""

    block: int
    position: int
    ok: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Phase(_LaunchKeys):
    """The beginning of a phase of a launch, for the display of progress; it is not stored."""

    name: str
