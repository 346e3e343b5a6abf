"""Provenance of a measurement: the machine and the software.

Functions read files below a root, which tests replace. None stands for values that can't be read,
``"unlimited"`` for a limit that is not set. No function raises an exception, or imports a library
to describe it.
"""

from __future__ import annotations

import functools
import gzip
import math
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from commbench.machine import installed
from commbench.model import registry

_PACKAGES = (
    "commbench", "dask", "distributed", "dask-cuda", "cupy", "cupy-cuda12x", "cupy-cuda13x", "cudf",
    "cudf-cu12", "cudf-cu13", "numpy", "pandas", "pyarrow", "scipy", "tornado", "msgpack",
)  # fmt: skip
_VARIABLES = (
    r"(DASK|OMP|MALLOC|CUDA)_.*|GLIBC_TUNABLES|RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY"
    r"|(OPENBLAS|MKL|BLIS|NUMEXPR)_NUM_THREADS|(KMP|GOMP)_.*|LD_PRELOAD|PYTHONMALLOC"
)
"""Those of no backend: backends have ``packages`` and ``variables``, too."""
SECRETS = re.compile("TOKEN(?!IZE)|SECRET|PASS|AUTH|CREDENTIAL|MPI__KEY", re.IGNORECASE)
"""The pattern of names of variables with secrets: Dask reads any setting from a variable."""
# The last one has a whole configuration in base64.
_NOT_SHOWN = re.compile(f"{SECRETS.pattern}|KEY|INHERIT_CONFIG", re.IGNORECASE)
_GPU_QUERY = "--query-gpu=index,name,uuid,pci.bus_id,memory.total,driver_version"
_GPU_TIMEOUT_S = 10.0
_NUMA_NODE = "device/numa_node"
_N_READINGS = 2000
_SOURCE = Path(__file__).parents[2]
Limit = float | str | None


def collect(root: Path = Path("/")) -> dict[str, Any]:
    """Return the provenance of machine and software for JSON; this usually takes 0.2 s."""
    gpu_rows, gpu_error = query_gpus()
    # An installed package may be in a virtual environment inside of another checkout.
    commit = checkout(_SOURCE) if (_SOURCE / ".git").exists() else None
    kinds = registry.loadable("backend").values()
    packages = dict.fromkeys(chain(_PACKAGES, *(kind.packages for kind in kinds)))
    loads = re.findall(r"\b[0-9]{1,9}\.[0-9]{2}\b", read(root / "proc/loadavg") or "")
    return {
        "host": host(root),
        "cpu": cpu(root),
        "numa": numa_nodes(root / "sys"),
        "memory": memory(root),
        "clock": {"step_s": timer_resolution(), "tick_Hz": tick_rate(root, platform.release())},
        "load_average": [float(load) for load in loads[:3]] or None,
        "network": network_interfaces(root / "sys"),
        "rdma": rdma_devices(root / "sys"),
        "gpus": gpu_rows,
        "gpu_error": gpu_error or None,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: installed.package_version(name) for name in packages},
        "git": {"commbench": commit, "working_directory": checkout(Path())},
        "variables": variables(os.environ),
    }


