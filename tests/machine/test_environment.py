import gzip
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from repositories import Repository

from commbench.backends.tcp import TcpBackend
from commbench.machine import environment, installed

ROOT = Path(__file__).parents[2]

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


def plant(root, files):
    """Write `files` below `root` and return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.fixture
def root(tmp_path):
    """Return the root of a machine that has all files."""
    (tmp_path / "dev/shm").mkdir(parents=True)
    return plant(tmp_path, TREE)


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Return a function that puts an nvidia-smi with a shell script first on the PATH."""

    def write(script):
        path = processes.program(tmp_path / "bin/nvidia-smi", script)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return path

    return write


def test_the_environment_of_this_machine_survives_json():
    collected = environment.collect()
    assert json.loads(json.dumps(collected, allow_nan=False)) == collected
    assert collected["host"]["name"] == os.uname().nodename
    assert collected["packages"]["commbench"] is not None
    assert collected["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert collected["memory"]["total_bytes"] > 10**8


def test_the_tick_is_that_of_the_running_kernel(tmp_path):
    text = "# CONFIG_HZ_100 is not set\nCONFIG_HZ_250=y\nCONFIG_HZ=250\n"
    plant(tmp_path, {"proc/config.gz": gzip.compress(text.encode())})
    assert environment.tick_rate(tmp_path, "6.1") == 250
    plant(tmp_path, {"boot/config-6.1": "CONFIG_HZ=1000\n", "boot/config-5.0": "CONFIG_HZ=100\n"})
    assert environment.tick_rate(tmp_path, "6.1") == 1000
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(text.encode())[:20])
    assert environment.tick_rate(tmp_path, "6.2") is None


def test_host_cpu_numa_and_memory_are_read_from_proc_and_sys(root):
    collected = environment.collect(root)
    assert collected["host"]["os"] == "Rocky Linux 9.4 (Blue Onyx)"
    assert collected["host"]["hypervisor"] == "QEMU Standard PC"
    assert collected["load_average"] == [1.25, 0.5, 0.1]
    cpu = collected["cpu"]
    assert cpu["model"] == "Intel(R) Xeon(R) Platinum 8480C"
    assert cpu["governors"] == {"policy0": "performance", "policy10": "powersave"}
    assert (cpu["turbo"], cpu["smt"], cpu["clock_source"]) == (True, False, "tsc")
    assert cpu["allowed_cpus"] == "0-3,8"
    assert collected["clock"]["tick_Hz"] is None
    assert collected["numa"] == [
        {"node": 0, "cpus": "0-3", "memory_bytes": 2048 * 1024},
        {"node": 1, "cpus": "", "memory_bytes": 4096 * 1024},
    ]
    memory = collected["memory"]
    assert (memory["total_bytes"], memory["available_bytes"]) == (1024 * 1024, 512 * 1024)
    assert (memory["swap_bytes"], memory["transparent_huge_pages"]) == (0, "madvise")
    assert memory["shm_bytes"] > 0


def test_network_interfaces_are_the_folders_of_sysfs(root):
    assert environment.network_interfaces(root / "sys") == [
        {"name": "lo", "state": "unknown", "driver": None, "speed_Mbps": None}
        | {"mtu_bytes": 65536, "numa_node": None},
        {"name": "eth0", "state": "up", "driver": "mlx5_core", "speed_Mbps": 100000}
        | {"mtu_bytes": 9000, "numa_node": None},
    ]


@pytest.mark.parametrize("speed", ["-1", "0", "4294967295", "fast", "", "9" * 400, "१००"])
def test_an_implausible_speed_of_an_interface_is_unknown(root, speed):
    plant(root, {"sys/class/net/eth0/speed": speed})
    assert environment.network_interfaces(root / "sys")[1]["speed_Mbps"] is None


def test_each_port_of_an_rdma_device_is_listed(root):
    plant(root, {"sys/class/infiniband/mlx5_0/ports/2/state": "1: DOWN\n"})
    first, second = environment.rdma_devices(root / "sys")
    assert first == {
        "name": "mlx5_0", "port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand", "numa_node": 1,
    }  # fmt: skip
    assert (second["port"], second["state"], second["rate"]) == ("2", "1: DOWN", None)


