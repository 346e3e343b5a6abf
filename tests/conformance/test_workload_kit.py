"""The kit for authors of workloads passes what is right and finds what is wrong."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import dask
import numpy as np
import pandas as pd
import pytest

from commbench.conformance import check_workload
from commbench.conformance import workload_kit as kit
from commbench.errors import UsageError, VerificationError
from commbench.model import registry
from commbench.workloads.all_to_all import AllToAll
from commbench.workloads.pingpong import PingPong
from commbench.workloads.transpose_sum import TransposeSum
from commbench.workloads.workload import ClusterWorkload, Workload


class Mine(TransposeSum):
    """Right, but for what its subclasses do wrong."""

    name = "mine"


class Blind(Mine):
    """Accepts every result."""

    def verify(self, client, result):
        """Look away."""


class Strict(Mine):
    """Refuses every result."""

    def verify(self, client, result):
        raise VerificationError("not good enough")


@dataclass(frozen=True, kw_only=True)
class NoParams:
    """Nothing to choose."""


@dataclass(frozen=True, kw_only=True)
class NoHelp:
    """A parameter without help."""

    size: int = 3


@dataclass(frozen=True, kw_only=True)
class NoDefault:
    """A parameter without a default."""

    size: int = field(metadata={"help": "how much"})


@dataclass(frozen=True, kw_only=True)
class NoOption:
    """A parameter that no option can have."""

    size: list[int] = field(default_factory=list, metadata={"help": "how much"})


@dataclass
class Changeable:
    """Parameters that are not frozen."""


class Text(ClusterWorkload):
    """Computes what the kit can't change."""

    name, summary, Params, payload_bytes = "mine", "text", NoParams, 1

    def prepare(self, client):
        """Do nothing."""

    def build(self):
        return dask.delayed(str)("word")

    def verify(self, client, result):
        """Look away."""


class Unseeded(AllToAll):
    """Makes the same blocks for every seed."""

    name = "mine"

    def block(self, owner, size):
        return np.random.default_rng([owner, size]).integers(0, 256, size, dtype="u1")


class Restless(Unseeded):
    """Makes another block at each call."""

    def block(self, owner, size):
        return np.random.default_rng().integers(0, 256, size, dtype="u1")


class Careless(Unseeded):
    """Looks at the first half of a block."""

    def verify(self, owner, size, fetched):
        if (fetched != self.block(owner, size))[: size // 2].any():
            raise VerificationError("wrong")


class Hollow(Unseeded):
    """Sends zeros."""

    def block(self, owner, size):
        return np.zeros(size, dtype="u1")


class Short(Unseeded):
    """Makes less than the size."""

    def block(self, owner, size):
        return super().block(owner, size)[1:]


class Stale(PingPong):
    """Does not number its messages."""

    name = "mine"

    def stamp(self, payload, number):
        """Leave it as it is."""


def subclass(kind, **attributes):
    """Return a subclass with these attributes."""
    return type("Subclass", (kind,), {"name": "mine", **attributes})


WRONG = {
    "a wrong number in .* went unnoticed": Blind,
    "payload_bytes is 0": subclass(Mine, payload_bytes=0),
    "summary is": subclass(Mine, summary="one line\nand another"),
    "stresses is": subclass(Mine, stresses=""),
    "have no help: size": subclass(Mine, Params=NoHelp),
    "Params makes no options: TypeError": subclass(Mine, Params=NoDefault),
    "Params makes no options": subclass(Mine, Params=NoOption),
    "no frozen dataclass": subclass(Mine, Params=Changeable),
    "the kit can't change": Text,
    "is no ClusterWorkload": subclass(Workload, summary="nothing", Params=NoParams),
    "the seed makes no difference": Unseeded,
    "is another at each call": Restless,
    "a wrong last byte of 4096 went unnoticed": Careless,
    "zlib leaves": Hollow,
    "4095 were made": Short,
    "a stale reply of 4096 B went unnoticed": Stale,
}
SMALL = {
    "transpose-sum": {"size": 60, "chunk": 20},
    "svd": {"rows": 400, "columns": 10, "chunk_rows": 100},
    "merge": {"rows": 500},
    "shuffle": {"partitions": 5, "partition_size": 800},
    "groupby": {"rows": 500, "partitions": 5},
    "rechunk": {"size": 20_000, "chunk_size": 2_000},
    "map-overlap": {"size": 60, "chunk": 20},
    "matmul": {"size": 60, "chunk": 20},
    "all-to-all": {"sizes": (1, 5000)},
    "links": {"sizes": (1, 5000)},
    "pingpong": {"sizes": (1, 5000)},
    "broadcast": {"size": 5000},
    "scatter": {"size": 5000},
    "gather": {"size": 5000, "direct": True},
    "tiny-tasks": {"tasks": 20},
    "patterns": {"steps": 3, "task_s": 0.0},
    "control-plane": {"count": 3},
    "spill": {"chunk": 400_000},
    "straggler": {"steps": 3, "size": 5000, "block_s": 0.1, "period_s": 0.2},
}


def small(kind):
    """Return parameters with which a workload of this kind is small."""
    if issubclass(kind, TransposeSum):
        return {"size": 40, "chunk": 20} if kind.Params is TransposeSum.Params else {}
    return {"sizes": (4096,)} if issubclass(kind, AllToAll | PingPong) else {}


@pytest.mark.parametrize("name", SMALL)
def test_each_workload_of_commbench_passes(client, name):
    check_workload(name, client, **SMALL[name])


def test_every_installed_workload_is_checked():
    assert set(SMALL) == set(registry.names("workload"))


@pytest.mark.parametrize(("words", "kind"), WRONG.items(), ids=[*WRONG])
def test_what_a_workload_does_wrong_is_named(client, installed, words, kind):
    installed("workload", {"mine": kind})
    with pytest.raises(AssertionError, match=words):
        check_workload("mine", client, **small(kind))


@pytest.mark.parametrize("number", [0, -1, 0.25, math.inf, -math.inf, math.nan, np.uint8(255)])
@pytest.mark.parametrize("kind", [np.array, np.ndarray.tolist, lambda x: pd.DataFrame({"x": x})])
def test_the_kit_changes_any_number(kind, number):
    result = kind(np.full(3, number))
    changed = kit._corrupted(result)
    assert not np.array_equal(np.asarray(changed), np.asarray(result), equal_nan=True)


def test_a_computation_is_for_the_workers_of_the_client(monkeypatch):
    made = []
    monkeypatch.setattr(kit, "_check_computation", lambda work, _: made.append(work))
    monkeypatch.setattr(TransposeSum, "set_up", lambda _: made.append("set up"))
    client = SimpleNamespace(nthreads=lambda: dict.fromkeys("abc", 1))
    check_workload("transpose-sum", client, size=40, chunk=20)
    assert made[0] == "set up"
    assert made[1].context.n_workers == 3


def test_the_error_of_a_workload_that_refuses_a_right_result_is_raised(client, installed):
    installed("workload", {"mine": Strict})
    with pytest.raises(VerificationError, match="not good enough"):
        check_workload("mine", client, size=40, chunk=20)


def test_wrong_parameters_are_a_usage_error(client):
    with pytest.raises(UsageError, match="size is 0"):
        check_workload("transpose-sum", client, size=0)


@pytest.mark.slow
def test_without_a_client_a_cluster_is_started():
    check_workload("transpose-sum", size=40, chunk=20)
