"""The peer process of a pair, which answers the messages of the timed loop.

Run as ``python -m commbench.harness.measure.peer BACKEND LAYER [HOST]``, it listens where the
initiator's HOST, or this host, can reach it, and describes itself in a line of JSON. It answers
each line of standard input with its CPU seconds, and serves until standard input is closed. Over
the connection the initiator announces the kind and size of the next exchanges; at the layer
``comm`` all other messages are echoed.
"""

from __future__ import annotations

import asyncio
import enum
import json
import os
import platform
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from commbench import backends
from commbench.backends.backend import Backend
from commbench.backends.endpoints import DeviceEndpoint, Endpoint, Endpoints
from commbench.errors import LaunchError
from commbench.launchers import members
from commbench.machine import cores, gpu, process
from commbench.machine.topology.workers import worker_location
from commbench.model import ClusterSpec
from commbench.workloads.device import array_library

STAMP_BYTES = 8
"""The bytes of a window's last message in the acknowledgement."""
_START_SECONDS = 60.0
_BEGIN = b"commbench peer "
"""The beginning of the line in which a peer describes itself."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
_CONNECTION = "SSH_CONNECTION"
ROUND = struct.Struct("<QQQQ")
"""An announcement between endpoints: size, number of exchanges, kind, window."""


class Kind(enum.IntEnum):
    """The kinds of announcements."""

    END = 0
    """The end of the connection."""
    PING = 1
    """Messages to echo one by one."""
    STREAM = 2
    """Windows of messages, each of which is acknowledged."""
    CROSS = 3
    """Windows in both directions; the peer's message follows the announcement."""
    SHOW = 4
    """A request for the whole of the last message."""
    TRANSPORT = 5
    """A request for the connection's transport."""


def byte_array(content: bytes) -> Any:
    """Return a writable NumPy array of `content`."""
    import numpy

    return numpy.frombuffer(bytearray(content), numpy.uint8)


async def write_window(comm: Any, payload: Any, count: int) -> None:
    """Write `payload` to `comm` `count` times."""
    from distributed.protocol import to_serialize

    for _ in range(count):
        await comm.write(to_serialize(payload))


async def read_window(comm: Any, count: int) -> Any:
    """Read `count` messages from `comm` and return the last."""
    for _ in range(count):
        message = await comm.read()
    return message


@dataclass(frozen=True)
class Peer:
    """A peer process that serves.

    Parameters
    ----------
    child
        The process, or the one that connects to its host.
    address
        The address to connect to.
    location
        Its host and CPUs, as fields of a ``WorkerPlace``.
    host
        Its host, "" if it is this one.
    """

    child: subprocess.Popen[bytes]
    address: str
    location: Mapping[str, Any]
    host: str

    @property
    def name(self) -> str:
        """The peer's name in error messages."""
        return f"peer on {self.host}" if self.host else "peer"

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the process; on another host it is asked for them.

        Raises
        ------
        LaunchError
            If that has ended.
        """
        if not self.host:
            return cores.cpu_seconds([self.child.pid])
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        line = b""
        with suppress(BrokenPipeError):
            self.child.stdin.write(b"\n")
            line = self.child.stdout.readline()
        if not line:
            raise LaunchError(f"the {self.name} ended while it was needed")
        return float(line)


def environs(
    spec: ClusterSpec, n_pairs: int, host: str
) -> list[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Return the further environment variables of both ends of each pair."""
    if not host:
        known = gpu.env_for_processes(spec, 2 * n_pairs, os.environ)
        return [*zip(known[::2], known[1::2], strict=True)]
    ours = gpu.env_for_processes(spec, n_pairs, os.environ)
    theirs = [
        gpu.env_for_remote_worker(number, n_pairs, spec.workers_per_gpu, os.environ)
        if spec.device == "gpu" else {}
        for number in range(n_pairs)
    ]  # fmt: skip
    return [(one, {**spec.env, **other}) for one, other in zip(ours, theirs, strict=True)]