def test_everything_is_unknown_without_proc_and_sys(tmp_path):
    collected = environment.collect(tmp_path)
    # System calls return these.
    known = {"logical_cores", "usable_cores", "memlock_bytes", "open_files"}
    for section in ("cpu", "memory"):
        facts = collected[section]
        assert all(facts[key] is None for key in facts.keys() - known)
    assert (collected["numa"], collected["network"], collected["rdma"]) == ([], [], [])
    assert collected["load_average"] is None
    assert (collected["host"]["os"], collected["host"]["hypervisor"]) == (None, None)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\n", b"\xff\xfe\x00\x80", b"-1", b"nan", b"9" * 100_000, b"[ ] : = , \n::::\n", b"1 0"],
    ids=["empty", "newline", "binary", "minus", "nan", "endless", "punctuation", "zero-period"],
)
def test_garbage_in_every_file_is_unknown(root, garbage):
    plant(root, dict.fromkeys(TREE, garbage))
    collected = environment.collect(root)
    json.dumps(collected, allow_nan=False)
    assert collected["memory"]["total_bytes"] is None
    assert collected["load_average"] is None


def test_unreadable_files_and_folders_are_unknown(root, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "iterdir", refuse)
    collected = environment.collect(root)
    assert (collected["memory"]["total_bytes"], collected["cpu"]["governors"]) == (None, None)
    assert (collected["numa"], collected["network"], collected["rdma"]) == ([], [], [])


def test_an_arm_cpu_is_named_by_implementer_and_part(tmp_path):
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"
    plant(tmp_path, {"proc/cpuinfo": text})
    assert environment.cpu(tmp_path)["model"] == "implementer 0x41, part 0xd4f"


@pytest.mark.parametrize(
    ("no_turbo", "boost", "expected"),
    [("1", "1", False), ("0", "0", True), (None, "0", False), (None, None, None), ("?", "1", True)],
)
def test_intels_no_turbo_counts_before_boost(tmp_path, no_turbo, boost, expected):
    tree = "sys/devices/system/cpu"
    files = {f"{tree}/intel_pstate/no_turbo": no_turbo, f"{tree}/cpufreq/boost": boost}
    plant(tmp_path, {name: text for name, text in files.items() if text is not None})
    assert environment.cpu(tmp_path)["turbo"] is expected


def test_the_product_name_of_a_physical_machine_is_no_hypervisor(root):
    plant(root, {"proc/cpuinfo": CPUINFO.replace(" hypervisor", "")})
    assert environment.host(root)["hypervisor"] is None


