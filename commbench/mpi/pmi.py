"""A process manager for one process, so that MPICH can connect processes without ``mpiexec``.

MPICH refuses to connect two processes that were started without a process manager, because their
worlds have the same name. Here each gets a manager that implements PMI-1 and assigns a unique name.
It is a separate process, because ``MPI_Init`` holds the GIL; it runs this file as a script, and
exits when its socket is closed.

The protocol is MPICH's ``doc/wiki/developer/PMI-1``: one line ``cmd=… key=value …`` each way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

__all__ = ["answer", "serve"]

MAX_LINE = 64 * 1024


def answer(line: str, name: str, values: dict[str, str]) -> str:
    """Return the answer to one request.

    Parameters
    ----------
    line
        The request, without its newline.
    name
        The unique name of this one-process world.
    values
        The values that the process has put; changed by ``cmd=put``.

    Examples
    --------
    >>> answer("cmd=get_my_kvsname", "me", {})
    'cmd=my_kvsname kvsname=me'
    >>> values = {}
    >>> answer("cmd=put kvsname=me key=card value=42", "me", values)
    'cmd=put_result rc=0 msg=success'
    >>> answer("cmd=get kvsname=me key=card", "me", values)
    'cmd=get_result rc=0 msg=success value=42'
    """
    # A value may contain "=": port names and business cards do.
    request = dict(part.split("=", 1) for part in line.split() if "=" in part)
    match request.get("cmd"):
        case "init":
            return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
        case "get_maxes":
            return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"
        case "get_appnum":
            return "cmd=appnum appnum=0"
        case "get_my_kvsname":
            return f"cmd=my_kvsname kvsname={name}"
        case "get_universe_size":
            return "cmd=universe_size size=1"
        case "put":
            values[request["key"]] = request["value"]
            return "cmd=put_result rc=0 msg=success"
        case "get":
            value = values.get(request["key"])
            if value is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={value}"
        case "barrier_in":
            return "cmd=barrier_out rc=0"
        case "finalize":
            return "cmd=finalize_ack rc=0"
        case other:
            return f"cmd={other}_result rc=-1 msg=unknown_command"


def serve(connection: socket.socket, name: str) -> None:
    """Answer every request until the other end closes."""
    values: dict[str, str] = {}
    pending = b""
    while len(pending) <= MAX_LINE:
        received = connection.recv(MAX_LINE)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            connection.sendall(answer(line.decode(), name, values).encode() + b"\n")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as manager, contextlib.suppress(OSError):
        # An error means that the process has died.
        serve(manager, f"dask-mpi-{os.getpid()}-{sys.argv[2]}")
