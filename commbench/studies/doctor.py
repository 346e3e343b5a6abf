"""Find out what this machine can measure, and what would disturb measurements."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

from commbench import backends
from commbench.errors import CommbenchError, UnavailableError
from commbench.machine import cores as core_times
from commbench.machine import environment, gpu, installed
from commbench.model import registry
from commbench.model.units import format_bytes

_TIMEOUT_S = 20.0
_MIN_SHM_BYTES = 1e9
_MIN_CORES = 4  # scheduler, client and two workers
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen")
_GPU_PACKAGES = ("cudf", "dask_cudf", "dask_cuda")
# Run in a separate process, because MPI and UCX can't share one.
_ASK_MPI = (
    "from commbench.mpi import gpu_frames, runtime\n"
    "print(runtime.runtime().library)\n"
    "print(gpu_frames.is_cuda_aware())"
)


class Advice(NamedTuple):
    """A recommendation; ``severity`` is ``warning`` if measurements are affected, else ``note``."""

    severity: str
    text: str


_warning, _note = partial(Advice, "warning"), partial(Advice, "note")


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The result of ``examine``.

    ``machine`` is the result of `commbench.machine.environment.collect`, and ``backends`` are rows
    of `probe_backend`. Warnings precede notes.
    """

    machine: Mapping[str, Any]
    backends: tuple[tuple[str, str, str, str], ...] = ()
    mpiexec: str | None = None
    gpu_memory: tuple[tuple[str, str], ...] = ()
    advice: tuple[Advice, ...] = ()


def examine() -> Examination:
    """Examine the machine, the software and every backend, without measuring."""
    machine = environment.collect()
    devices = ("cpu", "gpu") if machine["gpus"] else ("cpu",)
    kinds = registry.loadable("backend")
    names = [
        name
        for head in registry.names("backend")
        for name in (head, *(f"{head}:{each}" for each in getattr(kinds.get(head), "choices", ())))
    ]
    advice = sorted(advise(machine), key=lambda given: given.severity != "warning")
    return Examination(
        machine=machine,
        backends=tuple(probe_backend(name, device) for name in names for device in devices),
        mpiexec=installed.find_mpiexec(),
        gpu_memory=tuple(gpu_memory()),
        advice=tuple(advice),
    )


def probe_backend(name: str, device: str) -> tuple[str, str, str, str]:
    """Return both names, ``yes`` or ``no``, and what the backend sets or why it can't run."""
    try:
        backend = backends.parse(name)
        settings = backend.settings(device)
        lacking = backend.unavailable(device)
        if lacking is None:
            return name, device, "yes", f"sets {settings}"
        reason, remedy = lacking.reason, lacking.remedy
    except UnavailableError as error:
        reason, remedy = error.reason, error.remedy
    except CommbenchError as error:
        reason, remedy = str(error), ""
    except Exception as error:  # noqa: BLE001 - a third party's fault must not hide the rest
        reason = f"asking it raised {type(error).__name__}: {error}"
        remedy = "tell the authors of the backend"
    return name, device, "no", reason + f". To have it: {remedy}" * bool(remedy)


def gpu_memory() -> Iterator[tuple[str, str]]:
    """Yield labels and facts on GPU memory: the driver, the packages, and the support of MPI."""
    gpus, error = environment.query_gpus()
    names = gpu.devices(os.environ)
    limit = os.environ.get(gpu.VISIBLE)
    yield (
        "GPUs visible",
        (", ".join(names) if gpus else error or "none: nvidia-smi knows none, or is not there")
        or f"none of {len(gpus)}: {gpu.VISIBLE}={limit} hides them",
    )
    lacking = [n for n in (*gpu.PACKAGES, *_GPU_PACKAGES) if importlib.util.find_spec(n) is None]
    yield (
        "GPU packages",
        f"lacking {', '.join(lacking)}: {installed.install_command('gpu')}"
        if lacking
        else "all are installed",
    )
    yield "GPU memory", _mpi()


def _mpi() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    text, error = environment.run_tool((sys.executable, "-c", _ASK_MPI), _TIMEOUT_S)
    if error or len(lines := text.split("\n")) < 2:
        return f"not known: {error or 'it said nothing'}"
    if lines[1] == "True":
        return f"{lines[0]} takes GPU memory (it says that it is CUDA-aware)"
    return (
        f"{lines[0]} is not CUDA-aware: GPU memory is staged in pinned host memory; to avoid it, "
        "build mpi4py with an MPI that is"
    )


