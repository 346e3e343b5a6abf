"""Workloads of futures, the scheduler and memory."""

import gc
import itertools
import time
from unittest.mock import MagicMock

import pytest
from distributed import futures_of, wait
from processes import until
from test_placement import moved

from commbench.conformance.workload_kit import _corrupt as corrupt
from commbench.errors import UsageError, VerificationError
from commbench.harness.measure.cluster import until_forgotten
from commbench.workloads.control_plane import ControlPlane
from commbench.workloads.one_to_many import Broadcast, Gather, Scatter
from commbench.workloads.patterns import Patterns
from commbench.workloads.spill import Spill
from commbench.workloads.straggler import Straggler
from commbench.workloads.tiny_tasks import TinyTasks
from commbench.workloads.workload import Context


def make(kind, n_workers=2, memory_limit_bytes=10**6, **params):
    """Return a workload."""
    context = Context(
        n_workers=n_workers, device="cpu", seed=1, memory_limit_bytes=memory_limit_bytes
    )
    return kind(kind.Params(**params), context)


def compute(client, work):
    """Return the result of an iteration, when all of it exists."""
    result = work.compute(client, work.build())
    wait(result)
    return result


@pytest.mark.parametrize(
    ("kind", "params", "nbytes"),
    [
        (Broadcast, {"size": 10_000}, 10_000),
        (Straggler, {"size": 1_000, "steps": 4, "block_s": 0.0}, 4_000),
        # Of 8 columns, two at the border have a neighbour on the other worker.
        (Patterns, {"nbytes": 160, "steps": 4, "task_s": 0.0}, 3 * 2 * 160),
        (Scatter, {"size": 1_000}, 0),
        (Gather, {"size": 1_000}, 0),
        (Spill, {"chunk": 200_000}, 0),
    ],
)
def test_workers_move_the_same_bytes_in_each_iteration(client, kind, params, nbytes):
    work = make(kind, **params)
    work.prepare(client)
    for _ in range(3):
        moved(client)
        result = compute(client, work)
        assert moved(client) == nbytes
        work.verify(client, result)
        keys = [future.key for future in futures_of(result)]
        del result
        until_forgotten(client, keys)


def test_results_in_a_cycle_of_references_are_released(client):
    cycle = [client.submit(sum, [1, 2], pure=False)]
    wait(cycle)
    keys = [future.key for future in cycle]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        until_forgotten(client, keys)
    finally:
        gc.enable()
    known = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    assert not {*keys} & {*known}


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        *((ControlPlane, {"operation": each}) for each in ("run", "scheduler", "connect", "storm")),
        *((TinyTasks, {"mode": each, "tasks": 50}) for each in ("throughput", "first-result")),
        (TinyTasks, {"mode": "single"}),
        *((Patterns, {"pattern": each, "steps": 5, "radix": 5, "task_s": 1e-3})
          for each in ("stencil", "tree", "fft", "nearest", "spread", "all-to-all")),
        (Patterns, {"kernel": "compute", "steps": 2, "width": 2, "task_s": 1e-3}),
        (Scatter, {"size": 1, "direct": True}),
    ],
)  # fmt: skip
def test_a_right_result_passes(client, kind, params):
    work = make(kind, **params)
    work.prepare(client)
    result = compute(client, work)
    work.verify(client, result)
    assert work.operations[0] > 0


def test_results_after_the_first_one_are_verified(client):
    work = make(TinyTasks, mode="first-result", tasks=50)
    work.prepare(client)
    result = compute(client, work)
    last = work._futures[-1]
    wait(work._futures)
    (holder,) = client.who_has([last])[last.key]
    client.run(corrupt, last.key, workers=[holder])
    with pytest.raises(VerificationError, match=r"1 of 50 results .* \[49\]"):
        work.verify(client, result)


def blocks(dask_worker):
    task = getattr(dask_worker, "_commbench_blocking", None)
    return task is not None and not task.done()


def drop(address, key, dask_scheduler):
    dask_scheduler.request_remove_replicas(address, [key], stimulus_id="drop")


