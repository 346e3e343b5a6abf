"""``fake``: records without a clock, a socket or a cluster, to test everything around them.

``fake`` answers with numbers that follow from the launch alone; ``fake:crash``, ``fake:exit``,
``fake:hang``, ``fake:wrong``, ``fake:rubbish`` and ``fake:slow`` go wrong in the way that they
say, after the first sample.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commbench.backends.backend import Backend, Transport, Unavailability
from commbench.errors import UsageError, VerificationError
from commbench.model import Launch
from commbench.model.observed import (
    Activity,
    Graph,
    IdleCost,
    LineTime,
    LogCount,
    Record,
    Sample,
    TaskRecord,
    ThreadTime,
    TransferRecord,
    TransportUsed,
    WireBytes,
)

_FAULTS = ("crash", "exit", "hang", "wrong", "rubbish", "slow")
_NBYTES = 8_000_000


class FakeBackend(Backend):
    """A backend whose launches are simulated."""

    head = "fake"
    protocol = "fake"
    takes_options = True

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        for option in options:
            if option not in _FAULTS:
                raise UsageError(f"unknown fault {option!r}; known: {', '.join(_FAULTS)}")
        super().__init__(options)

    def unavailable(self, device: str) -> Unavailability | None:
        if device == "gpu":
            return Unavailability("fake simulates CPUs only", "--device cpu")
        return None

    def environment(self, device: str, scratch: Path) -> dict[str, str]:
        del device, scratch
        return {}

    @staticmethod
    def transport(comm: Any) -> Transport:
        raise NotImplementedError("the fake backend has no connections")

    def settings(self, device: str) -> str:
        return "nothing: for tests"

    def simulate(self, launch: Launch) -> Iterator[Record]:
        """Yield the records of a launch: 1 s a sample, 2 % apart, and one transfer per pair.

        The variable ``FAKE_SECONDS`` of the case has other seconds.
        """
        case = launch.case
        seconds = float(case.cluster.env.get("FAKE_SECONDS", 1))
        noise = random.Random(f"{case.id} {launch.index}")
        workers = [str(index) for index in range(case.cluster.n_workers)]
        yield IdleCost(
            case_id=case.id, launch=launch.index, seconds=2.0, cpu_seconds=0.1,
            n_processes=len(workers) + 2,
        )  # fmt: skip
        for iteration in range(-case.warmups, case.iterations):
            began = 1e9 + 100 * launch.index + 10 * iteration
            common: dict[str, Any] = {
                "case_id": case.id,
                "launch": launch.index,
                "iteration": iteration,
            }
            yield Sample(
                **common,
                layer="workload",
                warmup=iteration < 0,
                started_at_s=began,
                seconds=seconds * (1 + noise.uniform(-0.01, 0.01)),
                cpu_seconds=1.5,
                payload_bytes=_NBYTES,
                verified=True,
            )
            for src in workers:
                for dst in workers:
                    if src == dst:
                        continue
                    stop = began + 0.01 + noise.uniform(0, 0.001)
                    yield TransferRecord(
                        **common, src=src, dst=dst, nbytes=_NBYTES, start_s=began, stop_s=stop,
                        n_keys=1,
                    )  # fmt: skip
                    yield WireBytes(**common, src=src, dst=dst, nbytes=_NBYTES, n_messages=2)
            for worker in workers:
                n_fetches = len(workers) - 1
                yield LogCount(
                    **common, worker=worker, n_started=n_fetches, n_logged=n_fetches,
                    n_busy=0, n_failed=0, n_in_flight=0,
                )  # fmt: skip
                yield TaskRecord(
                    **common, worker=worker, thread=1, name="fake", action="compute",
                    start_s=began, stop_s=began + 0.5,
                )  # fmt: skip
                yield Activity(
                    **common, worker=worker, context="execute", label="thread-cpu", seconds=0.4
                )
                yield _threads(common, worker, "tasks", cpu_seconds=0.42)
            yield LineTime(**common, role="task", name="fake", code="fake.py:1 fake()", seconds=1.0)
            yield Graph(
                **common,
                number=iteration,
                received_s=began,
                n_tasks=2,
                code="",
                nbytes=99,
                send_seconds=0.0,
            )
            for process in (*workers, "scheduler", "client"):
                yield _threads(common, process, "loop", cpu_seconds=0.1, n_turns=1000)
            if iteration == -case.warmups:
                self._go_wrong()
        for src in workers:
            for dst in workers:
                if src != dst:
                    yield TransportUsed(
                        case_id=case.id, launch=launch.index, src=src, dst=dst, transport="fake",
                        evidence="none",
                    )  # fmt: skip

    def _go_wrong(self) -> None:
        if "crash" in self.options:
            os.kill(os.getpid(), signal.SIGKILL)
        if "exit" in self.options:
            sys.exit(7)
        if "hang" in self.options:
            time.sleep(1e6)
        if "slow" in self.options:
            time.sleep(1.0)
        if "rubbish" in self.options:
            os.write(int(os.environ["COMMBENCH_RECORDS_FD"]), b"\xff not a record\n")
        if "wrong" in self.options:
            raise VerificationError("fake: expected 1, found 2")


def _threads(
    common: dict[str, Any], process: str, role: str, *, cpu_seconds: float, n_turns: int = 0
) -> ThreadTime:
    return ThreadTime(
        **common, worker=process, role=role, n_threads=1, seconds=1.0, cpu_seconds=cpu_seconds,
        wait_seconds=0.01, n_turns=n_turns, idle_seconds=0.1, idle_cpu_seconds=0.001,
        idle_wait_seconds=0.0, idle_n_turns=n_turns // 100,
    )  # fmt: skip
