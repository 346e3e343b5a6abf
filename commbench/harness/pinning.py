"""Pin the tasks of an iteration to workers, so that every backend moves the same bytes.

Dask's scheduler chooses a worker by the bytes of the task's inputs there and by how busy the worker
is at that moment. Where two workers have equally many, microseconds decide, so that the same merge
moves once or twice its data. Pinned tasks follow rules that depend on the graph alone:

- a task runs on the worker that has most of its inputs;
- among workers with half as much or more, it runs where its result is needed: the results of a
  graph are spread over the workers as successive blocks, as ``rebalance`` spreads its input, unless
  there are fewer than workers;
- if it is needed on several, it runs on that with the fewest estimated bytes so far;
- tasks without inputs are spread over the workers as successive blocks. Where graphs have fewer of
  them than there are workers, as with ``Client.submit``, each goes on where the last one stopped;
- a task that the workload restricts to workers, hosts or resources stays so.

The size of a pinned task's result is estimated, also once it is known: each task divides its size
equally among the tasks that use it. A pinned task is neither queued on the scheduler nor stolen by
other workers. Where keys have random parts, as of ``delayed`` functions that are not pure, Dask's
order of them is random, too.

Peer-to-peer shuffles spread their outputs over the workers themselves, and equally. Of each, the
first goes to the worker that has most of its inputs, the next to those after it by name: Dask goes
on from where the last shuffle began, whichever that was.

Like `transfer_log` this module does not import commbench, so it can be sent by value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin

Key = Hashable
Homes = dict[Key, tuple[float, Sequence[int]]]
"""The size of each result, and the numbers of the workers that have it."""
_NEAR = 0.5


class Assigned(NamedTuple):
    """What the graphs of an iteration have been given so far."""

    load: tuple[float, ...]
    """The estimated bytes of the tasks of each worker."""
    n_sources: int = 0
    """The tasks without inputs of graphs that have fewer of them than there are workers."""


class Pinning(SchedulerPlugin):  # type: ignore[misc] # distributed is untyped
    """Restricts every task of a graph to one worker while ``active``.

    The workers of a graph are computed when it is first seen, as in a warm-up, and looked up in the
    next iteration, so that this costs an iteration a few microseconds per task.
    """

    name = "commbench-pinning"

    def __init__(self) -> None:
        self.active = False
        self.error: Exception | None = None
        self._assigned: Assigned | None = None
        # By the keys of a graph, and what was assigned before; of this iteration and the last.
        self._graphs: dict[Any, tuple[dict[Key, set[str]], Homes, Assigned]] = {}
        self._last_graphs = self._graphs
        self._homes: Homes = {}
        self._inputs: Homes = {}

    def begin(self, scheduler: Any) -> None:
        """Begin an iteration, which does not depend on the ones before."""
        self._assigned, self._homes = None, {}
        self._last_graphs, self._graphs = self._graphs, {}
        for key in self._inputs.keys() - scheduler.tasks.keys():
            del self._inputs[key]

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
        before = self._assigned
        graph = frozenset(new), before
        known = self._graphs.get(graph) or self._last_graphs.get(graph)
        if known is None:
            known = self._assign(scheduler, new, wanted)
        self._graphs[graph] = known
        restrictions, homes, self._assigned = known
        self._homes |= homes
        scheduler.set_restrictions(restrictions)

    def _assign(
        self, scheduler: Any, new: Sequence[Key], wanted: set[Key]
    ) -> tuple[dict[Key, set[str]], Homes, Assigned]:
        """Return restrictions, the results whose worker is certain, and what is assigned then."""
        from distributed.shuffle._core import id_from_key

        states = scheduler.tasks
        workers = _by_name(scheduler)
        index = {worker.address: number for number, worker in enumerate(workers)}
        # Dask's order, in which inputs come first; a user's priority precedes it.
        ordered = sorted(new, key=lambda key: states[key].priority[1:])
        inputs = {key: [dep.key for dep in states[key].dependencies] for key in ordered}
        needed = {dep for deps in inputs.values() for dep in deps} - inputs.keys()
        present = {
            dep: where for dep in needed if (where := self._where(states[dep], index)) is not None
        }
        free = _after_p2p(inputs) | {
            key
            for key in ordered
            if states[key].host_restrictions or states[key].resource_restrictions
        }
        # These inputs are being computed, and where is Dask's choice.
        unknown = needed - present.keys()
        free |= {key for key, deps in inputs.items() if deps and unknown.issuperset(deps)}
        fixed = {
            key: min(index[address] for address in given)
            for key in ordered
            if (given := (states[key].worker_restrictions or set()) & index.keys())
        }
        results = [key for key in ordered if key in wanted]
        before = self._assigned or Assigned((0.0,) * len(workers))
        homes, assigned = assign(inputs, present, results, before, fixed, free)
        restrictions = {
            key: set(states[key].worker_restrictions or ())
            if key in free or key in fixed
            else {workers[homes[key][1][0]].address}
            for key in ordered
        }
        # Of others Dask decides. A shuffle begins at the worker of its barrier.
        certain = {
            key: home
            for key, home in homes.items()
            if (
                key not in free
                and not states[key].loose_restrictions
                and len(restrictions[key]) == 1
            )
            or id_from_key(key) is not None
        }
        return restrictions, certain, assigned

    def _where(self, state: Any, index: Mapping[str, int]) -> tuple[float, Sequence[int]] | None:
        """Return the size and the workers of a task's result, as when they were first known."""
        if state.worker_restrictions and state.key in self._homes:
            # Whether it has ended is a matter of microseconds.
            return self._homes[state.key]
        present = [index[worker.address] for worker in state.who_has or ()]
        known = self._inputs.get(state.key)
        # Workers that have fetched it have copies.
        if present and (known is None or not {*known[1]} <= {*present}):
            known = self._inputs[state.key] = (state.get_nbytes(), present)
        return known if present else None

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
            plugin._shift_counter = iter([self._homes.get(barrier_key(spec.id), (0.0, [0]))[1][0]])
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
    if active:
        plugin.begin(dask_scheduler)
    shuffles = dask_scheduler.plugins["shuffle"]
    vars(shuffles).pop("_calculate_worker_for", None)
    if active:
        choose = shuffles._calculate_worker_for
        shuffles._calculate_worker_for = partial(plugin.shuffle_workers, dask_scheduler, choose)
    if plugin.error is not None:
        raise RuntimeError(f"tasks can't be pinned to workers: {plugin.error!r}")


