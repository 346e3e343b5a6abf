"""``tiny-tasks``: a map of trivial tasks, which costs what Dask does for each.

As in coiled/benchmarks, ``tests/benchmarks/test_futures.py``: ``client.map`` adds 1 to each of
100,000 numbers (``--tasks 100000``) until all results are in memory (``mode="throughput"``) or the
first one is (``"first-result"``); or the client submits one task and gets its result
(``"single"``), here many times, one after another.

Payload: none. A task has some bytes, so that its rate is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from commbench.errors import VerificationError
from commbench.workloads.workload import ClusterWorkload, Context, option

_N_TASKS = {"throughput": 1_000, "first-result": 1_000, "single": 100}
_TASK_SECONDS = {"throughput": 1.5e-3, "first-result": 1.5e-3, "single": 1e-2}
"""The seconds of a task in each mode, roughly."""


class TinyTasks(ClusterWorkload):
    """``number + 1`` for many numbers.

    By default Dask chooses the worker of each task, as choosing is a part of what is measured.
    """

    name = "tiny-tasks"
    summary = "a map of trivial tasks: their rate, the first result, or round trips"
    stresses = "scheduler"
    on_gpu = False
    quick: ClassVar[Mapping[str, Any]] = {"tasks": 200}
    task_placement = "dask"

    @dataclass(frozen=True, kw_only=True)
    class Params:
        tasks: int = option(0, "tasks of an iteration; 0: 1,000, of mode single 100", least=0)
        mode: Literal["throughput", "first-result", "single"] = option(
            "throughput",
            "until all results of a map are there, or the first one; single: one "
            "task after another, each submitted when the client has the last result",
        )

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        self._n_tasks = params.tasks or _N_TASKS[params.mode]
        self._n_built = 0
        self.scales = params.mode == "throughput"

    @property
    def operations(self) -> tuple[int, str]:
        """The tasks; in mode first-result one, because the others are not waited for."""
        if self.params.mode == "first-result":
            return 1, "first results"
        return self._n_tasks, "round trips" if self.params.mode == "single" else "tasks"

    @property
    def expected_seconds(self) -> float:
        """Some time for each task."""
        return self._n_tasks * _TASK_SECONDS[self.params.mode]

    def build(self) -> Any:
        """Return the keys of the tasks: new ones, as the scheduler may still know the last."""
        self._n_built += 1
        return [f"tiny-{self._n_built}-{number}" for number in range(self._n_tasks)]

    def compute(self, client: Any, graph: Any) -> Any:
        """Run the tasks; return all futures, the first that has finished, or the results."""
        from distributed import as_completed

        if self.params.mode == "single":
            return [
                client.submit(_incremented, number, key=key).result()
                for number, key in enumerate(graph)
            ]
        self._futures = client.map(_incremented, range(self._n_tasks), key=graph)
        if self.params.mode == "first-result":
            return [next(iter(as_completed(self._futures)))]
        return self._futures

    def verify(self, client: Any, result: Any) -> None:
        """Compare the results of all tasks, and release them."""
        if self.params.mode != "single":
            result, self._futures = client.gather(self._futures), []
        wrong = [number for number, value in enumerate(result) if value != number + 1]
        if wrong or len(result) != self._n_tasks:
            raise VerificationError(
                f"tiny-tasks: {len(wrong)} of {len(result)} results are wrong (of tasks "
                f"{wrong[:5]}), and {self._n_tasks} were to come"
            )


def _incremented(number: int) -> int:
    return number + 1
