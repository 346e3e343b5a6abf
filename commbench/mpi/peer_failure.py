"""Keep UCX from aborting the process when a peer dies while UCX reads from its memory.

MPICH creates UCX endpoints without error handling. When such an endpoint fails, for example because
``process_vm_readv`` reports that the peer is gone, UCX logs this at its level *fatal*, and its
default log handler aborts the process. The handler here runs first and stops these messages; it
passes all others on, except warnings that :mod:`commbench.mpi.receive_queue` causes. UCX then
treats the fragment as read, and MPI reports success. A receiver must therefore check whether
:func:`n_failures` has grown while it received. Only transports that lose a peer log at that level:
UCX's assertions and ``ucs_fatal`` abort without a handler.

The alternative, ``UCX_TLS=^cma``, copies every large message a second time.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import re
from collections import Counter

from commbench.mpi.libraries import loaded
from commbench.mpi.receive_queue import SENDERS

__all__ = ["install_log_handler", "n_failures"]

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
    """Return how often UCX has failed to reach process `pid`, or a process it did not name."""
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
    match = re.search(r"pid=(\d+)", message)
    _lost[int(match[1]) if match else _ANY] += 1
    location = f"{file.decode(errors='replace')}:{line}, {function.decode(errors='replace')}"
    logger.warning("UCX lost a peer: %s (%s)", message, location)
    return _STOP


_handler = _handler_type(_filter)


def install_log_handler() -> bool:
    """Push the log handler; return whether this process has loaded UCX."""
    for path in loaded("libucs"):
        library = ctypes.CDLL(path)
        library.ucs_log_push_handler(_handler)
        # UCX may call the handler until the interpreter is gone: handlers of atexit receive, too.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_handler))
        # Py_AtExit's last function runs first: this one before MPI_Finalize, which may log.
        atexit.register(ctypes.pythonapi.Py_AtExit, library.ucs_log_pop_handler)
        return True
    return False
