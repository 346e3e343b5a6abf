"""``patterns``: steps of tasks with the dependence patterns of Task Bench, and their efficiency.

Patterns, checks and the metric METG are those of Task Bench (Slaughter et al., "Task Bench: A
Parameterized Benchmark for Evaluating Parallel Runtime Performance", SC20, arXiv:1908.05790; and
``core/core.cc`` of StanfordLegion/task-bench). Every step has a task in each of ``width`` columns,
which depends on tasks of the step before. Tasks check that their inputs are those of their
dependencies, and return their step and column as often as ``nbytes`` has room for them.

Columns are distributed over the workers in runs, so that all backends move the same bytes.

Payload: ``nbytes`` for each dependency, also for those within a worker. Task Bench's default is 16,
of which the rest of the messages would be many times as much; as they have addresses, whose lengths
differ, backends would not move the same bytes.

Efficiency: task seconds / (task threads * wall seconds). By default tasks sleep, because on few
cores tasks that compute wait for those that the scheduler, the client and event loops use, and
efficiency would be about the number of cores. Sleeping tasks leave Dask all cores, so that its cost
per task can only be larger when they compute (``kernel="compute"``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from commbench.errors import UsageError, VerificationError
from commbench.workloads.workload import ClusterWorkload, Context, option

_PERIOD = 3
"""The steps after which spread repeats, Task Bench's default."""
_COLUMNS_PER_THREAD = 4
_PAIR_BYTES = 16
_OVERHEAD_SECONDS = 1e-3
"""Dask's approximate overhead per task."""


