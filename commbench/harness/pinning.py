"""Pin the tasks of an iteration to workers, so that every backend moves the same bytes.

Dask's scheduler chooses a worker by the bytes of the task's inputs there and by how busy the worker
is at that moment. Where two workers have equally many, microseconds decide, so that the same merge
moves once or twice its data. Pinned tasks follow rules that depend on the graph alone:

- a task runs on the worker that has most of its inputs;
- among workers with half as much or more, it runs where its result is needed: the results of the
  graph are spread over the workers as successive blocks, as ``rebalance`` spreads its input;
- if it is needed on several, it runs on that with the fewest estimated bytes so far;
- tasks without inputs are spread over the workers as successive blocks;
- a task that the workload restricts to workers, hosts or resources stays so.

The size of a result that does not exist yet is estimated: each task divides its size equally among
the tasks that use it. A pinned task is neither queued on the scheduler nor stolen by other workers.
Peer-to-peer shuffles spread their outputs over the workers themselves, and equally. Of each, the
first goes to the worker that has most of its inputs, the next to those after it by name: Dask goes
on from where the last shuffle began, whichever that was.

Like `transfers` this module does not import commbench, so it can be sent by value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

Key = Hashable
_NEAR = 0.5


class Pinning(SchedulerPlugin):  # type: ignore[misc] # distributed is untyped
    """Restricts every task of a graph to one worker while ``active``.

    The workers of a graph are computed when its keys are first seen, as in a warm-up, and looked up
    from then on, so that this costs an iteration a few microseconds per task.
    """

    name = "commbench-pinning"

    def __init__(self) -> None:
        self.active = False
        self.error: Exception | None = None
        self._restrictions: dict[Key, set[str]] = {}
        self._homes: dict[Key, int] = {}

    def update_graph(
        self, scheduler: Any, *, keys: Iterable[Key], tasks: Sequence[Key], **kwargs: Any
    ) -> None:
        """Restrict the new tasks of a graph; called by the scheduler before any of them runs."""
        del kwargs
        if not self.active:
            return
        try:
            self._restrict(scheduler, tasks, set(keys))
        except Exception as error:  # noqa: BLE001 - the scheduler would log it and go on
            self.error = error

    def _restrict(self, scheduler: Any, tasks: Sequence[Key], wanted: set[Key]) -> None:
        new = [key for key in tasks if scheduler.tasks[key].state == "released"]
        if not all(key in self._restrictions for key in new):
            # Graphs may take turns.
            restrictions, homes = _restrictions(scheduler, new, wanted)
            self._restrictions |= restrictions
            self._homes |= homes
        scheduler.set_restrictions({key: self._restrictions[key] for key in new})

    def shuffle_workers(self, scheduler: Any, choose: Any, spec: Any) -> Any:
        """Return the worker of each output of a peer-to-peer shuffle.

        `choose` is the method of Dask's plugin that does so. It reads the workers of its scheduler
        in order of their addresses, and the number of the first from a counter.
        """
        from distributed.shuffle._core import barrier_key

        plugin = choose.__self__
        if scheduler.plugins.get(self.name) is not self:
            # A launch that was killed has left this method.
            vars(plugin).pop("_calculate_worker_for", None)
            return choose(spec)
        counter = plugin._shift_counter
        workers = [worker.address for worker in _by_name(scheduler)]
        try:
            plugin.scheduler = SimpleNamespace(tasks=scheduler.tasks, workers=workers)
            plugin._shift_counter = iter([self._homes.get(barrier_key(spec.id), 0)])
            return choose(spec)
        finally:
            plugin.scheduler, plugin._shift_counter = scheduler, counter


def activate(active: bool, dask_scheduler: Any) -> None:
    """Let the plugin restrict the tasks of the following graphs, or no longer.

    Raises
    ------
    RuntimeError
        If tasks could not be pinned.
    """
    plugin = dask_scheduler.plugins[Pinning.name]
    plugin.active = active
    shuffles = dask_scheduler.plugins["shuffle"]
    vars(shuffles).pop("_calculate_worker_for", None)
    if active:
        choose = shuffles._calculate_worker_for
        shuffles._calculate_worker_for = partial(plugin.shuffle_workers, dask_scheduler, choose)
    if plugin.error is not None:
        raise RuntimeError(f"tasks can't be pinned to workers: {plugin.error!r}")


def _by_name(scheduler: Any) -> list[Any]:
    return sorted(scheduler.workers.values(), key=lambda w: (len(str(w.name)), str(w.name)))


def _restrictions(
    scheduler: Any, new: Sequence[Key], wanted: set[Key]
) -> tuple[dict[Key, set[str]], dict[Key, int]]:
    """Return the workers to which each task is restricted, and that to which `assign` sends it."""
    states = scheduler.tasks
    workers = _by_name(scheduler)
    index = {worker.address: number for number, worker in enumerate(workers)}
    # Dask's order, in which inputs come first; a user's priority precedes it.
    ordered = sorted(new, key=lambda key: states[key].priority[1:])
    inputs = {key: [dep.key for dep in states[key].dependencies] for key in ordered}
    present = {
        dep: (states[dep].get_nbytes(), [index[worker.address] for worker in states[dep].who_has])
        for deps in inputs.values()
        for dep in deps
        if states[dep].who_has
    }
    free = _after_p2p(inputs) | {
        key for key in ordered if states[key].host_restrictions or states[key].resource_restrictions
    }
    fixed = {
        key: min(index[address] for address in given)
        for key in ordered
        if (given := (states[key].worker_restrictions or set()) & index.keys())
    }
    results = [key for key in ordered if key in wanted]
    assigned = assign(inputs, present, results, len(workers), fixed)
    restrictions = {
        key: set(states[key].worker_restrictions or ())
        if key in free or key in fixed
        else {workers[assigned[key]].address}
        for key in ordered
    }
    return restrictions, assigned


def _after_p2p(inputs: Mapping[Key, Sequence[Key]]) -> set[Key]:
    """Return the barriers of peer-to-peer shuffles, and the tasks that follow them."""
    from distributed.shuffle._core import id_from_key

    free: set[Key] = set()
    for key, deps in inputs.items():
        if id_from_key(key) is not None or not free.isdisjoint(deps):
            free.add(key)
    return free


def assign(
    inputs: Mapping[Key, Sequence[Key]],
    present: Mapping[Key, tuple[float, Sequence[int]]],
    results: Sequence[Key],
    n_workers: int,
    fixed: Mapping[Key, int] | None = None,
) -> dict[Key, int]:
    """Return the number of the worker on which each task of a graph runs.

    Parameters
    ----------
    inputs
        The keys that each task needs; tasks come after those that they need.
    present
        Size and workers of the keys that are in memory. Keys that are neither here nor in `inputs`
        are being computed, and have no effect.
    results
        The keys that are wanted.
    n_workers
        The number of workers.
    fixed
        The workers of tasks that the graph itself restricts.

    Examples
    --------
    A join of two blocks with two, of which the workers 0 and 1 have one each:

    >>> inputs = {("left", 0): "ab", ("left", 1): "ab", ("right", 0): "cd", ("right", 1): "cd"}
    >>> inputs |= {("join", part): [("left", part), ("right", part)] for part in (0, 1)}
    >>> present = {"a": (8, [0]), "b": (9, [1]), "c": (9, [0]), "d": (8, [1])}
    >>> list(assign(inputs, present, [("join", 0), ("join", 1)], 2).values())
    [0, 1, 0, 1, 0, 1]
    """
    inputs = {
        key: [dep for dep in deps if dep in inputs or dep in present]
        for key, deps in inputs.items()
    }
    n_uses: dict[Key, int] = defaultdict(int)
    for deps in inputs.values():
        for dep in deps:
            n_uses[dep] += 1
    needed = _needed(inputs, results, n_workers)
    sizes = {key: float(size) for key, (size, _) in present.items()}
    homes: dict[Key, Sequence[int]] = {key: workers for key, (_, workers) in present.items()}
    sources = [key for key, deps in inputs.items() if not deps]
    spread = {key: number * n_workers // len(sources) for number, key in enumerate(sources)}
    load = [0.0] * n_workers
    for key, deps in inputs.items():
        weights: dict[int, float] = defaultdict(float)
        for dep in deps:
            for worker in homes[dep]:
                weights[worker] += sizes[dep] / n_uses[dep]
        sizes[key] = sum(sizes[dep] / n_uses[dep] for dep in deps) if deps else 1.0
        if fixed and key in fixed:
            worker = fixed[key]
        elif deps:
            most = max(weights.values())
            near = [worker for worker, weight in weights.items() if weight >= _NEAR * most]
            wanted_at = needed.get(key)
            worker = (
                wanted_at
                if wanted_at in near
                else min(near, key=lambda worker: (load[worker], worker))
            )
        else:
            worker = spread[key]
        load[worker] += sizes[key]
        homes[key] = [worker]
    return {key: homes[key][0] for key in inputs}


def _needed(
    inputs: Mapping[Key, Sequence[Key]], results: Sequence[Key], n_workers: int
) -> dict[Key, int | None]:
    """Return the worker where each task's result is needed; None for several."""
    groups: dict[Any, list[Key]] = defaultdict(list)
    for key in results:
        groups[key[0] if isinstance(key, tuple) else key].append(key)
    needed: dict[Key, int | None] = {}
    for keys in groups.values():
        keys.sort(key=lambda key: key[1:] if isinstance(key, tuple) else ())
        needed |= {key: number * n_workers // len(keys) for number, key in enumerate(keys)}
    for key in reversed(list(inputs)):
        worker = needed.get(key)
        for dep in inputs[key]:
            needed[dep] = worker if needed.get(dep, worker) == worker else None
    return needed
