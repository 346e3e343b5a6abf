from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import builders
import pytest

from commbench import backends
from commbench.backends import mpi
from commbench.errors import UsageError
from commbench.model import Case, Failure, Launch, LaunchEnd, Sample, TransportUsed

LINE = "[1.2] [vm:7 :1] ucp_worker.c:1912 UCX  INFO    ucp_context_0 {} cfg#1 tag({})  rma(x)\n"


def comm(mode="elastic", library="MPICH 5.0.2", peer="mpi://127.0.0.1:2"):
    """Return what `transport` reads of a connection."""
    return SimpleNamespace(
        local_address="mpi://127.0.0.1:1", peer_address=peer,
        extra_info={"mode": mode, "library": library},
    )  # fmt: skip


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Return a function that makes UCX's log of this process say what it is given."""

    def write(text):
        (tmp_path / "ucx.log").write_text(text)
        monkeypatch.setenv("UCX_LOG_FILE", str(tmp_path / "ucx.log"))

    return write


def test_lanes_are_those_of_the_peer_s_distance(log):
    log(LINE.format("self", "self/memory") + LINE.format("intra-node", "sysv/memory cma/memory")
        + LINE.format("inter-node", "tcp/eth0"))  # fmt: skip
    used = backends.parse("mpi").transport(comm())
    assert used.name == "sysv/memory+cma/memory"
    assert "MPICH 5.0.2, mode elastic, intra-node" in used.evidence
    assert backends.parse("mpi").transport(comm(peer="mpi://10.0.0.9:2")).name == "tcp/eth0"


def test_tcp_on_one_host_contradicts():
    assert "tcp/lo" in backends.parse("mpi").contradiction("tcp/lo")
    assert backends.parse("mpi").contradiction("sysv/memory+cma/memory") == ""


def test_an_mpi_that_does_not_tell_is_not_guessed(monkeypatch):
    monkeypatch.delenv("UCX_LOG_FILE", raising=False)
    used = backends.parse("mpi").transport(comm(mode="world", library="Open MPI 5.0.11"))
    assert used.name == "mpi"
    assert "doesn't tell" in used.evidence


def test_options_are_refused():
    with pytest.raises(UsageError, match="--launcher local or mpirun"):
        backends.parse("mpi:world")


def test_missing_packages_are_told(monkeypatch):
    monkeypatch.setattr(mpi, "package_version", Mock(return_value=None))
    monkeypatch.setattr("ctypes.util.find_library", Mock(return_value=None))
    monkeypatch.setattr("importlib.util.find_spec", Mock(return_value=object()))
    problem = backends.parse("mpi").unavailable("cpu")
    assert "no MPI library" in problem.reason
    monkeypatch.setattr("importlib.util.find_spec", Mock(return_value=None))
    problem = backends.parse("mpi").unavailable("cpu")
    assert "mpi4py is not installed" in problem.reason
    assert "pip install" in problem.remedy


@pytest.mark.parametrize("name", ["tcp", "mpi"])
def test_the_coroutine_layer_ends_a_size_early(name, tmp_path):
    params = {"sizes": (1, 2_000_000, 3, 70), "layers": ("coroutine",), "seconds_per_size": 1e-6}
    case = Case(workload="pingpong", backend=name, params=params, iterations=54, warmups=25,
                timeout_s=240.0)  # fmt: skip
    if problem := backends.parse(name).unavailable("cpu"):
        pytest.skip(problem.reason)
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = builders.measured(plan, tmp_path)
    assert not [record for record in records if isinstance(record, Failure)], records
    counted = [r.payload_bytes for r in records if isinstance(r, Sample) and not r.warmup]
    assert {size: counted.count(size) for size in counted} == {1: 10, 2_000_000: 5, 3: 10, 70: 10}


@pytest.mark.parametrize("name", ["tcp", "ucx:shm+polling", "mpi"])
def test_both_layers_of_a_real_launch(name, tmp_path):
    if problem := backends.parse(name).unavailable("cpu"):
        pytest.skip(problem.reason)
    params = {"sizes": (1, 100_000), "layers": ("coroutine", "comm"), "seconds_per_size": 60.0}
    case = Case(workload="pingpong", backend=name, params=params, iterations=43, warmups=7,
                timeout_s=240.0)  # fmt: skip
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = builders.measured(plan, tmp_path)
    assert not [record for record in records if isinstance(record, Failure)], records
    assert isinstance(records[-1], LaunchEnd)
    samples = [record for record in records if isinstance(record, Sample) and not record.warmup]
    counts = {}
    for sample in samples:
        key = sample.layer, sample.payload_bytes
        counts[key] = counts.get(key, 0) + 1
    assert counts == {
        ("coroutine", 1): 43, ("coroutine", 100_000): 4, ("comm", 1): 43, ("comm", 100_000): 4,
    }  # fmt: skip
    assert all(sample.verified for sample in samples)
    used = [record for record in records if isinstance(record, TransportUsed)]
    # Each layer has a connection of its own.
    assert [(record.src, record.dst) for record in used] == [("0", "1"), ("1", "0")] * 2
    expected = {"tcp": "tcp/lo", "ucx:shm+polling": "sysv/memory", "mpi": "sysv/memory"}[name]
    assert all(record.transport.startswith(expected) for record in used)