class Patterns(ClusterWorkload):
    """Tasks in ``width`` columns and ``steps`` steps."""

    name = "patterns"
    on_gpu = False
    summary = "tasks of a given duration in the patterns of Task Bench, and their efficiency"
    stresses = "scheduler"
    quick: ClassVar[Mapping[str, Any]] = {"steps": 5}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        pattern: Literal["stencil", "tree", "fft", "nearest", "spread", "all-to-all"] = option(
            "stencil", "which tasks of the last step a task needs"
        )
        width: int = option(0, "tasks of a step; 0: 4 for each task thread", least=0)
        steps: int = option(20, "steps, one after another", least=2)
        nbytes: int = option(
            16 << 10, "size of what a task returns, a multiple of 16", unit="bytes"
        )
        task_s: float = option(0.01, "duration of a task, as 1ms", unit="seconds", least=0)
        radix: int = option(3, "dependencies of a task of nearest and spread, at most", least=1)
        kernel: Literal["sleep", "compute"] = option(
            "sleep", "sleep: leave the cores to Dask; compute: a loop, by CPU time"
        )

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        n_threads = context.n_workers * context.threads_per_worker
        if params.nbytes < _PAIR_BYTES or params.nbytes % _PAIR_BYTES:
            raise UsageError(f"patterns: nbytes is {params.nbytes}; it must be a multiple of 16")
        width = params.width or _COLUMNS_PER_THREAD * n_threads
        self.graph = TaskGraph(**{**asdict(params), "width": width})
        if self.graph.width < context.n_workers:
            raise UsageError(
                f"patterns: width is {self.graph.width}; it must be at least the number of workers "
                f"({context.n_workers}), so that each has a column"
            )
        self._inputs = {
            (step, column): self.graph.dependencies(step, column)
            for step in range(params.steps)
            for column in range(self.graph.width_at(step))
        }
        needed = {
            (step - 1, each) for (step, _), columns in self._inputs.items() for each in columns
        }
        # Dask does not run what nobody needs or wants, such as half of the columns of a tree.
        self.results = [task for task in self._inputs if task not in needed]

    @property
    def payload_bytes(self) -> int:
        """``nbytes`` for each dependency."""
        return int(self.params.nbytes) * sum(map(len, self._inputs.values()))

    @property
    def operations(self) -> tuple[int, str]:
        """The tasks of all steps."""
        return len(self._inputs), "tasks"

    @property
    def expected_seconds(self) -> float:
        """The durations of a thread's tasks, and what Dask does for all."""
        n_threads = self.context.n_workers * self.context.threads_per_worker
        return len(self._inputs) * (float(self.params.task_s) / n_threads + _OVERHEAD_SECONDS)

    def prepare(self, client: Any) -> None:
        """Distribute the columns over the workers, in runs."""
        names = client.run(lambda dask_worker: str(dask_worker.name))
        workers = sorted(names, key=lambda address: (len(names[address]), names[address]))
        self._homes = {
            ("patterns", step, column): [workers[column * len(workers) // self.graph.width]]
            for step, column in self._inputs
        }

    def build(self) -> Any:
        """Return the tasks by their keys."""
        return {
            ("patterns", step, column): (
                self.graph.run, step, column,
                [("patterns", step - 1, each) for each in inputs],
            )
            for (step, column), inputs in self._inputs.items()
        }  # fmt: skip

    def compute(self, client: Any, graph: Any) -> Any:
        """Submit the tasks, each to its worker; return the futures of those that no other needs."""
        import dask

        wanted = [("patterns", *task) for task in self.results]
        with dask.annotate(workers=self._homes.__getitem__):
            return client.get(graph, wanted, sync=False)

    def verify(self, client: Any, result: Any) -> None:
        """Compare what tasks returned that no other task has checked."""
        for (step, column), array in zip(self.results, client.gather(result), strict=True):
            self.graph.check(step, column, array)


@dataclass(frozen=True, kw_only=True)
class TaskGraph(Patterns.Params):
    """The dependencies of a pattern, and its tasks; ``width`` columns at most."""

    def width_at(self, step: int) -> int:
        """Return the number of columns that have a task in a step."""
        return min(self.width, 2**step) if self.pattern == "tree" else self.width

    def dependencies(self, step: int, column: int) -> list[int]:
        """Return the columns of the last step that a task needs; none in the first step.

        Examples
        --------
        >>> graph = TaskGraph(pattern="fft", width=8, steps=4)
        >>> [graph.dependencies(step, 3) for step in range(4)]
        [[], [2, 3, 4], [1, 3, 5], [3, 7]]
        """
        if step == 0:
            return []
        width, radix = self.width, self.radix
        match self.pattern:
            case "stencil":
                columns = [column - 1, column, column + 1]
            case "tree":
                return [column // 2]
            case "fft":
                distance = 1 << (step - 1) % max(1, math.ceil(math.log2(width)))
                columns = [column - distance, column, column + distance]
            case "nearest":
                first = column - radix // 2
                columns = [*range(first, first + radix)]
            case "spread":
                shift = step % min(_PERIOD, math.ceil(width / radix))
                others = (column + each * width // radix + shift for each in range(1, radix))
                return sorted({column, *(each % width for each in others)})
            case _:
                return [*range(width)]
        return [each for each in columns if 0 <= each < width]

    def run(self, step: int, column: int, inputs: Sequence[Any]) -> Any:
        """Check the inputs of a task, spend its duration, and return its step and column.

        Returns
        -------
        array of int64, ``(nbytes / 8,)``
        """
        import numpy

        columns = self.dependencies(step, column)
        if len(inputs) != len(columns):
            raise VerificationError(
                f"patterns: task {column} of step {step} has {len(inputs)} inputs; "
                f"they should be {len(columns)}"
            )
        for each, array in zip(columns, inputs, strict=True):
            self.check(step - 1, each, array)
        if self.kernel == "sleep":
            time.sleep(self.task_s)
        else:
            # By CPU time, because time without a core is no work.
            end_s = time.thread_time() + self.task_s
            while time.thread_time() < end_s:
                pass
        return numpy.tile(numpy.array([step, column]), self.nbytes // _PAIR_BYTES)

    def check(self, step: int, column: int, array: Any) -> None:
        """Raise a VerificationError unless the task of this step and column returns this array."""
        is_right = array.nbytes == self.nbytes and bool(
            (array.reshape(-1, 2) == (step, column)).all()
        )
        if not is_right:
            raise VerificationError(
                f"patterns: the result of column {column} of step {step} is wrong: "
                f"{array[:4].tolist()}… of {array.nbytes} B"
            )
