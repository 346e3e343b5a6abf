import time
from types import SimpleNamespace

import builders
import numpy as np
import processes
import pytest
from distributed import Status, wait
from launching import make_launch

from commbench.harness import spill_counters
from commbench.harness.measure import cluster as measuring
from commbench.model.observed import Spill

MB = 10**6
LAUNCH = make_launch(builders.case(), 2)


def sampled(started_at_s):
    """Return the sample of the iteration 1, which lasts a minute."""
    return builders.sample(LAUNCH.case, 60.0, iteration=1, started_at_s=started_at_s)


def evict_all(dask_worker):
    """Write all data of the worker to disk, as it does when its memory is full."""
    while dask_worker.data.fast:
        dask_worker.data.evict()


def test_what_a_worker_spills_in_an_iteration_is_recorded(cluster):
    client = cluster.client
    arrays = [np.random.default_rng(n).integers(0, 256, MB, dtype="u1") for n in range(3)]
    where = [cluster.addresses["0"]]
    first = client.scatter(arrays[0], workers=where, hash=False)
    wait(first)
    client.run(evict_all, workers=where)
    before = client.run(spill_counters.written)
    assert list(measuring.spills(LAUNCH, sampled(time.time()), before, cluster)) == []

    more = client.scatter(arrays[1:], workers=where, hash=False)
    wait(more)
    client.run(evict_all, workers=where)
    (record,) = measuring.spills(LAUNCH, sampled(time.time()), before, cluster)
    assert isinstance(record, Spill)
    assert record.paused_seconds == 0
    assert (record.worker, record.launch, record.iteration, record.n_values) == ("0", 2, 1, 2)
    assert 2 * MB <= record.nbytes < 2.1 * MB


def test_the_pauses_of_a_worker_are_recorded_even_if_nothing_is_spilled(cluster):
    def switch(name, dask_worker):
        dask_worker.status = Status[name]

    def statuses(dask_scheduler):
        events = [event for at_s, event in dask_scheduler.get_events(address) if at_s >= began]
        return [event["status"] for event in events if "status" in event]

    client, address = cluster.client, cluster.addresses["1"]
    before = client.run(spill_counters.written)
    began = time.time()
    client.run(switch, "paused", workers=[address])
    # Its monitor of memory resumes it. The scheduler learns of both some time later.
    processes.until(
        lambda: client.run_on_scheduler(statuses)[-2:] == ["paused", "running"],
        "the scheduler's record of a pause and its end",
    )
    (record,) = measuring.spills(LAUNCH, sampled(began), before, cluster)
    assert (record.worker, record.n_values, record.nbytes) == ("1", 0, 0)
    assert 0 < record.paused_seconds < time.time() - began
    # Before the time that is asked for, nothing counts.
    assert list(measuring.spills(LAUNCH, sampled(time.time()), before, cluster)) == []


def test_a_worker_that_is_still_paused_is_counted_until_the_end():
    events = [(100.0, "text"), (100.0, {"action": "other"}),
              (110.0, {"action": "worker-status-change", "status": "paused"})]  # fmt: skip
    scheduler = SimpleNamespace(get_events={"a": events, "b": []}.__getitem__)
    assert spill_counters.paused(["a", "b"], 105.0, 116.0, scheduler) == {"a": 6.0}
    assert spill_counters.paused(["a", "b"], 111.0, 116.0, scheduler) == {"a": 5.0}
    assert spill_counters.paused(["a", "b"], 90.0, 100.0, scheduler) == {}


def test_the_pause_of_a_worker_ends_when_it_is_killed_and_is_recorded():
    events = [(110.0, {"action": "worker-status-change", "status": "paused"}),
              (116.0, {"action": "remove-worker"})]  # fmt: skip
    scheduler = SimpleNamespace(get_events={"a": events, "b": []}.__getitem__)
    client = SimpleNamespace(
        run=lambda _: {"b": (0, 0)},
        run_on_scheduler=lambda function, *args: function(*args, dask_scheduler=scheduler),
    )
    cluster = SimpleNamespace(client=client, known_names={"a": "0", "b": "0"})
    (record,) = measuring.spills(LAUNCH, sampled(100.0), {"a": (1, MB)}, cluster)
    assert (record.worker, record.paused_seconds) == ("0", 6.0)
    assert (record.n_values, record.nbytes) == (0, 0)


def test_a_worker_that_was_restarted_at_its_address_has_spilled_what_its_successor_has():
    client = SimpleNamespace(
        run=lambda _: {"a": (2, 3 * MB)}, run_on_scheduler=lambda *_: {"a": 6.0}
    )
    cluster = SimpleNamespace(client=client, known_names={"a": "0"})
    (record,) = measuring.spills(LAUNCH, sampled(100.0), {"a": (10, 20 * MB)}, cluster)
    assert (record.n_values, record.nbytes) == (2, 3 * MB)


@pytest.mark.parametrize("data", [{}, SimpleNamespace(), SimpleNamespace(cumulative_metrics={})])
def test_a_store_without_a_limit_of_memory_counts_nothing(data):
    assert spill_counters.written(SimpleNamespace(data=data)) == (0, 0)
