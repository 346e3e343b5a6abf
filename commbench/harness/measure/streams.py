"""Streams of windows of messages: as a load on a measurement, or of several pairs at once.

For several pairs this module runs as ``python -m commbench.harness.measure.streams FD``, a process
that streams to its peer. The launch's own process tells it over that connection when to begin and
to stop, and sleeps meanwhile. Once it has sent as many windows as asked for it says so, and goes
on: no pair may stop while another one still counts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from commbench.backends.base import Backend, Transport
from commbench.errors import CommbenchError, LaunchError
from commbench.harness.measure import conditions, peer
from commbench.harness.measure.conditions import measure_idle
from commbench.harness.measure.layers import (
    MIN_SAMPLES,
    Conversation,
    Messages,
    Pace,
    Timing,
    open_conversation,
)
from commbench.machine import cores, gpu, process
from commbench.model import Launch, Sample
from commbench.store.emitter import Emit
from commbench.workloads.base import PairWorkload

_AGREED_S = 0.02
"""How far ahead the time is at which all begin."""


async def under_load(
    measure: Callable[[], Awaitable[None]], conversation: Conversation, workload: PairWorkload
) -> tuple[int, float]:
    """Await `measure` while windows of the load's size follow each other without a pause.

    It begins when a first window has arrived. Where the load breaks off, so does the measurement:
    nothing must pass for measured under load that was not.

    Parameters
    ----------
    measure
        What to measure.
    conversation
        A connection of which an exchange is a window, used by nothing else.
    workload
        Makes the messages and checks them; its ``load_size`` is theirs.

    Returns
    -------
    tuple
        The bytes that the load moved, and the seconds in which it did.
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
    """Start the pairs, sweep the sizes, emit one sample for each, and return what carried them.

    Raises
    ------
    LaunchError
        Where a process did not start, or a connection broke.
    VerificationError
        Where a window did not arrive as it was sent.
    """
    with ExitStack() as running:
        pairs = _Pairs(launch, workload, layer, emit)
        try:
            ends = gpu.env_for_processes(launch.case.cluster, 2 * workload.params.pairs, os.environ)
            for number in range(workload.params.pairs):
                log, peers_log = scratch / f"pair-{number}.log", scratch / f"peer-{number}.log"
                other, address = running.enter_context(
                    peer.started(backend.name, layer, peers_log, ends[2 * number + 1])
                )
                one, connection = running.enter_context(_started(log, ends[2 * number]))
                process.watch(f"peer {number}", other, peers_log)
                process.watch(f"pair {number}", one, log)
                pairs.connections.append(connection)
                pairs.pids += (one.pid, other.pid)
                connection.send(_Job(number, launch, workload, backend, layer, address))
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
    with log.open("ab") as output, theirs:
        one = subprocess.Popen(
            [sys.executable, "-m", "commbench.harness.measure.streams", str(theirs.fileno())],
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environ},
        )
    with one, ours:
        try:
            yield one, ours
        finally:
            one.terminate()


class _Pairs:
    """The launch's end of the connections to the processes that stream."""

    def __init__(self, launch: Launch, workload: PairWorkload, layer: str, emit: Emit) -> None:
        self._launch, self._workload, self._layer = launch, workload, layer
        self._emit = emit
        self.connections: list[Connection] = []
        self.pids: tuple[int, ...] = ()

    def measure(self) -> list[tuple[Transport, Transport]]:
        self._answers()
        self._emit(measure_idle(self._launch, lambda: cores.cpu_seconds(self.pids), len(self.pids)))
        self._tell()
        for size in self._workload.sizes:
            self._emit(self._measure_size(size))
        used = self._answers()
        ends = {str(number): pid for number, pid in enumerate(self.pids)}
        for place in conditions.process_places(self._launch, ends):
            self._emit(place)
        process.unwatch()
        self._tell()
        self._answers()
        return used

    def _measure_size(self, size: int) -> Sample:
        self._answers()
        epoch = time.time() - time.perf_counter()
        cpu_began = cores.cpu_seconds(self.pids)
        self._tell(time.perf_counter() + _AGREED_S)
        self._answers()
        self._tell()
        timings: list[list[Timing]] = self._answers()
        cpu_seconds = cores.cpu_seconds(self.pids) - cpu_began
        self._tell()
        began, seconds, n_windows = together(timings)
        window = self._workload.window
        return Sample(
            case_id=self._launch.case.id,
            launch=self._launch.index,
            iteration=0,
            layer=self._layer,
            warmup=False,
            started_at_s=epoch + began,
            seconds=seconds / (n_windows * window),
            cpu_seconds=cpu_seconds / (sum(map(len, timings)) * window),
            payload_bytes=size,
            verified=True,
        )

    def _tell(self, word: Any = None) -> None:
        for connection in self.connections:
            connection.send(word)

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
    """Return when all pairs ran, for how long, and how many windows they sent in that time.

    From the last pair's first window on until the first pair's last one has ended; a window of
    which a part lies in that time counts with that part.

    Parameters
    ----------
    timings
        Of each pair its windows, in seconds by the same clock.

    Raises
    ------
    LaunchError
        Where they never ran at the same time.

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


@dataclass(frozen=True)
class _Job:
    """What a process that streams receives first."""

    pair: int
    launch: Launch
    workload: PairWorkload
    backend: Backend
    layer: str
    address: str


async def _stream(launch: Connection) -> None:
    """Do as the launch says, and answer each step when it is done."""
    # A thread that waits for a word costs nothing, and whether one has come is known at once.
    listener = ThreadPoolExecutor(1)

    def word() -> Future[Any]:
        return listener.submit(launch.recv)

    job: _Job = await asyncio.wrap_future(word())
    case, workload = job.launch.case, job.workload
    limit_s = workload.seconds_per_size
    gpu.set_up()
    conversation = await open_conversation(
        job.layer, job.address, job.backend, workload, workload.mode
    )
    launch.send(None)
    await asyncio.wrap_future(word())
    for size in workload.sizes:
        windows = Messages(conversation, workload, size, job.pair)
        for _ in Pace(workload.n_samples(size, case.warmups), 0, limit_s):
            await windows.exchange()
        launch.send(None)
        start_s = await asyncio.wrap_future(word())
        stop = word()
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
        await asyncio.wrap_future(word())
        await windows.finish()
    launch.send(await conversation.transports())
    await asyncio.wrap_future(word())
    await conversation.close()
    launch.send(None)


def main(descriptor: int) -> None:
    """Stream, and send the launch what went wrong."""
    launch = Connection(descriptor)
    try:
        asyncio.run(_stream(launch))
    except CommbenchError as error:
        launch.send(error)
    except Exception as error:  # noqa: BLE001 - whatever went wrong must reach the report
        traceback.print_exc()
        launch.send(LaunchError(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    process.die_with_parent()
    main(int(sys.argv[1]))
