"""Processes on other hosts are measured through Dask.

A worker of this host passes for one elsewhere: nothing else may look at it.
"""

import os
import time
from types import SimpleNamespace

import pytest
from launching import make_launch, select
from spinning import spin

from commbench.harness.cases import cases_for, make_workload
from commbench.harness.measure import conditions
from commbench.harness.measure.cluster import measure_cluster
from commbench.launchers import members
from commbench.launchers.launcher import SCHEDULER
from commbench.machine import cores, environment
from commbench.machine.environment import kernel_id
from commbench.model import ClusterSpec
from commbench.model.observed import CoreUse, Sample, ThreadTime

SECONDS = 0.4


def make_case():
    """Return a small case."""
    params = {"size": 200, "chunk": 50}
    (case,) = cases_for("transpose-sum", ("tcp",), params, ClusterSpec(), iterations=1, warmups=0)
    return case


def spin_on(cluster, worker):
    """Let that worker use a core for a while."""
    cluster.client.submit(spin, SECONDS, workers=[cluster.addresses[worker]], pure=False).result()


@pytest.mark.parametrize("worker", ["0", "1"])
def test_cpu_time_counts_once_wherever_the_worker_is(cluster, request, worker):
    pids = cluster.pids
    far = request.getfixturevalue("far")
    # The clocks of all four processes, read here without Dask, bound the sum on both sides.
    before = cores.cpu_seconds(pids)
    spin_on(far, worker)
    used = far.cpu_seconds()
    assert before + SECONDS <= used <= cores.cpu_seconds(pids)
    assert far.n_processes == 4


def test_each_other_host_has_a_record_of_its_cores(far):
    seen = conditions.Conditions(make_launch(make_case(), 2))
    # The first call imports this module.
    far.client.run(spin, 0.0)
    with seen.on(far):
        spin_on(far, "1")
        spin_on(far, "0")
    (use,) = seen.remote_use
    assert isinstance(use, CoreUse)
    assert (use.host, use.launch) == (os.uname().nodename, 2)
    assert use.n_cores == len(os.sched_getaffinity(0))
    assert use.own_cpu_seconds >= SECONDS
    # Worker 0 is here, so that its time is that of others there.
    assert use.busy_cpu_seconds > use.own_cpu_seconds + SECONDS / 2
    assert seen.foreign_cpu_s == 0


def seen_while_spinning(cluster, worker, monkeypatch):
    """Return what is seen of a cluster that the launch starts (False), and of a running one."""
    seen = {}
    for outlives in (False, True):
        monkeypatch.setattr(cluster, "preexisting", outlives)
        seen[outlives] = conditions.Conditions(make_launch(make_case()))
        with seen[outlives].on(cluster):
            spin_on(cluster, worker)
    return seen


def test_containers_on_this_host_are_processes_of_the_launch(far, monkeypatch):
    # Process ids are others there, and the kernel's counters of the cores are the same.
    monkeypatch.setattr(environment, "kernel_id", kernel_id)
    seen = seen_while_spinning(far, "1", monkeypatch)
    assert all(each.remote_use == () for each in seen.values())
    cpu_s = {outlives: each.foreign_cpu_s for outlives, each in seen.items()}
    assert SECONDS <= cpu_s[True] < SECONDS + 0.5
    assert cpu_s[False] >= cpu_s[True] + SECONDS / 2


def test_other_hosts_that_hide_their_cores_have_no_record(far, monkeypatch):
    real = conditions.ask

    def hiding(client, members, function, *args):
        answers = real(client, members, function, *args)
        return dict.fromkeys(answers) if function is cores.times else answers

    monkeypatch.setattr(conditions, "ask", hiding)
    seen = conditions.Conditions(make_launch(make_case()))
    with seen.on(far):
        pass
    assert seen.remote_use == ()


