"""Streams of windows of messages: as a background load, or by several pairs at once.

For several pairs, processes that stream to their peers run this module, as ``python -m
commbench.harness.measure.streams FD``. The launch process starts and stops them over the connection
FD, and sleeps meanwhile. A process that has sent the required number of windows reports it and goes
on, because no pair may stop while another one is still measured.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from commbench.backends.backend import Backend, Transport
from commbench.errors import CommbenchError, LaunchError
from commbench.harness.measure import conditions, peer, record_keys
from commbench.harness.measure.conditions import measure_idle
from commbench.harness.measure.exchanges import (
    MIN_SAMPLES,
    Conversation,
    Messages,
    Pace,
    Timing,
    open_conversation,
)
from commbench.machine import cores, gpu, process
from commbench.machine.topology.workers import worker_location
from commbench.model import Launch
from commbench.model.observed import Sample
from commbench.store.emitter import Emit
from commbench.workloads.workload import PairWorkload

_AGREED_S = 0.02
"""The delay of the common start after the request, in seconds."""


async def under_load(
    measure: Callable[[], Awaitable[None]], conversation: Conversation, workload: PairWorkload
) -> tuple[int, float]:
    """Await `measure` while another connection streams windows without pause.

    The measurement begins when the first window has arrived, and fails if the stream fails. The
    windows are the exchanges of `conversation`, a separate connection, with messages of the
    workload's ``load_size``. The return value has the bytes that were streamed, and the seconds.
    """
    flows, stop = asyncio.Event(), asyncio.Event()

    async def stream() -> tuple[int, float]:
        windows = Messages(conversation, workload, workload.params.load_size)
        await windows.exchange()
        flows.set()
        began, n_windows = time.perf_counter(), 0
        while not stop.is_set():
            await windows.exchange()
            n_windows += 1
        seconds = time.perf_counter() - began
        await windows.finish()
        return n_windows * workload.window * workload.params.load_size, seconds

    async def measured() -> None:
        await flows.wait()
        await measure()

    load, measuring = asyncio.create_task(stream()), asyncio.create_task(measured())
    try:
        await asyncio.wait((load, measuring), return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        moved = await load
        await measuring
    finally:
        load.cancel()
        measuring.cancel()
        await asyncio.gather(load, measuring, return_exceptions=True)
    return moved


def measure_pairs(
    launch: Launch, workload: PairWorkload, backend: Backend, layer: str, scratch: Path, emit: Emit
) -> list[tuple[Transport, Transport]]:
    """Start the pairs, emit one sample per size, and return the transports of each pair.

    Raises
    ------
    LaunchError
        If a process did not start, or a connection broke.
    VerificationError
        If a window arrived with wrong data.
    """
    with ExitStack() as running:
        pairs = _Pairs(launch, workload, layer, emit)
        try:
            environs = peer.environs(launch.case.cluster, workload.params.pairs, workload.peer)
            for number, (ours, theirs) in enumerate(environs):
                log, peers_log = scratch / f"pair-{number}.log", scratch / f"peer-{number}.log"
                other = running.enter_context(
                    peer.started(backend.name, layer, peers_log, theirs, workload.peer)
                )
                one, connection = running.enter_context(_started(log, ours))
                process.watch(f"{other.name}, {number}", other.child, peers_log)
                process.watch(f"pair {number}", one, log)
                pairs.connections.append(connection)
                pairs.ends.append((one.pid, other))
                connection.send((number, launch.case, workload, backend, layer, other.address))
            return pairs.measure()
        except BaseException:
            process.await_death_report()
            raise
        finally:
            process.unwatch()


@contextmanager
def _started(
    log: Path, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    ours, theirs = multiprocessing.Pipe()
    number = theirs.fileno()
    command = [sys.executable, "-m", "commbench.harness.measure.streams", str(number)]
    with ours, theirs, peer.running(command, log=log, environ=environ, pass_fds=[number]) as one:
        theirs.close()
        yield one, ours


class _Pairs:
    """The processes that stream, controlled by the launch process."""

    def __init__(self, launch: Launch, workload: PairWorkload, layer: str, emit: Emit) -> None:
        self._launch, self._workload, self._layer = launch, workload, layer
        self._emit = emit
        self.connections: list[Connection] = []
        self.ends: list[tuple[int, peer.Peer]] = []
        """The process here, and the peer, of each pair."""

    def measure(self) -> list[tuple[Transport, Transport]]:
        self._answers()
        if self._layer == self._workload.layers[0]:
            self._emit(measure_idle(self._launch, self._cpu_seconds, 2 * len(self.ends)))
        self._send()
        for size in self._workload.sizes:
            self._emit(self._measure_size(size))
        used = self._answers()
        device = self._launch.case.cluster.device
        locations = (
            (worker_location(pid, device=device), other.location) for pid, other in self.ends
        )
        conditions.emit_places(self._launch, chain.from_iterable(locations), self._emit)
        process.unwatch()
        self._send()
        self._answers()
        return used

    def _cpu_seconds(self) -> float:
        return self._seconds_here() + self._seconds_elsewhere()

    def _seconds_here(self) -> float:
        pids = [pid for pid, _ in self.ends]
        pids += [other.child.pid for _, other in self.ends if not other.host]
        return cores.cpu_seconds(pids)

    def _seconds_elsewhere(self) -> float:
        return sum(other.cpu_seconds() for _, other in self.ends if other.host)

    def _measure_size(self, size: int) -> Sample:
        self._answers()
        epoch = time.time() - time.perf_counter()
        # A request to another host would disturb the streams.
        cpu_began = self._seconds_elsewhere()
        start_s = time.perf_counter() + _AGREED_S
        self._send(start_s)
        # Processes that poll use CPU time while they wait for the start.
        time.sleep(max(0.0, start_s - time.perf_counter()))
        cpu_began += self._seconds_here()
        self._answers()
        self._send()
        timings: list[list[Timing]] = self._answers()
        cpu_seconds = self._cpu_seconds() - cpu_began
        self._send()
        # The last messages are verified.
        self._answers()
        began, seconds, n_windows = together(timings)
        window = self._workload.window
        cpu_seconds /= sum(map(len, timings)) * window
        return record_keys.sample(
            self._launch, 0, self._layer, size, epoch + began, seconds / (n_windows * window),
            cpu_seconds,
        )  # fmt: skip

    def _send(self, message: Any = None) -> None:
        for connection in self.connections:
            connection.send(message)

    def _answers(self) -> list[Any]:
        answers = []
        for number, connection in enumerate(self.connections):
            try:
                answer = connection.recv()
            except EOFError:
                raise LaunchError(f"pair {number} ended while it was needed") from None
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers


def together(timings: Sequence[Sequence[Timing]]) -> tuple[float, float, float]:
    """Return the start and duration of the time when all pairs ran, and their windows in it.

    This time is from the start of the last pair's first window to the end of the first pair's last
    one; if there is none, a LaunchError is raised. Windows that overlap with it count in part.
    `timings` has the windows of each pair, in seconds by the same clock.

    Examples
    --------
    >>> together([[(0, 1), (1, 2), (2, 3)], [(0.5, 1.5), (1.5, 2.5), (2.5, 4.5)]])
    (0.5, 2.5, 4.75)
    """
    began = max(windows[0][0] for windows in timings)
    ended = min(windows[-1][1] for windows in timings)
    n_windows = sum(
        max(0.0, min(stop, ended) - max(start, began)) / (stop - start)
        for windows in timings
        for start, stop in windows
        if stop > start
    )
    if not n_windows > 0:
        raise LaunchError("the pairs never streamed at the same time; more --iterations")
    return began, ended - began, n_windows


async def _stream(launch: Connection) -> None:
    """Run the steps requested by the launch, and report the end of each."""
    # A thread waits for requests, so that the loop can poll a future for one at no cost.
    listener = ThreadPoolExecutor(1)

    def request() -> Future[Any]:
        return listener.submit(launch.recv)

    pair, case, workload, backend, layer, address = await asyncio.wrap_future(request())
    limit_s = workload.seconds_per_size
    gpu.set_up()
    conversation = await open_conversation(layer, address, backend, workload, workload.mode)
    launch.send(None)
    await asyncio.wrap_future(request())
    for size in workload.sizes:
        windows = Messages(conversation, workload, size, pair)
        for _ in Pace(workload.n_samples(size, case.warmups), 0, limit_s):
            await windows.exchange()
        launch.send(None)
        start_s = await asyncio.wrap_future(request())
        stop = request()
        await asyncio.sleep(max(0.0, start_s - time.perf_counter()))
        timings: list[Timing] = []
        n_samples = workload.n_samples(size, case.iterations)
        enough = False
        while not stop.done():
            timings.append(await windows.exchange())
            late = timings[-1][1] - timings[0][0] > limit_s
            if not enough and len(timings) >= (min(MIN_SAMPLES, n_samples) if late else n_samples):
                enough = True
                launch.send(None)
        stop.result()
        launch.send(timings)
        await asyncio.wrap_future(request())
        await windows.finish()
        launch.send(None)
    launch.send(await conversation.transports())
    await asyncio.wrap_future(request())
    await conversation.close()
    launch.send(None)


def main(descriptor: int) -> None:
    """Stream, and send errors to the launch."""
    launch = Connection(descriptor)
    try:
        asyncio.run(_stream(launch))
    except CommbenchError as error:
        launch.send(error)
    except Exception as error:  # noqa: BLE001 - all errors must reach the report
        traceback.print_exc()
        launch.send(LaunchError(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    process.die_with_parent()
    main(int(sys.argv[1]))
