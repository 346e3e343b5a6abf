"""Let this process outlive a peer that is killed while UCX reads from its memory.

MPICH asks UCX for endpoints without error handling. When such an endpoint fails, as it does where
``process_vm_readv`` finds the peer gone, UCX logs that at its level *fatal* and its default log
handler aborts the process. Without the handler the failure takes its normal way: the request
completes with an error, and MPI reports it to whoever waits for it. So we put a handler in front
that drops exactly these messages; all others go on to UCX's own.

The alternative, ``UCX_TLS=^cma``, halves the bandwidth of large messages within a host.
"""

from __future__ import annotations

import atexit
import ctypes
import logging

from commbench.mpi.libraries import loaded

__all__ = ["outlive_peers"]

logger = logging.getLogger(__name__)

_FATAL = 0
_STOP, _CONTINUE = 0, 1
_HANDLER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,  # file
    ctypes.c_uint,  # line
    ctypes.c_char_p,  # function
    ctypes.c_int,  # level
    ctypes.c_void_p,  # configuration of the component
    ctypes.c_char_p,  # format
    ctypes.c_void_p,  # its arguments
)


@_HANDLER
def _handler(
    file: bytes, line: int, function: bytes, level: int, config: int, text: bytes, arguments: int
) -> int:
    """See ``ucs_log_func_t`` in UCX's ``ucs/debug/log_def.h``."""
    del config, arguments
    if level != _FATAL:
        return _CONTINUE
    logger.warning(
        "UCX lost a peer: %s (%s:%d, %s)",
        *(part.decode(errors="replace") for part in (text, file)),
        line,
        function.decode(errors="replace"),
    )
    return _STOP


def outlive_peers() -> bool:
    """Put our handler in front of UCX's; return whether this process has a UCX to do it for."""
    for path in loaded("libucs"):
        library = ctypes.CDLL(path)
        library.ucs_log_push_handler(_handler)
        # UCX may log when it is unloaded, after the interpreter is gone.
        atexit.register(library.ucs_log_pop_handler)
        return True
    return False
