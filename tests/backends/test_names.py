"""What a backend's name sets, refuses and contradicts."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.backends import parse
from commbench.backends.backend import Backend
from commbench.backends.tcp import TcpBackend
from commbench.backends.ucx import UcxBackend, log_variables, logged
from commbench.errors import UnknownNameError, UsageError
from commbench.machine import environment, installed
from commbench.model import registry

OPTIONS = ("tcp", "shm", "nvlink", "ib")
SCRATCH = Path("/scratch")
LOG = {
    "UCX_LOG_LEVEL": "info",
    "UCX_LOG_FILE": "/scratch/ucx-%h-%p.log",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
TCP, SHM, IB, NVLINK = "tcp/eth0", "sysv/memory", "rc_mlx5/mlx5_0:1", "cuda_ipc/cuda"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that makes this a machine with, by default, everything."""

    def pretend(*, missing="", gpus=1, rdma=1, wheel=False, verbs=True):
        real = importlib.util.find_spec

        def find_spec(name, *rest):
            if name in ("ucxx", "distributed_ucxx"):
                return None if name == missing else SimpleNamespace(name=name)
            return real(name, *rest)

        tools = tmp_path / "libucx" / "bin"
        (tmp_path / "libucx" / "lib" / "ucx").mkdir(parents=True)
        if verbs:
            (tmp_path / "libucx" / "lib" / "ucx" / "libuct_ib.so.0").touch()
        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(environment, "gpus", lambda: [{}] * gpus)
        monkeypatch.setattr(environment, "rdma_devices", lambda: [{}] * rdma)
        monkeypatch.setattr(installed, "ucx_tools", lambda: tools if wheel else None)

    return pretend


@given(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=6))
def test_every_spelling_of_a_combination_is_one_name(options):
    name = parse(f"ucx:{'+'.join(options)}").name
    assert name == "ucx:" + "+".join(option for option in OPTIONS if option in options)
    assert parse(name).name == name


@pytest.mark.parametrize("name", ["tcp", "ucx", "ucx:shm", "fake", "fake:slow"])
def test_parsing_gives_back_the_name(name):
    assert parse(name).name == parse(f"  {name}\n").name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "unknown backend ''; known: "),
        ("tcpp", r"unknown backend 'tcpp' \(did you mean 'tcp'\?\); known: .*tcp"),
        ("TCP", "unknown backend 'TCP'"),
        ("ucx shm", "unknown backend 'ucx shm'"),
        ("ucx:rdma", "unknown transport 'rdma' in backend 'ucx:rdma'; known: tcp, shm, nvlink, ib"),
        ("ucx:shm+", r"unknown transport '' in backend 'ucx:shm\+'"),
        ("ucx:shm,ib", "unknown transport 'shm,ib'"),
        ("tcp:shm", "backend tcp takes no options, got 'shm'; write tcp"),
        ("tls:shm", "backend tls takes no options, got 'shm'; write tls"),
        ("fake:nothing", "unknown fault 'nothing'; known: crash"),
    ],
)
def test_an_unknown_part_of_a_name_is_refused_with_the_known_ones(name, message):
    with pytest.raises(UsageError, match=message):
        parse(name)


def test_an_unknown_backend_is_not_a_wrong_option():
    with pytest.raises(UnknownNameError):
        parse("nonsense")


@pytest.mark.parametrize("name", registry.names("backend"))
def test_every_backend_has_the_types_of_the_protocol(name):
    backend = parse(name)
    assert isinstance(backend, Backend)
    assert (backend.name, backend.head) == (name, name)
    assert backend.protocol.isalnum()
    for device in ("cpu", "gpu"):
        assert "\n" not in backend.settings(device)
        assert backend.settings(device)
        variables = backend.environment(device, SCRATCH)
        assert all(type(text) is str for pair in variables.items() for text in pair)
    if name != "tls" or importlib.util.find_spec("cryptography"):
        assert all(key.startswith("distributed.") for key in backend.dask_config())


SETTINGS = {
    ("ucx", "cpu"): {},
    ("ucx", "gpu"): {},
    ("ucx:tcp", "cpu"): {"UCX_TLS": "tcp"},
    ("ucx:tcp", "gpu"): {"UCX_TLS": "tcp,cuda_copy"},
    ("ucx:shm", "cpu"): {"UCX_TLS": "tcp,sm", "UCX_MM_ERROR_HANDLING": "y"},
    ("ucx:shm", "gpu"): {"UCX_TLS": "tcp,sm,cuda_copy", "UCX_MM_ERROR_HANDLING": "y"},
    ("ucx:ib", "cpu"): {"UCX_TLS": "tcp,rc"},
    ("ucx:tcp+nvlink", "gpu"): {"UCX_TLS": "tcp,cuda_copy,cuda_ipc"},
    ("ucx:tcp+nvlink+ib", "gpu"): {"UCX_TLS": "tcp,cuda_copy,cuda_ipc,rc"},
    ("ucx:tcp+shm+nvlink+ib", "gpu"): {
        "UCX_TLS": "tcp,sm,cuda_copy,cuda_ipc,rc",
        "UCX_MM_ERROR_HANDLING": "y",
    },
    ("ucx:thread-polling", "cpu"): {"UCXPY_PROGRESS_MODE": "thread-polling"},
    ("ucx:thread-future", "cpu"): {
        "UCXPY_PROGRESS_MODE": "thread", "UCXPY_ENABLE_PYTHON_FUTURE": "1",
    },
}  # fmt: skip


