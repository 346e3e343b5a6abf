"""Provenance is complete where the machine tells, and None where it does not."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import processes
import pytest

from commbench.machine import environment

GIB = 2**30
CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480C
flags\t\t: fpu vme hypervisor sse

processor\t: 1
model name\t: another
"""
TREE = {
    "etc/os-release": 'NAME="Rocky"\nPRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\n',
    "proc/cpuinfo": CPUINFO,
    "proc/loadavg": "1.25 0.50 0.10 3/512 4154\n",
    "proc/meminfo": "MemTotal:       1024 kB\nMemAvailable:    512 kB\nSwapTotal:       0 kB\n",
    "proc/self/cgroup": "0::/slurm/job_7\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8\n",
    "sys/class/dmi/id/product_name": "Standard PC\n",
    "sys/class/dmi/id/sys_vendor": "QEMU\n",
    "sys/class/infiniband/mlx5_0/device/numa_node": "1\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/net/bonding_masters": "bond0\n",
    "sys/class/net/eth0/device/numa_node": "-1\n",
    "sys/class/net/eth0/device/uevent": "DRIVER=mlx5_core\nPCI_CLASS=20000\n",
    "sys/class/net/eth0/mtu": "9000\n",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth0/speed": "100000\n",
    "sys/class/net/lo/mtu": "65536\n",
    "sys/class/net/lo/operstate": "unknown\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/cpu/cpufreq/boost": "1\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpufreq/policy10/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/smt/active": "0\n",
    "sys/devices/system/node/has_cpu": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:   2048 kB\nNode 0 MemFree: 1 kB\n",
    "sys/devices/system/node/node1/cpulist": "\n",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:   4096 kB\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/slurm/cpu.max": "400000 100000\n",
    "sys/fs/cgroup/slurm/job_7/cpu.max": "max 100000\n",
    "sys/fs/cgroup/slurm/job_7/memory.max": str(8 * GIB),
    "sys/fs/cgroup/slurm/memory.max": str(4 * GIB),
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
}
GPU_ROWS = """\
0, NVIDIA H200, GPU-aaaa, 00000000:18:00.0, 143771, 570.86.15
1, NVIDIA GB10, GPU-bbbb, 00000000:2A:00.0, [N/A], 570.86.15
"""