def _by_name(scheduler: Any) -> list[Any]:
    return sorted(scheduler.workers.values(), key=lambda w: (len(str(w.name)), str(w.name)))


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
    present: Homes,
    results: Sequence[Key],
    before: Assigned,
    fixed: Mapping[Key, int] | None = None,
    free: Collection[Key] = (),
) -> tuple[Homes, Assigned]:
    """Assign each task of a graph to a worker.

    Parameters
    ----------
    inputs
        The keys that each task needs; tasks come after those that they need.
    present
        Size and workers of the keys that are in memory, or that were assigned before. Other keys
        that are not in `inputs` have no effect.
    results
        The keys that are wanted.
    before
        What the graphs before it in the iteration were given, with an item for each worker.
    fixed
        The workers of tasks that the graph itself restricts.
    free
        Tasks that Dask assigns: those without inputs take no turn.

    Returns
    -------
    tuple
        The estimated size and the worker of each task's result, and what is assigned now.

    Examples
    --------
    A join of two blocks with two, of which the workers 0 and 1 have one each:

    >>> inputs = {("left", 0): "ab", ("left", 1): "ab", ("right", 0): "cd", ("right", 1): "cd"}
    >>> inputs |= {("join", part): [("left", part), ("right", part)] for part in (0, 1)}
    >>> present = {"a": (8, [0]), "b": (9, [1]), "c": (9, [0]), "d": (8, [1])}
    >>> homes, _ = assign(inputs, present, [("join", 0), ("join", 1)], Assigned((0.0, 0.0)))
    >>> [worker for _, (worker,) in homes.values()]
    [0, 1, 0, 1, 0, 1]
    """
    load, n_before = [*before.load], before.n_sources
    inputs = {
        key: [dep for dep in deps if dep in inputs or dep in present]
        for key, deps in inputs.items()
    }
    n_uses: dict[Key, int] = defaultdict(int)
    for deps in inputs.values():
        for dep in deps:
            n_uses[dep] += 1
    n_workers = len(load)
    needed = _needed(inputs, results, n_workers)
    sizes = {key: float(size) for key, (size, _) in present.items()}
    homes: dict[Key, Sequence[int]] = {key: workers for key, (_, workers) in present.items()}
    given = {*(fixed or ()), *free}
    sources = [key for key, deps in inputs.items() if not deps and key not in given]
    if len(sources) < n_workers:
        spread = {key: (n_before + n) % n_workers for n, key in enumerate(sources)}
        n_before += len(sources)
    else:
        spread = {key: number * n_workers // len(sources) for number, key in enumerate(sources)}
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
            worker = spread[key] if key in spread else load.index(min(load))
        load[worker] += sizes[key]
        homes[key] = [worker]
    assigned: Homes = {key: (sizes[key], homes[key]) for key in inputs}
    return assigned, Assigned(tuple(load), n_before)


def _needed(
    inputs: Mapping[Key, Sequence[Key]], results: Sequence[Key], n_workers: int
) -> dict[Key, int | None]:
    """Return the worker where each task's result is needed; None for several, or for any."""
    from dask.utils import key_split, natural_sort_key

    groups: dict[Any, list[Key]] = defaultdict(list)
    for key in results:
        groups[key[0] if isinstance(key, tuple) else key_split(key)].append(key)
    needed: dict[Key, int | None] = {}
    for keys in groups.values():
        # Strings, the keys of futures and delayed, may end with a hash: they stay in Dask's order.
        if isinstance(keys[0], tuple):
            keys.sort(key=lambda key: natural_sort_key(str(key)))
        if len(keys) >= n_workers:
            needed |= {key: number * n_workers // len(keys) for number, key in enumerate(keys)}
    for key in reversed(list(inputs)):
        worker = needed.get(key)
        for dep in inputs[key]:
            needed[dep] = worker if needed.get(dep, worker) == worker else None
    return needed
