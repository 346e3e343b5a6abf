"""MPI in this process, initialized at the first use.

How two processes can make a communicator depends on how they were started:

========  ========================================================================================
mode      started
========  ========================================================================================
elastic   separately: MPICH only, with the process manager of :mod:`commbench.mpi.pmi` or with
          ``mpiexec -n 1``; processes join and leave at any time
world     all by one ``mpiexec -n N``: any MPI; the ranks are fixed
self      separately, with an MPI that can't connect them: only within one process
========  ========================================================================================
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import json
import logging
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commbench.errors import UnavailableError
from commbench.mpi import pmi
from commbench.mpi.libraries import WHAT, check_before_loading_mpi, loaded
from commbench.mpi.peer_failure import install_log_handler
from commbench.mpi.receive_queue import SENDERS, ReceiveQueue
from commbench.mpi.shared_memory import host, made_by, segments, unlink_files
from commbench.mpi.tags import TagAllocator
from commbench.mpi.ucx_settings import ucx_environment

__all__ = ["Runtime", "runtime"]

logger = logging.getLogger(__name__)

LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "MPI_LOCAL")
_RANKED_BY_LAUNCHER = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_LAUNCH = (
    "PMI_RANK", "PMI_SIZE", "PMI_ID", "PMI_JOBID", "PMIX_NAMESPACE", "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
)  # fmt: skip
"""What distinguishes the ranks of launches; others may be set as MPI starts."""
_PMIX = frozenset({"PMIX_RANK", "OMPI_COMM_WORLD_RANK"})
_OWNER = "COMMBENCH_MPI_LAUNCHED_PID"
_WORLD_NAMES = ("PMIX_NAMESPACE", "SLURM_STEP_ID", "SLURM_JOB_ID", "PBS_JOBID", "PALS_APID")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """MPI in this process, and what it can do.

    Attributes
    ----------
    mpi
        The module ``mpi4py.MPI``.
    process
        A globally unique name of this process.
    mode
        ``"elastic"``, ``"world"`` or ``"self"``.
    library
        The name and version of the MPI library.
    world
        A name that the processes of one ``mpiexec`` share; empty except in world mode.
    rank, size
        In the world of ``mpiexec``.
    self_comm
        A communicator for two ends in this process.
    tags
        The tags that channels of this process receive on.
    lock
        For calls that must not run concurrently, and don't block.
    port, segments
        In elastic mode, the port to which other processes connect, and the System V segments that
        they attach for that. The port is never closed.
    host
        As in :func:`commbench.mpi.shared_memory.host`.
    devices
        The network interfaces that UCX may use, as in ``UCX_NET_DEVICES``; None if unknown.
    """

    mpi: Any
    process: str
    mode: str
    library: str
    world: str
    rank: int
    size: int
    self_comm: Any
    tags: TagAllocator
    lock: threading.Lock
    pid: int
    port: str
    segments: frozenset[int]
    host: str
    devices: frozenset[str] | None


_runtime: Runtime | None = None
_has_initialized = False
"""Whether this module has initialised MPI."""
_starter: int | None = None
"""The process that has started MPI, or is about to."""
_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked process, replace the lock that another thread of its parent may have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def runtime(address: str = "") -> Runtime:
    """Return MPI in this process; initialize it at the first call.

    Parameters
    ----------
    address
        An address of the interface that this process listens on, or by which it reaches others.
        The first call determines which interfaces MPI uses.

    Raises
    ------
    UnavailableError
        If MPI can't be used, with what to do about it.
    """
    global _runtime, _starter
    with _lock:
        if _starter not in (None, os.getpid()):
            raise UnavailableError(
                WHAT,
                "this process was forked from one that had already started MPI",
                "start processes by spawn (Dask's default) or forkserver, "
                "or before the first use of mpi://",
            )
        if _runtime is None:
            _starter = os.getpid()
            try:
                _runtime = _start(address)
            finally:
                if _runtime is None:
                    _starter = None
            logger.debug("%s, mode %s", _runtime.library, _runtime.mode)
        return _runtime


def _start(address: str) -> Runtime:
    global _has_initialized
    if "mpi4py.MPI" not in sys.modules:
        check_before_loading_mpi()
    mpi = _import_mpi()
    if len(libraries := loaded("libmpi")) > 1:
        raise UnavailableError(
            WHAT,
            f"this process has loaded two MPI libraries ({' and '.join(libraries)})",
            "leave one of them out of this process",
        )
    vendor, version = mpi.get_vendor()
    library = f"{vendor} {'.'.join(map(str, version))}"
    is_mpich = vendor == "MPICH"
    if mpi.Is_finalized():
        raise UnavailableError(WHAT, "MPI has been finalized", "close the cluster before that")
    manager = devices = None
    before, is_initialized = segments(), mpi.Is_initialized()
    if not is_initialized:
        with _launcher_environment(is_mpich) as manager, contextlib.ExitStack() as stack:
            if manager is not None or os.environ.get("PMI_SIZE") == "1":
                devices = stack.enter_context(ucx_environment(address))
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
        _has_initialized = True
    else:
        before -= made_by({os.getpid()})
        if any(name in os.environ for name in _RANKED_BY_LAUNCHER):
            # Its children inherit the rank, and must not use it.
            _owns_rank(is_mpich)
    size = mpi.COMM_WORLD.Get_size()
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        if _has_initialized:
            if is_mpich and size == 1:
                unlink_files()
            reason, remedy = f"{library} was built without MPI_THREAD_MULTIPLE", "use another MPI"
        else:
            reason = "MPI was initialised in this process without MPI_THREAD_MULTIPLE"
            remedy = (
                "set mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported, "
                "or let mpi:// initialise MPI"
            )
        raise UnavailableError(WHAT, reason, remedy)
    shared, here = segments() - before, host()
    if is_mpich:
        install_log_handler()
    if is_mpich and size == 1:
        unlink_files()
    managed = manager is not None or any(name in os.environ for name in _RANKED_BY_LAUNCHER)
    if size > 1:
        mode = "world"
        if not is_initialized:
            _finalize_at_exit(mpi)
    else:
        mode = "elastic" if is_mpich and version >= (5,) and managed else "self"
    port = _open_port(mpi) if is_mpich and version >= (5,) and managed else ""
    if mode == "elastic" and not port:
        mode = "self"
    if mode == "elastic":
        _watch_queue(mpi, ReceiveQueue.find(shared) if here else None)
    self_comm = mpi.COMM_SELF.Dup()
    self_comm.Set_errhandler(mpi.ERRORS_RETURN)
    last_tag = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)
    return Runtime(
        mpi=mpi,
        process=uuid.uuid4().hex,
        mode=mode,
        library=library,
        world=_world_name(size) if mode == "world" else "",
        rank=mpi.COMM_WORLD.Get_rank(),
        size=size,
        self_comm=self_comm,
        tags=TagAllocator(last_tag // 2 + 2, last_tag),
        lock=threading.Lock(),
        pid=os.getpid(),
        port=port,
        segments=frozenset(shared),
        host=here,
        devices=devices,
    )


def _watch_queue(mpi: Any, queue: ReceiveQueue | None) -> None:
    """Watch `queue` until MPI is finalized, which frees it: attributes of COMM_SELF go first."""
    SENDERS.watch(queue)
    keyval = mpi.Comm.Create_keyval(delete_fn=lambda *_: SENDERS.watch(None))
    mpi.COMM_SELF.Set_attr(keyval, None)


def _open_port(mpi: Any) -> str:
    try:
        return str(mpi.Open_port())
    except mpi.Exception as error:
        # For example if the addresses of many network interfaces are longer than MPI allows.
        logger.warning("MPI has no port for other processes; set UCX_NET_DEVICES: %s", error)
        return ""


def _import_mpi() -> Any:
    try:
        import mpi4py
    except ImportError as error:
        raise UnavailableError(
            WHAT, "the package mpi4py is not installed", "pip install mpi4py mpich"
        ) from error
    if "mpi4py.MPI" not in sys.modules:
        # We initialise it ourselves, and never finalize where that could wait for a dead peer.
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
    # Else UCX replaces the handler of SIGHUP when it is loaded, and a closed terminal ends nothing.
    is_set = "UCX_DEBUG_SIGNO" in os.environ
    os.environ.setdefault("UCX_DEBUG_SIGNO", "0")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(
            WHAT, f"mpi4py finds no MPI library ({error})", "pip install mpich"
        ) from error
    finally:
        if not is_set:
            del os.environ["UCX_DEBUG_SIGNO"]
    return MPI


_NETMOD = "MPIR_CVAR_CH4_NETMOD"


@contextlib.contextmanager
def _launcher_environment(is_mpich: bool) -> Iterator[socket.socket | None]:
    """Give MPI a process manager: the launcher's if it started this process, else a new one."""
    inherited = _inherited()
    launched = any(name in inherited for name in _RANKED_BY_LAUNCHER)
    # A shell that a launcher started as a world of one may start several, which all have its rank.
    # What PMIx started may have these of a shell, and MPICH those of PMIx.
    if is_mpich or not _PMIX & inherited.keys():
        inode, pid = _manager()
        is_alone = is_mpich and inherited.get("PMI_SIZE") == "1" and pid != os.getppid()
        launched &= not is_alone and ("PMI_FD" not in inherited or inode > 0)
    if launched and _owns_rank(is_mpich):
        yield None
        return
    # A child of a launched process inherits its rank, and must not use it, too.
    for name in inherited:
        del os.environ[name]
    if not is_mpich:
        yield None
        return
    # Over ofi, a send to a dead peer blocks in the call; over ucx, it merely never completes.
    chosen = {} if _NETMOD in os.environ else {_NETMOD: "ucx"}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-I", "-S", str(Path(pmi.__file__)), str(theirs.fileno())]
        server = subprocess.Popen([*command, uuid.uuid4().hex], pass_fds=[theirs.fileno()])
        theirs.close()
        # Another thread may start a child now, which must not use the rank.
        variables = {"PMI_RANK": "0", "PMI_SIZE": "1", **chosen}
        os.environ.update(variables | {"PMI_FD": str(ours.fileno())})
        try:
            yield ours
        finally:
            for name in ("PMI_FD", *variables):
                del os.environ[name]
            # MPI needs its manager only to initialize and to finalize, which it never does here.
            with contextlib.suppress(OSError):
                # A child that another thread has started meanwhile may have a copy.
                ours.shutdown(socket.SHUT_RDWR)
            ours.close()
            server.wait()