@pytest.mark.parametrize(("case", "variables"), SETTINGS.items())
def test_the_name_decides_the_environment(case, variables):
    # On GPUs, distributed-ucxx makes the CUDA context before UCX begins.
    name, device = case
    context = {"DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT": "True"} if device == "gpu" else {}
    assert parse(name).environment(device, SCRATCH) == LOG | variables | context


@pytest.mark.parametrize(
    ("name", "device", "settings"),
    [
        ("tcp", "cpu", "nothing: Dask's default"),
        ("ucx", "cpu", "nothing: UCX's default under Dask"),
        ("ucx", "gpu", "DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT=True"),
        ("ucx:shm", "cpu", "UCX_TLS=tcp,sm UCX_MM_ERROR_HANDLING=y"),
    ],
)
def test_settings_can_be_typed_by_hand(name, device, settings):
    assert parse(name).settings(device) == settings


@pytest.mark.parametrize(
    ("name", "transport", "says"),
    [
        ("ucx", "tcp/lo", "UCX_MM_ERROR_HANDLING=y"),
        ("ucx", TCP, TCP),
        ("ucx", NVLINK, ""),
        ("ucx:tcp", TCP, ""),
        ("ucx:tcp", SHM, SHM),
        ("ucx:shm", "sysv/memory", ""),
        ("ucx:shm", "posix/memory", ""),
        ("ucx:shm", "xpmem/memory", ""),
        ("ucx:shm", "tcp/lo", "tcp/lo"),
        ("ucx:shm", "", "an unknown transport"),
        ("ucx:shm", "mystery/0", "mystery/0"),
        ("ucx:nvlink", NVLINK, ""),
        ("ucx:nvlink", "cuda_copy/cuda", "cuda_copy/cuda"),
        ("ucx:ib", IB, ""),
        ("ucx:ib", TCP, TCP),
        ("ucx:tcp+shm", "tcp/lo", "not over shm"),
        # Another host's memory can't be shared.
        ("ucx:tcp+shm", TCP, ""),
        ("ucx:tcp+nvlink+ib", IB, ""),
        ("ucx:tcp+nvlink+ib", TCP, "not over nvlink+ib"),
        ("tcp", TCP, ""),
    ],
)
def test_bytes_on_another_transport_contradict_the_name(name, transport, says):
    text = parse(name).contradiction(transport)
    assert bool(text) == bool(says)
    assert says in text
    assert not text or (text.startswith(name) and "\n" not in text)


def endpoint(lanes, monkeypatch):
    """Return a connection whose endpoint has these lanes."""
    monkeypatch.setattr("commbench.backends.ucx.query_lanes", lambda _: lanes)
    return SimpleNamespace(ep=SimpleNamespace(_ep=SimpleNamespace(handle=1)))


@pytest.mark.parametrize(
    ("lanes", "cupy", "name"),
    [
        ([TCP, SHM], False, SHM),
        ([SHM, TCP], False, SHM),
        ([TCP, SHM, IB, NVLINK], True, NVLINK),
        # A process without CuPy and Numba has no arrays in the memory of a GPU.
        ([TCP, NVLINK], False, TCP),
        (["cuda_copy/cuda", TCP], True, TCP),
        ([], True, ""),
    ],
)
def test_the_fastest_lane_names_the_transport(lanes, cupy, name, monkeypatch):
    monkeypatch.delenv("UCX_LOG_FILE", raising=False)
    if cupy:
        monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    else:
        for package in ("cupy", "numba.cuda"):
            monkeypatch.delitem(sys.modules, package, raising=False)
    used = UcxBackend.transport(endpoint(lanes, monkeypatch))
    assert used.name == name
    assert used.evidence == f"ucp_ep_query: {' '.join(lanes)}"