class TestCgroups:
    """Limits of control groups, of both versions."""

    def quota(self, root):
        return environment.cgroup_limit(root, "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")

    def memory(self, root):
        return environment.cgroup_limit(root, "memory", "memory.limit_in_bytes")

    def test_the_tightest_limit_of_group_and_ancestors_binds(self, root):
        assert (self.quota(root), self.memory(root)) == (4.0, 4 * GIB)

    def test_version_1_has_a_tree_for_each_controller(self, tmp_path):
        files = {
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        }
        plant(tmp_path, files)
        assert (self.quota(tmp_path), self.memory(tmp_path)) == (1.5, "unlimited")

    def test_an_absent_limit_is_unlimited_and_not_unknown(self, tmp_path):
        plant(tmp_path, {"proc/self/cgroup": "0::/\n"})
        plant(tmp_path / "sys/fs/cgroup", {"cpu.max": "max 100000", "memory.max": "max"})
        assert (self.quota(tmp_path), self.memory(tmp_path)) == ("unlimited", "unlimited")

    def test_a_group_outside_of_the_namespace_stays_below_the_mount_point(self, tmp_path):
        plant(tmp_path, {"proc/self/cgroup": "0::/../../other\n"})
        plant(tmp_path / "sys/fs", {"memory.max": "1", "cgroup/memory.max": str(GIB)})
        assert self.memory(tmp_path) == GIB

    @pytest.mark.parametrize("text", ["100000", "0 0", "100000 0", "a b", "1 2 3", "-5 100000"])
    def test_a_malformed_quota_is_unknown(self, tmp_path, text):
        plant(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
        assert self.quota(tmp_path) is None


class TestGpus:
    """The GPUs that nvidia-smi lists."""

    def test_a_machine_without_nvidia_smi_has_no_gpu_and_no_error(self, monkeypatch):
        monkeypatch.setenv("PATH", "/nonexistent")
        assert environment.query_gpus() == ([], "")

    def test_each_row_of_nvidia_smi_is_a_gpu(self, nvidia_smi):
        nvidia_smi(f"cat <<END\n{GPU_ROWS}END")
        first, second = environment.gpus()
        assert first == {
            "index": 0, "name": "NVIDIA H200", "uuid": "GPU-aaaa", "pci": "00000000:18:00.0",
            "memory_bytes": 143771 * 2**20, "driver": "570.86.15",
        }  # fmt: skip
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
    def test_the_complaint_of_a_failing_nvidia_smi_is_kept(self, nvidia_smi, script, complaint):
        nvidia_smi(script)
        gpus, error = environment.query_gpus()
        assert gpus == []
        assert complaint in error
        assert complaint in environment.collect()["gpu_error"]

    def test_a_warning_among_the_rows_hides_no_gpu(self, nvidia_smi):
        nvidia_smi(f"cat <<END\nWARNING: infoROM is corrupted\n{GPU_ROWS}END")
        gpus, error = environment.query_gpus()
        assert [gpu["index"] for gpu in gpus] == [0, 1]
        assert "infoROM" in error

    def test_a_hanging_nvidia_smi_is_killed_with_its_children(self, nvidia_smi, monkeypatch, tag):
        monkeypatch.setattr(environment, "_GPU_TIMEOUT_S", 0.5)
        nvidia_smi("sleep 1000 & wait")
        assert environment.query_gpus() == ([], "nvidia-smi did not answer within 0.5 s")
        processes.until(lambda: not tag.processes(), "the end of its child")

    def test_an_nvidia_smi_of_another_architecture_is_an_error(self, nvidia_smi):
        nvidia_smi("").write_bytes(b"\x7fELF rubbish")
        assert "can't be run" in environment.query_gpus()[1]

    def test_a_slow_driver_is_asked_once_per_process(self, nvidia_smi, tmp_path):
        nvidia_smi(f"echo asked >> {tmp_path}/log")
        environment.gpus()
        environment.gpus()
        assert (tmp_path / "log").read_text() == "asked\n"


def test_package_version_is_that_of_the_first_installed_distribution():
    assert installed.package_version("no-such-package", "pytest") == pytest.__version__
    assert installed.package_version("no-such-package", "") is None
    assert installed.package_version() is None


def test_ucx_tools_are_located_without_importing_ucx():
    code = (
        "import sys; from commbench.machine import installed; print(installed.ucx_tools());"
        "print('libucx' in sys.modules, 'libuc' in open('/proc/self/maps').read())"
    )
    folder, loaded = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert loaded == "False False"
    if importlib.util.find_spec("libucx"):
        assert (Path(folder) / "ucx_perftest").is_file()


def test_a_broken_libucx_has_no_tools(tmp_path, monkeypatch):
    no_origin = importlib.machinery.ModuleSpec("libucx", None, origin=None)
    empty = importlib.machinery.ModuleSpec("libucx", None, origin=str(tmp_path / "__init__.py"))
    for spec in (None, no_origin, empty):
        monkeypatch.setattr(importlib.util, "find_spec", {"libucx": spec}.get)
        assert installed.ucx_tools() is None
    monkeypatch.undo()
    # find_spec raises ValueError for a module that was put into sys.modules by hand.
    monkeypatch.setitem(sys.modules, "libucx", type(sys)("libucx"))
    assert installed.ucx_tools() is None


def test_a_system_ucx_that_is_preferred_is_used_in_place_of_the_wheel(tmp_path, monkeypatch):
    for name in ("ucx_info", "ucx_perftest"):
        for folder in ("wheel/bin", "system"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).touch(mode=0o755)
    wheel = importlib.machinery.ModuleSpec(
        "libucx", None, origin=str(tmp_path / "wheel" / "__init__.py")
    )
    monkeypatch.setattr(importlib.util, "find_spec", {"libucx": wheel}.get)
    monkeypatch.setenv("PATH", str(tmp_path / "system"))
    for preferred, is_there, folder in (
        ("false", True, "wheel/bin"), ("true", True, "system"), ("true", False, "wheel/bin"),
    ):  # fmt: skip
        monkeypatch.setenv("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", preferred)
        monkeypatch.setattr(installed, "_has_system_ucx", lambda there=is_there: there)
        assert installed.find_ucx("ucx_perftest") == str(tmp_path / folder / "ucx_perftest")
        assert (installed.ucx_tools() is None) == (folder == "system")


def test_libraries_of_the_ucx_wheel_come_before_those_of_the_user(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    assert installed.ucx_libraries(Path("/wheel/bin")) == {
        "LD_LIBRARY_PATH": "/wheel/lib:/wheel/lib/ucx:/mine"
    }


class TestCheckout:
    """The commit of the source and of the working directory."""

    def test_changed_tracked_files_make_a_checkout_dirty_and_untracked_ones_do_not(self, tmp_path):
        project = Repository(tmp_path)
        commit = project.commit(file="1")
        plant(project.path, {"untracked": ""})
        assert environment.checkout(project.path) == {"commit": commit, "dirty": False}
        plant(project.path, {"file": "2"})
        assert environment.checkout(project.path) == {"commit": commit, "dirty": True}

    def test_there_is_no_commit_without_folder_repository_commit_or_git(
        self, tmp_path, monkeypatch
    ):
        assert environment.checkout(tmp_path / "missing") is None
        assert environment.checkout(tmp_path) is None
        project = Repository(tmp_path).path
        assert environment.checkout(project) is None
        monkeypatch.setenv("PATH", "/nonexistent")
        assert environment.checkout(project) is None

    def test_variables_of_a_git_hook_do_not_change_the_checkout(self, tmp_path, monkeypatch):
        project = Repository(tmp_path)
        commit = project.commit(file="1")
        Repository(tmp_path, "hook").commit(file="2")
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "hook/.git"))
        assert environment.checkout(project.path) == {"commit": commit, "dirty": False}

    def test_an_installed_package_has_no_commit_within_another_project(self, tmp_path, monkeypatch):
        project = Repository(tmp_path)
        project.commit(file="1")
        monkeypatch.setattr(environment, "_SOURCE", plant(project.path, {"venv/x": ""}) / "venv")
        assert environment.collect()["git"]["commbench"] is None

    @pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tests are in no checkout")
    def test_the_commit_of_an_editable_package_is_that_of_its_checkout(self):
        assert environment.collect()["git"]["commbench"] == environment.checkout(ROOT)

    def test_a_removed_working_directory_has_no_commit(self, tmp_path, monkeypatch):
        folder = tmp_path / "gone"
        folder.mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()
        assert environment.collect()["git"]["working_directory"] is None


