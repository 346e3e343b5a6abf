"""The kit for authors of workloads passes what is right and finds what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

from commbench.conformance import check_workload
from commbench.errors import UsageError, VerificationError
from commbench.model import registry
from commbench.workloads.all_to_all import AllToAll
from commbench.workloads.base import ClusterWorkload, Workload
from commbench.workloads.pingpong import PingPong
from commbench.workloads.transpose_sum import TransposeSum


@dataclass(frozen=True, kw_only=True)
class NoParams:
    """Nothing to choose."""


class Mine(TransposeSum):
    """A workload that is right but for what its subclasses do wrong."""

    name = "mine"


class Blind(Mine):
    """Finds every result right."""

    def verify(self, client, result):
        """Look away."""


class Strict(Mine):
    """Finds every result wrong."""

    def verify(self, client, result):
        raise VerificationError("not good enough")


class Weightless(Mine):
    """Has no bytes."""

    payload_bytes = 0


class Renamed(Mine):
    """Has another name than its entry point."""

    name = "yours"


class Wordy(Mine):
    """Has a summary that ``commbench list`` has no room for."""

    summary = "one line\nand another"


class Helpless(Mine):
    """Has a parameter that nobody explains."""

    @dataclass(frozen=True, kw_only=True)
    class Params:
        """Without help."""

        size: int = 3


class Demanding(Mine):
    """Has a parameter without a default."""

    @dataclass(frozen=True, kw_only=True)
    class Params:
        """Without a default."""

        size: int = field(metadata={"help": "how much"})


class Nested(Mine):
    """Has a parameter that no option can have."""

    @dataclass(frozen=True, kw_only=True)
    class Params:
        """With a list."""

        size: list[int] = field(default_factory=list, metadata={"help": "how much"})


class Changeable(Mine):
    """Has parameters that change."""

    @dataclass
    class Params:
        """Not frozen."""


class Text(ClusterWorkload):
    """Computes what the kit can't change."""

    name, summary, Params, payload_bytes = "mine", "text", NoParams, 1

    def prepare(self, client):
        """Do nothing."""

    def build(self):
        import dask

        return dask.delayed(str)("word")

    def verify(self, client, result):
        """Look away."""


class Kindless(Workload):
    """Is of no kind that the harness can run."""

    name, summary, Params = "mine", "nothing", NoParams


class Unseeded(AllToAll):
    """Makes the same blocks whatever the seed."""

    name = "mine"

    def block(self, owner, size):
        return np.random.default_rng([owner, size]).integers(0, 256, size, dtype="u1")


class Restless(Unseeded):
    """Makes another block at each call."""

    def block(self, owner, size):
        return np.random.default_rng().integers(0, 256, size, dtype="u1")


class Careless(AllToAll):
    """Looks at the first half of a block."""

    name = "mine"

    def verify(self, owner, size, fetched):
        if (fetched != self.block(owner, size))[: size // 2].any():
            raise VerificationError("wrong")


class Hollow(AllToAll):
    """Sends zeros."""

    name = "mine"

    def block(self, owner, size):
        return np.zeros(size, dtype="u1")


class Short(AllToAll):
    """Makes less than is asked for."""

    name = "mine"

    def block(self, owner, size):
        return super().block(owner, size)[1:]


class Stale(PingPong):
    """Takes the answer before for this one."""

    name = "mine"

    def stamp(self, payload, number):
        """Leave it as it is."""


WRONG = {
    Blind: "a wrong number in .* went unnoticed",
    Weightless: "payload_bytes is 0",
    Renamed: "its name is 'yours'",
    Wordy: "summary is",
    Helpless: "have no help: size",
    Demanding: "Params makes no options",
    Nested: "Params makes no options",
    Changeable: "no frozen dataclass",
    Text: "the kit can't change",
    Kindless: "is no ClusterWorkload",
    Unseeded: "the seed makes no difference",
    Restless: "is another at each call",
    Careless: "a wrong last byte of 4096 went unnoticed",
    Hollow: "zlib leaves",
    Short: "4095 were made",
    Stale: "a stale reply of 4096 B went unnoticed",
}
SMALL = {
    "transpose-sum": {"size": 60, "chunk": 20},
    "svd": {"rows": 400, "columns": 10, "chunk_rows": 100},
    "merge": {"rows": 500},
    "all-to-all": {"sizes": (1, 5000)},
    "pingpong": {"sizes": (1, 5000)},
}


def small(kind):
    """Return parameters with which a workload of that kind is small."""
    if issubclass(kind, TransposeSum):
        return {"size": 40, "chunk": 20} if kind.Params is TransposeSum.Params else {}
    return {"sizes": (4096,)} if issubclass(kind, AllToAll | PingPong) else {}


@pytest.fixture(scope="module")
def client(cluster):
    """Return the client of two workers."""
    return cluster.client


@pytest.fixture
def install(monkeypatch):
    """Return a function that makes a class of this module the workload ``mine``."""

    def pretend(kind):
        point = EntryPoint("mine", f"{__name__}:{kind.__name__}", "commbench.workloads")
        monkeypatch.setattr(
            registry,
            "_points",
            lambda kind: EntryPoints([point]).select(group=f"commbench.{kind}s"),
        )

    return pretend


@pytest.mark.parametrize("name", SMALL)
def test_our_own_workloads_keep_their_promises(client, name):
    check_workload(name, client, **SMALL[name])


def test_no_workload_of_ours_is_left_out():
    assert set(SMALL) == set(registry.names("workload"))


@pytest.mark.parametrize(("kind", "words"), WRONG.items(), ids=lambda given: str(given)[:60])
def test_a_broken_promise_is_named(client, install, kind, words):
    install(kind)
    with pytest.raises(AssertionError, match=words):
        check_workload("mine", client, **small(kind))


def test_a_right_result_that_is_refused_is_told(client, install):
    install(Strict)
    with pytest.raises(VerificationError, match="not good enough"):
        check_workload("mine", client, size=40, chunk=20)


def test_wrong_parameters_are_the_callers_mistake(client):
    with pytest.raises(UsageError, match="size is 0"):
        check_workload("transpose-sum", client, size=0)


@pytest.mark.slow
def test_without_a_client_two_processes_are_started():
    check_workload("transpose-sum", size=40, chunk=20)