def plant(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write `files` below `root` and return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a well-behaved machine."""
    plant(tmp_path, dict(TREE))
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put an nvidia-smi with that shell script first on the PATH."""

    def write(script: str) -> Path:
        path = plant(tmp_path, {"bin/nvidia-smi": f"#!/bin/sh\n{script}\n"}) / "bin/nvidia-smi"
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return path

    return write


def test_this_machine_is_collected_as_json() -> None:
    """What is collected here survives JSON unchanged and names the host and the packages."""
    found = environment.collect()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["host"]["name"] == os.uname().nodename
    assert found["packages"]["commbench"] is not None
    assert found["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert found["memory"]["total_bytes"] > 10**8


def test_machine_is_read_from_the_tree(root: Path) -> None:
    """Every fact of a well-behaved tree is found, converted to bytes where it is a size."""
    found = environment.collect(root)
    assert found["host"]["os"] == "Rocky Linux 9.4 (Blue Onyx)"
    assert found["host"]["hypervisor"] == "QEMU Standard PC"
    assert found["load_average"] == [1.25, 0.5, 0.1]
    cpu = found["cpu"]
    assert cpu["model"] == "Intel(R) Xeon(R) Platinum 8480C"
    assert cpu["governors"] == {"policy0": "performance", "policy10": "powersave"}
    assert (cpu["turbo"], cpu["smt"], cpu["clock_source"]) == (True, False, "tsc")
    assert cpu["allowed_cpus"] == "0-3,8"
    assert found["numa"] == [
        {"node": 0, "cpus": "0-3", "memory_bytes": 2048 * 1024},
        {"node": 1, "cpus": "", "memory_bytes": 4096 * 1024},
    ]
    memory = found["memory"]
    assert memory["total_bytes"] == 1024 * 1024
    assert memory["available_bytes"] == 512 * 1024
    assert memory["swap_bytes"] == 0
    assert memory["transparent_huge_pages"] == "madvise"
    assert memory["shm_bytes"] > 0


def test_interfaces_of_all_kinds(root: Path) -> None:
    """A file among the interfaces is none, and an unknown speed or NUMA node is None."""
    assert environment.network_interfaces(root / "sys") == [
        {"name": "lo", "state": "unknown", "driver": None, "speed_Mbps": None}
        | {"mtu_bytes": 65536, "numa_node": None},
        {"name": "eth0", "state": "up", "driver": "mlx5_core", "speed_Mbps": 100000}
        | {"mtu_bytes": 9000, "numa_node": None},
    ]


@pytest.mark.parametrize("speed", ["-1", "0", "4294967295", "fast", "", "9" * 400, "१००"])
def test_speed_that_the_kernel_does_not_know(root: Path, speed: str) -> None:
    """A speed that is no positive number of plausible size is None."""
    plant(root, {"sys/class/net/eth0/speed": speed})
    assert environment.network_interfaces(root / "sys")[1]["speed_Mbps"] is None


def test_rdma_ports(root: Path) -> None:
    """Each port of an RDMA device is one entry, in the words of sysfs."""
    plant(root, {"sys/class/infiniband/mlx5_0/ports/2/state": "1: DOWN\n"})
    first, second = environment.rdma_devices(root / "sys")
    assert first == {
        "name": "mlx5_0",
        "port": "1",
        "state": "4: ACTIVE",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "numa_node": 1,
    }
    assert (second["port"], second["state"], second["rate"]) == ("2", "1: DOWN", None)


def test_empty_machine_is_all_unknown(tmp_path: Path) -> None:
    """A tree without anything gives None and empty lists, never a guess or an error."""
    found = environment.collect(tmp_path)
    told_by_calls = ("logical_cores", "usable_cores")
    assert all(value is None for key, value in found["cpu"].items() if key not in told_by_calls)
    limits = ("memlock_bytes", "open_files")
    assert all(value is None for key, value in found["memory"].items() if key not in limits)
    assert (found["numa"], found["network"], found["rdma"]) == ([], [], [])
    assert found["load_average"] is None
    assert (found["host"]["os"], found["host"]["hypervisor"]) == (None, None)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\n", b"\xff\xfe\x00\x80", b"-1", b"nan", b"9" * 100_000, b"[ ] : = , \n::::\n", b"1 0"],
    ids=["empty", "newline", "binary", "minus", "nan", "endless", "punctuation", "zero-period"],
)
def test_garbage_in_every_file(root: Path, garbage: bytes) -> None:
    """Whatever the kernel's files hold, collecting ends with valid JSON."""
    plant(root, dict.fromkeys(TREE, garbage))
    found = environment.collect(root)
    json.dumps(found, allow_nan=False)
    assert found["memory"]["total_bytes"] is None
    assert found["load_average"] is None


def test_folders_in_place_of_files(tmp_path: Path) -> None:
    """A folder where a file should be is as good as no file."""
    for name in TREE:
        (tmp_path / name).mkdir(parents=True)
    found = environment.collect(tmp_path)
    assert found["cpu"]["model"] is None
    assert found["cpu"]["cgroup_quota_cores"] is None


def test_files_in_place_of_folders(tmp_path: Path) -> None:
    """A file where a folder should be is as good as no folder."""
    plant(tmp_path, {"sys": "", "proc": "", "etc": "", "dev": ""})
    found = environment.collect(tmp_path)
    assert (found["network"], found["memory"]["shm_bytes"]) == ([], None)


def test_nothing_may_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every open and listing is refused, facts are None and lists empty."""

    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "iterdir", refuse)
    found = environment.collect(root)
    assert found["memory"]["total_bytes"] is None
    assert found["cpu"]["governors"] is None
    assert (found["numa"], found["network"], found["rdma"]) == ([], [], [])


def test_arm_is_named_by_its_numbers(tmp_path: Path) -> None:
    """Where cpuinfo has no model name, the implementer and the part stand for it."""
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"
    plant(tmp_path, {"proc/cpuinfo": text})
    assert environment.cpu(tmp_path)["model"] == "implementer 0x41, part 0xd4f"


@pytest.mark.parametrize(
    ("no_turbo", "boost", "expected"),
    [("1", "1", False), ("0", "0", True), (None, "0", False), (None, None, None), ("?", "1", True)],
)
def test_turbo(tmp_path: Path, no_turbo: str | None, boost: str | None, expected: object) -> None:
    """Intel's no_turbo counts before the common boost, and neither is None."""
    tree = "sys/devices/system/cpu"
    files = {f"{tree}/intel_pstate/no_turbo": no_turbo, f"{tree}/cpufreq/boost": boost}
    plant(tmp_path, {name: text for name, text in files.items() if text is not None})
    assert environment.cpu(tmp_path)["turbo"] is expected


def test_bare_metal_shows_no_hypervisor(root: Path) -> None:
    """The make of a physical machine is not taken for a hypervisor."""
    plant(root, {"proc/cpuinfo": CPUINFO.replace(" hypervisor", "")})
    assert environment.host(root)["hypervisor"] is None


class TestCgroups:
    """Limits of control groups, of both versions."""

    def quota(self, root: Path) -> environment.Limit:
        """Return the quota of cores in the tree."""
        return environment.cgroup_limit(root, "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")

    def memory(self, root: Path) -> environment.Limit:
        """Return the limit of memory in the tree."""
        return environment.cgroup_limit(root, "memory", "memory.limit_in_bytes")

    def test_tightest_ancestor_binds(self, root: Path) -> None:
        """A group without a limit of its own is bound by its parent's."""
        assert self.quota(root) == 4.0
        assert self.memory(root) == 4 * GIB

    def test_version_1(self, tmp_path: Path) -> None:
        """Version 1 keeps each controller in a tree of its own."""
        files: dict[str, str | bytes] = {
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        }
        plant(tmp_path, files)
        assert self.quota(tmp_path) == 1.5
        assert self.memory(tmp_path) == "unlimited"

    def test_no_limit_is_said_so(self, tmp_path: Path) -> None:
        """A limit that is known to be absent is unlimited, not unknown."""
        files = {"cpu.max": "max 100000", "memory.max": "max"}
        plant(tmp_path, {"proc/self/cgroup": "0::/\n"})
        plant(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
        assert (self.quota(tmp_path), self.memory(tmp_path)) == ("unlimited", "unlimited")

    def test_group_outside_of_the_namespace(self, tmp_path: Path) -> None:
        """A path that leaves the mount point never leads out of it."""
        files: dict[str, str | bytes] = {
            "proc/self/cgroup": "0::/../../other\n",
            "sys/fs/memory.max": "1",
            "sys/fs/cgroup/memory.max": str(GIB),
        }
        assert self.memory(plant(tmp_path, files)) == GIB

    @pytest.mark.parametrize("text", ["100000", "0 0", "100000 0", "a b", "1 2 3", "-5 100000"])
    def test_quota_that_makes_no_sense(self, tmp_path: Path, text: str) -> None:
        """A malformed quota is unknown."""
        plant(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
        assert self.quota(tmp_path) is None


class TestGpus:
    """What nvidia-smi says, and the ways in which it does not."""

    def test_no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine without nvidia-smi has no GPU, and that is no error."""
        monkeypatch.setenv("PATH", "/nonexistent")
        assert environment.query_gpus() == ([], "")

    def test_table(self, nvidia_smi: Callable[[str], Path]) -> None:
        """Every row is a GPU, its memory None where the driver does not tell."""
        nvidia_smi(f"cat <<END\n{GPU_ROWS}END")
        first, second = environment.gpus()
        assert first == {
            "index": 0,
            "name": "NVIDIA H200",
            "uuid": "GPU-aaaa",
            "pci": "00000000:18:00.0",
            "memory_bytes": 143771 * 2**20,
            "driver": "570.86.15",
        }
        assert second["memory_bytes"] is None
        assert environment.collect()["gpus"] == [first, second]

    @pytest.mark.parametrize(
        ("script", "complaint"),
        [
            ("echo 'No devices were found'; exit 6", "No devices were found"),
            ("echo 'No devices were found'", "No devices were found"),
            ("echo couldn\\'t communicate with the driver >&2; exit 9", "couldn't communicate"),
            ("exit 3", "it said nothing"),
            ("printf '\\377\\000, a, b\\n'", "where a GPU was expected"),
            ("echo '0, too, few, fields'", "where a GPU was expected"),
            ("kill -SEGV $$", "exit status -11"),
        ],
    )
    def test_failures_are_reported(
        self, nvidia_smi: Callable[[str], Path], script: str, complaint: str
    ) -> None:
        """A failing nvidia-smi means no GPUs, and its complaint is kept."""
        nvidia_smi(script)
        found, error = environment.query_gpus()
        assert found == []
        assert complaint in error
        assert complaint in environment.collect()["gpu_error"]

    def test_one_odd_row_hides_no_gpu(self, nvidia_smi: Callable[[str], Path]) -> None:
        """A warning among the rows is reported beside the GPUs."""
        nvidia_smi(f"cat <<END\nWARNING: infoROM is corrupted\n{GPU_ROWS}END")
        found, error = environment.query_gpus()
        assert [gpu["index"] for gpu in found] == [0, 1]
        assert "infoROM" in error

    def test_hang(
        self, nvidia_smi: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A nvidia-smi that hangs is killed with its children once its time is up."""
        monkeypatch.setattr(environment, "_GPU_TIMEOUT_S", 5.0)
        nvidia_smi(f"sleep 1000 & echo $! > {tmp_path}/child; wait")
        found, error = environment.query_gpus()
        assert (found, error) == ([], "nvidia-smi did not answer within 5 s")
        status = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
        processes.until(
            lambda: not status.exists() or status.read_text().split()[2] == "Z", "its end"
        )

    def test_not_a_program(self, nvidia_smi: Callable[[str], Path]) -> None:
        """A nvidia-smi for another architecture is an error, not a crash."""
        nvidia_smi("").write_bytes(b"\x7fELF rubbish")
        assert "can't be run" in environment.query_gpus()[1]

    def test_asked_once(self, nvidia_smi: Callable[[str], Path], tmp_path: Path) -> None:
        """A slow driver is asked once in the life of a process."""
        nvidia_smi(f"echo asked >> {tmp_path}/log")
        environment.gpus()
        environment.gpus()
        assert (tmp_path / "log").read_text() == "asked\n"


def test_package_version_takes_the_first_that_is_installed() -> None:
    """The first installed distribution answers, and none is None."""
    assert environment.package_version("no-such-package", "pytest") == pytest.__version__
    assert environment.package_version("no-such-package", "") is None
    assert environment.package_version() is None


def test_ucx_tools_are_found_without_an_import() -> None:
    """Finding UCX's tools loads no UCX library into the process."""
    code = (
        "import sys; from commbench.machine import environment; print(environment.ucx_tools());"
        "print('libucx' in sys.modules, 'libuc' in open('/proc/self/maps').read())"
    )
    folder, loaded = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert loaded == "False False"
    if importlib.util.find_spec("libucx"):
        assert (Path(folder) / "ucx_perftest").is_file()


def test_ucx_tools_of_broken_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A libucx without tools, without a place or without a spec has no tools."""
    nowhere = importlib.machinery.ModuleSpec("libucx", None, origin=None)
    empty = importlib.machinery.ModuleSpec("libucx", None, origin=str(tmp_path / "__init__.py"))
    for spec in (None, nowhere, empty):
        monkeypatch.setattr(importlib.util, "find_spec", {"libucx": spec}.get)
        assert environment.ucx_tools() is None
    monkeypatch.undo()
    # find_spec raises ValueError for a module that was put in place by hand.
    monkeypatch.setitem(sys.modules, "libucx", type(sys)("libucx"))
    assert environment.ucx_tools() is None


class TestCheckout:
    """The commit that the source and the working directory are at."""

    def git(self, folder: Path, *arguments: str) -> str:
        """Return what git prints, for a user of its own."""
        user = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *user, "-C", str(folder), *arguments]
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)

    def repository(self, folder: Path) -> str:
        """Make a repository with one committed file and return the commit."""
        self.git(plant(folder, {"file": "1"}), "init")
        self.git(folder, "add", "file")
        self.git(folder, "commit", "-m", "one")
        return self.git(folder, "rev-parse", "HEAD").strip()

    def test_clean_and_dirty(self, tmp_path: Path) -> None:
        """A changed tracked file makes a checkout dirty, an untracked one does not."""
        commit = self.repository(tmp_path)
        plant(tmp_path, {"untracked": ""})
        assert environment.checkout(tmp_path) == {"commit": commit, "dirty": False}
        plant(tmp_path, {"file": "2"})
        assert environment.checkout(tmp_path) == {"commit": commit, "dirty": True}

    def test_no_commit_to_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No folder, no repository, no commit yet or no git is None."""
        assert environment.checkout(tmp_path / "missing") is None
        assert environment.checkout(tmp_path) is None
        self.git(tmp_path, "init")
        assert environment.checkout(tmp_path) is None
        monkeypatch.setenv("PATH", "/nonexistent")
        assert environment.checkout(tmp_path) is None

    def test_hooks_do_not_redirect(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variables of a git hook that runs commbench don't change whose commit is told."""
        commit = self.repository(tmp_path / "mine")
        self.repository(tmp_path / "hook")
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "hook/.git"))
        found = environment.checkout(tmp_path / "mine")
        assert found == {"commit": commit, "dirty": False}

    def test_package_inside_of_a_foreign_checkout(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An installed commbench does not take the commit of the project around it for its own."""
        self.repository(tmp_path)
        monkeypatch.setattr(environment, "_SOURCE", plant(tmp_path, {"venv/x": ""}) / "venv")
        assert environment.collect()["git"]["commbench"] is None

    def test_working_directory_that_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A working directory that was removed under the process has no commit."""
        folder = tmp_path / "gone"
        folder.mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()
        assert environment.collect()["git"]["working_directory"] is None


def test_variables_without_secrets() -> None:
    """Only what steers Dask, UCX, MPI and CUDA is kept, and of that nothing that looks secret."""
    kept = {
        "UCX_TLS": "tcp",
        "UCXPY_PROGRESS_MODE": "blocking",
        "DASK_DISTRIBUTED__COMM__COMPRESSION": "false",
        "OMP_NUM_THREADS": "1",
        "MPICH_GPU_SUPPORT_ENABLED": "1",
        "MPIR_CVAR_NOLOCAL": "1",
        "OMPI_MCA_pml": "ucx",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    hidden = {
        "DASK_COILED__TOKEN": "s3cret",
        "DASK_GATEWAY__AUTH__KWARGS": "s3cret",
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": "s3cret",
        "DASK_INTERNAL_INHERIT_CONFIG": "s3cret",
    }
    others = {"AWS_SECRET_ACCESS_KEY": "s3cret", "MY_UCX_TLS": "s3cret", "DASK": "s3cret"}
    url = {"DASK_SCHEDULER_ADDRESS": "tls://me:s3cret@host:8786"}
    found = environment.variables(kept | hidden | others | url)
    assert found == kept | dict.fromkeys(hidden, "<redacted>") | {
        "DASK_SCHEDULER_ADDRESS": "tls://<redacted>@host:8786"
    }


def test_variables_of_any_bytes() -> None:
    """A value that is not UTF-8 becomes text that every encoder takes."""
    found = environment.variables({"UCX_LOG_FILE": os.fsdecode(b"/tmp/\xff")})
    assert found["UCX_LOG_FILE"].encode() == "/tmp/�".encode()


def test_import_is_light() -> None:
    """Importing it loads none of the libraries that it records."""
    heavy = ("numpy", "pandas", "dask", "distributed", "matplotlib", "ucxx", "mpi4py", "psutil")
    code = (
        "import sys, commbench.machine.environment; "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