@contextmanager
def started(
    backend: str, layer: str, log: Path, environ: Mapping[str, str], host: str = ""
) -> Iterator[Peer]:
    """Start a peer process with further variables `environ`.

    Parameters
    ----------
    host
        The host to start it on, over SSH, or a command that runs another one there; by default it
        is this one.

    Raises
    ------
    LaunchError
        If it does not listen, runs on this host instead of another, or has other versions.
    """
    module = ("commbench.harness.measure.peer", backend, layer)
    command = [sys.executable, "-m", *module]
    if host:
        forwarded = members.forwarded_env(os.environ, {}, {})
        # The mark is for processes of this host.
        forwarded.pop(process.MARK, None)
        variables = {**members.without_paths_in(log.parent, forwarded), **environ}
        command = _command_on(shlex.split(host), [*module, socket.gethostname()], variables)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with running(command, log=log, environ=environ, **pipes) as child:
        assert child.stdout is not None
        deadline = threading.Timer(_START_SECONDS, child.kill)
        deadline.start()
        # A login shell may print other lines before.
        line = next((line for line in child.stdout if line.startswith(_BEGIN)), b"")
        deadline.cancel()
        if not line:
            where = f" on {host}" * bool(host)
            raise LaunchError(
                f"the peer{where} {process.describe_exit(child.wait())} before it listened, for "
                f"which it has {_START_SECONDS:g} s" + process.tail(log)
            )
        described = json.loads(line.removeprefix(_BEGIN))
        location = described["location"]
        if host:
            _validate(host, location, described["versions"])
        yield Peer(child, described["address"], location, host)


def _validate(host: str, location: Mapping[str, Any], theirs: Mapping[str, str]) -> None:
    """Raise an error if a peer on `host` runs on this host, or has other versions."""
    if location["host_id"] == worker_location(os.getpid())["host_id"]:
        raise LaunchError(
            f"the peer on {host} runs on this host, {location['host']}: leave out --peer, or name "
            "another host. srun needs -N1 -n1, or it starts one on each node"
        )
    ours = _versions()
    differing = [f"{name} {theirs.get(name)} there and {ours[name]} here"
                 for name in ours if theirs.get(name) != ours[name]]  # fmt: skip
    if differing:
        raise LaunchError(f"{host} has {', '.join(differing)}: install the same on both")


def _versions() -> dict[str, str]:
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: metadata.version(name) for name in members.PACKAGES},
    }


def _command_on(
    words: Sequence[str], module: Sequence[str], variables: Mapping[str, str]
) -> list[str]:
    """Return the command that runs a Python module by a command such as ``srun -N1 -n1 -w node2``.

    A single word is the name of a host, for SSH.
    """
    words = [*_SSH, *words] if len(words) == 1 else words
    is_ssh = any(Path(word).name == "ssh" for word in words)
    command = [
        # Another command may forward that of the user's login.
        "env", *(() if is_ssh else ("-u", _CONNECTION)),
        *(f"{name}={value}" for name, value in variables.items()), sys.executable, "-m", *module,
    ]  # fmt: skip
    # A shell on the other host splits what ssh sends.
    return [*words, *([shlex.join(command)] if is_ssh else command)]


def _address_towards(host: str) -> str:
    """Return the IP address by which `host`, the initiator's, can reach this one.

    It is that to which SSH has connected, or that of the route to `host`. That of the loopback
    interface is a LaunchError.
    """
    if connection := os.environ.get(_CONNECTION):
        # The client's address and port, and the server's.
        address = connection.split()[2]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            try:
                # This sends nothing.
                route.connect((host, 9))
            except OSError as error:
                raise LaunchError(f"no route back to the initiator, {host}: {error}") from error
            address = str(route.getsockname()[0])
    if ":" in address or address.startswith("127."):
        raise LaunchError(
            f"the initiator would have to connect to {address}; name this host by an IPv4 address "
            "of a network"
        )
    return address


