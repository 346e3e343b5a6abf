import time
from collections import Counter

import numpy as np
import pytest
from distributed import as_completed, futures_of, wait

from commbench.harness import pinning
from commbench.harness.measure.cluster import until_forgotten
from commbench.harness.pinning import Assigned
from commbench.launchers import members
from commbench.workloads.device import persist_input
from commbench.workloads.placement import rebalance


def assign(graph, present, results, n_workers, fixed=None) -> dict:
    """Return the worker of each task, if it is the first graph of an iteration."""
    homes, _ = pinning.assign(graph, present, results, Assigned((0.0,) * n_workers), fixed)
    return {key: worker for key, (_, (worker,)) in homes.items()}


def shuffle(n_parts: int) -> dict:
    """Return an all-to-all graph, in depth-first order as by ``dask.order``."""
    graph: dict = {("split", part): [("input", part)] for part in range(n_parts)}
    for out in range(n_parts):
        pieces = [("piece", part, out) for part in range(n_parts)]
        graph |= {piece: [("split", piece[1])] for piece in pieces}
        graph["output", out] = pieces
    return graph


def inputs_of(n_parts: int, n_workers: int) -> dict:
    """Return the inputs of a shuffle in memory, whose sizes differ a little."""
    return {
        ("input", part): (1000 + part % 3, [part * n_workers // n_parts]) for part in range(n_parts)
    }


@pytest.mark.parametrize(("n_parts", "n_workers"), [(2, 2), (4, 4), (8, 4), (6, 4), (4, 1)])
def test_a_shuffle_splits_at_its_inputs_and_spreads_its_outputs(n_parts, n_workers):
    outputs = [("output", part) for part in range(n_parts)]
    workers = assign(shuffle(n_parts), inputs_of(n_parts, n_workers), outputs, n_workers)
    for key, worker in workers.items():
        assert worker == key[-1 if key[0] == "output" else 1] * n_workers // n_parts, key


def test_a_sum_with_the_transpose_runs_where_the_block_is():
    n = 4
    blocks = {("x", i, j): (800, [i]) for i in range(n) for j in range(n)}
    graph = {("sum", i, j): [("x", i, j), ("x", j, i)] for i in range(n) for j in range(n)}
    workers = assign(graph, blocks, list(graph), n)
    assert workers == {key: key[1] for key in graph}


@pytest.mark.parametrize(
    ("graph", "present", "fixed", "expected"),
    [
        ({"small": ["a"], "sum": ["small", "b"]}, {"a": (10, [0]), "b": (1000, [1])}, {}, [0, 1]),
        # Where a task is fixed, its result is.
        ({"c": ["a"], "d": ["c"]}, {"a": (8, [0])}, {"c": 1}, [1, 1]),
        # Inputs that are being computed have no effect.
        ({("c", 0): ["b"], ("c", 1): ["b", "a"]}, {"a": (8, [1])}, {}, [0, 1]),
        # Keys need not be tuples, and results may be unused.
        ({"c": [], "d": ["c"], ("unused", 0): ["c"]}, {}, {}, [0, 0, 0]),
        # Indices need not be of one type.
        ({("c", 0): [], ("c", "a"): []}, {}, {}, [0, 1]),
    ],
)
def test_a_task_follows_its_large_input(graph, present, fixed, expected):
    results = [key for key in graph if key[0] != "unused"]
    assert [*assign(graph, present, results, 2, fixed).values()] == expected


def test_a_tree_of_sums_is_spread_over_the_workers():
    graph: dict = {("leaf", i): [] for i in range(8)}
    graph |= {("node", i): [("leaf", 2 * i), ("leaf", 2 * i + 1)] for i in range(4)}
    graph["root", 0] = [("node", i) for i in range(4)]
    workers = assign(graph, {}, [("root", 0)], 4)
    assert [workers["node", i] for i in range(4)] == [0, 1, 2, 3]
    assert workers["root", 0] == 0


@pytest.mark.parametrize("in_tuples", [True, False])
def test_all_pairs_are_divided_evenly_whatever_their_keys_are(in_tuples):
    inputs = {f"{side}-{n}": (8, [n // 2]) for side in "xy" for n in range(8)}
    pairs = {f"pair-{i}-{j}": [f"x-{i}", f"y-{j}"] for i in range(8) for j in range(8)}
    if in_tuples:
        pairs = {("pair", *name.split("-")[1:]): deps for name, deps in pairs.items()}
    workers = assign(pairs, inputs, list(pairs), 4)
    assert set(Counter(workers.values()).values()) == {16}


def test_graphs_of_one_task_take_turns_as_in_one_graph():
    assigned, used = Assigned((0.0,) * 3), []
    for n in range(7):
        homes, assigned = pinning.assign({n: []}, {}, [n], assigned)
        used.append(homes[n][1][0])
    assert used == [0, 1, 2, 0, 1, 2, 0]
    # Of several with the same two inputs, neither worker gets all.
    present = {"a": (8, [0]), "b": (8, [1])}
    assigned, used = Assigned((0.0,) * 3), []
    for n in range(4):
        homes, assigned = pinning.assign({n: ["a", "b"]}, present, [n], assigned)
        used.append(homes[n][1][0])
    assert used == [0, 1, 0, 1]


@pytest.mark.parametrize("pause_s", [0.0, 0.02])
def test_submitted_tasks_are_spread_and_follow_inputs_that_are_not_ready(client, pause_s):
    (*_, last) = client.nthreads()
    for _ in range(3):
        client.run_on_scheduler(pinning.activate, True)
        sources = [client.submit(abs, -n, pure=False) for n in range(4)]
        first = client.submit(abs, -1, pure=False, workers=[last])
        time.sleep(pause_s)
        after = [client.submit(abs, future, pure=False) for future in (*sources, first)]
        wait(after)
        client.run_on_scheduler(pinning.activate, False)
        where = client.who_has([*sources, first, *after])
        assert [where[f.key] for f in after] == [where[f.key] for f in (*sources, first)]
        assert set(Counter(where[f.key][0] for f in sources).values()) == {2}


def test_tasks_after_a_shuffle_in_other_graphs_run_where_its_outputs_are(client):
    """While a shuffle is active, Dask restricts its outputs to workers that it chose."""
    import dask.array as da

    x = client.persist(da.random.default_rng(1).random((80, 80), chunks=(10, 80)))
    wait(x)
    for _ in range(2):
        client.run_on_scheduler(pinning.activate, True)
        parts = client.persist(x.rechunk((80, 10), method="p2p"))
        sums, outputs = [], []
        for future in as_completed(futures_of(parts)):
            outputs.append(future)
            sums.append(client.submit(np.sum, future, pure=False))
        wait(sums)
        client.run_on_scheduler(pinning.activate, False)
        where = client.who_has([*sums, *outputs])
        assert [where[f.key] for f in sums] == [where[f.key] for f in outputs]
        del parts, sums, outputs, future


@pytest.mark.parametrize("loose", [True, False])
def test_tasks_that_may_run_on_several_workers_are_followed(client, loose):
    workers = [*client.nthreads()]
    client.run_on_scheduler(pinning.activate, True)
    given = {"workers": workers[-1:] if loose else workers, "allow_other_workers": loose}
    first = [client.submit(bytes, 10**5 + n, pure=False, **given) for n in range(6)]

    def known(dask_scheduler):
        return [*dask_scheduler.plugins[pinning.Pinning.name]._homes]

    assert not {*client.run_on_scheduler(known)} & {future.key for future in first}
    wait(first)
    after = [client.submit(len, future, pure=False) for future in first]
    wait(after)
    client.run_on_scheduler(pinning.activate, False)
    where = client.who_has([*first, *after])
    assert [where[f.key] for f in after] == [where[f.key] for f in first]


def test_a_failure_to_pin_ends_the_launch(client):
    def fail(dask_scheduler):
        del dask_scheduler.plugins[pinning.Pinning.name]._graphs

    def mend(dask_scheduler):
        plugin = dask_scheduler.plugins[pinning.Pinning.name]
        plugin._graphs, plugin.error = {}, None

    client.run_on_scheduler(pinning.activate, True)
    client.run_on_scheduler(fail)
    try:
        assert client.submit(abs, -1, pure=False).result() == 1
        with pytest.raises(RuntimeError, match=r"can't be pinned to workers: AttributeError\("):
            client.run_on_scheduler(pinning.activate, False)
    finally:
        client.run_on_scheduler(mend)


@pytest.fixture(scope="module")
def client(cluster):
    cluster.client.register_plugin(pinning.Pinning())
    yield cluster.client
    cluster.client.unregister_scheduler_plugin(pinning.Pinning.name)


def workers_of(client, collection) -> dict:
    client.run_on_scheduler(pinning.activate, True)
    result = client.persist(collection)
    wait(result)
    client.run_on_scheduler(pinning.activate, False)
    keys = [future.key for future in futures_of(result)]
    layout = {key[1:]: where for key, where in client.who_has(futures_of(result)).items()}
    del result
    until_forgotten(client, keys)
    return layout


def test_results_are_on_the_same_workers_every_time(client):
    import dask.array as da

    x = client.persist(da.random.default_rng(1).random((40, 40), chunks=(10, 40)))
    wait(x)
    layouts = [workers_of(client, x @ x.T) for _ in range(5)]
    assert all(layout == layouts[0] for layout in layouts)
    assert {where for (where,) in layouts[0].values()} == set(client.nthreads())


def test_peer_to_peer_shuffles_end_and_use_all_workers(client):
    import dask.dataframe as dd
    import pandas as pd

    frame = dd.from_pandas(pd.DataFrame({"key": range(100), "x": 1.0}), npartitions=4)
    (frame,) = (client.persist(frame),)
    shuffled = frame.shuffle("key", shuffle_method="p2p", npartitions=4)
    layout = workers_of(client, shuffled)
    assert {where for (where,) in layout.values()} == set(client.nthreads())


def test_peer_to_peer_shuffles_begin_where_most_of_their_inputs_are(client):
    import dask.array as da

    (x,) = persist_input(client, da.ones((4, 40, 40), chunks=(1, 10, 40)))
    rebalance(client, x)
    workers = members.workers_by_address(client).items()
    first, last = (address for _, address in sorted((each["name"], name) for name, each in workers))
    for _ in range(3):
        # Four independent shuffles with two outputs; each worker has the inputs of two.
        layout = workers_of(client, x.rechunk((1, 40, 20), method="p2p"))
        owners = [where for _, (where,) in sorted(layout.items())]
        assert owners == 2 * [first, last] + 2 * [last, first]


def test_tasks_that_the_graph_restricts_stay_so(client):
    import dask

    (*_, last) = client.nthreads()
    with dask.annotate(workers=[last], allow_other_workers=False):
        tasks = [dask.delayed(abs)(-n, dask_key_name=("abs", n)) for n in range(4)]
    assert set(workers_of(client, dask.delayed(list)(tasks)).values()) == {(last,)}


def test_the_priorities_of_a_user_are_not_the_order_of_tasks(client):
    import dask

    first = dask.delayed(abs)(-1, dask_key_name=("first", 0))
    with dask.annotate(priority=10):
        last = dask.delayed(abs)(first, dask_key_name=("last", 0))
    assert len(workers_of(client, last)) == 1


def test_inactive_pinning_restricts_nothing(client):
    future = client.submit(sum, [1, 2], pure=False)
    assert future.result() == 3

    def restrictions(key, dask_scheduler):
        return dask_scheduler.tasks[key].worker_restrictions

    assert not client.run_on_scheduler(restrictions, future.key)