def test_hosts_with_one_name_have_readings_of_their_own(monkeypatch):
    described = {"a": ("one", "ubuntu", (0,), 1.0), "b": ("two", "ubuntu", (0, 1), 2.0)}

    def ask(client, members, function, *_):
        return described if function is conditions._describe_process else {members[0]: None}

    monkeypatch.setattr(conditions, "ask", ask)
    readings = conditions._read_remote(SimpleNamespace(client=None, remote_processes=()))
    seen = {kernel: (r.host, r.n_cores, r.launch_cpu_s) for kernel, r in readings.items()}
    assert seen == {"one": ("ubuntu", 1, 1.0), "two": ("ubuntu", 2, 2.0)}


def test_a_preexisting_cluster_counts_from_the_launch_on(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "foreign_pids", cluster.pids[1:])
    whole = cores.cpu_seconds(cluster.foreign_pids)
    seen = seen_while_spinning(cluster, "0", monkeypatch)
    cpu_s = {outlives: each.foreign_cpu_s for outlives, each in seen.items()}
    assert cpu_s[False] >= whole + SECONDS
    assert SECONDS <= cpu_s[True] < SECONDS + 0.5


def test_threads_are_not_mixed_up_with_those_of_an_equal_process_id_here(
    far, measured, monkeypatch
):
    (pid,) = far.client.run(os.getpid, workers=[far.addresses["1"]]).values()
    monkeypatch.setattr(far, "pids", (*far.pids, pid))
    real = cores.thread_seconds
    monkeypatch.setattr(
        cores, "thread_seconds", lambda who="self": {1: (1e6, 1e6)} if who == pid else real(who)
    )
    case = make_case()
    records = measured(measure_cluster, case, make_workload(case))
    loops = {
        (record.worker, record.iteration): record for record in select(records, ThreadTime)
        if record.role == "loop"
    }  # fmt: skip
    assert {worker for worker, _ in loops} == {"0", "1", "scheduler", "client"}
    assert all(0 <= record.cpu_seconds < 100 for record in loops.values())
    assert sum(record.cpu_seconds for (worker, _), record in loops.items() if worker == "1") > 0
    assert all(sample.verified for sample in select(records, Sample))


def test_the_clock_offset_of_another_host_is_that_of_the_shortest_request(far):
    delays = iter([0.2, *[0.002] * 9])

    class Skewed:
        def run(self, function, workers):
            time.sleep(next(delays))
            return dict.fromkeys(workers, function() + 5.0)

    assert set(conditions.clock_offsets(far)) == {far.addresses["1"]}
    assert abs(conditions.clock_offsets(far)[far.addresses["1"]]) < 0.05
    skewed = SimpleNamespace(client=Skewed(), remote_members=frozenset(["a", SCHEDULER]))
    assert conditions.clock_offsets(skewed) == {"a": pytest.approx(5.0, abs=0.01)}


def test_members_are_located_by_host_and_process_id(cluster, monkeypatch):
    pids = set(cluster.pids)
    changed = {"pids": (), "shares_processes": True}
    changed |= dict.fromkeys(("remote_members", "remote_processes"), frozenset(["?"]))
    for name, value in changed.items():
        monkeypatch.setattr(cluster, name, value)
    members.locate(cluster)
    assert not cluster.shares_processes
    assert set(cluster.pids) == pids
    assert cluster.remote_members == frozenset()
    here = members.process_location()
    elsewhere = here._replace(system="another boot")
    monkeypatch.setattr(members, "process_location", lambda: elsewhere)
    monkeypatch.setattr(cluster.client, "run", lambda _: dict.fromkeys(cluster.names, here))
    monkeypatch.setattr(cluster.client, "run_on_scheduler", lambda _: here)
    members.locate(cluster)
    assert cluster.pids == (os.getpid(),)
    assert cluster.remote_members == {SCHEDULER, *cluster.names}
    assert cluster.shares_processes
    # All are one process, whose CPU time counts once.
    assert len(cluster.remote_processes) == 1
    assert cluster.n_processes == 2


def test_core_times_are_read_by_the_worker_or_scheduler_elsewhere(far):
    for member in (far.addresses["1"], SCHEDULER):
        before = cores.times([0]).busy_s
        (times,) = conditions.ask(far.client, [member], cores.times, [0]).values()
        assert before <= cores.Times(*times).busy_s <= cores.times([0]).busy_s
