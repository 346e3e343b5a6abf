"""The spine: what is measured, and the records that measuring leaves behind.

Data flows one way::

    Suite → Plan → Launch (a child process) → Record … → store → Summary → report

Times are seconds, sizes bytes, and every number's name ends in its unit. Points in time
(``*_at_s``, ``start_s``, ``stop_s``) are seconds since the epoch on the measuring host's clock.
Workers are known by name, which is the same in every launch, and not by address, which is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

SCHEMA_VERSION = 1
LAYERS = ("memcpy", "raw", "coroutine", "comm", "worker")
"""The layers of the software between two processes, from the wire up."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The cluster that a case asks for.

    ``device`` is ``"cpu"`` or ``"gpu"``; ``env`` is set in every process of the cluster, after
    what the backend sets.
    """

    n_workers: int = 2
    threads_per_worker: int = 1
    device: str = "cpu"
    launcher: str = "local"
    hosts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to measure: a workload with its parameters on a backend and a cluster.

    ``warmups`` and ``iterations`` count the timed calls of one launch; ``timeout_s`` is the
    deadline of a launch as a whole.
    """

    workload: str
    backend: str
    params: Mapping[str, Any] = field(default_factory=dict)
    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    launches: int = 6
    iterations: int = 3
    warmups: int = 1
    seed: int = 0
    timeout_s: float = 300.0

    @cached_property
    def id(self) -> str:
        """A hash of what is measured: replication, seed and deadline don't change it.

        Two runs thus agree on the id of a case that they measured with different numbers of
        launches.
        """
        content = {
            "workload": self.workload,
            "backend": self.backend,
            "params": dict(self.params),
            "cluster": asdict(self.cluster),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A named list of cases."""

    name: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A fresh cluster in a fresh process: the unit of replication.

    ``index`` counts the launches of its case, ``block`` the rounds in which every case has one
    launch, and ``position`` the place that the shuffle gave it within the round.
    """

    case: Case
    index: int
    block: int
    position: int


RIGOROUS_LAUNCHES = 10
"""The launches that ``--rigorous`` begins with."""


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """When a run that adds blocks of launches has enough of them.

    As soon as the interval of every median is within ``rel_ci`` of it on either side, or the
    launches have taken ``time_budget_s`` together, or a case has had ``max_launches`` of them;
    but not before every case has had the launches that it asks for.
    """

    rel_ci: float = 0.02
    time_budget_s: float = 3600.0
    max_launches: int = 100


@dataclass(frozen=True, kw_only=True)
class Run:
    """One execution of a suite, as its ``run.json`` keeps it.

    ``stopping`` is None where the number of launches was fixed beforehand.
    """

    id: str
    suite: Suite
    environment: Mapping[str, Any]
    seed: int
    started_at: str
    min_transfer_bytes: int = 1_000_000
    command: str = ""
    stopping: Stopping | None = None
    schema_version: int = SCHEMA_VERSION


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
class TransferRecord:
    """One entry of a worker's incoming transfer log: ``dst`` fetched ``n_keys`` from ``src``.

    ``nbytes`` is the data's size in memory; the duration is ``stop_s - start_s``, not the log's
    own, which is floored at 1 ms. ``channel`` is ``gather`` for what a computation made Dask
    fetch, and for what all-to-all fetched on purpose ``alone``, with no other fetch under way,
    or ``together``, with every other pair's at once.
    """

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

    case_id: str
    launch: int
    worker: str
    address: str


@dataclass(frozen=True, kw_only=True)
class NetworkCounter:
    """Bytes that the kernel counted on one network interface during one iteration."""

    case_id: str
    launch: int
    iteration: int
    host: str
    interface: str
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class IdleCost:
    """CPU time that a cluster with nothing to do burned in ``seconds`` of wall time."""

    case_id: str
    launch: int
    seconds: float
    cpu_seconds: float
    n_processes: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was streamed from one process to the other while a layer's latency was measured."""

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

    case_id: str
    launch: int
    iteration: int
    worker: str
    n_values: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of Dask that was in effect, as live processes tell it; not what was asked for."""

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

    case_id: str
    launch: int
    stage: str
    message: str


@dataclass(frozen=True, kw_only=True)
class LaunchEnd:
    """A launch that ended, well or not; a run resumes after the launches that ended well."""

    case_id: str
    launch: int
    block: int
    position: int
    ok: bool
    seconds: float


Record = (
    Sample
    | TransferRecord
    | WireBytes
    | LogCount
    | TaskRecord
    | TransportUsed
    | WorkerAddress
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


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The samples of one case, or of one message size of it.

    Only the ``n_launches`` that ended well count; where it is 0, all is of launches that were cut
    short. ``median_s`` is the median over launches of each launch's median; the interval holds the
    true median with probability ``confidence`` (one launch allows none: nan, nan and 0). The
    percentiles are over all measured samples. ``n_warmup`` more were found to be warm-up.
    ``cpu_s`` is nan where nobody could count it.
    """

    case_id: str
    layer: str
    payload_bytes: int
    n_launches: int
    n_samples: int
    n_warmup: int
    median_s: float
    ci_low_s: float
    ci_high_s: float
    confidence: float
    min_s: float
    p5_s: float
    p25_s: float
    p75_s: float
    p95_s: float
    p99_s: float
    max_s: float
    cpu_s: float
    build_s: float
    submit_s: float

    @property
    def throughput_Bps(self) -> float:  # noqa: N802 - the unit's own spelling
        """Payload bytes per second at the median; without bytes or time there is none."""
        known = self.payload_bytes > 0 and self.median_s > 0
        return self.payload_bytes / self.median_s if known else float("nan")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``ratio`` = ``candidate_s`` / ``baseline_s``, the medians: below 1 the candidate is faster.

    ``effect`` is ``ratio`` − 1. The interval holds the true ratio with 95 %. ``p_value`` is that
    of the rank ``test``, adjusted for all pairs that were tested together; ``delta`` is Cliff's,
    from −1 (the candidate always faster) to 1. ``n_launches`` is the smaller of the two sides'
    numbers. The verdict is ``faster``, ``slower``, ``same`` or ``inconclusive``: see
    ``commbench.stats.comparison``. Two cases of one workload may share a backend's name; the ids
    tell them apart.
    """

    workload: str
    layer: str
    payload_bytes: int
    baseline: str
    candidate: str
    baseline_id: str
    candidate_id: str
    baseline_s: float
    candidate_s: float
    n_launches: int
    ratio: float
    effect: float
    ci_low: float
    ci_high: float
    p_value: float
    test: str
    delta: float
    min_effect: float
    verdict: str
