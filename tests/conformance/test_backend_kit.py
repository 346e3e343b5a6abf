"""The kit for authors of backends passes what is right and finds what is wrong."""

import importlib.util
import itertools
import os

import builders
import launching
import processes
import pytest

from commbench.conformance import check_backend
from commbench.errors import UnavailableError
from commbench.harness import runner
from commbench.store.parts import Parts

SOURCE = """
from commbench.backends.backend import Unavailability
from commbench.backends.tcp import TcpBackend
from commbench.errors import UsageError


class Mine(TcpBackend):
    head = "mine"

    def unavailable(self, device):
        return Unavailability("there is no such hardware", "buy some")


class Tolerant(Mine):
    def __init__(self, options=()):
        self.options = options


class Numeric(Mine):
    def environment(self, device, scratch):
        return {"OMP_NUM_THREADS": 1}


class Silent(Mine):
    def settings(self, device):
        return ""


class Wordless(Mine):
    def unavailable(self, device):
        return Unavailability("it does not run here", "")


class Boolean(Mine):
    def unavailable(self, device):
        return False


class Greedy(Mine):
    def unavailable(self, device):
        import mpi4py


class Undocumented(Mine):
    def unavailable(self, device):
        return None

    @staticmethod
    def transport(comm):
        from commbench.backends.backend import Transport

        return Transport("something", "")
"""
WRONG = {
    "Tolerant": "an unknown option went unnoticed",
    "Numeric": "variables are text",
    "Silent": r"settings\(\) is ''",
    "Wordless": "it takes a reason and a remedy",
    "Boolean": r"unavailable\(\) returns a bool",
    "Greedy": r"unavailable_layer\(\) imports mpi4py",
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that makes a class of `SOURCE` the backend ``mine``, in every process."""

    def pretend(kind):
        module = f"backends_for_the_kit_{kind.lower()}"
        folder = processes.plug_in(tmp_path / "site", module, SOURCE, backends={"mine": kind})
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    return pretend


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tcp", "tls", "ucx", "ucx:shm", "mpi"])
def test_each_backend_of_commbench_passes(name):
    launching.require(name)
    assert all(check_backend(name))


@pytest.mark.parametrize(("kind", "words"), WRONG.items())
def test_what_a_backend_does_wrong_is_named_before_a_launch(install, kind, words):
    if kind == "Greedy" and importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    install(kind)
    with pytest.raises(AssertionError, match=words):
        check_backend("mine")


def test_a_backend_that_cant_run_here_is_unavailable_and_not_wrong(install):
    install("Mine")
    with pytest.raises(UnavailableError, match=r"no such hardware.*buy some"):
        check_backend("mine")


def test_a_missing_gpu_is_no_defect_of_the_backend(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UnavailableError, match="GPU"):
        check_backend("tcp", "gpu")


LAYERS = ("raw", "coroutine", "comm", "worker")
LAUNCHED = {
    "a launch over mine failed: it broke": {"failed": True},
    "no verified message of": {"verified": False},
    r"no verified message of \[\('worker', 1\), \('worker', 100000\)\]": {"layers": LAYERS[:3]},
    "no transport was recorded": {"evidence": None},
    "'something' by the evidence 'comm: '": {"evidence": ""},
}


@pytest.mark.parametrize(("words", "given"), LAUNCHED.items())
def test_what_is_wrong_with_a_launch_is_named(install, monkeypatch, words, given):
    install("Undocumented")
    case = builders.case("mine", "pingpong")

    def run_plan(plan, logs):
        yield None
        for layer, size in itertools.product(given.get("layers", LAYERS), (1, 100_000)):
            verified = given.get("verified", True)
            yield builders.message(case, 1e-4, size, layer=layer, verified=verified)
        if given.get("failed"):
            yield builders.failure(case)
        if (evidence := given.get("evidence", "a log")) is not None:
            used = builders.transport(case, "something", evidence=f"comm: {evidence}")
            yield from builders.into_parts([used], Parts(logs, "made-up"))
        yield builders.end(case)

    monkeypatch.setattr(runner, "run_plan", run_plan)
    # The tests above import backends where packages are missing.
    monkeypatch.setattr(
        "commbench.conformance.backend_kit._check_unavailable_imports", lambda *_: None
    )
    with pytest.raises(AssertionError, match=words):
        check_backend("mine")