def test_the_last_line_of_ucxs_log_about_the_transport_is_quoted(tmp_path, monkeypatch):
    log = tmp_path / f"ucx-{os.getpid()}.log"
    line = "[1.5] [host:1:0] ucp_worker.c:1 UCX  INFO  ucp_context_0 intra-node cfg#{} tag({})"
    lines = [line.format(0, SHM), line.format(1, SHM), line.format(2, TCP), "tag(sysv/memory)"]
    log.write_bytes("\n".join(lines).encode() + b"\n\xff\n")
    monkeypatch.setenv("UCX_LOG_FILE", str(tmp_path / "ucx-%p.log"))
    used = UcxBackend.transport(endpoint([SHM, TCP], monkeypatch))
    assert used.evidence.endswith(f"; log: ucp_context_0 intra-node cfg#1 tag({SHM})")


def test_the_log_is_that_of_the_process_on_this_host(tmp_path, monkeypatch):
    line = "[1.5] [host:1:0] ucp_worker.c:1 UCX  INFO  ucp_context_0 intra-node cfg#1 tag({})"
    for host, lane in (("node1", SHM), ("node2", TCP)):
        (tmp_path / f"ucx-{host}-{os.getpid()}.log").write_text(line.format(lane))
    monkeypatch.setenv("UCX_LOG_FILE", log_variables(tmp_path)["UCX_LOG_FILE"])
    monkeypatch.setattr("socket.gethostname", lambda: "node2.cluster.org")
    assert logged() == [f"ucp_context_0 intra-node cfg#1 tag({TCP})"]


@pytest.mark.parametrize(
    ("local", "peer", "name"),
    [
        ("tcp://127.0.0.1:5", "tcp://127.0.0.1:6", "tcp/lo"),
        ("tcp://10.0.0.1:5", "tcp://10.0.0.1:6", "tcp/lo"),
        ("tcp://10.0.0.1:5", "tcp://10.0.0.2:6", "tcp/ib0"),
        ("tcp://[fd00::1]:5", "tcp://[fd00::2]:6", "tcp/eth0"),
        ("tcp://192.168.0.9:5", "tcp://192.168.0.8:6", "tcp"),
    ],
)
def test_tcp_names_the_interface_of_its_socket(local, peer, name, monkeypatch):
    addresses = {"lo": "127.0.0.1", "eth0": "fd00::1", "ib0": "10.0.0.1"}
    monkeypatch.setattr(
        psutil,
        "net_if_addrs",
        lambda: {key: [SimpleNamespace(address=text)] for key, text in addresses.items()},
    )
    used = TcpBackend.transport(SimpleNamespace(local_address=local, peer_address=peer))
    assert used.name == name
    assert local in used.evidence
    assert peer in used.evidence


@pytest.mark.parametrize(
    ("name", "device", "lacks", "reason", "remedy"),
    [
        ("ucx", "cpu", {"missing": "ucxx"}, "the package ucxx is", "pip install"),
        ("ucx:ib", "gpu", {"missing": "distributed_ucxx"}, "distributed_ucxx", "ucxx-cu12"),
        ("ucx:nvlink", "gpu", {"gpus": 0}, "no NVIDIA GPU is visible", "drop nvlink"),
        ("ucx:tcp+nvlink", "cpu", {}, "NVLink carries GPU memory only", "--device gpu"),
        ("ucx:ib", "cpu", {"rdma": 0}, "no RDMA device is present", "drop ib"),
        ("ucx:tcp+ib", "cpu", {"wheel": True, "verbs": False}, "built without InfiniBand", "conda"),
        ("fake", "gpu", {}, "CPUs only", "--device cpu"),
    ],
)
def test_what_the_machine_lacks_is_named_with_a_remedy(
    name, device, lacks, reason, remedy, machine
):
    machine(**lacks)
    problem = parse(name).unavailable(device)
    assert problem is not None
    assert reason in problem.reason
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("name", "device", "lacks"),
    [
        ("ucx:tcp+shm+nvlink+ib", "gpu", {}),
        ("ucx", "cpu", {"gpus": 0, "rdma": 0}),
        ("ucx:tcp+shm", "cpu", {"gpus": 0, "rdma": 0, "wheel": True, "verbs": False}),
        ("ucx:ib", "cpu", {"gpus": 0, "wheel": True}),
        ("tcp", "cpu", {"missing": "ucxx", "gpus": 0, "rdma": 0}),
    ],
)
def test_hardware_that_the_name_does_not_need_may_be_missing(name, device, lacks, machine):
    machine(**lacks)
    assert parse(name).unavailable(device) is None


@pytest.mark.parametrize("name", ["tcp@", "tcp@2@3", "tcp@a b", "@2"])
def test_a_twin_without_a_name_is_refused(name):
    with pytest.raises(UsageError):
        parse(name)


def test_a_twin_has_the_settings_of_its_original():
    one, two = parse("ucx:shm"), parse("ucx:shm@2")
    assert (two.name, two.protocol) == ("ucx:shm@2", "ucx")
    assert two.environment("cpu", SCRATCH) == one.environment("cpu", SCRATCH)