def host(root: Path) -> dict[str, str | None]:
    """Return the host's name, its operating system and its hypervisor, if any."""
    release = read(root / "etc/os-release") or read(root / "usr/lib/os-release")
    dmi = (read(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    hypervisor = read(root / "sys/hypervisor/type")
    if _search(r"^flags\s*:.* (hypervisor)\b", read(root / "proc/cpuinfo")):
        hypervisor = hypervisor or " ".join(text for text in dmi if text) or "unnamed"
    return {
        "name": platform.node() or None,
        "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
        "os": (_search(r"^PRETTY_NAME=(.*)$", release) or "").strip("\"' ") or None,
        "architecture": platform.machine() or None,
        "hypervisor": hypervisor or None,
    }


def kernel_id() -> str:
    """Return an id of the running kernel, which the containers of a host share."""
    return read(Path("/proc/sys/kernel/random/boot_id")) or platform.node()


def cpu(root: Path) -> dict[str, Any]:
    """Return the processor, the cores that this process may use, and their clock settings."""
    info, tree = read(root / "proc/cpuinfo"), root / "sys/devices/system"
    # Arm's cpuinfo has two numbers instead of a model name.
    arm = [_search(rf"^CPU {key}\s*:[ \t]*(.+)$", info) for key in ("implementer", "part")]
    arm_model = f"implementer {arm[0]}, part {arm[1]}" if all(arm) else None
    policies = [path for path in entries(tree / "cpu/cpufreq") if path.name.startswith("policy")]
    no_turbo = integer(tree / "cpu/intel_pstate/no_turbo")
    boost = integer(tree / "cpu/cpufreq/boost") if no_turbo is None else 1 - no_turbo
    smt = integer(tree / "cpu/smt/active")
    return {
        "model": _search(r"^model name\s*:[ \t]*(.+)$", info) or arm_model,
        "logical_cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "allowed_cpus": _search(r"^Cpus_allowed_list:\s*(\S+)$", read(root / "proc/self/status")),
        "cgroup_quota_cores": cgroup_limit(root, "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
        "governors": {path.name: read(path / "scaling_governor") for path in policies} or None,
        "turbo": None if boost is None else bool(boost),
        "smt": None if smt is None else bool(smt),
        "clock_source": read(tree / "clocksource/clocksource0/current_clocksource"),
    }


def numa_nodes(sys: Path = Path("/sys")) -> list[dict[str, Any]]:
    """Return the NUMA nodes with their CPUs (``"0-7,16-23"``) and memory."""
    return [
        {"node": int(path.name[4:]), "cpus": read(path / "cpulist")}
        | {"memory_bytes": _kilobytes("MemTotal", read(path / "meminfo"))}
        for path in entries(sys / "devices/system/node")
        if re.fullmatch(r"node[0-9]{1,4}", path.name)
    ]


def memory(root: Path) -> dict[str, Limit]:
    """Return memory, swap and their limits in bytes, and the mode of huge pages."""
    info = read(root / "proc/meminfo")
    pages = read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    shm = None
    with suppress(OSError):
        shm = shutil.disk_usage(root / "dev/shm").total
    limits = (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)
    memlock, files = (resource.getrlimit(limit)[0] for limit in limits)
    return {
        "total_bytes": _kilobytes("MemTotal", info),
        "available_bytes": _kilobytes("MemAvailable", info),
        "swap_bytes": _kilobytes("SwapTotal", info),
        "cgroup_limit_bytes": cgroup_limit(root, "memory", "memory.limit_in_bytes"),
        "shm_bytes": shm,
        "memlock_bytes": "unlimited" if memlock == resource.RLIM_INFINITY else memlock,
        "open_files": "unlimited" if files == resource.RLIM_INFINITY else files,
        "transparent_huge_pages": _search(r"\[(\w+)\]", pages),
    }


def cgroup_limit(root: Path, controller: str, *version_1: str) -> Limit:
    """Return the lowest limit set by control groups, in cores or bytes."""
    limits: list[float] = []
    for folder in _cgroups(root, controller):
        separate = " ".join(read(folder / name) or "" for name in version_1)
        text = read(folder / f"{controller}.max") or separate
        match = re.fullmatch(r"(max|-1|[0-9]{1,20})(?: ([1-9][0-9]{0,9}))?", text)
        if match and bool(match[2]) == (controller == "cpu"):
            # Version 1 says "none" as -1, or as the largest whole number of pages.
            none = match[1] in ("max", "-1") or int(match[1]) >= 2**60
            number = math.inf if none else int(match[1])
            limits.append(number / int(match[2]) if match[2] else number)
    least = min(limits, default=None)
    return "unlimited" if least == math.inf else least


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    # A group is bound by all of its ancestors, so every folder up to the mount point counts.
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers or controller in controllers.split(","):
            tree = root / "sys/fs/cgroup" / (controller if controllers else "")
            parts = path.strip("/").split("/")
            for depth in range(len(parts) + 1):
                if ".." not in parts[:depth]:  # a group outside of this namespace is not mounted
                    yield tree.joinpath(*parts[:depth])


def network_interfaces(sys: Path = Path("/sys")) -> list[dict[str, Any]]:
    """Return the network interfaces; ``state`` is ``unknown`` for loopback."""
    interfaces: list[dict[str, Any]] = []
    for path in entries(sys / "class/net"):
        speed = integer(path / "speed") or 2**32
        driver = _search(r"^DRIVER=(.+)$", read(path / "device/uevent"))
        values = {"name": path.name, "state": read(path / "operstate"), "driver": driver}
        numbers = {"mtu_bytes": integer(path / "mtu"), "numa_node": integer(path / _NUMA_NODE)}
        numbers["speed_Mbps"] = speed if speed < 2**31 else None  # above, it is an unsigned -1
        if path.is_dir():  # the bonding driver keeps a file there
            interfaces.append(values | numbers)
    return interfaces


def rdma_devices(sys: Path = Path("/sys")) -> list[dict[str, Any]]:
    """Return the ports of the RDMA devices, with state, rate and link layer from sysfs."""
    return [
        {"name": device.name, "port": port.name, "numa_node": integer(device / _NUMA_NODE)}
        | {key: read(port / key) for key in ("state", "rate", "link_layer")}
        for device in entries(sys / "class/infiniband")
        for port in entries(device / "ports")
    ]


def gpus() -> list[dict[str, Any]]:
    """Return the NVIDIA GPUs that the driver lists, regardless of CUDA_VISIBLE_DEVICES."""
    return query_gpus()[0]


def query_gpus() -> tuple[list[dict[str, Any]], str]:
    """Return the GPUs, and the error of nvidia-smi if it is installed but failed."""
    executable = shutil.which("nvidia-smi")
    return _query_nvidia_smi(executable) if executable else ([], "")


@functools.cache  # a driver without persistence mode takes seconds to answer
def _query_nvidia_smi(executable: str) -> tuple[list[dict[str, Any]], str]:
    command = (executable, _GPU_QUERY, "--format=csv,noheader,nounits")
    text, error = run_tool(command, _GPU_TIMEOUT_S)
    rows = []
    for line in text.splitlines():
        if row := re.fullmatch(r"([0-9]{1,4}), (.+), (.+), (.+), (.+), (.+)", line.strip()):
            values = {"index": int(row[1]), "name": row[2], "uuid": row[3], "pci": row[4]}
            size = int(row[5]) * 2**20 if re.fullmatch(r"[0-9]{1,12}", row[5]) else None
            rows.append(values | {"memory_bytes": size, "driver": row[6]})
        else:
            error = f"nvidia-smi printed {line.strip()[:80]!r} where a GPU was expected"
    return rows, error


def checkout(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the git checkout with `folder`, and whether tracked files differ."""
    command = ("git", "-C", folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    text, error = run_tool(command, 2, GIT_OPTIONAL_LOCKS="0")
    commit = _search(r"^# branch\.oid ([0-9a-f]+)$", text)
    dirty = any(not line.startswith("#") for line in text.splitlines())
    return {"commit": commit, "dirty": dirty} if commit and not error else None


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Dask, backends, CUDA and glibc's allocator, without secrets."""
    kinds = registry.loadable("backend").values()
    prefixes = tuple(chain.from_iterable(kind.variables for kind in kinds))
    return {
        name: without_secrets(name, environ[name])
        for name in sorted(environ)
        if re.fullmatch(_VARIABLES, name) or name.startswith(prefixes)
    }


def without_secrets(name: str, value: str) -> str:
    """Return the value of a variable as text, with ``<redacted>`` for what may be secret."""
    value = value.encode(errors="surrogateescape").decode(errors="replace")
    value = re.sub(r"//[^/@\s]*@", "//<redacted>@", value)
    return "<redacted>" if _NOT_SHOWN.search(name) else value


def _search(pattern: str, text: str | None) -> str | None:
    match = re.search(pattern, text or "", re.MULTILINE)
    return match[1] if match else None


def _kilobytes(name: str, text: str | None) -> int | None:
    number = _search(rf"\b{name}:\s+([0-9]{{1,15}}) kB$", text)
    return None if number is None else int(number) * 1024


def timer_resolution() -> float:
    """Return the median difference, in seconds, of two successive ``time.perf_counter`` readings.

    Linux always reports a resolution of one nanosecond. The error of a duration is larger: the cost
    of a reading, or the tick of a coarse clock source.
    """
    clock = time.perf_counter
    readings = [clock() for _ in range(_N_READINGS)]
    steps = sorted(later - earlier for earlier, later in pairwise(readings) if later > earlier)
    claimed = time.get_clock_info("perf_counter").resolution
    return max(claimed, steps[len(steps) // 2]) if steps else claimed


def tick_rate(root: Path, release: str) -> int | None:
    """Return the ticks per second of the kernel with this release, from its configuration."""
    for path in (root / "boot" / f"config-{release}", root / "proc/config.gz"):
        with suppress(OSError, EOFError, zlib.error):
            content = path.read_bytes()
            text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("latin-1")
            if number := _search(r"^CONFIG_HZ=([1-9][0-9]{0,4})$", text):
                return int(number)
    return None


def recorded(known: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key such as ``"cpu.model"`` in a collected environment.

    None if it was not recorded.
    """
    value: Any = known
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def read(path: Path) -> str | None:
    """Return the stripped text of a file; None if it can't be read."""
    # /proc/cpuinfo is slow on many cores, and its first 64 KiB are enough.
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(65536).decode(errors="replace").strip()
    return None


def integer(path: Path) -> int | None:
    """Return the number in a file of sysfs; None if it is negative, which means unknown."""
    text = read(path) or ""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder in numerical order; none if it can't be read."""
    with suppress(OSError):
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
    return []


def run_tool(command: Sequence[str | Path], timeout_s: float, **env: str) -> tuple[str, str]:
    """Run a program with the variables `env`; return its output, and an error message or ""."""
    name, pipe = Path(command[0]).name, subprocess.PIPE
    # A git hook's GIT_DIR would redirect git.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | env
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env,
            encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        text, complaint = process.communicate(timeout=timeout_s)
    except OSError as error:
        return "", f"{name} can't be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        # A process that is stuck in a driver may survive SIGKILL, so don't wait for it.
        with suppress(OSError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=1)
        return "", f"{name} did not answer within {timeout_s:g} s"
    if process.returncode == 0:
        return text, ""
    said = (complaint.strip() or text.strip() or "it said nothing").splitlines()[0]
    return "", f"{name} failed (exit status {process.returncode}): {said}"
