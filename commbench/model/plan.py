"""Suites, their cases, and the launches that measure them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

SCHEMA_VERSION = 5
_FIRST = ("n_workers", "threads_per_worker", "device", "launcher", "hosts", "env")
"""The fields in the id of every case. Others are only included if they differ from their default,
so that ids don't change when a field is added.
"""
_LAST = ("workers_per_gpu", "memory_limit", "task_placement", "env", "dask_config")
"""The last fields in labels, whose order must not change: asv and pyperf use them as names."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The binding of one worker; empty fields don't bind it.

    ``cpus`` is a list in the kernel's format (``"0-19,40-59"``), ``gpu`` the number that
    nvidia-smi shows, and ``nic`` a value of ``UCX_NET_DEVICES`` (``"mlx5_0:1"``, ``"eth0"``).
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


@dataclass(frozen=True)
class FieldInfo:
    """The option and the meaning of a field of ``ClusterSpec``.

    Attributes
    ----------
    option
        The option of the command line; empty if only suites can set the field.
    help
        The help of the option.
    scope
        ``"size"`` and ``"launcher"`` apply to cases with a cluster, ``"gpu"`` to cases on GPUs.
    kind
        The kind of plug-in that the value names, if it does.
    metavar
        The placeholder of the value in the help.
    none
        The text in the help for an empty default.
    launcher_specific
        Whether the value is not valid for other launchers.
    example
        A value, if launchers take the field only where it is in their ``supports``; else None.
    is_measured
        Whether the field affects measurements; others only affect how the cluster is started.
    shown_as, shown_by
        The name in labels if it is not that of the option, and the property with the text.
    """

    option: str = ""
    help: str = ""
    scope: str = "launcher"
    kind: str = ""
    metavar: str | None = None
    none: str = ""
    launcher_specific: bool = False
    example: Any = None
    is_measured: bool = True
    shown_as: str = ""
    shown_by: str = ""

    @property
    def key(self) -> str:
        """The name of the option in Python."""
        return self.option.removeprefix("--").replace("-", "_")