def test_only_variables_of_dask_backends_and_cuda_are_kept_and_secrets_redacted(installed):
    pigeon = type("Pigeon", (TcpBackend,), {"variables": ("PIGEON_",), "packages": ("pytest",)})
    installed("backend", {"pigeon": pigeon, "broken": ZeroDivisionError("of its module")})
    assert environment.collect()["packages"]["pytest"] == pytest.__version__
    kept = {
        "PIGEON_WINGS": "2",
        "UCX_TLS": "tcp", "UCXPY_PROGRESS_MODE": "blocking", "OMP_NUM_THREADS": "1",
        "DASK_DISTRIBUTED__COMM__COMPRESSION": "false", "MPICH_GPU_SUPPORT_ENABLED": "1",
        "MPIR_CVAR_NOLOCAL": "1", "OMPI_MCA_pml": "ucx", "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_LAUNCH_BLOCKING": "1", "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=0",
    }  # fmt: skip
    secret = (
        "DASK_COILED__TOKEN", "DASK_GATEWAY__AUTH__KWARGS", "DASK_INTERNAL_INHERIT_CONFIG",
        "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY", "PIGEON_TOKEN",
    )  # fmt: skip
    others = ("AWS_SECRET_ACCESS_KEY", "MY_UCX_TLS", "DASK")
    url = {"DASK_SCHEDULER_ADDRESS": "tls://me:s3cret@host:8786"}
    variables = environment.variables(kept | dict.fromkeys([*secret, *others], "s3cret") | url)
    assert variables == kept | dict.fromkeys(secret, "<redacted>") | {
        "DASK_SCHEDULER_ADDRESS": "tls://<redacted>@host:8786"
    }


def test_a_variable_that_is_not_utf_8_becomes_text():
    variables = environment.variables({"UCX_LOG_FILE": os.fsdecode(b"/tmp/\xff")})
    assert variables["UCX_LOG_FILE"].encode() == "/tmp/�".encode()
