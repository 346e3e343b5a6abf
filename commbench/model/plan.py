"""What is asked for: cases of a suite, and the launches that measure them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

SCHEMA_VERSION = 2
LAYERS = ("memcpy", "raw", "coroutine", "comm", "worker")
"""The layers of the software between two processes, from the wire up."""
FETCHES = ("alone", "together")
"""How workers fetch from each other: one ordered pair after another, or all at once."""
_FIRST = ("n_workers", "threads_per_worker", "device", "launcher", "hosts", "env")
"""Fields that are in the id of every case. Others are in it where they don't have their default:
so ids stay when a field is added.
"""
_LAST = ("workers_per_gpu", "memory_limit", "env", "dask_config")
"""Fields that come last in labels: histories of asv and names in pyperf rest on the order."""


@dataclass(frozen=True)
class FieldInfo:
    """How a user gives a field of ``ClusterSpec``, and what it is for.

    Attributes
    ----------
    option
        Of the command line; what a suite alone can give has none.
    help
        Of the option.
    of
        ``"size"`` and ``"launcher"`` are for cases that have a cluster, ``"gpu"`` for those that
        work on GPUs.
    metavar
        What stands for the value in the help.
    none
        What the help says in the place of an empty default.
    of_one_launcher
        Whether another launcher has no use for the value.
    is_measured
        Whether it says what is measured; else where that is, or how patiently.
    shown_as, shown_by
        The word for it in labels, if that is not the option's, and the property that has its
        value in words.
    """

    option: str = ""
    help: str = ""
    of: str = "launcher"
    metavar: str | None = None
    none: str = ""
    of_one_launcher: bool = False
    is_measured: bool = True
    shown_as: str = ""
    shown_by: str = ""


def _field(default: Any, option: str = "", help: str = "", **more: Any) -> Any:  # noqa: A002
    metadata = {"info": FieldInfo(option, help, **more)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The cluster that a case asks for.

    Each field is said here once: options, suite files, labels, comparisons and ids follow.
    ``device`` is ``"cpu"`` or ``"gpu"``; ``env`` and ``dask_config`` (by Dask's own keys) are set
    in every process of the cluster, after what the backend sets. ``hosts`` are those that the
    launcher goes to, the scheduler's first. ``scheduler`` is the address or the file of a running
    scheduler. ``placement`` has what each worker is bound to, in the order of their names; where it
    is empty, none is. RMM gives workers on GPUs their memory: from a pool of at first ``rmm_pool``
    (bytes or a share of the GPU's memory, as text), by CUDA's asynchronous allocator, or managed.
    ``memory_limit`` is that of each worker (bytes or a share of its host's memory, as text).
    """

    n_workers: int = _field(2, "--workers", "Worker processes.", of="size")
    threads_per_worker: int = _field(1, "--threads", "Threads of each worker.", of="size")
    device: str = _field("cpu", "--device", "auto: gpu where there is one and CuPy.", of="")
    launcher: str = _field(
        "local", "--launcher",
        "local: processes of their own; mpirun: the ranks of one MPI world; ssh: on --hosts; "
        "slurm, pbs, lsf: as jobs; external: a running cluster.",
    )  # fmt: skip
    hosts: tuple[str, ...] = _field(
        (), "--hosts",
        "For ssh and mpirun: the scheduler's host, then one for each worker, in turn.",
        of_one_launcher=True,
    )  # fmt: skip
    memory_limit: str = _field(
        "", "--memory-limit",
        "Memory of each worker, from which Dask derives when it spills: 4GB, or 0.5 of its host's.",
        metavar="SIZE", none="an equal share",
    )  # fmt: skip
    env: Mapping[str, str] = _field({}, of="")
    dask_config: Mapping[str, Any] = _field({}, of="")
    launcher_options: Mapping[str, str] = _field(
        {}, "--launcher-option",
        "For ssh, mpirun, slurm, pbs and lsf: for example queue=short; may be repeated.",
        of_one_launcher=True,
    )  # fmt: skip
    scheduler: str = _field(
        "", "--scheduler-address or --scheduler-file", of_one_launcher=True, is_measured=False
    )
    start_timeout_s: float = _field(
        60.0, "--start-timeout", "Deadline for all workers to be there, in seconds.",
        is_measured=False,
    )  # fmt: skip
    placement: tuple[Placement, ...] = _field(
        (), "--placement", of="", shown_as="placement", shown_by="placed"
    )
    workers_per_gpu: int = _field(
        1, "--workers-per-gpu",
        "With --device gpu: processes that share a GPU, on machines with few.", of="gpu",
    )  # fmt: skip
    rmm_pool: str = _field(
        "", "--rmm-pool",
        "RMM pool of each worker: 10GB, or 0.5 of the GPU's memory (dask-cuda's --rmm-pool-size).",
        of="gpu", metavar="SIZE", none="none", shown_as="rmm", shown_by="rmm",
    )  # fmt: skip
    rmm_async: bool = _field(
        False, "--rmm-async", "RMM by CUDA's asynchronous allocator (dask-cuda's --rmm-async).",
        of="gpu", shown_as="rmm", shown_by="rmm",
    )  # fmt: skip
    rmm_managed: bool = _field(
        False, "--rmm-managed", "RMM with managed memory (dask-cuda's --rmm-managed-memory).",
        of="gpu", shown_as="rmm", shown_by="rmm",
    )  # fmt: skip

    @classmethod
    def settings(cls, *of: str) -> dict[str, FieldInfo]:
        """Return by the names of the fields how each is given; of these kinds only, if any."""
        found = {f.name: f.metadata["info"] for f in fields(cls)}
        return {name: setting for name, setting in found.items() if not of or setting.of in of}

    @property
    def placed(self) -> str:
        """The placement in words; nothing where no worker is bound."""
        return " / ".join(map(str, self.placement))

    @property
    def rmm(self) -> str:
        """What RMM is asked for, in words; nothing where it is left as it is.

        Examples
        --------
        >>> ClusterSpec(rmm_pool="10GB", rmm_async=True).rmm, ClusterSpec().rmm
        ('pool 10GB async', '')
        """
        pool = f"pool {self.rmm_pool}" * bool(self.rmm_pool)
        words = (pool, "async" * self.rmm_async, "managed" * self.rmm_managed)
        return " ".join(filter(None, words))

    def measured(self) -> dict[str, Any]:
        """Return the fields that say what is measured."""
        given = asdict(self)
        return {name: given[name] for name, how in self.settings().items() if how.is_measured}

    def identity(self) -> dict[str, Any]:
        """Return ``measured`` without what has its default, but for the first fields of all."""
        default = type(self)().measured()
        return {
            name: value
            for name, value in self.measured().items()
            if name in _FIRST or value != default[name]
        }

    def words(self) -> dict[str, Any]:
        """Return ``identity`` in words, for labels, and what has its default as empty text."""
        found: dict[str, Any] = {}
        fields_, identity = self.settings(), self.identity()
        for name in sorted(fields_, key=lambda name: _LAST.index(name) if name in _LAST else -1):
            how, value = fields_[name], getattr(self, name)
            if isinstance(value, Mapping):
                found |= value
            elif how.is_measured:
                word = how.option.removeprefix("--").replace("-", "_")
                in_words = getattr(self, how.shown_by) if how.shown_by else identity.get(name, "")
                found[how.shown_as or word] = in_words
        return found


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

    @property
    def settings(self) -> dict[str, Any]:
        """The variables and the configuration of Dask that the case sets."""
        return {**self.cluster.env, **self.cluster.dask_config}

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
            "cluster": self.cluster.identity(),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A named list of cases.

    ``reproduces`` names the published figure that they are to be set beside, if any, and ``scale``
    says which share of the full size they have.
    """

    name: str
    cases: tuple[Case, ...]
    reproduces: str = ""
    scale: float = 1.0


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
class Manifest:
    """One execution of a suite, as its ``run.json`` keeps it.

    ``stopping`` is None where the number of launches was fixed beforehand. ``racks`` has by the
    name of each rack its hosts: their names, addresses, or patterns of these (``"node1*"``).
    """

    id: str
    suite: Suite
    environment: Mapping[str, Any]
    seed: int
    started_at: str
    min_transfer_bytes: int = 1_000_000
    command: str = ""
    stopping: Stopping | None = None
    racks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What one worker is bound to; what says nothing is left as it is.

    ``cpus`` are a list as the kernel writes it (``"0-19,40-59"``), ``gpu`` is the number that
    nvidia-smi gives, and ``nic`` what ``UCX_NET_DEVICES`` takes (``"mlx5_0:1"``, ``"eth0"``).
    """

    cpus: str = ""
    gpu: int | None = None
    nic: str = ""

    def __str__(self) -> str:
        parts = (
            f"CPUs {self.cpus}" * bool(self.cpus),
            "" if self.gpu is None else f"GPU {self.gpu}",
            self.nic,
        )
        return ", ".join(filter(None, parts)) or "not bound"


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """Where a worker was, as its kernel and its driver tell; what they don't is empty.

    ``host_id`` is the same for processes that share a kernel and a network: a container or a
    namespace with a network of its own is a host of its own. ``cpus`` are those that the worker
    may use, ``numa_nodes`` and ``sockets`` those that these CPUs are of. The GPU is told where the
    workload's data live on it: ``gpu`` by nvidia-smi's number, and ``gpu_links`` has what joins
    it to the others (``"GPU1=NV1 GPU2=PIX"``). ``nic`` is what ``UCX_NET_DEVICES`` names, else the
    interface on which the worker listens.
    """

    table: ClassVar = "places"

    case_id: str
    launch: int
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
