"""Shared memory within a host: attached during a connect, detached when a peer has died.

UCX gives each process two System V segments, and more while many messages wait to be read. Its
peers attach them. The kernel frees a segment when it is detached everywhere. MPICH 5.0 never closes
an endpoint before ``MPI_Finalize``, so a process would keep the segments of all its peers, even of
dead ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from distributed.comm.core import FatalCommClosedError

__all__ = ["attached", "host", "made_by", "mapped", "release", "segments", "unlink_files"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p
_libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
_libc.shmdt.argtypes = [ctypes.c_void_p]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
]  # fmt: skip
_FAILED = ctypes.c_void_p(-1).value
_SHM_RDONLY = 0o10000
_PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_NORESERVE = 0x3, 0x02 | 0x20 | 0x4000
_MREMAP_MAYMOVE_FIXED = 0x1 | 0x2
_QUEUE_NBYTES = 64 * 1024
"""A receive queue is smaller, and the other segments are larger."""

_lock = threading.Lock()
"""Protects mappings: none may be unmapped between the lookup of its address and its replacement."""
_needed: Counter[int] = Counter()
"""How many running connects have each segment `attached`."""
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) +(/\S*)", re.MULTILINE)


def _mappings() -> Iterator[tuple[int, int, int, str]]:
    """Yield start, end, inode (that of a System V segment is its id) and path of each mapping."""
    with contextlib.suppress(FileNotFoundError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
        for start, end, inode, path in _MAPPING.findall(maps):
            yield int(start, 16), int(end, 16), int(inode), path


def host() -> str:
    """Return a name shared by the processes that can attach each other's segments.

    It is empty if that is unknown.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("ipc", "pid")]
        # /proc may belong to another namespace, where process ids mean other processes.
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""
    except OSError:
        return ""
    return f"{boot}-{spaces[0]}-{spaces[1]}"


def segments() -> set[int]:
    """Return the ids of the System V segments without a key that this process has attached.

    UCX makes no others (``ucs_sysv_alloc``, ``src/ucs/sys/sys.c``); those with a key are the
    application's.
    """
    return {inode for _, _, inode, path in _mappings() if path.startswith("/SYSV00000000")}


def mapped(ids: Collection[int]) -> list[tuple[int, int]]:
    """Return the start and end address of each mapping of these segments.

    Raises
    ------
    OSError
        If no file can be opened.
    """
    return [
        (start, end)
        for start, end, inode, path in _mappings()
        if inode in ids and path.startswith("/SYSV")
    ]


@contextlib.contextmanager
def attached(ids: Iterable[int]) -> Iterator[None]:
    """Attach segments for the duration of the block, so that they are not freed.

    Raises
    ------
    FatalCommClosedError
        If one of them belongs to a user who gives no access.
    OSError
        If one of them is gone, and so the process that made it.
    """
    addresses: list[int] = []
    ids = [*ids]
    with _lock:
        _needed.update(ids)
    try:
        for segment in ids:
            address = _libc.shmat(segment, None, _SHM_RDONLY)
            if address == _FAILED:
                number = ctypes.get_errno()
                if number == errno.EACCES:
                    raise FatalCommClosedError(
                        "the peer runs on this host as another user, who gives no access to its "
                        "shared memory: use the same user, the same primary group, or tcp://"
                    )
                is_gone = number in (errno.EINVAL, errno.EIDRM)
                reason = "is gone" if is_gone else f"can't be attached: {os.strerror(number)}"
                raise OSError(number, f"the peer's shared memory {reason}")
            addresses.append(address)
        yield
    finally:
        with _lock:
            _needed.subtract(ids)
            for address in addresses:
                _libc.shmdt(address)


def made_by(pids: Collection[int]) -> set[int]:
    """Return the ids of the attached segments that these processes made, which may be dead.

    Raises
    ------
    OSError
        If no file can be opened.
    """
    here = segments()
    # A kernel without System V shared memory has none.
    with contextlib.suppress(FileNotFoundError):
        rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        fields = [row.split() for row in rows]
        return {int(row[1]) for row in fields if int(row[4]) in pids and int(row[1]) in here}
    return set()


def release(ids: Iterable[int]) -> None:
    """Detach segments for good: replace their mappings with private memory.

    UCX still has their addresses. If it has something to send to a dead peer, it reads the peer's
    receive queue and attaches the segments that are named there. So a queue keeps its content,
    with no moment in which another thread sees anything else. Segments that a call needs stay.

    Raises
    ------
    OSError
        If no file can be opened.
    """
    with _lock:
        for start, end in mapped({number for number in ids if _needed[number] <= 0}):
            nbytes = end - start
            flags = _MAP_PRIVATE_ANONYMOUS_NORESERVE
            memory = _libc.mmap(None, nbytes, _PROT_READ_WRITE, flags, -1, 0)
            if memory == _FAILED:
                continue
            if nbytes <= _QUEUE_NBYTES:
                ctypes.memmove(memory, start, nbytes)
            _libc.mremap(memory, nbytes, nbytes, _MREMAP_MAYMOVE_FIXED, start)


def unlink_files() -> None:
    """Unlink the shared-memory files that MPICH has mapped, because it would leave them behind.

    They are meant for other ranks on this host; a process that was started alone has none.
    """
    for _, _, _, path in _mappings():
        if "/mpich_shm_" in path:
            Path(path).unlink(missing_ok=True)
