"""Several pairs of processes that stream to their peers at once: the bandwidth of them together.

The launch's own process only tells the pairs when to begin and to stop, and sleeps while they run.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from commbench.backends.base import Backend, Transport
from commbench.errors import LaunchError
from commbench.harness.measure import peer, places
from commbench.harness.measure.conditions import measure_idle
from commbench.harness.measure.stream import Job
from commbench.harness.measure.windows import Timing
from commbench.machine import cores, gpu, process
from commbench.model import Launch, Sample
from commbench.store.emitter import Emit
from commbench.workloads.base import PairWorkload

_AGREED_S = 0.02
"""How far ahead the time is at which all begin."""


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
            ends = gpu.of_ends(launch.case.cluster, 2 * workload.params.pairs, os.environ)
            for number in range(workload.params.pairs):
                log, peers_log = scratch / f"pair-{number}.log", scratch / f"peer-{number}.log"
                other, address = running.enter_context(
                    peer.started(backend.name, layer, peers_log, ends[2 * number + 1])
                )
                one, told = running.enter_context(_started(log, ends[2 * number]))
                process.watch(f"peer {number}", other, peers_log)
                process.watch(f"pair {number}", one, log)
                pairs.add(told, (one.pid, other.pid))
                told.send(
                    Job(
                        pair=number, backend=backend, layer=layer, address=address,
                        workload=workload, warmups=launch.case.warmups,
                        iterations=launch.case.iterations,
                    )
                )  # fmt: skip
            return pairs.measure()
        except BaseException:
            process.let_deaths_be_told()
            raise
        finally:
            process.unwatch()


@contextmanager
def _started(
    log: Path, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    told, end = multiprocessing.Pipe()
    with log.open("ab") as output, end:
        one = subprocess.Popen(
            [sys.executable, "-m", "commbench.harness.measure.stream", str(end.fileno())],
            stdout=output,
            stderr=output,
            pass_fds=[end.fileno()],
            env={**os.environ, **environ},
        )
    try:
        yield one, told
    finally:
        told.close()
        one.terminate()
        one.wait()


class _Pairs:
    def __init__(self, launch: Launch, workload: PairWorkload, layer: str, emit: Emit) -> None:
        self._launch, self._workload, self._layer = launch, workload, layer
        self._emit = emit
        self._told: list[Connection] = []
        self._pids: tuple[int, ...] = ()

    def add(self, told: Connection, pids: tuple[int, ...]) -> None:
        self._told.append(told)
        self._pids += pids

    def measure(self) -> list[tuple[Transport, Transport]]:
        self._answers()
        self._emit(
            measure_idle(self._launch, lambda: cores.cpu_seconds(self._pids), len(self._pids))
        )
        self._tell()
        for size in self._workload.sizes:
            self._emit(self._measure_size(size))
        used = self._answers()
        ends = {str(number): pid for number, pid in enumerate(self._pids)}
        for place in places.of_processes(self._launch, ends):
            self._emit(place)
        process.unwatch()
        self._tell()
        self._answers()
        return used

    def _measure_size(self, size: int) -> Sample:
        self._answers()
        epoch = time.time() - time.perf_counter()
        cpu_began = cores.cpu_seconds(self._pids)
        self._tell(time.perf_counter() + _AGREED_S)
        self._answers()
        self._tell()
        timings: list[list[Timing]] = self._answers()
        cpu_seconds = cores.cpu_seconds(self._pids) - cpu_began
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
        for told in self._told:
            told.send(word)

    def _answers(self) -> list[Any]:
        answers = []
        for number, told in enumerate(self._told):
            try:
                answer = told.recv()
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