@contextmanager
def running(
    command: Sequence[str], *, log: Path, environ: Mapping[str, str], **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process, whose errors go to `log`; end it after."""
    with log.open("ab") as errors:
        try:
            child = subprocess.Popen(
                command, stderr=errors, env={**os.environ, **environ}, **options
            )
        except OSError as error:
            raise LaunchError(f"{command[0]} can't be run: {error.strerror}") from error
    with child:
        try:
            yield child
        finally:
            child.terminate()


@asynccontextmanager
async def serve(layer: str, backend: Backend, ip: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve connections at `layer` on an IP address of this host, and yield the address."""
    if layer == "comm":
        from distributed import Security
        from distributed.comm import listen

        secrets = Security().get_listen_args("worker")
        address = f"{backend.protocol}://{ip}:0"
        async with listen(address, partial(_comm_answers, backend), **secrets) as listener:
            yield listener.contact_address
    else:
        async with endpoints(backend, layer).listen(_endpoint_answers, ip) as address:
            yield address


def endpoints(backend: Backend, layer: str) -> Endpoints:
    """Return the backend's endpoints at `layer`, which must be available."""
    given = backend.endpoints(layer)
    assert isinstance(given, Endpoints), (
        f"{backend.head} has no Endpoints at the layer {layer}: unavailable_layer must say so"
    )
    return given


async def _comm_answers(backend: Backend, comm: Any) -> None:
    from distributed.comm import CommClosedError
    from distributed.protocol import to_serialize

    last: Any = None
    with suppress(CommClosedError):
        while True:
            message = await comm.read()
            if not isinstance(message, dict):
                await comm.write(to_serialize(message))
            elif message["kind"] == Kind.TRANSPORT:
                used = backend.transport(comm)
                await comm.write({"name": used.name, "evidence": used.evidence})
            elif message["kind"] == Kind.SHOW:
                await comm.write(to_serialize(last))
            else:
                crosses, window = message["kind"] == Kind.CROSS, message["window"]
                theirs: Any = None
                if crosses:
                    theirs = await comm.read()
                await comm.write("ready")
                for _ in range(message["count"]):
                    if crosses:
                        # Without this message, the peer would begin before the clock starts.
                        await comm.read()
                    writing = write_window(comm, theirs, window if crosses else 0)
                    last, _ = await asyncio.gather(read_window(comm, window), writing)
                    await comm.write(to_serialize(last[:STAMP_BYTES]))


def _blank(size: int) -> Any:
    """Return an array of zeros, in GPU memory if the launch measures it."""
    zeros = byte_array(bytes(size))
    if gpu.in_use():
        zeros = array_library("gpu").asarray(zeros)
        gpu.synchronize()
    return zeros


async def _endpoint_answers(endpoint: Endpoint) -> None:
    if gpu.in_use():
        endpoint = DeviceEndpoint(endpoint)
    header = byte_array(bytes(ROUND.size))
    buffer = theirs = acknowledgement = header[:0]
    while True:
        await endpoint.receive(header)
        size, count, kind, window = ROUND.unpack(header.data)
        if kind == Kind.END:
            return
        if kind == Kind.SHOW:
            await endpoint.send(buffer)
            continue
        if buffer.size != size:
            buffer, theirs = _blank(size), _blank(size)
            acknowledgement = buffer[:STAMP_BYTES]
        if kind == Kind.CROSS:
            await endpoint.receive(theirs)
        await endpoint.send(acknowledgement)
        for _ in range(count):
            if kind == Kind.PING:
                await endpoint.pong(buffer)
                continue
            if kind == Kind.STREAM:
                await endpoint.receive_window(buffer, window)
            else:
                # Without this message, the peer would begin before the clock starts.
                await endpoint.receive(acknowledgement)
                await endpoint.cross_windows(theirs, buffer, window)
            await endpoint.send(acknowledgement)


def _answer_lines(answers: TextIO) -> None:
    """Answer each line of standard input with the CPU seconds; end the process after the last."""
    try:
        for _ in sys.stdin:
            print(time.process_time(), file=answers)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


async def main(backend: str, layer: str, host: str = "") -> None:
    """Serve, and print the address, the location and the versions."""
    # Libraries print messages, too: these go to the log.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    gpu.set_up()
    ip = _address_towards(host) if host else "127.0.0.1"
    async with serve(layer, backends.parse(backend), ip) as address:
        described = {
            "address": address, "versions": _versions() if host else {},
            "location": worker_location(os.getpid(), device="gpu" if gpu.in_use() else "cpu"),
        }  # fmt: skip
        # What a shell printed before may not end its line.
        print("\n" + _BEGIN.decode() + json.dumps(described), file=answers)
        threading.Thread(
            target=_answer_lines, args=(answers,), name="CPU seconds", daemon=True
        ).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    process.die_with_parent()
    asyncio.run(main(*sys.argv[1:]))