def _inherited() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(LAUNCHER_PREFIXES)}


def _manager() -> tuple[int, int]:
    """Return the inode of the connection to the launcher's process manager, and its process id.

    Both are 0 if the connection is closed.
    """
    try:
        descriptor = int(os.environ.get("PMI_FD", ""))
        status = os.fstat(descriptor)
        if not stat.S_ISSOCK(status.st_mode):
            return 0, 0
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            # In a child another socket may have this number.
            pid = struct.unpack("3i", credentials)[0]
            is_open = pid != os.getpid() and connection.family == socket.AF_UNIX
            return (status.st_ino, pid) if is_open else (0, 0)
    except (ValueError, OSError):
        return 0, 0


def _owns_rank(is_mpich: bool) -> bool:
    """Return whether this process is the first of its launch to use the launcher's rank.

    Its children, which inherit the variables, do not; those that it launches anew have others.
    """
    inode = _manager()[0] if is_mpich or not _PMIX & os.environ.keys() else 0
    launch = json.dumps([*map(os.environ.get, _LAUNCH), inode])
    owner = f"{os.getpid()} {zlib.crc32(launch.encode())}"
    if os.environ.get(_OWNER, "").partition(" ")[2] != owner.partition(" ")[2]:
        os.environ[_OWNER] = owner
    return os.environ[_OWNER] == owner


def _finalize_at_exit(mpi: Any) -> None:
    """Finalize MPI at exit: to a launcher, a rank that exits without that has crashed."""
    rank = os.getpid()

    def finalize() -> None:
        # A child that was forked is no rank.
        if os.getpid() == rank and not mpi.Is_finalized():
            # When no thread runs any more: the loop of a Client that is open uses MPI until then.
            ctypes.pythonapi.Py_AtExit(ctypes.CDLL(mpi.__file__).MPI_Finalize)

    if sys.modules["mpi4py"].rc.finalize is False:
        atexit.register(finalize)


def _world_name(size: int) -> str:
    parts = [os.environ[name] for name in _WORLD_NAMES if name in os.environ]
    return "/".join([*parts, str(size)])
