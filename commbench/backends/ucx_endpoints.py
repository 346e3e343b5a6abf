"""Endpoints of ucxx with Dask's context and progress mode, and UCX's benchmark ``ucx_perftest``.

``ucx_perftest`` runs as two processes on this host, with the backend's variables, and with error
handling as in Dask's endpoints. Without error handling UCX would choose another transport.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from commbench.backends.backend import Transport
from commbench.backends.endpoints import Endpoint, Endpoints, Handler, Tool, ToolTimes
from commbench.backends.ucx import TESTS, TOOL, fastest, logged
from commbench.errors import LaunchError
from commbench.machine import installed

_COLUMNS = 8
"""The number of columns in the results of ``ucx_perftest``."""
_SERVER_LOG = "ucx_perftest-server.log"
_CONNECT_SECONDS = 20.0
_SLOWEST_MESSAGE_S = 1.0


class UcxEndpoint(Endpoint):
    """An endpoint of ucxx, with tagged messages."""

    takes_gpu = True

    def __init__(self, ep: Any) -> None:
        self.ep = ep

    async def send(self, buffer: Any) -> None:  # noqa: D102
        await self.ep.send(buffer)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        await self.ep.recv(buffer)

    async def close(self) -> None:  # noqa: D102
        await self.ep.close()


def _ucxx() -> Any:
    import ucxx
    from distributed_ucxx.ucxx import init_once

    init_once()
    return ucxx


@asynccontextmanager
async def _listen(handler: Handler, ip: str) -> AsyncIterator[str]:
    """Listen on every interface, as ucxx does."""

    async def serve(ep: Any) -> None:
        await handler(UcxEndpoint(ep))

    listener = _ucxx().create_listener(serve)
    try:
        yield f"{ip}:{listener.port}"
    finally:
        listener.close()
        await asyncio.sleep(0)


async def _connect(address: str) -> UcxEndpoint:
    """Connect to a listener."""
    ip, _, port = address.rpartition(":")
    return UcxEndpoint(await _ucxx().create_endpoint(ip, int(port)))


def tool_times(text: str) -> ToolTimes:
    r"""Return the numbers in the output of ``ucx_perftest -f -v``, or raise a LaunchError.

    Examples
    --------
    >>> tool_times("iterations,50.0_percentile_lat,…\n1000,1.053,1.05,1.1,0.9,0.9,952381,952381\n")
    ToolTimes(median_s=1.053e-06, mean_s=1.1e-06)
    """
    for line in reversed(text.splitlines()):
        fields = line.split(",")
        if len(fields) == _COLUMNS:
            with suppress(ValueError):
                _, percentile, _, overall = map(float, fields[:4])
                return ToolTimes(percentile / 1e6, overall / 1e6)
    raise LaunchError(f"{TOOL} printed no result, but {text.strip()[-300:]!r}")


class Perftest(Tool):
    """``ucx_perftest``, with tagged messages.

    The median is that of the last 2048 messages at most. With several messages in flight there is
    only a mean.
    """

    name = TOOL

    def run(  # noqa: D102
        self, mode: str, size: int, n_messages: int, n_warmups: int, *, window: int, device: str,
        scratch: Path, environs: Sequence[Mapping[str, str]],
    ) -> tuple[ToolTimes, tuple[Transport, Transport]]:  # fmt: skip
        options = [
            "-t", TESTS[mode], "-s", str(size), "-n", str(n_messages), "-w", str(n_warmups),
            "-e", "-f", "-v",
        ]  # fmt: skip
        if mode != "latency":
            options += ["-O", str(window)]
        if device == "gpu":
            options += ["-m", "cuda"]
        limit_s = _CONNECT_SECONDS + (n_messages + n_warmups) * _SLOWEST_MESSAGE_S
        deadline = time.monotonic() + limit_s
        with _server(options, scratch, environs[1]) as (server, port):
            while True:
                client = subprocess.Popen(
                    [_program(), "127.0.0.1", "-p", str(port), *options],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    env=_environ(environs[0]),
                )  # fmt: skip
                try:
                    output, _ = client.communicate(timeout=max(1.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired as error:
                    raise LaunchError(
                        f"{self.name} did not end at {size} B within {limit_s:.0f} s"
                    ) from error
                finally:
                    client.kill()
                    client.wait()
                if client.returncode == 0:
                    server.wait(timeout=_CONNECT_SECONDS)
                    used = _transport(client.pid, device), _transport(server.pid, device)
                    return tool_times(output), used
                # The server may not listen yet.
                if server.poll() is not None or time.monotonic() > deadline:
                    log = (scratch / _SERVER_LOG).read_text(encoding="utf-8", errors="replace")
                    said = "; its server: ".join(text.strip()[-500:] for text in (output, log))
                    raise LaunchError(f"{self.name} failed at {size} B: {said}")
                time.sleep(0.02)


@contextmanager
def _server(
    options: list[str], scratch: Path, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    with (scratch / _SERVER_LOG).open("ab") as log:
        server = subprocess.Popen(
            [_program(), "-p", str(port), *options], stdout=log, stderr=log, env=_environ(environ)
        )
    with server:
        try:
            yield server, port
        finally:
            server.kill()


def _program() -> str:
    program = installed.find_ucx(TOOL)
    assert program is not None
    return program


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    tools, variables = installed.ucx_tools(), {**os.environ, **environ}
    libraries = installed.ucx_libraries(tools) if tools else {}
    return variables | _set_by_ucxx(frozenset(variables.items())) | libraries


@functools.cache
def _set_by_ucxx(environ: frozenset[tuple[str, str]]) -> dict[str, str]:
    """Return UCX's variables that ucxx sets, such as the size from which messages rendezvous.

    Importing ucxx sets them, which this process doesn't.
    """
    code = (
        "import json, os; before = set(os.environ); import ucxx; "
        "print(json.dumps({n: os.environ[n] for n in set(os.environ) - before if n[:4] == 'UCX_'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**dict(environ), "PYTHONSAFEPATH": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise LaunchError(f"ucxx can't be imported: {done.stderr.strip()[-500:]}")
    variables: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return variables


def _transport(pid: int, device: str) -> Transport:
    lines = [line for line in logged(pid) if "tag(" in line]
    if not lines:
        return Transport("", f"{TOOL}: UCX logged no lanes")
    lanes = lines[-1].partition("tag(")[2].partition(")")[0].split()
    name = fastest(lanes, has_gpu_memory=device == "gpu") or "+".join(lanes)
    return Transport(name, f"{TOOL}; UCX's log: {lines[-1]}")


AWAITED = Endpoints(_listen, _connect)