@pytest.mark.parametrize("block_s", [0.0, 0.4])
def test_the_event_loop_of_the_straggler_is_blocked_until_it_is_verified(client, block_s):
    work = make(Straggler, block_s=block_s, period_s=0.5, size=10, steps=200)
    work.prepare(client)
    # It may drop what has been fetched, on one worker or the other, before this test does.
    client.amm.stop()
    result = work.compute(client, work.build())
    first = work._arrays[0]
    until(lambda: len(client.who_has([first])[first.key]) == 2, "a fetch")
    client.run_on_scheduler(drop, work._straggler, first.key)
    client.amm.start()
    time.sleep(3 * block_s)
    assert sum(client.run(blocks).values()) == bool(block_s)
    work.verify(client, result)
    assert sum(client.run(blocks).values()) == 0


PATTERNS = {
    "stencil": [[0, 1], [2, 3, 4]], "tree": [[0], [1]], "fft": [[0, 1], [2, 3, 4]],
    "nearest": [[0, 1, 2], [1, 2, 3, 4, 5]], "spread": [[0, 2, 4, 5, 7], [0, 2, 3, 5, 7]],
    "all-to-all": [[*range(8)]] * 2,
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS.items())
def test_dependencies_are_those_of_task_bench(pattern, expected):
    graph = make(Patterns, pattern=pattern, width=8, radix=5).graph
    assert [graph.dependencies(1, column) for column in (0, 3)] == expected
    assert graph.dependencies(0, 3) == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_task_is_wanted_or_needed(pattern):
    work = make(Patterns, pattern=pattern, width=6, steps=7)
    reached, tasks = set(), [*work.results]
    while tasks:
        reached.add(task := tasks.pop())
        step, column = task
        inputs = ((step - 1, each) for each in work.graph.dependencies(step, column))
        tasks += {*inputs} - reached
    assert len(reached) == work.operations[0]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_task_refuses_what_is_not_its_input(pattern):
    graph = make(Patterns, pattern=pattern, steps=3, nbytes=64, task_s=0.0).graph
    right = [graph.run(0, column, []) for column in range(graph.width_at(0))]
    needed = graph.dependencies(1, 1)
    inputs = [right[column] for column in needed]
    assert graph.run(1, 1, inputs).tolist() == [1, 1] * 4
    garbled, late = inputs[-1].copy(), inputs[-1].copy()
    garbled[-1] ^= 1
    late[::2] += 1
    for wrong in ([], inputs[:-1], [*inputs, right[0]],
                  *([*inputs[:-1], each] for each in (garbled, late, garbled[:-2]))):  # fmt: skip
        with pytest.raises(VerificationError, match="patterns: "):
            graph.run(1, 1, wrong)


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        *((each, {"size": 0}, f"{each.name}: size is 0")
          for each in (Broadcast, Scatter, Gather, Straggler)),
        *((each, {"n_workers": 1}, "one worker has no other") for each in (Broadcast, Straggler)),
        (Gather, {"arrays": 0}, "arrays is 0; it must be at least 1"),
        (TinyTasks, {"tasks": -1}, "tasks is -1; it must be at least 0"),
        (ControlPlane, {"count": 0}, "count is 0"),
        (Straggler, {"block_s": 1.5}, r"block_s is 1.5; .* below period_s \(1.5\)"),
        (Spill, {"memory_limit_bytes": 0}, "add for example --memory-limit 500MB"),
        (Spill, {"chunk": 10**6 + 1}, r"chunk is 1000001 B; .* of a worker \(1000000 B\)"),
        (Spill, {"factor": 0.0}, "factor is 0.0"),
        (Patterns, {"width": 1}, r"width is 1; .* the number of workers \(2\)"),
        *((Patterns, {key: value}, f"{key} is {value}; it must be")
          for key, value in itertools.chain({"steps": 1, "radix": 0, "task_s": -1.0}.items(),
                                            zip(("nbytes", "nbytes"), (0, 17), strict=True))),
    ],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(kind, params, message):
    with pytest.raises(UsageError, match=message):
        make(kind, **params)


@pytest.mark.parametrize(("given", "passed"), [(False, None), (True, True)])
@pytest.mark.parametrize("kind", [Scatter, Gather])
def test_by_default_the_configuration_of_dask_chooses_the_way_of_arrays(kind, given, passed):
    client, work = MagicMock(), make(kind, direct=given)
    work._futures = []
    work.compute(client, {})
    (call,) = client.method_calls[:1]
    assert call.kwargs["direct"] is passed