def advise(machine: Mapping[str, Any]) -> Iterator[Advice]:
    """Yield advice on what would disturb measurements on `machine`, as ``Examination`` has it."""
    yield from _about_cores(machine["cpu"], machine["load_average"])
    yield from _about_memory(machine["memory"], bool(machine["rdma"]))
    yield from _about_software(machine)


def _about_cores(cpu: Mapping[str, Any], loads: Sequence[float] | None) -> Iterator[Advice]:
    governors = {name for name in (cpu["governors"] or {}).values() if name}
    if not governors:
        yield _note("no CPU governor is visible: clocks may change unseen between two runs")
    if others := ", ".join(sorted(governors - {"performance"})):
        yield _warning(
            f"the CPU governor is {others}: cores that wait for a message clock down. "
            "To change it: sudo cpupower frequency-set -g performance"
        )
    cores, quota = cpu["usable_cores"], cpu["cgroup_quota_cores"]
    if isinstance(quota, int | float) and quota < cores:
        cores = quota
        yield _warning(f"the control group allows {cores:g} cores, and stops threads beyond that")
    if cores < _MIN_CORES:
        yield _warning(
            f"only {cores:g} cores for scheduler, client and workers: they take turns, and a "
            "backend that polls, as ucx does, takes them from the computation"
        )
    if loads and core_times.is_loaded(loads[0], cores):
        # It is that of the host.
        if cores < (cpu["logical_cores"] or cores):
            yield _note(
                f"the load average of the host's {cpu['logical_cores']} cores is {loads[0]:g}; "
                f"whether others use these {cores:g} is unknown"
            )
        else:
            yield _warning(f"the load average is {loads[0]:g} already: others are using the cores")
    if cpu["clock_source"] in _SLOW_CLOCKS:
        yield _warning(f"the clock source is {cpu['clock_source']}: every time stamp is slow")


def _about_memory(memory: Mapping[str, Any], rdma: bool) -> Iterator[Advice]:
    shm, limit, locked = (memory[f"{name}_bytes"] for name in ("shm", "cgroup_limit", "memlock"))
    if shm is None or shm < _MIN_SHM_BYTES:
        size = format_fact("_bytes", shm)
        yield _warning(f"/dev/shm has {size}: too little. Docker: --shm-size=8g")  # noqa: S108
    if rdma and locked != "unlimited":
        yield _warning(f"RDMA may lock only {format_fact('_bytes', locked)}: ulimit -l unlimited")
    if isinstance(limit, int) and limit < (memory["total_bytes"] or limit):
        yield _note(f"the control group kills what takes more than {format_bytes(limit)} of memory")
    if (pages := memory["transparent_huge_pages"]) in ("always", "never"):
        why = "compaction stalls" if pages == "always" else "fresh arrays fault at every 4 KiB"
        yield _note(f"transparent huge pages are set to {pages} ({why}); madvise is usual")


def _about_software(machine: Mapping[str, Any]) -> Iterator[Advice]:
    installed = sorted(name for name, version in machine["packages"].items() if version)
    old, new = (", ".join(n for n in installed if re.search(f"cu(da)?{v}", n)) for v in (12, 13))
    if old and new:
        yield _warning(f"packages for CUDA 12 ({old}) and 13 ({new}) are mixed: keep one kind")
    if machine["gpu_error"]:
        yield _warning(f"GPUs count as absent: {machine['gpu_error']}")
    if machine["gpus"] and machine["variables"].get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield _warning("CUDA_VISIBLE_DEVICES hides every GPU: unset it")
    for name, kind in registry.loadable("backend").items():
        try:
            yield from starmap(Advice, kind.advice(machine))
        except Exception as error:  # noqa: BLE001 - a third party's fault must not hide the rest
            yield _note(f"the backend {name} has no advice: asking it raised {error!r}")


def format_fact(key: str, value: Any) -> str:
    """Return the value of `key` as text, which is never empty."""
    if isinstance(value, dict):
        return ", ".join(sorted({format_fact(key, item) for item in value.values()}))
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float) and key.endswith("_bytes") and key != "mtu_bytes":
        return format_bytes(value)
    return "unknown" if value is None else str(value) or "none"
