"""The raw layer of UCX: ``ucx_perftest``, the program that UCX's own authors measure with.

It runs as two processes on this host, with the variables that the backend has set, and with error
handling as Dask's endpoints have it: without, UCX would take another transport. It exchanges
memory that nobody else sees, so its samples can't be verified, and it tells one number for all its
messages, so there is one sample per size.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from commbench import environment, gpu
from commbench.backends import ucx, ucx_log
from commbench.backends.base import Transport
from commbench.emitter import Emit
from commbench.errors import LaunchError
from commbench.model import Launch, Sample
from commbench.workloads.base import PairWorkload

PROTOCOL = "ucx"
TOOL = "ucx_perftest"
TESTS = {"latency": "tag_lat", "bandwidth": "tag_bw", "message-rate": "tag_bw"}
"""What measures a mode."""

_SMALL = 8192
_MORE = 10
"""So many messages stand behind its one number for each sample of another layer."""
_PROBED = 10
_CONNECT_SECONDS = 20.0
_SLOWEST_MESSAGE_S = 1.0
_COLUMNS = 8


class Result(NamedTuple):
    """One line of its output; latencies are one way, and those of ``tag_bw`` per message."""

    n_messages: int
    percentile_s: float
    overall_s: float


def parse(text: str) -> Result:
    r"""Return the numbers in the output of ``ucx_perftest -f -v``.

    Raises
    ------
    LaunchError
        Where there are none.

    Examples
    --------
    >>> parse("iterations,50.0_percentile_lat,…\n1000,1.053,1.05,1.1,0.9,0.9,952381,952381\n")
    Result(n_messages=1000, percentile_s=1.053e-06, overall_s=1.1e-06)
    """
    for line in reversed(text.splitlines()):
        fields = line.split(",")
        if len(fields) == _COLUMNS:
            with suppress(ValueError):
                n_messages, percentile, _, overall = map(float, fields[:4])
                return Result(int(n_messages), percentile / 1e6, overall / 1e6)
    raise LaunchError(f"{TOOL} printed no result, but {text.strip()[-300:]!r}")


def measure_raw(
    launch: Launch, workload: PairWorkload, scratch: Path, emit: Emit
) -> tuple[Transport, Transport]:
    """Emit one sample per message size, and return what carried the messages, from either end.

    Raises
    ------
    LaunchError
        Where the tool fails.
    """
    case = launch.case
    test = TESTS[workload.mode]
    ends = gpu.of_ends(case.cluster, 2, os.environ)
    used: tuple[Transport, Transport] | None = None
    for size in workload.sizes:
        per_sample = 1 if workload.mode == "latency" else workload.window
        few = _PROBED * per_sample
        count = _MORE * workload.n_samples(size, case.iterations) * per_sample
        warmups = _MORE * workload.n_samples(size, case.warmups) * per_sample
        if size > _SMALL:
            probe, _ = _run(test, size, few, 0, workload, scratch, ends)
            fit = workload.params.seconds_per_size / max(probe.overall_s, 1e-9)
            count = max(few, min(count, int(fit / (2 if workload.mode == "latency" else 1))))
            warmups = min(warmups, count // 10)
        started_at_s = time.time()
        result, transports = _run(test, size, count, warmups, workload, scratch, ends)
        used = used or transports
        emit(
            Sample(
                case_id=case.id,
                launch=launch.index,
                iteration=0,
                layer="raw",
                warmup=False,
                started_at_s=started_at_s,
                # The median of the last 2048 messages at most; a stream has only a mean.
                seconds=result.percentile_s if workload.mode == "latency" else result.overall_s,
                cpu_seconds=0.0,
                payload_bytes=size,
                verified=False,
                tool=TOOL,
            )
        )
    assert used is not None
    return used


def _run(
    test: str,
    size: int,
    count: int,
    warmups: int,
    workload: PairWorkload,
    scratch: Path,
    ends: Sequence[Mapping[str, str]],
) -> tuple[Result, tuple[Transport, Transport]]:
    options = [
        "-t", test, "-s", str(size), "-n", str(count), "-w", str(warmups), "-e", "-f", "-v",
    ]  # fmt: skip
    if test == "tag_bw":
        options += ["-O", str(workload.window)]
    if workload.context.device == "gpu":
        options += ["-m", "cuda"]
    deadline = time.monotonic() + _CONNECT_SECONDS + (count + warmups) * _SLOWEST_MESSAGE_S
    with _server(options, scratch, ends[1]) as (server, port):
        while True:
            client = subprocess.Popen(
                [_program(), "127.0.0.1", "-p", str(port), *options],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=_environ(ends[0]),
            )  # fmt: skip
            try:
                said, _ = client.communicate(timeout=max(1.0, deadline - time.monotonic()))
            finally:
                client.kill()
                client.wait()
            if client.returncode == 0:
                server.wait(timeout=_CONNECT_SECONDS)
                return parse(said), (_transport(client.pid), _transport(server.pid))
            # The server has not begun to listen, unless it is gone.
            if server.poll() is not None or time.monotonic() > deadline:
                raise LaunchError(f"{TOOL} failed at {size} B: {said.strip()[-500:]}")
            time.sleep(0.02)


@contextmanager
def _server(
    options: list[str], scratch: Path, own: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    with (scratch / "ucx_perftest-server.log").open("ab") as log:
        server = subprocess.Popen(
            [_program(), "-p", str(port), *options], stdout=log, stderr=log, env=_environ(own)
        )
    try:
        yield server, port
    finally:
        server.kill()
        server.wait()


def _program() -> str:
    tools = environment.ucx_tools()
    assert tools is not None
    return str(tools / TOOL)


def _environ(own: Mapping[str, str]) -> dict[str, str]:
    tools = environment.ucx_tools()
    assert tools is not None
    library = tools.parent / "lib"
    path = f"{library}:{library / 'ucx'}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return {**os.environ, **own, "LD_LIBRARY_PATH": path}


def _transport(pid: int) -> Transport:
    logged = [line for line in ucx_log.endpoints(pid) if "tag(" in line]
    if not logged:
        return Transport("", f"{TOOL}: UCX logged no lanes")
    lanes = logged[-1].partition("tag(")[2].partition(")")[0].split()
    return Transport(ucx.fastest(lanes) or "+".join(lanes), f"{TOOL}; UCX's log: {logged[-1]}")
