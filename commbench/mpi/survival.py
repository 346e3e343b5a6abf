"""Outlive a peer that is killed while UCX reads from its memory.

MPICH asks UCX for endpoints without error handling. When such an endpoint fails, as it does where
``process_vm_readv`` finds the peer gone, UCX logs that at its level *fatal*, and its default log
handler aborts the process. So we put a handler in front that keeps these messages from it; all
others go on to UCX's own, but for warnings of what :mod:`commbench.mpi.receive_queue` does. UCX
then takes the fragment for read, and MPI reports success: whoever receives must ask
:func:`n_failures` whether to believe it. Only transports that lose a peer log at that level: UCX's
assertions and its ``ucs_fatal`` abort without asking any handler.

The alternative, ``UCX_TLS=^cma``, needs none of this, and a second copy of every large message.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import re
from collections import Counter

from commbench.mpi.libraries import loaded
from commbench.mpi.receive_queue import SENDERS

__all__ = ["n_failures", "outlive_peers"]

logger = logging.getLogger(__name__)

_FATAL = 0
_SKIPPED = {b"uct_iface_stub_am_handler", b"ucs_log_print_backtrace"}
"""Functions that warn of an empty message of :mod:`commbench.mpi.receive_queue`."""
_STOP, _CONTINUE = 0, 1
_handler_type = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,  # file
    ctypes.c_uint,  # line
    ctypes.c_char_p,  # function
    ctypes.c_int,  # level
    ctypes.c_void_p,  # configuration of the component
    ctypes.c_char_p,  # format
    ctypes.c_void_p,  # its arguments
)


_ANY = 0
_lost: Counter[int] = Counter()
_libc = ctypes.CDLL(None)


def n_failures(pid: int) -> int:
    """Return how often UCX has failed to reach process `pid`, or one that it didn't tell."""
    return _lost[pid] + _lost[_ANY]


def _filter(
    file: bytes, line: int, function: bytes, level: int, config: int, text: bytes, arguments: int
) -> int:
    """See ``ucs_log_func_t`` in UCX's ``ucs/debug/log_def.h``."""
    del config
    if level != _FATAL:
        return _STOP if SENDERS.has_skipped and function in _SKIPPED else _CONTINUE
    buffer = ctypes.create_string_buffer(1024)
    _libc.vsnprintf(buffer, ctypes.c_size_t(len(buffer)), text, ctypes.c_void_p(arguments))
    message = buffer.value.decode(errors="replace")
    found = re.search(r"pid=(\d+)", message)
    _lost[int(found[1]) if found else _ANY] += 1
    place = f"{file.decode(errors='replace')}:{line}, {function.decode(errors='replace')}"
    logger.warning("UCX lost a peer: %s (%s)", message, place)
    return _STOP


_handler = _handler_type(_filter)


def outlive_peers() -> bool:
    """Put our handler in front of UCX's; return whether this process has a UCX to do it for."""
    for path in loaded("libucs"):
        library = ctypes.CDLL(path)
        library.ucs_log_push_handler(_handler)
        # UCX may log when it is unloaded, after the interpreter is gone.
        atexit.register(library.ucs_log_pop_handler)
        return True
    return False
