"""What is asked for: cases of a suite, and the launches that measure them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from commbench.model.places import Placement

SCHEMA_VERSION = 2
LAYERS = ("memcpy", "raw", "coroutine", "comm", "worker")
"""The layers of the software between two processes, from the wire up."""
_LATER = (
    "launcher_options", "placement", "workers_per_gpu", "rmm_pool", "rmm_async", "rmm_managed",
)  # fmt: skip
"""Fields that an older commbench did not know: the ids of its cases must stay."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The cluster that a case asks for.

    ``device`` is ``"cpu"`` or ``"gpu"``; ``env`` is set in every process of the cluster, after
    what the backend sets. ``hosts`` are those that the launcher goes to, the scheduler's first.
    ``launcher_options`` are what a launcher takes besides, each a text. ``scheduler`` is the
    address or the file of a running scheduler, and ``start_timeout_s`` the deadline for all
    workers to be there. ``placement`` has what each worker is bound to, in the order of their
    names; where it is empty, none is. With ``device="gpu"`` up to ``workers_per_gpu`` workers share
    a GPU, and RMM gives them its memory: from a pool of at first ``rmm_pool`` (bytes or a share of
    the GPU's memory, as text), by CUDA's asynchronous allocator, or managed.
    """

    n_workers: int = 2
    threads_per_worker: int = 1
    device: str = "cpu"
    launcher: str = "local"
    hosts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    launcher_options: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    start_timeout_s: float = 60.0
    placement: tuple[Placement, ...] = ()
    workers_per_gpu: int = 1
    rmm_pool: str = ""
    rmm_async: bool = False
    rmm_managed: bool = False

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
        """Return the fields that say what is measured, and not where it is found or how patiently.

        What an older commbench did not know is left out while it has its default, so that the ids
        of its cases stay.
        """
        told = asdict(self)
        del told["scheduler"], told["start_timeout_s"]
        for later, given in asdict(ClusterSpec()).items():
            if later in _LATER and told[later] == given:
                del told[later]
        return told


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
            "cluster": self.cluster.measured(),
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