def _field(default: Any, option: str = "", help: str = "", **more: Any) -> Any:  # noqa: A002
    metadata = {"info": FieldInfo(option, help, **more)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The cluster of a case.

    Options, suite files, labels, comparisons and ids are derived from these fields. ``device``
    is ``"cpu"`` or ``"gpu"``. ``env`` and ``dask_config`` (with Dask's keys) are set in every
    process of the cluster, after the settings of the backend. ``hosts`` are those of the
    launcher, the scheduler's first. ``scheduler`` is the address or the file of a running
    scheduler. ``placement`` has the binding of each worker, in the order of their names; if it
    is empty, workers are not bound; ``cpus_per_worker`` binds each to that number. RMM
    allocates the memory of workers on GPUs: from a pool with the initial size ``rmm_pool``
    (bytes or a share of the GPU's memory, as text), by CUDA's asynchronous allocator, or as
    managed memory. ``memory_limit`` is that of each worker (bytes or a share of its host's
    memory, as text). ``task_placement`` is ``"pinned"`` or ``"dask"``.
    """

    n_workers: int = _field(2, "--workers", "Worker processes.", scope="size")
    threads_per_worker: int = _field(1, "--threads", "Threads of each worker.", scope="size")
    device: str = _field("cpu", "--device", "auto: gpu if there is one and CuPy.", scope="")
    launcher: str = _field(
        "local", "--launcher",
        "local: processes of their own; mpirun: the ranks of one MPI world; ssh: on --hosts; "
        "slurm, pbs, lsf: as jobs; external: a running cluster.", kind="launcher",
    )  # fmt: skip
    hosts: tuple[str, ...] = _field(
        (), "--hosts",
        "For ssh and mpirun: the scheduler's host, then one for each worker, in turn.",
        launcher_specific=True, example=("a", "b"),
    )  # fmt: skip
    task_placement: str = _field(
        "pinned", "--task-placement",
        "pinned: by the graph, so that backends move the same bytes; dask: as Dask decides.",
        metavar="pinned|dask",
    )  # fmt: skip
    memory_limit: str = _field(
        "", "--memory-limit",
        "Memory of each worker, from which Dask derives when it spills: 4GB, or 0.5 of its host's.",
        metavar="SIZE", none="an equal share", example="1GB",
    )  # fmt: skip
    env: Mapping[str, str] = _field({}, scope="")
    dask_config: Mapping[str, Any] = _field({}, scope="")
    launcher_options: Mapping[str, str] = _field(
        {}, "--launcher-option",
        "Options of the launcher, for example queue=short; may be repeated.",
        launcher_specific=True, example={"a": "1"},
    )  # fmt: skip
    scheduler: str = _field(
        "", "--scheduler",
        "For external: tcp://10.0.0.1:8786, or what `dask scheduler --scheduler-file` wrote.",
        metavar="ADDRESS|FILE", none="none", launcher_specific=True, is_measured=False,
        example="tcp://a:1",
    )  # fmt: skip
    start_timeout_s: float = _field(
        60.0, "--start-timeout", "Deadline for all workers to be there.",
        is_measured=False,
    )  # fmt: skip
    placement: tuple[Placement, ...] = _field(
        (), "--placement", scope="", shown_as="placement", shown_by="placed",
        example=(Placement(cpus="0"), Placement(cpus="0")),
    )  # fmt: skip
    cpus_per_worker: int = _field(
        0, "--cpus-per-worker",
        "Bind each worker to N CPUs that no other worker has.",
        is_measured=False, none="unbound", metavar="N",
    )  # fmt: skip
    workers_per_gpu: int = _field(
        1, "--workers-per-gpu",
        "With --device gpu: processes that share a GPU, on machines with few.", scope="gpu",
    )  # fmt: skip
    rmm_pool: str = _field(
        "", "--rmm-pool",
        "RMM pool of each worker: 10GB, or 0.5 of the GPU's memory (dask-cuda's --rmm-pool-size).",
        scope="gpu", metavar="SIZE", none="none", shown_as="rmm", shown_by="rmm",
    )  # fmt: skip
    rmm_async: bool = _field(
        False, "--rmm-async", "RMM by CUDA's asynchronous allocator (dask-cuda's --rmm-async).",
        scope="gpu", shown_as="rmm", shown_by="rmm",
    )  # fmt: skip
    rmm_managed: bool = _field(
        False, "--rmm-managed", "RMM with managed memory (dask-cuda's --rmm-managed-memory).",
        scope="gpu", shown_as="rmm", shown_by="rmm",
    )  # fmt: skip

    @classmethod
    def settings(cls, *scopes: str) -> dict[str, FieldInfo]:
        """Return the information on each field, by name; if `scopes` are given, on theirs only."""
        infos = {f.name: f.metadata["info"] for f in fields(cls)}
        return {n: info for n, info in infos.items() if not scopes or info.scope in scopes}

    @property
    def placed(self) -> str:
        """The placement as text, empty if no worker is bound."""
        return " / ".join(map(str, self.placement))

    @property
    def rmm(self) -> str:
        """The settings of RMM as text, empty for the defaults.

        Examples
        --------
        >>> ClusterSpec(rmm_pool="10GB", rmm_async=True).rmm, ClusterSpec().rmm
        ('pool 10GB async', '')
        """
        pool = f"pool {self.rmm_pool}" * bool(self.rmm_pool)
        words = (pool, "async" * self.rmm_async, "managed" * self.rmm_managed)
        return " ".join(filter(None, words))

    def measured(self) -> dict[str, Any]:
        """Return the fields that affect measurements."""
        given = asdict(self)
        return {name: given[name] for name, how in self.settings().items() if how.is_measured}

    def identity(self) -> dict[str, Any]:
        """Return the fields of ``measured`` in the id of the case: ``_FIRST`` and non-defaults."""
        default = type(self)().measured()
        return {
            name: value
            for name, value in self.measured().items()
            if name in _FIRST or value != default[name]
        }

    def labels(self) -> dict[str, Any]:
        """Return the fields of ``measured`` for labels, by option; defaults are empty texts."""
        labels: dict[str, Any] = {}
        fields_, identity = self.settings(), self.identity()
        for name in sorted(fields_, key=lambda name: _LAST.index(name) if name in _LAST else -1):
            how, value = fields_[name], getattr(self, name)
            if isinstance(value, Mapping):
                labels |= value
            elif how.is_measured:
                text = getattr(self, how.shown_by) if how.shown_by else identity.get(name, "")
                labels[how.shown_as or how.key] = text
        return labels


USER_CODE = "user"
"""The launcher in the cases of a user's code, whose cluster commbench did not start."""


def _count(default: int, *, least: int) -> Any:
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload with its parameters, a backend and a cluster to measure.

    ``warmups`` and ``iterations`` count the timed calls of one launch; ``timeout_s`` is the
    deadline of a whole launch. Cases that differ only in ``varied`` are compared: ``"backend"``,
    options for clusters, variables of the environment and keys of Dask's configuration.
    ``later_params`` names the parameters with their default that the workload did not have at
    first; they are not part of the id.
    """

    workload: str
    backend: str
    params: Mapping[str, Any] = field(default_factory=dict)
    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    launches: int = _count(6, least=1)
    iterations: int = _count(3, least=1)
    warmups: int = _count(1, least=0)
    seed: int = _count(0, least=0)
    timeout_s: float = 300.0
    varied: tuple[str, ...] = ("backend",)
    later_params: tuple[str, ...] = ()

    @classmethod
    def counts(cls) -> dict[str, int]:
        """Return the least values of the fields of replication, by name, and of the seed."""
        return {f.name: f.metadata["least"] for f in fields(cls) if "least" in f.metadata}

    @property
    def peer(self) -> str:
        """The host, or the command, of the other of two processes; "" if it is on this host."""
        # A user's function may have this keyword for something else.
        return str(self.params.get("peer", "")) if "layers" in self.params else ""

    @property
    def variant(self) -> str:
        """The backend and the settings in which the case differs from those compared with it.

        Examples
        --------
        >>> cluster = ClusterSpec(n_workers=4, dask_config={"distributed.comm.compression": None})
        >>> Case(workload="merge", backend="tcp", cluster=cluster,
        ...      varied=("workers", "distributed.comm.compression")).variant
        'workers=4 compression=null'
        """
        values = {
            how.key: getattr(self.cluster, name) for name, how in ClusterSpec.settings().items()
        }
        values |= self.settings
        last = [name.rpartition(".")[2] for name in self.varied]
        words = [self.backend] if "backend" in self.varied else []
        for name, short in zip(self.varied, last, strict=True):
            if name in values:
                value = values[name]
                text = value if isinstance(value, str) else json.dumps(value)
                words.append(f"{short if last.count(short) == 1 else name}={text}")
        return " ".join(words)

    @property
    def common_cluster(self) -> ClusterSpec:
        """The cluster without the settings that are varied."""
        default = ClusterSpec()
        names = {how.key: name for name, how in ClusterSpec.settings().items()}
        changed = {names[key]: getattr(default, names[key]) for key in self.varied if key in names}
        if "workers" in self.varied:
            changed["placement"] = ()
        for name in ("env", "dask_config"):
            given = getattr(self.cluster, name)
            changed[name] = {key: given[key] for key in given if key not in self.varied}
        return replace(self.cluster, **changed)

    @property
    def original(self) -> str:
        """The backend that this one is a twin of, a control with the same settings, or ""."""
        return self.plain_backend * (self.plain_backend != self.backend)

    @property
    def plain_backend(self) -> str:
        """The backend, or that of which it is a twin."""
        return self.backend.partition("@")[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The variables and the configuration of Dask that the case sets."""
        return {**self.cluster.env, **self.cluster.dask_config}

    @cached_property
    def id(self) -> str:
        """A hash of the workload, its parameters, the backend and the cluster.

        Replication, seed and deadline don't change it, so that cases of runs with different numbers
        of launches have the same id.
        """
        content = {
            "workload": self.workload,
            "backend": self.backend,
            "params": {
                name: self.params[name] for name in self.params if name not in self.later_params
            },
            "cluster": self.cluster.identity(),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A named list of cases.

    ``reproduces`` is the name of the published figure to compare with, if any. ``scale`` is the
    share of the full size. ``skipped`` has the reasons for which cases were left out.
    """

    name: str
    cases: tuple[Case, ...]
    reproduces: str = ""
    scale: float = 1.0
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A fresh cluster in a fresh process: the unit of replication.

    ``index`` counts the launches of its case, and ``block`` the rounds in which every case has one
    launch. ``position`` is its index in the shuffled order of the block.
    """

    case: Case
    index: int
    block: int
    position: int


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """The conditions that stop a run which adds blocks of launches.

    It stops when every comparison is decided with ``detect`` as the smallest relative difference
    that matters, or when no other block of launches fits into ``budget_s``. Unless iterations are
    fixed, the run chooses how many each launch has. ``quick`` says that the problem is a small one.
    """

    budget_s: float = 300.0
    detect: float = 0.05
    fixed_iterations: bool = False
    quick: bool = False

    @property
    def longest_s(self) -> float:
        """The seconds that launches may take if a verdict needs more than ``budget_s``."""
        return self.budget_s * (1.0 if self.quick else 1.5)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a run, stored as its ``run.json``.

    ``stopping`` is None if the number of launches is fixed. ``racks`` has the hosts of each rack,
    by its name: their names, addresses, or patterns of these (``"node1*"``). ``expected_Bps`` has
    the rate that links of a class should have, by its name. ``side`` is ``base`` or ``head`` if
    ``commbench ab`` measured the run. ``script_s`` is for how long a profiled script ran, and
    ``n_other_clients`` the number of its clients that were not recorded.
    """

    id: str
    suite: Suite
    environment: Mapping[str, Any]
    seed: int
    started_at: str
    min_transfer_bytes: int = 1_000_000
    min_batch_bytes: int = 250_000
    command: str = ""
    stopping: Stopping | None = None
    racks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expected_Bps: Mapping[str, float] = field(default_factory=dict)  # noqa: N815 - the unit's spelling
    side: str = ""
    script_s: float = 0.0
    n_other_clients: int = 0
    schema_version: int = SCHEMA_VERSION

    def least_bytes(self, channel: str) -> int:
        """Return the size from which transfers of a channel count for the bandwidth of pairs."""
        return self.min_batch_bytes if channel == "p2p" else self.min_transfer_bytes
