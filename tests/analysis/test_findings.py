"""Each rule on records that have its cause, and on the same records without it."""

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import builders
import pandas as pd
import pytest
from builders import (
    activity,
    graph,
    line_time,
    log_count,
    place,
    process_use,
    sample,
    setting,
    spill,
    task,
    thread_time,
    transfer,
)

from commbench import backends, model
from commbench.analysis import findings
from commbench.analysis.findings import CaseRecords, Rule
from commbench.errors import ResultsError
from commbench.harness import vary
from commbench.model import ClusterSpec, Effect, Finding, Placement, observed, registry
from commbench.reports import sentences as sentences

CASE = builders.case()
CORES = {"cpu": {"usable_cores": 2}}
BUSY = {"cpu_seconds": 9.8}
"""The times of task threads that have tasks nearly all the time."""


def case_of(backend="tcp", n_threads=1, n_workers=2, **cluster):
    spec = ClusterSpec(n_workers=n_workers, threads_per_worker=n_threads, **cluster)
    return builders.case(backend, cluster=spec)


def iterations(case, *, tasks=None, loop=None, scheduler=None, activities=(), n=6, wall=10.0):
    """Yield the records of one iteration in each of `n` launches, alike on every worker."""
    tasks, loop = tasks or {}, loop or {}
    for launch in range(n):
        where = {"launch": launch}
        yield sample(case, wall, **where)
        yield builders.end(case, launch=launch)
        yield thread_time(case, "scheduler", "loop", **where, **(scheduler or loop))
        for worker in map(str, range(case.cluster.n_workers)):
            n_threads = case.cluster.threads_per_worker
            yield thread_time(case, worker, n_threads=n_threads, **where, **tasks)
            yield thread_time(case, worker, "loop", **where, **loop)
            yield place(case, worker, cpus="0-63", **where)
            for context, label, seconds in activities:
                yield activity(case, context, label, seconds, worker=worker, **where)


class Found(Mapping):
    """The findings about a case by rule, of which there is one of each.

    A rule is applied when its finding is asked for, and all are if they are listed.
    """

    def __init__(self, run):
        self._run, self._records = run, CaseRecords(run, *run.suite.cases)

    @functools.cached_property
    def _all(self):
        by_rule = {finding.rule: finding for finding in self._run.findings}
        assert len(by_rule) == len(self._run.findings)
        assert not self._run.rule_problems
        return by_rule

    def __getitem__(self, name):
        findings = self._records.findings(registry.load("rule", name))
        # That nothing is wrong is only said without others, and of scripts in other words.
        if self._run.is_user_code or any(finding.is_fine for finding in findings):
            return self._all[name]
        if not findings:
            raise KeyError(name)
        (finding,) = findings
        # Settings that nothing reads would be measured twice, and not help.
        for key, text in chain(*(trial.items() for trial in finding.trials)):
            assert key == "backend" or vary.setting(key, text).name == key
        return dataclasses.replace(finding, rule=name)

    def __iter__(self):
        return iter(self._all)

    def __len__(self):
        return len(self._all)


def found(case, records, environment=CORES, **manifest):
    """Return the findings about a case with these records."""
    return Found(builders.in_memory([case], records, environment=environment, **manifest))


FAULTS, WRITES = [("memory", "page-faults", 2.0)], {"cpu_seconds": 4.0}


def launches(*records):
    return [dataclasses.replace(each, launch=n) for n in range(6) for each in records]


def changed(records, role, worker="1", **times):
    """Return `records` with other times of the threads with this role of a worker."""
    return [
        dataclasses.replace(each, **times)
        if isinstance(each, observed.ThreadTime) and (each.worker, each.role) == (worker, role)
        else each
        for each in records
    ]  # fmt: skip


def bound(records, *cpus):
    """Return `records` with these CPUs for the workers, or the same ones for all."""
    return [
        dataclasses.replace(each, cpus=cpus[int(each.worker) % len(cpus)])
        if isinstance(each, observed.WorkerPlace) else each
        for each in records
    ]  # fmt: skip


def fetches(case, seconds, nbytes, n=1, dst="0", src="1", **given):
    """Return fetches, one after the other, in each launch."""
    return [
        transfer(case, 100 * launch + k * seconds / n, 100 * launch + (k + 1) * seconds / n,
                 nbytes, src=src, dst=dst, launch=launch, **given)
        for launch in range(6) for k in range(n)
    ]  # fmt: skip


def exchange(case, nbytes=10**7, n=5):
    """Return fetches both ways between two workers."""
    return [*fetches(case, 4.0, nbytes, n), *fetches(case, 4.0, nbytes, n, dst="1", src="0")]


def awaiting_bytes(cases, *walls):
    """Return a run of two cases that await large fetches, with these times of an iteration."""
    records = []
    for case, wall in zip(cases, walls, strict=True):
        records += [*iterations(case, wall=wall), *exchange(case)]
    return builders.in_memory(cases, records, environment=CORES)


def test_nothing_is_found_where_threads_compute():
    busy = {"cpu_seconds": 9.5}
    records = [*iterations(CASE, tasks=busy, activities=[("execute", "thread-cpu", 9.5)])]
    (fine,) = found(CASE, records).values()
    assert (fine.rule, fine.is_fine) == ("little-communication", True)
    assert fine.remedy == "keep the backend; tasks take the time"
    tasks = [task(CASE, 0.0, 3.0, name="join"), task(CASE, 3.0, 4.0, name="read")]
    (fine,) = found(CASE, [*records, *launches(*tasks)]).values()
    assert fine.remedy.endswith("tasks take the time, 75% of it in join")
    lines = launches(line_time(CASE, 3.0, "job.py:7 join()"), line_time(CASE, 9.0, "job.py:8 x()"))
    (fine,) = found(CASE, [*records, *launches(*tasks), *lines]).values()
    assert fine.remedy.endswith("75% of it in join, and 75% at job.py:8")


def test_nothing_is_said_about_communication_where_tasks_do_not_take_the_time():
    assert "little-communication" not in found(CASE, iterations(CASE))
    without_workers = [
        each for each in iterations(CASE, tasks={"cpu_seconds": 9.5})
        if getattr(each, "worker", "") not in ("0", "1")
    ]  # fmt: skip
    assert found(CASE, without_workers) == {}


def test_where_no_rule_has_a_finding_the_parts_of_the_time_are_said():
    run = builders.in_memory([CASE], iterations(CASE, tasks={"cpu_seconds": 2.0}))
    (text,) = sentences.details(run)
    assert text.startswith("merge over tcp: no rule has a finding. Task threads compute 20% of the")
    assert text.endswith("await data 0% and have no task 80%.")


def test_the_last_line_of_a_diagnosis_says_where_the_time_goes():
    waits = [("execute", "thread-cpu", 1.0), ("execute", "failed", 2.0)]
    records = [*iterations(CASE, tasks={"cpu_seconds": 1.0}, activities=waits)]
    spans = ((0, 1, "read", "0"), (1, 3, "join", "0"), (3, 9, "sum", "0"), (0, 9, "sum", "1"))
    records += [
        task(CASE, 100 * launch + begin, 100 * launch + end, name=name, worker=w, launch=launch,
             nbytes=1)
        for launch in range(6) for begin, end, name, w in spans
    ]  # fmt: skip
    # Those that fail return nothing, and a warm-up is not measured.
    records += launches(task(CASE, 1, 2, name="sum"))
    records.append(task(CASE, 0, 50, name="load", iteration=-1, nbytes=1))
    run = builders.in_memory([CASE], records, environment=CORES)
    *_, text = sentences.details(run)
    assert text.startswith("Task threads compute 10% of the time, wait 0% for a core, sleep in ")
    assert "Most of the tasks' time: sum 83%, join 11%, read 6%. Attempts that" in text
    assert "cancelled take 18% of the time of all: see the workers' logs" in text
    # Tasks that sleep are no other rule's.
    (fine,) = (each for each in run.findings if each.is_fine)
    assert "they sleep 90% of the time, for locks, files" in fine.remedy
    # They are no tasks, but hold the GIL.
    records += launches(*(thread_time(CASE, n, "actors", cpu_seconds=8 * int(n)) for n in "01"))
    run = builders.in_memory([CASE], records, environment=CORES)
    assert [*sentences.details(run)][-1].endswith("use 0.8 cores, one method at a time.")
    assert "background-threads" in {each.rule for each in run.findings}


def test_the_last_line_of_a_diagnosis_names_lines_of_code():
    records = [
        *iterations(CASE, tasks={"cpu_seconds": 2.0}), builders.region(CASE, 40.0),
        line_time(CASE, 8.0, "job.py:7 f()"), line_time(CASE, 1.0, ""),
        line_time(CASE, 2.0, "job.py:9 g()", role="script", name=""),
        line_time(CASE, 30.0, "job.py:10 x.compute()", role="wait", name=""),
    ]  # fmt: skip
    (text,) = sentences.details(builders.in_memory([CASE], records))
    lines = (
        "by line: job.py:7 89%, compiled code of add 11%. It waits for the cluster at: job.py:10"
    )
    assert text.endswith(f"Most of the tasks' time, {lines} 75%.")


def test_nothing_is_fine_about_a_backend_that_is_slower_than_another():
    slow = case_of("mpi")
    records = []
    for case, wall in ((CASE, 10.0), (slow, 20.0)):
        busy = {"cpu_seconds": 0.95 * wall}
        records += iterations(
            case, tasks=busy, activities=[("execute", "thread-cpu", 0.95 * wall)], wall=wall
        )
    records = [
        dataclasses.replace(each, seconds=each.seconds * (1 + each.launch / 100))
        if isinstance(each, observed.Sample) else each
        for each in records
    ]  # fmt: skip
    run = builders.in_memory([CASE, slow], records, environment=CORES)
    assert [each.verdict for each in run.comparisons] == ["slower"]
    fine = [each.case_id for each in run.findings if each.is_fine]
    assert fine == [CASE.id]


def test_a_backend_that_was_compared_and_is_no_faster_is_no_remedy():
    other = case_of("mpi")
    run = awaiting_bytes([CASE, other], 10.0, 10.0)
    trials = {
        each.case_id: {trial["backend"] for trial in each.trials}
        for each in run.findings
        if each.rule == "bandwidth"
    }
    assert trials == {CASE.id: {"ucx:shm+thread-future"}, other.id: {"ucx:shm+thread-future"}}


def test_a_backend_that_was_found_to_be_faster_is_the_remedy():
    other = case_of("mpi")
    run = awaiting_bytes([CASE, other], 10.0, 8.0)
    slow, fast = (each for each in run.findings if each.rule == "bandwidth")
    # The difference need not come from the bytes.
    assert not slow.effect.is_measured
    assert slow.remedy.endswith("; or try mpi")
    assert slow.trials == ({"backend": "mpi"},)
    assert fast.remedy.endswith("; or try ucx:shm+thread-future")


def test_the_remedy_of_a_backend_says_what_it_needs_between_hosts():
    records = [
        dataclasses.replace(each, host_id=each.worker)
        if isinstance(each, observed.WorkerPlace)
        else each
        for each in [*iterations(CASE), *exchange(CASE)]
    ]
    needs = "without RDMA, every backend uses TCP between hosts"
    assert needs in found(CASE, records)["bandwidth"].doubt
    here = found(CASE, [*iterations(CASE), *exchange(CASE)])["bandwidth"]
    assert "or try" in here.remedy
    assert needs not in here.doubt


def test_no_backend_is_a_remedy_for_itself():
    cases = [
        dataclasses.replace(case_of("mpi", dask_config={"distributed.p2p.storage.disk": disk}),
                            varied=("distributed.p2p.storage.disk",))
        for disk in (True, False)
    ]  # fmt: skip
    run = awaiting_bytes(cases, 10.0, 8.0)
    assert [each.verdict for each in run.comparisons] == ["faster"]
    trials = [trial for each in run.findings for trial in each.trials]
    assert trials == [{"backend": "ucx:shm+thread-future"}] * 2


def test_no_backend_is_a_remedy_for_its_twin():
    twins = [case_of("mpi"), case_of("mpi@2")]
    run = awaiting_bytes(twins, 10.0, 9.7)
    assert [each.verdict for each in run.comparisons] == ["same"]
    remedies = {(f.case_id, f.remedy) for f in run.findings if f.rule == "bandwidth"}
    move_less = "move less: fewer columns, smaller types, an early filter"
    assert remedies == {(twin.id, f"{move_less}; or try ucx:shm+thread-future") for twin in twins}


@pytest.mark.parametrize(("wall", "remedies"), [(9.0, {"mpi"}), (10.0, set()), (11.0, set())])
def test_a_backend_that_few_launches_show_to_be_slow_is_no_remedy(wall, remedies):
    cases = [CASE, case_of("mpi")]
    records = [
        each for case, seconds in zip(cases, (10.0, wall), strict=True)
        for each in [*iterations(case, n=3, wall=seconds), *exchange(case)]
    ]  # fmt: skip
    run = builders.in_memory(cases, records, environment=CORES)
    assert [each.n_launches for each in run.comparisons] == [3]
    (finding,) = (f for f in run.findings if (f.rule, f.case_id) == ("bandwidth", CASE.id))
    trials = {trial["backend"] for trial in finding.trials}
    assert trials == {"ucx:shm+thread-future"} | remedies


def test_a_backend_with_other_settings_or_bytes_shows_nothing_about_this_one():
    name = "distributed.p2p.storage.disk"
    for disk, nbytes in ((True, 10**8), (False, 2 * 10**8)):
        cases = [
            dataclasses.replace(case_of(backend, dask_config={name: is_set}), varied=(name,))
            for backend, is_set in (("tcp", False), ("mpi", disk))
        ]  # fmt: skip
        records = [
            each for case, wall in zip(cases, (10.0, 11.0), strict=True)
            for each in [*iterations(case, n=3, wall=wall), *exchange(case)]
        ]  # fmt: skip
        wire = [
            observed.WireBytes(case_id=case.id, launch=launch, iteration=0, src="0", dst="1",
                               nbytes=size, n_messages=10)
            for launch in range(3) for case, size in zip(cases, (10**8, nbytes), strict=True)
        ]  # fmt: skip
        run = builders.in_memory(cases, [*records, *wire], environment=CORES)
        assert [each.verdict == "unequal" for each in run.comparisons] == [not disk]
        (finding,) = (f for f in run.findings if (f.rule, f.case_id) == ("bandwidth", cases[0].id))
        assert {"backend": "mpi"} in finding.trials


def test_no_backend_is_advised_that_failed():
    failed = case_of("mpi")
    records = [*iterations(CASE), *exchange(CASE)]
    records += [builders.end(failed, launch=n, ok=False) for n in range(6)]
    run = builders.in_memory([CASE, failed], records, environment=CORES)
    (finding,) = (each for each in run.findings if each.rule == "bandwidth")
    assert finding.trials == ({"backend": "ucx:shm+thread-future"},)


def test_what_the_run_has_measured_is_not_untested():
    other = case_of("mpi")
    run = awaiting_bytes([CASE, other], 10.0, 8.0)
    pairs = [(f.case_id, settings) for f, settings in findings.untested(run)]
    assert pairs == [(other.id, {"backend": "ucx:shm+thread-future"})]


@pytest.mark.parametrize(("device", "hosts"), [("gpu", ("a", "a")), ("cpu", ("a", "b"))])
def test_settings_for_memory_of_one_host_are_no_remedy_elsewhere(device, hosts):
    case = case_of(device=device)
    both = exchange(case)
    records = [each for each in iterations(case) if not isinstance(each, observed.WorkerPlace)]
    places = [place(case, str(n), host_id=host) for n, host in enumerate(hosts)]
    trials = found(case, [*records, *launches(*places), *both])["bandwidth"].trials
    assert {trial["backend"] for trial in trials} == {"mpi", "ucx"}


@pytest.mark.parametrize(
    ("backend", "way", "others"),
    [
        ("ucx", "sysv/memory", {"mpi", "ucx:shm+thread-future"}),
        ("ucx", "tcp/eth0", {"mpi", "ucx:shm+thread-future"}),
        ("ucx", "rc_mlx5/mlx5_0:1", {"mpi"}),
        # That is faster than over the host's memory.
        ("ucx", "cuda_ipc/cuda", set()),
        ("tcp", "tcp/lo, staged", {"mpi", "ucx"}),
        ("mpi", "mpi/shm", {"ucx:shm+thread-future"}),
    ],
)
def test_no_backend_is_advised_that_closes_the_way_of_the_bytes(backend, way, others):
    case = case_of(backend)
    records = [*iterations(case), *exchange(case), *launches(builders.transport(case, way))]
    trials = found(case, records)["bandwidth"].trials
    assert {trial["backend"] for trial in trials} == others


def test_settings_that_a_cluster_has_are_not_advised():
    case = case_of("ucx")
    words = backends.parse("ucx:shm+thread-future").settings("cpu").split()
    present = [setting(case, *word.split("=")) for word in words]
    for some, others in ((present, {"mpi"}), (present[1:], {"mpi", "ucx:shm+thread-future"})):
        records = [*iterations(case), *exchange(case), *launches(*some)]
        trials = found(case, records)["bandwidth"].trials
        assert {trial["backend"] for trial in trials} == others


@pytest.mark.parametrize(("device", "more"), [("cpu", ""), ("gpu", ",cuda_copy")])
def test_the_details_say_how_to_set_a_backend(device, more):
    case = case_of(device=device)
    run = builders.in_memory([case], [])
    trials = ({"backend": "ucx:shm"}, {"backend": "nobody"}, {"workers": "2"})
    run.__dict__["findings"] = (builders.finding(case, rule="polling", trials=trials),)
    *_, last = "\n".join(sentences.details(run)).splitlines()
    assert last.startswith("  ucx:shm: protocol='ucx' and ")
    assert last.endswith(f"UCX_TLS=tcp,sm{more} UCX_MM_ERROR_HANDLING=y in every process")


@pytest.mark.parametrize("order", [1, -1])
def test_the_effect_of_a_remedy_that_was_measured_is_the_measured_one(order):
    slow, tuned = case_of("ucx"), case_of("ucx:shm+thread-future")
    polls = {"cpu_seconds": 4.0, "wait_seconds": 5.0, "idle_cpu_seconds": 0.5, "n_turns": 4000}
    polls |= {"idle_wait_seconds": 0.5, "idle_n_turns": 500}

    def records(wall):
        every = [
            *iterations(slow, tasks={"cpu_seconds": 3.0, "wait_seconds": 5.0}, loop=polls),
            *iterations(tuned, wall=wall), *launches(builders.transport(slow, contradiction="no")),
        ]  # fmt: skip
        return [
            dataclasses.replace(each, seconds=each.seconds * (1 + each.launch / 100))
            if isinstance(each, observed.Sample) else each
            for each in every
        ]  # fmt: skip

    cases = [slow, tuned][::order]
    run = builders.in_memory(cases, records(8.0), environment=CORES)
    (effect,) = (each.effect for each in run.findings if each.rule == "polling")
    assert effect.share == pytest.approx(0.2)
    assert 0.1 < effect.low <= 0.2 <= effect.high < 0.3
    assert str(effect).endswith("measured)")
    # Where it is no faster, cores are few all the same, and the transport is what it is.
    run = builders.in_memory(cases, records(10.0), environment=CORES)
    rules = {each.rule for each in run.findings if each.case_id == slow.id}
    assert rules == {"few-cores", "transport"}


def test_a_remedy_was_measured_only_where_nothing_else_differs():
    records = []
    slow, tuned = case_of("tls", dask_config={"distributed.p2p.storage.disk": False}), CASE
    for case, wall in ((slow, 10.0), (tuned, 5.0)):
        records += [*iterations(case, wall=wall), *fetches(case, 4.0, 10**9, 2)]
    varied = ("backend", "distributed.p2p.storage.disk")
    cases = [dataclasses.replace(each, varied=varied) for each in (slow, tuned)]
    run = builders.in_memory(cases, records, environment=CORES)
    assert [each.verdict for each in run.comparisons] == ["faster"]
    (finding,) = (each for each in run.findings if each.rule == "encryption")
    assert not finding.effect.is_measured


def test_nobody_is_told_to_give_up_encryption_to_save_bytes():
    slow = case_of("tls")
    run = awaiting_bytes([slow, CASE], 10.0, 8.0)
    (finding,) = (f for f in run.findings if (f.rule, f.case_id) == ("bandwidth", slow.id))
    assert finding.trials == ()
    assert finding.remedy.endswith("an early filter")


def test_waits_for_the_gil_are_no_lack_of_cores():
    waits = {"cpu_seconds": 3.0, "wait_seconds": 5.0}
    computing = [("execute", "thread-cpu", 3.0)]
    records = [*iterations(CASE, tasks=waits, loop={"cpu_seconds": 3.0}, activities=computing)]
    assert "few-cores" in found(CASE, records)
    many = {"cpu": {"usable_cores": 64}}
    few_others = launches(builders.core_use(CASE, others=0.01))
    assert "few-cores" not in found(CASE, [*records, *few_others], many)
    # Where the use by others is unknown, long waits are not only for the GIL.
    finding = found(CASE, records, many)["few-cores"]
    assert "and use 2% of them: other programs may use the rest" in finding.statement
    short = iterations(CASE, tasks=waits | {"wait_seconds": 1.0}, activities=computing)
    assert "few-cores" not in found(CASE, short, many)


def test_workers_that_are_bound_to_few_cores_lack_them_whatever_the_host_has():
    waits, computing = {"cpu_seconds": 3.0, "wait_seconds": 5.0}, [("execute", "thread-cpu", 3.0)]
    loop, many = {"cpu_seconds": 3.0}, {"cpu": {"usable_cores": 64}}
    alone = [*iterations(CASE, tasks=waits, loop=loop, activities=computing)]
    records = [*alone, *launches(builders.core_use(CASE, others=0.01))]
    finding = found(CASE, bound(records, "4-5"), many)["few-cores"]
    assert finding.statement.endswith("share 2 cores, to which the workers are bound")
    assert "--cpus-per-worker" in finding.remedy
    # Of cores that they share, or that are enough for one, they have some to spare.
    assert "few-cores" not in found(CASE, bound(records, "0-31"), many)
    assert "few-cores" not in found(CASE, bound(records, "0-15", "16-31"), many)
    unequal = found(CASE, bound(records, "0-15", "16"), many)["few-cores"]
    assert "share 17 cores, to" in unequal.statement
    # On as many cores as there are, nothing is bound.
    assert "bound" not in found(CASE, bound(records, "0-1"))["few-cores"].statement
    # Other programs may use other cores.
    others = launches(builders.core_use(CASE, others=0.5))
    crowded = [*alone, *others]
    assert found(CASE, bound(crowded, "4-5"), many)["few-cores"].remedy == finding.remedy
    assert "few-cores" not in found(CASE, bound(crowded, "0-31"), many)
    # Of a GPU or a NIC alone, a placement binds no CPU.
    placed = case_of(placement=(Placement(nic="eth0"), Placement(nic="eth0")))
    records = [dataclasses.replace(each, case_id=placed.id) for each in records]
    assert "few-cores" not in found(placed, records, many)


def test_a_loop_that_works_for_tasks_under_way_does_not_poll():
    works = {"cpu_seconds": 4.0, "n_turns": 400, "idle_cpu_seconds": 0.9, "idle_n_turns": 50}
    busy = {"cpu_seconds": 5.0, "wait_seconds": 4.0, "idle_cpu_seconds": 0.5}
    records = [*iterations(CASE, tasks=busy, loop=works)]
    assert "polling" not in found(CASE, records)
    assert "polling" in found(
        CASE, iterations(CASE, tasks=busy | {"idle_cpu_seconds": 0}, loop=works)
    )


def test_polling_loops_are_found_with_the_share_of_the_cores():
    polls = {
        "cpu_seconds": 4.0, "wait_seconds": 5.0, "n_turns": 4000,
        "idle_cpu_seconds": 0.5, "idle_wait_seconds": 0.5, "idle_n_turns": 500,
    }  # fmt: skip
    waits = {"cpu_seconds": 3.0, "wait_seconds": 5.0}
    computing = [("execute", "thread-cpu", 3.0)]
    records = [*iterations(case_of("ucx"), tasks=waits, loop=polls, activities=computing)]
    by_rule = found(case_of("ucx"), records)
    finding = by_rule["polling"]
    # Of 3 × 4 s in loops and 2 × 3 s in tasks.
    assert finding.statement == "3 event loops poll on 2 cores"
    assert "poll, which is 67% of" in finding.evidence
    assert finding.effect.low <= finding.effect.share <= finding.effect.high
    assert finding.trials == ({"backend": "ucx:shm+thread-future"},)
    assert "few-cores" not in by_rule
    # Threads of libraries take cores, too.
    native = launches(
        *(thread_time(case_of("ucx"), each, "native", cpu_seconds=9.0) for each in "01")
    )
    evidence = found(case_of("ucx"), [*records, *native])["polling"].evidence
    assert "poll, which is 33% of" in evidence
    sleeping = [*iterations(CASE, tasks=waits, loop={"cpu_seconds": 4.0}, activities=computing)]
    by_rule = found(CASE, sleeping)
    assert "polling" not in by_rule
    assert by_rule["few-cores"].effect.share == pytest.approx(0.5, abs=0.01)
    # With a core for each loop and task thread, other programs are the reason.
    many = {"cpu": {"usable_cores": 8}}
    others = [builders.core_use(case_of("ucx"), n_cores=8, busy_cpu_seconds=68.0)]
    by_rule = found(case_of("ucx"), [*records, *others], many)
    assert "polling" not in by_rule
    assert "8 cores with other programs, which use 70% of them" in by_rule["few-cores"].statement
    # A worker may have too few of them.
    apart = bound(records, "0", "1-7")
    assert "polling" in found(case_of("ucx"), [*apart, *others], many)


def test_threads_that_sleep_in_tasks_of_a_busy_process_wait_for_the_gil():
    case = case_of(n_threads=4, n_workers=1)
    activities = [("execute", "thread-cpu", 9.6)]
    in_tasks = [
        task(case, 100 * launch, 100 * launch + 10, thread=n, launch=launch)
        for launch in range(6) for n in range(4)
    ]  # fmt: skip
    busy = [*iterations(case, tasks={"cpu_seconds": 9.6}, activities=activities)]
    records = [*busy, *in_tasks]
    long = changed(busy, "loop", worker="0", long_turn_seconds=5.0)
    finding = found(case, records, {"cpu": {"usable_cores": 8}})["gil"]
    # On four cores, 9.6 s of one thread after the other would take 2.4 s, if they wait for the GIL.
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.0, 0.72))
    assert finding.trials == ({"workers": "4", "threads": "1"},)
    handed_over = changed(busy, "tasks", worker="0", wait_seconds=4.0)
    finding = found(case, [*handed_over, *in_tasks], {"cpu": {"usable_cores": 8}})["gil"]
    assert finding.effect.high == pytest.approx(0.72)
    # While the GIL is free, they wait for something else.
    for seconds, share in ((9.6, 0.72), (2.0, 0.2 * 3 / 4)):
        known = [
            *records,
            *(activity(case, "gil", "contention", seconds, launch=n) for n in range(6)),
        ]
        finding = found(case, known, {"cpu": {"usable_cores": 8}})["gil"]
        assert finding.effect.share == pytest.approx(share)
    # Processes on one CPU save nothing.
    assert "gil" not in found(case, bound(records, "3"), {"cpu": {"usable_cores": 8}})
    # The processes share what the threads had.
    limited = case_of(n_threads=4, n_workers=1, memory_limit="4GB")
    own = [dataclasses.replace(each, case_id=limited.id) for each in records]
    (smaller,) = found(limited, own, {"cpu": {"usable_cores": 8}})["gil"].trials
    assert smaller["memory_limit"] == "1000000000B"
    for limit, less in (("4gb", "1000000000B"), ("0.5", "0.125")):
        limited = case_of(n_threads=4, n_workers=1, memory_limit=limit)
        own = [dataclasses.replace(each, case_id=limited.id) for each in records]
        (smaller,) = found(limited, own, {"cpu": {"usable_cores": 8}})["gil"].trials
        assert smaller["memory_limit"] == less
    # Threads that mostly wait for a core wait for no GIL.
    crowded = changed(busy, "tasks", worker="0", wait_seconds=29.0)
    assert "gil" not in found(case, [*crowded, *in_tasks], {"cpu": {"usable_cores": 8}})
    # The same tasks block the event loop.
    shorter = [dataclasses.replace(each, stop_s=each.stop_s - 2) for each in in_tasks]
    assert "blocked-loop" in found(case, [*long, *shorter], {"cpu": {"usable_cores": 1}})
    assert "gil" in (by_rule := found(case, [*long, *shorter], {"cpu": {"usable_cores": 8}}))
    assert "blocked-loop" not in by_rule
    # Without other cores, processes would take as long.
    assert "gil" not in found(case, records, {"cpu": {"usable_cores": 1}})
    # The GIL is not what they wait for, if it is hardly ever busy.
    free = [*busy, *(activity(case, "gil", "contention", 0.1, launch=n) for n in range(6))]
    assert "gil" not in found(case, [*free, *in_tasks], {"cpu": {"usable_cores": 8}})
    # A process that computes nothing waits for something else.
    idle = iterations(case, tasks={"cpu_seconds": 1.0}, activities=activities)
    assert "gil" not in found(case, [*idle, *in_tasks], {"cpu": {"usable_cores": 8}})


def test_threads_without_tasks_that_hold_the_gil_are_found():
    in_tasks = [
        task(CASE, 100 * launch, 100 * launch + 10, worker=worker, launch=launch)
        for launch in range(6) for worker in "01"
    ]  # fmt: skip
    activities = [("execute", "thread-cpu", 4.0)]
    busy = [*iterations(CASE, tasks={"cpu_seconds": 4.0}, activities=activities), *in_tasks]

    def other(role, *seconds):
        return launches(
            *(
                thread_time(CASE, name, role, cpu_seconds=s)
                for name, s in zip("01", seconds, strict=True)
            )
        )

    finding = found(CASE, [*busy, *other("other", 5.0, 1.0)])["background-threads"]
    assert finding.effect.share == pytest.approx((0.0 + 0.3 + 0.5) / 3)
    for seconds, share in ((10.0, (0.3 + 0.5) / 2), (2.0, 0.2)):
        known = [
            *busy,
            *other("other", 5.0, 1.0),
            *launches(activity(CASE, "gil", "contention", seconds)),
        ]
        finding = found(CASE, known)["background-threads"]
        assert finding.effect.share == pytest.approx(share)
    finding = found(CASE, [*busy, *other("other", 5.0, 1.0)])["background-threads"]
    assert "use 0.5 cores of a worker; on one, tasks sleep 60% of the time" in finding.statement
    # Threads that rest when their worker has no task work for its tasks.
    for n_cores, is_found in ((0.2, False), (0.4, True)):
        rests = launches(*(
            process_use(CASE, start, n_cores, worker)
            for start in (20.0, 20.5, 21.0) for worker in ("0", "scheduler")
        ))  # fmt: skip
        during = launches(*(process_use(CASE, start, 0.0) for start in (1.0, 9.8)))
        by_rule = found(CASE, [*busy, *other("other", 5.0, 0.5), *rests, *during])
        assert ("background-threads" in by_rule) == is_found
    # Of two workers, the one that rests doesn't speak for the other.
    other_rests = [each for each in rests if each.worker == "0"]
    other_rests = [dataclasses.replace(each, worker="1", n_cores=0.0) for each in other_rests]
    assert "background-threads" in found(CASE, [*busy, *other("other", 5.0, 0.5), *other_rests])
    # Two readings are too few.
    few = [*during, *rests[:2]]
    assert "background-threads" in found(CASE, [*busy, *other("other", 5.0, 0.5), *few])
    # Threads of libraries don't need the GIL, and Dask's threads use little.
    assert "background-threads" not in found(CASE, [*busy, *other("native", 5.0, 5.0)])
    assert "background-threads" not in found(CASE, [*busy, *other("other", 0.9, 0.9)])
    free = launches(activity(CASE, "gil", "contention", 0.1))
    assert "background-threads" not in found(CASE, [*busy, *other("other", 5.0, 1.0), *free])
    computing = iterations(
        CASE, tasks={"cpu_seconds": 9.9}, activities=[("execute", "thread-cpu", 9.9)]
    )
    assert "background-threads" not in found(
        CASE, [*computing, *in_tasks, *other("other", 5.0, 1.0)]
    )


def test_a_transport_that_was_not_asked_for_is_found_without_a_profile():
    case = builders.case("ucx")
    wrong = builders.transport(case, contradiction="ucx moves its bytes over tcp/lo")
    finding = found(case, [sample(case, 1.0), builders.end(case), wrong])["transport"]
    assert finding.statement == "ucx moves its bytes over tcp/lo"
    assert finding.trials == ({"backend": "ucx:shm+thread-future"},)


def connections(case, *odd, way="tcp/eth1"):
    pairs = [(str(i), str(j)) for i in range(4) for j in range(4) if i != j]
    return [
        builders.transport(
            case, way if f"{src}{dst}" in odd else "tcp/ib0", src=src, dst=dst, launch=launch
        )
        for src, dst in pairs for launch in range(2)
    ]  # fmt: skip


def test_a_sender_with_another_nic_than_most_is_named():
    case = case_of(n_workers=4)
    finding = found(case, connections(case, "10", "12", "13"))["transport"]
    assert finding.statement == (
        "worker 1 (3 connections) went over tcp/eth1, and 9 of 12 connections of the class "
        "unknown over tcp/ib0"
    )
    assert "1→3" in finding.evidence


@pytest.mark.parametrize("odd", [(), ("01", "10", "23", "32"), ("01", "02", "03", "10", "12")])
def test_no_way_is_odd_where_it_is_that_of_all_or_of_many(odd):
    case = case_of(n_workers=4)
    assert found(case, connections(case, *odd)) == {}


@pytest.mark.parametrize(
    "compress", [("get-data", "compress"), ("p2p", "background-comms compress")]
)
def test_compression_costs_its_time_less_that_of_the_saved_bytes(compress):
    spent = [(*compress, 2.0), ("gather-dep", "decompress", 1.0), ("execute", "compress", 9.0)]
    moved = [*fetches(CASE, 8.0, 200_000_000)]
    moved += launches(
        setting(CASE, "distributed.comm.compression", "lz4"), log_count(CASE),
        builders.wire(CASE, 100_000_000, src="1", dst="0"),
    )  # fmt: skip
    finding = found(CASE, [*iterations(CASE, activities=spent), *moved])["compression"]
    # Without 6 s of compression a fetch has 100 MB on the wire in 2 s; as many are saved.
    assert finding.effect.low == pytest.approx(0.3 - 0.1)
    assert finding.effect.high == pytest.approx(2 * 0.3)
    assert finding.trials == ({"distributed.comm.compression": "null"},)
    assert "saves 50% of the bytes" in finding.statement
    # On full cores others run while a message waits for its other end.
    waiting = {"cpu_seconds": 2.0, "wait_seconds": 3.0}
    records = [*iterations(CASE, tasks=waiting, activities=spent), *moved]
    effect = found(CASE, records)["compression"].effect
    assert (effect.low, effect.high) == pytest.approx((0.3 - 0.1, 0.3))
    # A wire on which the saved bytes take longer.
    slow = [*fetches(CASE, 9.5, 10_000_000)]
    slow += launches(
        setting(CASE, "distributed.comm.compression", "lz4"), log_count(CASE),
        builders.wire(CASE, 1_000_000, src="1", dst="0"),
    )  # fmt: skip
    assert "compression" not in found(CASE, [*iterations(CASE, activities=spent), *slow])
    # Tasks that run go on.
    assert "compression" not in found(
        CASE, [*iterations(CASE, tasks=BUSY, activities=spent), *moved]
    )


def test_the_effect_of_compression_is_unknown_where_some_data_are_nearly_empty():
    # One in eleven takes less than compressing the average does.
    moved, settings = [*fetches(CASE, 0.03, 10_000_000)], []
    for n in range(1, 11):
        moved += [
            dataclasses.replace(
                each, start_s=each.start_s + n * 0.5, stop_s=each.stop_s + n * 0.5 + 0.42
            )
            for each in fetches(CASE, 0.03, 10_000_000)
        ]
    settings += launches(
        setting(CASE, "distributed.comm.compression", "lz4"), log_count(CASE),
        builders.wire(CASE, 14_000_000, src="1", dst="0"),
    )  # fmt: skip
    spent = [("get-data", "compress", 1.2), ("gather-dep", "decompress", 0.8)]
    records = [*iterations(CASE, activities=spent), *moved, *settings]
    effect = found(CASE, records)["compression"].effect
    assert effect.low == 0.0 < 0.2 <= effect.high


@pytest.mark.parametrize(("nbytes", "rule"), [(1000, "small-messages"), (10**7, "bandwidth")])
def test_waits_for_data_are_of_small_or_of_large_messages(nbytes, rule):
    both, few = (exchange(CASE, nbytes, n) for n in (200, 5))
    by_rule = found(CASE, [*iterations(CASE), *both])
    assert by_rule.keys() & {"small-messages", "bandwidth"} == {rule}
    # A few messages wait for a busy peer.
    assert ("small-messages" in found(CASE, [*iterations(CASE), *few])) is False
    assert by_rule[rule].effect.high == pytest.approx(0.4)
    assert "task threads await data 40% of the time" in by_rule[rule].statement


def test_a_busy_scheduler_is_the_limit_of_idle_workers():
    tiny = [task(CASE, 0, 0.0006)] * 5000
    busy = {"cpu_seconds": 8.0}
    by_rule = found(CASE, [*iterations(CASE, scheduler=busy), *launches(*tiny)])
    effect = by_rule["scheduler"].effect
    # Together they take 165 % of the time. Of the rest, threads wait for these tasks, too.
    assert (effect.low, effect.high) == pytest.approx((0.65, 1.0), abs=0.01)
    # A few tasks don't keep a scheduler busy.
    records = [*iterations(CASE, scheduler=busy), *launches(*tiny[:3])]
    assert "scheduler" not in found(CASE, records)
    assert "scheduler" not in found(CASE, [*iterations(CASE), *launches(*tiny)])


def test_tiny_tasks_keep_the_event_loops_of_workers_busy_too():
    half = [*iterations(CASE, loop={"cpu_seconds": 3.0})]
    tiny, longer = ([task(CASE, 0, seconds)] * 3000 for seconds in (0.001, 0.02))
    by_rule = found(CASE, [*half, *launches(*tiny)])
    # Scheduler and workers take 60 % of the time, and tasks 15 %.
    effect = by_rule["scheduler"].effect
    assert (effect.low, effect.high) == pytest.approx((0.45, 1.0), abs=0.01)
    assert (
        "busy 30% and each worker's event loop 30% of the time, with"
        in by_rule["scheduler"].statement
    )
    assert "scheduler" not in found(CASE, [*half, *launches(*longer)])
    # They work at the same time: no more can be saved than the time without a task.
    both = iterations(
        CASE, tasks={"cpu_seconds": 4.0}, loop={"cpu_seconds": 4.0}, scheduler={"cpu_seconds": 9.0},
        activities=[("execute", "thread-cpu", 4.0)],
    )  # fmt: skip
    by_rule = found(CASE, [*both, *launches(*tiny, *tiny)])
    assert by_rule["scheduler"].effect.high == pytest.approx(0.6, abs=0.01)
    # Loops that wait for a core keep tasks waiting as well, but those that hardly work don't.
    waiting, lazy = (
        iterations(CASE, loop={"cpu_seconds": seconds, "wait_seconds": 3.0})
        for seconds in (1.5, 0.5)
    )
    finding = found(CASE, [*waiting, *launches(*tiny)])["scheduler"]
    assert "15% of the time (and waiting for a core 30% and 30%), with" in finding.statement
    # Waits may be for the same cores, and due to others.
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.15, 1.0), abs=0.01)
    assert "scheduler" not in found(CASE, [*lazy, *launches(*tiny)])
    # A scheduler that is busy for 3 ms per task is busy with something else, such as bytes.
    busy = [*iterations(CASE, scheduler={"cpu_seconds": 6.0})]
    assert "scheduler" not in found(CASE, [*busy, *launches(*longer[:2000])])
    assert "scheduler" in found(CASE, [*busy, *launches(*longer, *longer)])
    # Loops of tasks that receive 200 kB each are busy with bytes.
    moved = fetches(CASE, 1.0, 2 * 10**5 * 3000)
    assert "scheduler" not in found(CASE, [*half, *launches(*tiny), *moved])
    # Workers' loops that are busy for 12 ms per task are busy with something else.
    most = iterations(CASE, loop={"cpu_seconds": 6.0}, scheduler={"cpu_seconds": 0.5})
    assert "scheduler" not in found(CASE, [*most, *launches(*tiny[:1000])])


def test_a_worker_with_most_of_the_work_is_named():
    records = changed(iterations(CASE, tasks={"cpu_seconds": 1.0}), "tasks", cpu_seconds=9.0)
    records += launches(
        activity(CASE, "execute", "thread-cpu", 9.0, worker="1"),
        activity(CASE, "execute", "thread-cpu", 1.0, worker="0"),
    )
    finding = found(CASE, records)["skew"]
    assert finding.effect.share == pytest.approx(0.4)
    assert finding.statement.startswith("worker 1 is in tasks 90% of the time")
    assert finding.remedy.startswith("divide the data evenly")
    for worker, name, remedy in (
        ("1", "fit", "divide the step fit"), ("0", "fit", "divide the data evenly"),
        ("1", "finalize-hlg", "don't compute() the whole result"),
    ):  # fmt: skip
        long = launches(task(CASE, 0, 8, name=name, worker=worker))
        assert found(CASE, [*records, *long])["skew"].remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("seconds", "numbers", "nbytes", "remedy"),
    [
        # As many tasks that take twice as long.
        ((2.0, 4.0), (40, 40), (9, 9), "see what slows it down (clock, cores, other programs)"),
        # They have larger results, or there are more.
        ((2.0, 4.0), (40, 40), (9, 18), "divide the data evenly"),
        ((2.0, 4.0), (20, 40), (9, 9), "divide the data evenly"),
        # Tasks one after the other, of one worker and of both.
        ((0.0, 9.0), (0, 9), (9, 9), "see why only some workers have tasks"),
        ((0.1, 9.0), (1, 9), (9, 9), "see whether tasks need each other"),
    ],
)
def test_a_slow_host_or_a_chain_of_tasks_is_no_uneven_data(seconds, numbers, nbytes, remedy):
    records = changed(iterations(CASE, tasks={"cpu_seconds": 1.0}), "tasks", cpu_seconds=9.0)
    for launch in range(6):
        for worker, total_s, n, size in zip("01", seconds, numbers, nbytes, strict=True):
            records += [
                task(CASE, 100 * launch + k * total_s / n, 100 * launch + (k + 1) * total_s / n,
                     worker=worker, launch=launch, key=f"fit-{worker}-{k}", nbytes=size)
                for k in range(n)
            ]  # fmt: skip
    records += launches(
        activity(CASE, "execute", "thread-cpu", 9.0, worker="1"),
        activity(CASE, "execute", "thread-cpu", 1.0, worker="0"),
    )
    assert found(CASE, records)["skew"].remedy.startswith(remedy)


def test_shuffles_to_one_worker_are_unbalanced():
    batches = fetches(CASE, 8.0, 10**7, channel="p2p")
    finding = found(CASE, [*iterations(CASE), *batches])["unbalanced-p2p"]
    assert "2.0 times the average" in finding.statement
    assert finding.effect.share == pytest.approx(0.4)
    # With a quarter of the input, a worker receives three times as much of the same output.
    both = [*fetches(CASE, 6.0, 3 * 10**7, channel="p2p"),
            *fetches(CASE, 2.0, 10**7, channel="p2p", dst="1", src="0")]  # fmt: skip
    assert "unbalanced-p2p" in found(CASE, [*iterations(CASE), *both])
    inputs = [
        each
        for launch in range(6)
        for n, worker in enumerate("0111")
        for each in [task(CASE, 100 * launch, 100 * launch + 0.1, worker=worker, thread=n,
                          name="rechunk-merge-rechunk-transfer", launch=launch)]
    ]  # fmt: skip
    assert "unbalanced-p2p" not in found(CASE, [*iterations(CASE), *both, *inputs])
    # One worker has the largest output, another one receives the most.
    uneven = [*fetches(CASE, 6.0, 2 * 10**7, channel="p2p"),
              *fetches(CASE, 2.0, 10**7, channel="p2p", dst="1", src="0")]  # fmt: skip
    most = [dataclasses.replace(each, worker="01"[each.thread > 0]) for each in inputs]
    most += [dataclasses.replace(each, thread=each.thread + 4, worker="1") for each in inputs]
    statement = found(CASE, [*iterations(CASE), *uneven, *most])["unbalanced-p2p"].statement
    assert "1.6 times the average" in statement
    assert "receives 10.0 MB" in statement
    # What the only worker with input keeps is not known.
    alone = [dataclasses.replace(each, worker="1") for each in inputs]
    assert "unbalanced-p2p" not in found(CASE, [*iterations(CASE), *batches, *alone])
    # Tasks that run meanwhile take as long without it.
    assert "unbalanced-p2p" not in found(CASE, [*iterations(CASE, tasks=BUSY), *batches])


def test_tasks_that_depend_on_each_other_leave_threads_without_a_task():
    case = case_of(n_threads=2)
    chain = [
        task(case, 100 * launch + k, 100 * launch + k + 1, worker=str(k % 2), launch=launch)
        for launch in range(6) for k in range(10)
    ]  # fmt: skip
    finding = found(case, [*iterations(case), *chain])["parallelism"]
    # Tasks that wait for others have left their threads.
    seceded = launches(*(activity(case, "execute", "seceded", 5.0, worker=w) for w in "01"))
    waiting = found(case, [*iterations(case), *chain, *seceded])["parallelism"]
    assert waiting.statement.startswith("0.5 tasks of each worker have left their threads")
    assert waiting.remedy.startswith("if they wait for tasks that they submit, submit all of")
    assert waiting.remedy.endswith(f"else {finding.remedy}")
    assert "while any task runs, 1.0 run at once on 4 task threads" in finding.statement
    assert finding.effect.share == pytest.approx(0.75)
    assert finding.remedy.startswith("make more partitions or chunks, or ")
    # Smaller chunks make more messages, and larger graphs.
    busy_client = [
        thread_time(case, "client", role, launch=launch, cpu_seconds=3.0)
        for launch in range(6) for role in ("loop", "other")
    ]  # fmt: skip
    for rule, cause in (
        ("small-messages", exchange(case, 1000, 200)), ("preparation", busy_client)
    ):  # fmt: skip
        by_rule = found(case, [*iterations(case), *chain, *cause])
        assert rule in by_rule
        assert by_rule["parallelism"].remedy == (
            "call compute once for several results, or submit all calls before the first result()"
        )
    # A scheduler that can't keep up is another cause.
    chain_of_tiny = [dataclasses.replace(each, name=str(n)) for each in chain for n in range(500)]
    limited = [*iterations(case, scheduler={"cpu_seconds": 8.0}), *chain_of_tiny]
    assert "parallelism" not in found(case, limited)
    # So is a disk, which blocks the loops of workers that spill.
    disk = [("execute", "disk-read", 2.0)]
    spilled = [*iterations(case, activities=disk), *launches(spill(case, 5 * 10**8))]
    assert found(case, [*spilled, *chain]).keys() & {"spilling", "parallelism"} == {"spilling"}
    # A task that began long before the region in which it ends.
    earlier = [
        task(case, 100 * launch - 50, 100 * launch + 0.5, launch=launch) for launch in range(6)
    ]
    assert "parallelism" not in found(case, [*iterations(case), *earlier])
    # What one worker has more is skew.
    skewed = [dataclasses.replace(each, case_id=CASE.id, worker="1") for each in chain]
    by_rule = found(CASE, [*iterations(CASE), *skewed])
    assert by_rule.keys() & {"skew", "parallelism"} == {"skew"}


def test_workers_wait_while_client_and_scheduler_prepare_tasks():
    other = [
        thread_time(CASE, process, role, launch=launch, cpu_seconds=seconds)
        for launch in range(6)
        for process, role, seconds in (
            ("client", "other", 3.0), ("scheduler", "offload", 1.0), ("scheduler", "native", 5.0),
        )
    ]  # fmt: skip
    clients = [thread_time(CASE, "client", "loop", launch=launch) for launch in range(6)]
    assert "preparation" not in found(CASE, [*iterations(CASE), *clients, *other])
    clients += launches(task(CASE, 8.0, 8.1))
    finding = found(CASE, [*iterations(CASE), *clients, *other])["preparation"]
    assert "compute 30% of the time, and the scheduler's 10%" in finding.statement
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.4, 0.4), abs=0.01)
    # A script that sleeps computes nothing, but no task runs meanwhile, either.
    script = launches(
        line_time(CASE, 6.0, "job.py:7 time.sleep(6)", role="script", name=""),
        line_time(CASE, 2.0, "job.py:8 x.compute()", role="wait", name=""),
        builders.region(CASE, 10.0),
    )
    finding = found(CASE, [*iterations(CASE), *clients, *other, *script])["preparation"]
    assert finding.statement.endswith("; the script takes 60%, longest at job.py:7")
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.4, 0.6), abs=0.01)
    assert finding.remedy.startswith("let tasks do what the script does at job.py:7, or if it")
    # A client in the scheduler's process is part of it.
    shared = [each for each in other if each.worker == "scheduler"]
    shared += [
        thread_time(CASE, "scheduler", "other", launch=launch, cpu_seconds=3.0)
        for launch in range(6)
    ]  # fmt: skip
    shared += launches(task(CASE, 8.0, 8.1))
    finding = found(CASE, [*iterations(CASE), *shared])["preparation"]
    assert finding.statement.startswith("the threads of client and scheduler compute 40% outside")
    # Threads with tasks don't wait.
    busy = iterations(CASE, tasks={"cpu_seconds": 9.8})
    assert "preparation" not in found(CASE, [*busy, *clients, *other])


def test_data_in_few_tasks_keep_the_scheduler_busy():
    tasks = launches(*(task(CASE, k / 2, k / 2 + 0.1) for k in range(20)))
    works = {"cpu_seconds": 7.0, "idle_n_turns": 1}
    busy = [*iterations(CASE, scheduler=works)]
    finding = found(CASE, [*busy, *tasks])["scheduler-data"]
    assert "busy 70% of the time with 20 tasks per iteration" in finding.statement
    assert finding.effect.share == pytest.approx(0.7, abs=0.01)
    # The loop waits for a core, and the client prepares the data.
    waiting = iterations(CASE, scheduler=works | {"cpu_seconds": 4.0, "wait_seconds": 2.0})
    prepares = launches(thread_time(CASE, "client", "other", cpu_seconds=1.0))
    effect = found(CASE, [*waiting, *tasks, *prepares])["scheduler-data"].effect
    assert (effect.low, effect.high) == pytest.approx((0.4, 0.7), abs=0.01)
    # Threads with tasks don't wait.
    full = iterations(CASE, tasks=BUSY, scheduler=works)
    assert "scheduler-data" not in found(CASE, [*full, *tasks])
    # Without tasks there are no data in them.
    assert "scheduler-data" not in found(CASE, busy)
    # A loop that was never idle may poll.
    unknown = iterations(CASE, scheduler=works | {"idle_n_turns": 0})
    assert "scheduler-data" not in found(CASE, [*unknown, *tasks])
    # The bytes of a user's graphs are known, and the line that sent them.
    little = [*iterations(CASE, scheduler=works | {"cpu_seconds": 0.9})]
    graphs = [
        graph(CASE, k, 0.0, f"job.py:{k} x.compute()", nbytes=(k + 1) * 5_100_000, n_tasks=20,
              launch=launch)
        for launch in range(6) for k in range(2)
    ]  # fmt: skip
    finding = found(CASE, [*little, *tasks, *graphs, *prepares])["scheduler-data"]
    assert "carry 15.1 MB of data (most: job.py:1) through the scheduler" in finding.statement
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.086, 0.086), abs=0.001)
    # Sending them is measured, and what the script computes is no part of it.
    sends = [dataclasses.replace(each, send_seconds=0.5) for each in graphs]
    finding = found(CASE, [*little, *tasks, *sends, *prepares])["scheduler-data"]
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.186, 0.186), abs=0.001)
    # Workers unpack at most as long as the scheduler packs.
    unpacks = changed(little, "loop", cpu_seconds=5.0)
    finding = found(CASE, [*unpacks, *tasks, *graphs])["scheduler-data"]
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.086, 0.172), abs=0.001)
    # Large graphs of many tasks are no data.
    larger = launches(graph(CASE, 2, 0.0, "job.py:9 map()", nbytes=20_000_000, n_tasks=9000))
    finding = found(CASE, [*little, *tasks, *graphs, *larger])["scheduler-data"]
    assert "15.1 MB of data (most: job.py:1)" in finding.statement
    # Many tasks make a large graph, too.
    many = launches(graph(CASE, 0, 0.0, nbytes=15_000_000, n_tasks=3000))
    assert "scheduler-data" not in found(CASE, [*little, *tasks, *many])
    # A seventh of the time is less than the limit, and so is what 2000 tasks take.
    for seconds, n in ((1.4, 20), (5.0, 2000)):
        some = iterations(CASE, scheduler=works | {"cpu_seconds": seconds})
        many = launches(*(task(CASE, 0.004 * k, 0.004 * k + 0.001) for k in range(n)))
        assert "scheduler-data" not in found(CASE, [*some, *many])
    # Results that the client gathers are another cause.
    wire = [
        observed.WireBytes(case_id=CASE.id, launch=launch, iteration=0, src="0", dst="",
                           nbytes=10**9, n_messages=100)
        for launch in range(6)
    ]  # fmt: skip
    by_rule = found(CASE, [*busy, *tasks, *wire])
    assert by_rule.keys() & {"gathered", "scheduler-data"} == {"gathered"}


def in_turns(n, pause_s, first_s=0.0, graphs=itertools.repeat(-1)):  # noqa: B008 - it has no end
    """Return tasks of half a second, each of which begins after a pause."""
    step = 0.5 + pause_s
    return launches(*(
        task(CASE, first_s + k * step, first_s + k * step + 0.5, graph=graph)
        for k, graph in zip(range(n), graphs, strict=False)
    ))  # fmt: skip


def test_computations_one_after_another_leave_pauses():
    finding = found(CASE, [*iterations(CASE), *in_turns(11, 0.4)])["successive"]
    assert finding.statement == (
        "10 computations follow one after another, and 40% of the time no task runs"
    )
    graphs = launches(*(graph(CASE, n, 0.0) for n in range(12)))
    finding = found(CASE, [*iterations(CASE), *in_turns(11, 0.4), *graphs])["successive"]
    assert finding.statement.startswith("10 of 12 computations follow")
    assert finding.effect.share == pytest.approx(0.4)
    # What the client does for each computation may be saved.
    works = launches(thread_time(CASE, "client", "other", cpu_seconds=7.0))
    effect = found(CASE, [*iterations(CASE), *works, *in_turns(11, 0.4)])["successive"].effect
    assert (effect.low, effect.high) == pytest.approx((0.3, 0.4))
    # Fewer pauses, shorter ones, and the time before the first task are none of it.
    tiny = launches(*(task(CASE, 0.008 * k, 0.008 * k + 0.004) for k in range(1200)))
    for tasks in (in_turns(10, 0.4), in_turns(11, 0.1), in_turns(10, 0.1, first_s=3.0), tiny):
        assert "successive" not in found(CASE, [*iterations(CASE), *tasks])
    # Pauses within a computation are none between computations.
    each = [*iterations(CASE), *in_turns(11, 0.4, graphs=range(11))]
    assert found(CASE, each)["successive"].effect.share == pytest.approx(0.4)
    for graphs in (itertools.repeat(3), [k // 2 for k in range(11)]):
        assert "successive" not in found(
            CASE, [*iterations(CASE), *in_turns(11, 0.4, graphs=graphs)]
        )
    # A computation may begin with a fetch.
    fetches = launches(*(transfer(CASE, 0.9 * k - 0.01, 0.9 * k, 10**6) for k in range(1, 11)))
    each += fetches
    assert found(CASE, each)["successive"].effect.share == pytest.approx(0.39, abs=0.01)
    # Graphs that were sent ahead don't wait for the client.
    ahead = launches(*(builders.graph(CASE, k, 0.0) for k in range(11)))[:11]
    assert "successive" not in found(CASE, [*each, *ahead])
    # Loops that unpickle data don't wait for the client.
    for part in ({"cpu_seconds": 9.0}, {"wait_seconds": 9.0}):
        working = changed(iterations(CASE), "loop", worker="0", **part)
        working = changed(working, "loop", worker="1", **part)
        assert "successive" not in found(CASE, [*working, *in_turns(11, 0.4)])
    # The effect is a part of the time that task threads are idle.
    some = iterations(CASE, tasks={"cpu_seconds": 7.0})
    assert found(CASE, [*some, *in_turns(11, 0.4)])["successive"].effect.share < 0.31
    # Workers that fetch don't wait for the client.
    moving = launches(transfer(CASE, 0.0, 10.0, 10**6))
    assert "successive" not in found(CASE, [*iterations(CASE), *in_turns(11, 0.4), *moving])
    # So do workers that are paused, for another cause.
    paused = [spill(CASE, 0, worker=n, n_values=0, paused_seconds=4.0) for n in "01"]
    by_rule = found(CASE, [*iterations(CASE), *in_turns(11, 0.4), *launches(*paused)])
    assert by_rule.keys() & {"memory-pauses", "successive"} == {"memory-pauses"}
    # A scheduler that is busy is another cause, and so is a client.
    busy = iterations(CASE, scheduler={"cpu_seconds": 9.0})
    assert "successive" not in found(CASE, [*busy, *in_turns(11, 0.4)])
    for process, role in (("client", "loop"), ("client", "other"), ("scheduler", "other")):
        script = launches(thread_time(CASE, process, role, cpu_seconds=9.0))
        assert "successive" not in found(CASE, [*iterations(CASE), *in_turns(11, 0.4), *script])


def test_tasks_that_have_run_before_in_an_iteration_run_again():
    def loads(first_s, n=8, seconds=1.0, **given):
        return [
            task(CASE, first_s + (k // 2) * seconds, first_s + (k // 2 + 1) * seconds, str(k % 2),
                 name="load", key=f"load-{k}", nbytes=10**6, **given)
            for k in range(n)
        ]  # fmt: skip

    others = [task(CASE, 4.0, 5.0, name="sum", key=f"sum-{k}") for k in range(2)]
    finding = found(CASE, [*iterations(CASE), *launches(*loads(0.0), *others, *loads(5.0))])
    finding = finding["recomputed"]
    assert finding.statement.startswith("8 of 18 tasks per iteration repeat earlier ones, which")
    assert "40% of the task threads' time, most in load" in finding.statement
    assert "(at most 8.00 MB)" in finding.remedy
    assert finding.effect.share == pytest.approx(0.4)
    # A script that runs once has no iterations.
    once = case_of(launcher="user")
    records = [*iterations(once), *launches(*loads(0.0), *others, *loads(5.0))]
    records = [
        dataclasses.replace(each, case_id=once.id) for each in records if each.launch == 0
    ]  # fmt: skip
    statement = found(once, [*records, builders.region(once, 10.0)])["recomputed"].statement
    assert statement.startswith("8 of 18 tasks repeat earlier ones, which takes")
    # One after another, the same time of tasks takes twice as long.
    serial = [dataclasses.replace(each, worker="0") for each in loads(5.0, n=2)]
    serial[1] = dataclasses.replace(serial[1], start_s=serial[0].stop_s,
                                    stop_s=serial[0].stop_s + 1.0)  # fmt: skip
    effect = found(CASE, [*iterations(CASE), *launches(*loads(0.0), *serial)])["recomputed"].effect
    assert (effect.low, effect.share, effect.high) == pytest.approx((0.1, 0.15, 0.2))
    # Busy threads save no more than the time of these tasks.
    full = iterations(CASE, tasks=BUSY)
    assert found(CASE, [*full, *launches(*loads(0.0), *serial)])["recomputed"].effect.high < 0.13
    # What doesn't fit in memory can't be kept.
    spilled = [spill(CASE, 0, worker=n, n_values=0, paused_seconds=4.0) for n in "01"]
    again = launches(*loads(0.0), *loads(5.0), *spilled)
    remedy = found(CASE, [*iterations(CASE), *again])["recomputed"].remedy
    assert remedy.startswith("call compute once for all results")
    # In other iterations, without known keys, and for a twentieth of the time they don't.
    no_keys = [dataclasses.replace(each, key="") for each in (*loads(0.0), *loads(5.0))]
    moved = [dataclasses.replace(each, action="transfer") for each in loads(5.0)]
    for tasks in (loads(0.0), no_keys, loads(0.0) + moved, loads(0.0) + loads(9.0, 1)):
        assert "recomputed" not in found(CASE, [*iterations(CASE), *launches(*tasks)])


def test_data_that_are_read_again_with_other_columns_may_be_the_same():
    def reads(graph, start_s, n=2, name="read-csv", key="('read-csv-{graph}', {k})"):
        return [
            task(CASE, start_s, start_s + 3.0, name=name, worker=str(k % 2), graph=graph,
                 key=key.format(graph=graph, k=k))
            for k in range(n)
        ]  # fmt: skip

    graphs = [builders.graph(CASE, k, 3.0 * k, f"a.py:{7 + k} x.sum().compute()") for k in range(2)]
    tasks = [*reads(0, 0.0), *reads(1, 3.0)]
    finding = found(CASE, [*iterations(CASE), *launches(*tasks, *graphs)])["recomputed"]
    assert finding.statement == (
        "2 of 4 tasks per iteration may read data again, as many pieces as an earlier computation, "
        "which takes "
        "30% of the task threads' time: read-csv, by a.py:8"
    )
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.0, 0.3))
    assert finding.remedy.startswith("if they read the same data, keep them, x = x.persist()")
    # Without the statements, the rest remains.
    statement = found(CASE, [*iterations(CASE), *launches(*tasks)])["recomputed"].statement
    assert statement.endswith("time: read-csv")
    # Other numbers of pieces, one graph, functions of client.submit and other names don't count,
    # and neither does a single piece.
    single = [*iterations(CASE), *launches(*reads(0, 0.0, n=1), *reads(1, 3.0, n=1))]
    assert "recomputed" not in found(CASE, single)
    for others in (
        reads(1, 3.0, n=3), reads(0, 3.0, key="('other', {k})"), reads(1, 3.0, key="read-{k}-1"),
        reads(1, 3.0, name="spread-add"), reads(-1, 3.0), reads(1, 3.0, n=1),
    ):  # fmt: skip
        read = [*iterations(CASE), *launches(*reads(0, 0.0), *others)]
        assert "recomputed" not in found(CASE, read)


def test_first_tasks_that_import_modules_take_longer_on_each_worker():
    def tasks(first_s, *workers, n=10):
        return launches(
            *(task(CASE, 0.0, first_s, worker=worker) for worker in workers),
            *(task(CASE, 5 + k / 10, 5.1 + k / 10, worker=w) for k in range(n) for w in "01"),
        )

    records = [*iterations(CASE, tasks={"cpu_seconds": 5.0})]
    records += launches(*(activity(CASE, "execute", "thread-cpu", 5.0, worker=w) for w in "01"))
    finding = found(CASE, [*records, *tasks(2.1, *"01")])["first-tasks"]
    assert finding.effect.share == pytest.approx(0.2)
    assert "on each worker takes 2.10 s, and a later one 100 ms" in finding.statement
    # One worker only, little longer ones, and ones without any later are something else.
    others = [tasks(2.1, "1"), tasks(0.45, *"01"), tasks(2.1, *"01", n=0)]
    # So is the longest of several long tasks, which begins first.
    long = [task(CASE, 2.5, 3.5, worker=worker) for worker in "01"]
    others.append([*tasks(2.1, *"01"), *launches(*long, *long)])
    for each in others:
        assert "first-tasks" not in found(CASE, [*records, *each])


def test_threads_of_libraries_that_take_the_cores_are_named():
    waits = [*iterations(CASE, tasks={"cpu_seconds": 3.0, "wait_seconds": 5.0})]
    assert "libraries" not in found(CASE, waits)["few-cores"].statement
    libraries = [
        thread_time(CASE, worker, "native", launch=launch, cpu_seconds=15.0)
        for launch in range(6) for worker in "01"
    ]  # fmt: skip
    finding = found(CASE, [*waits, *libraries])["few-cores"]
    assert "threads of libraries, which use 3.0 of them" in finding.statement
    assert finding.remedy.startswith("limit the threads of libraries")


def test_others_use_nothing_of_a_quota():
    records = [*iterations(CASE, tasks={"cpu_seconds": 3.0, "wait_seconds": 3.0})]
    records += launches(builders.core_use(CASE, others=0.4))
    finding = found(CASE, records)["few-cores"]
    assert "with other programs, which use 40%" in finding.statement
    assert finding.is_external
    # On both cores, the CPU time of the case alone would take 30% of the time.
    assert finding.effect.share == pytest.approx(0.3, abs=0.01)
    crowded = [*iterations(CASE, tasks={"cpu_seconds": 6.0, "wait_seconds": 4.0})]
    crowded += launches(
        builders.core_use(CASE, others=0.4), activity(CASE, "execute", "thread-cpu", 6.0)
    )
    assert found(CASE, crowded)["few-cores"].effect.share == pytest.approx(0.4, abs=0.01)
    busy = [
        *iterations(
            CASE, tasks={"cpu_seconds": 6.0, "wait_seconds": 4.0}, loop={"cpu_seconds": 3.0}
        ),
        *launches(builders.core_use(CASE, others=0.2)),
    ]
    # It takes both by itself.
    alone = found(CASE, busy)["few-cores"]
    assert (alone.remedy, alone.is_external) == ("use more cores", False)
    # Where their use is unknown, they may be the reason.
    unknown = found(CASE, crowded[:-12])["few-cores"]
    assert "use 60% of them: other programs may use the rest" in unknown.statement
    assert not unknown.is_external
    quota = {"cpu": {"usable_cores": 64, "cgroup_quota_cores": 2}}
    assert "other programs" not in found(CASE, records, quota)["few-cores"].statement
    # Of workers on several hosts, nobody knows how much the case uses.
    apart = [place(CASE, n, host=n, host_id=n, launch=launch) for n in "01" for launch in range(6)]
    elsewhere = [each for each in records if not isinstance(each, observed.WorkerPlace)]
    finding = found(CASE, [*elsewhere, *apart])["few-cores"]
    assert finding.statement.endswith("share the cores with other programs, which use 40% of them")
    assert finding.effect.share == pytest.approx(0.3, abs=0.01)


def test_bytes_that_are_slow_to_serialize_need_no_faster_backend():
    both = exchange(CASE)
    for seconds, n_trials in ((1.0, True), (3.0, False)):
        coding = [("gather-dep", "deserialize", seconds)]
        finding = found(CASE, [*iterations(CASE, activities=coding), *both])["bandwidth"]
        assert bool(finding.trials) is n_trials
        assert ("Python objects" in finding.remedy) is not n_trials
    # What workers spill is serialized, too.
    coding += [("memory-monitor", "disk-write", 1.0)]
    records = [*iterations(CASE, activities=coding), *launches(spill(CASE, 5 * 10**8)), *both]
    assert found(CASE, records)["bandwidth"].trials


def test_the_cores_of_other_hosts_are_not_too_few_for_short_waits():
    records = [
        dataclasses.replace(each, host_id="b", host="b")
        if isinstance(each, observed.WorkerPlace) and each.worker == "1" else each
        for each in iterations(CASE, tasks={"cpu_seconds": 3.0, "wait_seconds": 1.5})
    ]  # fmt: skip
    assert "few-cores" not in found(CASE, records)
    longer = [
        dataclasses.replace(each, wait_seconds=3.0)
        if isinstance(each, observed.ThreadTime) and each.role == "tasks" else each
        for each in records
    ]  # fmt: skip
    assert "few-cores" in found(CASE, longer)


def test_encryption_takes_time_for_each_byte_at_both_ends():
    case = builders.case("tls")
    records = [*iterations(case), *fetches(case, 4.0, 10**9, 2)]
    finding = found(case, records)["encryption"]
    # Two workers encrypt and decrypt 2 GB in 10 s; a message waits for both.
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.2, 0.4))
    assert finding.trials == ({"backend": "tcp"},)
    few = [*iterations(case), *fetches(case, 4.0, 10**8)]
    assert "encryption" not in found(case, few)
    # Bytes of a long iteration take nothing of the others.
    again = [
        dataclasses.replace(each, iteration=n, **({"seconds": 100.0} if n == 2 else {}))
        for n in (1, 2) for each in iterations(case) if hasattr(each, "iteration")
    ]  # fmt: skip
    long = fetches(case, 4.0, 2 * 10**10, iteration=2)
    assert "encryption" not in found(case, [*iterations(case), *again, *long])
    # Four workers share two full cores.
    four = dataclasses.replace(case, cluster=dataclasses.replace(case.cluster, n_workers=4))
    full = {"cpu_seconds": 2.0, "wait_seconds": 4.0}
    records = [*iterations(four, tasks=full), *fetches(four, 4.0, 10**9)]
    effect = found(four, records)["encryption"].effect
    assert (effect.low, effect.high) == pytest.approx((0.1, 0.1))
    assert "encryption" not in found(CASE, [*iterations(CASE), *fetches(CASE, 4.0, 10**9, 2)])
    busy = [*iterations(case, tasks=BUSY), *fetches(case, 4.0, 10**9, 2)]
    assert "encryption" not in found(case, busy)


def test_spilling_takes_what_the_disk_takes():
    case = case_of(memory_limit="1GB")
    disk = [("execute", "disk-read", 2.0), ("memory-monitor", "disk-write", 1.0)]
    records = [*iterations(case, activities=disk), *launches(spill(case, 5 * 10**8))]
    finding = found(case, records)["spilling"]
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.3, 0.3))
    assert finding.trials == ({"memory_limit": "2000MB"},)
    assert "LocalCluster(" in finding.remedy
    for memory in ({"total_bytes": 3e9}, {"total_bytes": 9e9, "cgroup_limit_bytes": 3e9}):
        assert found(case, records, CORES | {"memory": memory})["spilling"].trials == ()
    roomy = {"total_bytes": 9e9, "cgroup_limit_bytes": "unlimited"}
    assert found(case, records, CORES | {"memory": roomy})["spilling"].trials
    # Awaited data may be on a disk at the other end, whose writes the worker's may overlap.
    awaited = [*records, *fetches(case, 2.0, 10**8), *fetches(case, 2.0, 10**8, dst="1", src="0")]
    effect = found(case, awaited)["spilling"].effect
    assert (effect.low, effect.high) == pytest.approx((0.3 + 0.2 - 0.3 * 0.2, 0.3 + 0.2))
    # What is written fits, or as much of it as the host has memory for.
    much = [
        *iterations(case, activities=disk),
        *launches(spill(case, 12 * 10**8, worker="0"), spill(case, 12 * 10**8, worker="1")),
    ]
    uneven = [*iterations(case, activities=disk), *launches(spill(case, 24 * 10**8))]
    assert found(case, uneven)["spilling"].trials == ({"memory_limit": "5000MB"},)
    for total_bytes, limit in ((9e9, "3000MB"), (6e9, "2400MB"), (4e9, "")):
        trials = found(case, much, CORES | {"memory": {"total_bytes": total_bytes}})[
            "spilling"
        ].trials
        assert trials == (({"memory_limit": limit},) if limit else ())
    # The memory of other hosts is unknown.
    elsewhere = found(case, records, CORES | {"host": {"name": "here"}})["spilling"]
    assert elsewhere.trials == ()
    assert elsewhere.remedy.startswith("give workers more memory, persist less")
    alone = case_of(memory_limit="1GB", n_workers=1)
    records = [*iterations(alone, activities=disk), *launches(spill(alone, 5 * 10**8))]
    effect = found(alone, records)["spilling"].effect
    assert (effect.low, effect.high) == pytest.approx((0.3, 0.3))
    busy = [*iterations(case, tasks=BUSY, activities=disk), *launches(spill(case, 5 * 10**8))]
    assert "spilling" not in found(case, busy)
    # A pause is no spilling.
    paused = [*iterations(case, activities=disk), *launches(spill(case, 0, paused_seconds=1.0))]
    assert "spilling" not in found(case, paused)
    for text in ("4gb", "4000000000", "4 GB"):
        spelled = case_of(memory_limit=text)
        records = [*iterations(spelled, activities=disk), *launches(spill(spelled, 5 * 10**8))]
        assert found(spelled, records)["spilling"].trials == ({"memory_limit": "8000MB"},)


def test_a_disk_that_shuffles_write_to_blocks_the_loops():
    def written(seconds):
        return [("p2p", "background-disk disk-write", seconds)]

    finding = found(CASE, iterations(CASE, activities=written(2.0)))["p2p-disk"]
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.2, 0.2))
    more = launches(activity(CASE, "p2p", "background-disk disk-write", 2.0, worker="0"))
    uneven = found(CASE, [*iterations(CASE, activities=written(2.0)), *more])["p2p-disk"].effect
    assert (uneven.low, uneven.high) == pytest.approx((0.3, 0.4))
    # Where memory is full, data without a disk would end workers.
    spills = [("gather-dep", "disk-write", 2.0)]
    full = [*iterations(CASE, activities=[*written(2.0), *spills]), *launches(spill(CASE))]
    assert found(CASE, full)["p2p-disk"].trials == ()
    # Dask can keep rechunked arrays in memory, but not frames.
    in_memory = ({"distributed.p2p.storage.disk": "false"},)
    assert finding.trials == in_memory
    for key, trials in (("random-rechunk-transfer-01", in_memory), ("shuffle-transfer-01", ())):
        records = [
            *iterations(CASE, activities=written(2.0)),
            *launches(task(CASE, 0, 0.1, key=key)),
        ]
        finding = found(CASE, records)["p2p-disk"]
        assert finding.trials == trials
        assert ("dataframe.shuffle.method: tasks" in finding.remedy) == (trials == ())
    # Tasks that run meanwhile take as long without it.
    assert "p2p-disk" not in found(CASE, iterations(CASE, tasks=BUSY, activities=written(2.0)))
    assert "p2p-disk" not in found(CASE, iterations(CASE, activities=written(0.3)))
    spilled = [("memory-monitor", "disk-write", 2.0)]
    assert "p2p-disk" not in found(CASE, iterations(CASE, activities=spilled))


@pytest.mark.parametrize(
    ("kinds", "named", "advice"),
    [
        (("ext4", "ext4"), " (ext4)", "take a faster disk"),
        (("nfs4", "nfs4"), " (nfs4)", "configuration): nfs4 is remote"),
        (("tmpfs", "tmpfs"), " (tmpfs)", "configuration): tmpfs is memory"),
        (("ext4", "nfs4"), "", "take a faster disk"),
        ((), "", "take a faster disk"),
    ],
)
def test_a_slow_disk_is_named_by_its_file_system(kinds, named, advice):
    case = case_of(memory_limit="1GB")
    disk = [("execute", "disk-read", 2.0), ("p2p", "background-disk disk-write", 2.0)]
    places = [builders.place(case, str(n), file_system=kind) for n, kind in enumerate(kinds)]
    known = [
        each for each in iterations(case, activities=disk) if type(each) is not observed.WorkerPlace
    ]
    findings = found(case, [*known, *launches(spill(case, 5 * 10**8)), *places])
    for rule in ("spilling", "p2p-disk"):
        assert f"to disk{named}" in findings[rule].statement
        # What is written to memory as fast as that is no faster on a disk.
        assert (advice in findings[rule].remedy) == (rule == "spilling" or "memory" not in advice)


def test_pauses_are_the_share_of_the_workers_time():
    records = [*iterations(CASE), *launches(spill(CASE, 0, n_values=0, paused_seconds=4.0))]
    finding = found(CASE, records)["memory-pauses"]
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.2, 0.4))
    # A task goes on, so that a thread with one loses nothing.
    busy = iterations(CASE, tasks={"cpu_seconds": 9.8}, activities=[("execute", "thread-cpu", 9.8)])
    assert "memory-pauses" not in found(CASE, [*busy, *records[-6:]])


def test_the_threads_of_a_worker_share_its_page_faults():
    case = case_of(n_threads=2)
    finding = found(case, iterations(case, tasks=WRITES, activities=FAULTS))["page-faults"]
    assert "take 10% of the time" in finding.statement
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.1, 0.1))
    # On full cores two workers save 4 of 20 CPU seconds.
    full = iterations(case, tasks=WRITES | {"wait_seconds": 12.0}, activities=FAULTS)
    finding = found(case, full)["page-faults"]
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.1, 0.2))
    # They save no more than the threads compute.
    many = iterations(case, tasks={"cpu_seconds": 1.0, "wait_seconds": 12.0}, activities=FAULTS)
    assert found(case, many)["page-faults"].effect.high == pytest.approx(0.1)
    few = [("memory", "page-faults", 0.4)]
    assert "page-faults" not in found(CASE, iterations(CASE, tasks=WRITES, activities=few))
    # What task threads don't compute, other threads have spent.
    tasks = {"cpu_seconds": 1.0}
    finding = found(CASE, iterations(CASE, tasks=tasks, activities=FAULTS))["page-faults"]
    assert "take 10% of the time" in finding.statement
    assert finding.effect.high == pytest.approx(0.1)


def test_the_settings_that_keep_freed_memory_are_advised_once():
    def advised(case, environment=CORES):
        records = iterations(case, tasks=WRITES, activities=FAULTS)
        return found(case, records, environment)["page-faults"]

    finding = advised(CASE)
    (kept,) = finding.trials
    assert all(f"{name}={value}" in finding.remedy for name, value in kept.items())
    other = case_of(env=dict(kept))
    for case, environment in ((other, CORES), (CASE, {**CORES, "variables": kept})):
        finding = advised(case, environment)
        assert not finding.trials
        assert finding.remedy == "make pieces of 32 MiB or less, which are not given back"
    early = case_of(env=dict.fromkeys(kept, "65536"))
    assert advised(early).trials == (kept,)
    # The variables of workers that others started are unknown.
    for other in (case_of(launcher=model.USER_CODE), case_of(scheduler="tcp://host:8786")):
        finding = advised(other, {**CORES, "variables": kept})
        assert "if the workers were started with MALLOC_TRIM" in finding.remedy
    # Full memory is another cause, and the settings would fill it further.
    spills = launches(spill(CASE, 0, n_values=0, paused_seconds=4.0))
    records = [*iterations(CASE, tasks=WRITES, activities=FAULTS), *spills]
    assert "page-faults" not in found(CASE, records)


def test_the_workers_of_a_region_are_those_that_there_are_in_most_iterations():
    case = case_of(n_workers=4)
    records = [each for each in iterations(case) if getattr(each, "worker", "") != "3"]
    run = builders.in_memory([case], records)
    assert CaseRecords(run, case).n_workers == 3
    assert CaseRecords(builders.in_memory([case]), case).n_workers == 4


def test_what_the_client_gathers_takes_as_long_as_between_workers():
    records = [*iterations(CASE), *fetches(CASE, 0.5, 50_000_000)]
    records += launches(builders.wire(CASE, 200_000_000, dst=""))
    finding = found(CASE, records)["gathered"]
    # 2 s at 100 MB/s, twice by way of the scheduler.
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.2, 0.4), abs=0.001)
    # Without a large fetch they take as long as 100 MB/s do.
    alone = [*iterations(CASE), *launches(builders.wire(CASE, 100_000_000, dst=""))]
    finding = found(CASE, alone)["gathered"]
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.0, 0.2), abs=0.001)
    assert "at least 100 MB/s is assumed" in finding.doubt
    # They are at least as fast as they were together, and may be faster.
    fast = [*iterations(CASE), *launches(builders.wire(CASE, 2 * 10**9, dst=""))]
    effect = found(CASE, fast)["gathered"].effect
    assert (effect.low, effect.high) == pytest.approx((0.0, 1.0), abs=0.01)
    # Many objects are pickled one by one, unless it is for other workers.
    pickles = launches(thread_time(CASE, "0", "offload", cpu_seconds=3.0))
    lists = [*iterations(CASE), *pickles, *launches(builders.wire(CASE, 20_000_000, dst=""))]
    finding = found(CASE, lists)["gathered"]
    assert "and take long to pickle, as lists of many objects do" in finding.statement
    assert finding.remedy.startswith("let tasks return arrays")
    sends = launches(graph(CASE, 0, 0.0, nbytes=25_000_000))
    assert "gathered" not in found(CASE, [*lists, *sends])
    assert (finding.effect.low, finding.effect.high) == pytest.approx((0.3, 0.34), abs=0.001)
    others = launches(builders.wire(CASE, 30_000_000))
    assert "gathered" not in found(CASE, [*lists, *others])
    # As many bytes in small messages are no results.
    small = builders.wire(CASE, 200_000_000, dst="", n_messages=10**6)
    assert "gathered" not in found(CASE, [*iterations(CASE), *launches(small)])


def test_connections_are_set_up_while_nothing_else_is_done():
    connecting = [("connect", "connect", 3.0)]
    assert found(CASE, iterations(CASE, activities=connecting))["connections"].effect.share == (
        pytest.approx(0.3)
    )


def test_long_turns_of_a_loop_block_it():
    # Of what may be a wait for a core, the time on one is known.
    waits = {"long_turn_seconds": 5.0, "long_turn_cpu_seconds": 2.0, "wait_seconds": 6.0}
    waiting = changed(iterations(CASE), "loop", **waits)
    assert "is blocked 20% of" in found(CASE, waiting)["blocked-loop"].statement
    blocked = changed(iterations(CASE), "loop", long_turn_seconds=5.0, wait_seconds=1.0)
    finding = found(CASE, blocked)["blocked-loop"]
    assert finding.statement.startswith("the event loop of worker 1 is blocked 40% of the time")
    assert finding.effect.high == pytest.approx(0.4)
    assert finding.remedy.startswith("find the call")
    pickled = launches(activity(CASE, "get-data", "serialize", 4.0, worker="1"))
    pickling = changed(blocked, "loop", cpu_seconds=5.0)
    finding = found(CASE, [*pickling, *pickled])["blocked-loop"]
    assert finding.remedy.startswith("if tasks return lists or dicts")
    scheduler = changed(
        iterations(CASE), "loop", worker="scheduler", long_turn_seconds=5.0, wait_seconds=1.0
    )
    assert found(CASE, scheduler)["blocked-loop"].remedy.startswith("make smaller graphs")
    # Another loop each time: the statement has the numbers of the one that it names.
    by_turns = [
        each for launch in range(6)
        for each in changed(
            [r for r in iterations(CASE) if r.launch == launch], "loop", str(launch % 2),
            long_turn_seconds=5.0,
        )
    ]  # fmt: skip
    finding = found(CASE, by_turns)["blocked-loop"]
    assert "is blocked 25% of the time" in finding.statement
    assert finding.effect.high == pytest.approx(0.5)
    # Also of one that is blocked the most, in a third of the launches.
    seldom = [
        each for launch in range(6)
        for each in changed(
            [r for r in iterations(CASE) if r.launch == launch], "loop", str(int(launch % 3 == 0)),
            long_turn_seconds=3.0 if launch % 3 else 9.0,
        )
    ]  # fmt: skip
    assert "1 is blocked 30% of the time" in found(CASE, seldom)["blocked-loop"].statement
    # Dask writes to disk in the loop of a worker.
    disk = [("p2p", "background-disk disk-write", 2.0)]
    writes = [*iterations(CASE, activities=disk)]
    long = {"long_turn_seconds": 5.0, "wait_seconds": 1.0}
    assert found(CASE, changed(writes, "loop", **long)).keys() == {"p2p-disk"}
    by_rule = found(CASE, changed(writes, "loop", worker="scheduler", **long))
    assert by_rule.keys() == {"p2p-disk", "blocked-loop"}
    # Tasks that run go on.
    blocked = changed(iterations(CASE, tasks=BUSY), "loop", long_turn_seconds=5.0)
    assert "blocked-loop" not in found(CASE, blocked)


def test_a_slow_link_costs_what_its_transfers_last_too_long():
    case = case_of(n_workers=4)
    pairs = [(str(i), str(j)) for i in range(4) for j in range(4) if i != j]
    records = [*iterations(case)]
    for src, dst in pairs:
        seconds = 4.0 if (src, dst) == ("2", "1") else 0.4
        records += fetches(case, seconds, 4_000_000, 4, src=src, dst=dst)
    finding = found(case, records)["slow-links"]
    assert "from worker 2 to 1 take 10.0" in finding.statement
    # Four transfers of 1 s would take 0.1 s each. Those of another channel don't count.
    batches = fetches(case, 9.0, 36_000_000, src="2", dst="1", channel="p2p")
    for each in (finding, found(case, [*records, *batches])["slow-links"]):
        assert each.effect.high == pytest.approx(0.36, abs=0.01)
    # The rate is that of the pair, which pages show, too.
    assert "(4.00 MB/s against 40.0 MB/s)" in finding.statement
    assert "slow-links" not in found(case, changed(records, "tasks", worker="1", **BUSY))
    # Iterations without such transfers count, too.
    others = [
        dataclasses.replace(each, iteration=n)
        for each in iterations(case) for n in (1, 2) if hasattr(each, "iteration")
    ]  # fmt: skip
    assert "slow-links" not in found(case, [*records, *others])


def test_the_largest_effect_of_a_case_comes_first_and_what_is_fine_is_said_of_others_only(
    installed,
):
    other = builders.case("mpi")

    def find(case):
        texts = {"statement": "it is slow", "evidence": "", "remedy": "", "doubt": ""}
        if case.case == CASE:
            yield Finding(**texts)
            yield Finding(**texts, effect=Effect(share=0.1))
            yield Finding(**texts, effect=Effect(share=0.01))
            yield Finding(**texts, effect=Effect(share=0.5))
        yield Finding(**texts, is_fine=True)

    luck = Rule(title="luck", limit="", find=find, needs_profile=False)
    installed("rule", {"luck": luck}, alone=True)
    run = builders.in_memory([CASE, other])
    shown = [(each.case_id, each.effect.share, each.is_fine) for each in run.findings]
    assert shown[:2] == [(CASE.id, 0.5, False), (CASE.id, 0.1, False)]
    assert [shown[2][2], *shown[3][::2]] == [False, other.id, True]
    assert len(shown) == 4


def test_regions_with_regions_in_them_have_the_findings_of_these(installed):
    """They have the times of threads of both, and the transfers of neither."""
    outer, inner = (builders.case(workload=name) for name in ("outer", "inner"))
    seen = []

    def find(case):
        seen.append(case.case.workload)
        return []

    installed("rule", {"luck": Rule(title="luck", limit="", find=find)}, alone=True)
    records = [
        record
        for n, case in enumerate((outer, inner))
        for record in (
            builders.region(case, 10.0, iteration=n, parent=n - 1),
            sample(case, 10.0, iteration=n), builders.end(case), thread_time(case, iteration=n),
        )
    ]  # fmt: skip
    run = builders.in_memory([outer, inner], records)
    assert run.findings == ()
    assert seen == ["inner"]
    lacking = findings.without_profile(run)
    assert lacking == {outer.id: "they are applied to the regions inside"}


@pytest.mark.parametrize(
    ("launcher", "processes", "reason"),
    [
        (model.USER_CODE, ("scheduler",), "over a tenth of the workers joined, left or"),
        (model.USER_CODE, (), "the times of threads are unknown"),
        # Workers that share a process, in a run.
        ("local", ("scheduler",), "the times of threads are unknown"),
    ],
)
def test_a_case_without_times_of_threads_has_a_reason(launcher, processes, reason):
    case = case_of(launcher=launcher)
    records = [sample(case, 10.0), builders.end(case), builders.region(case, 10.0)]
    records += [thread_time(case, each, "loop") for each in processes]
    lacking = findings.without_profile(builders.in_memory([case], records))
    assert lacking[case.id].startswith(reason)


def test_a_rule_that_fails_costs_its_finding_only(installed):
    def broken(_case):
        raise ZeroDivisionError

    def unreadable(_case):
        raise ResultsError("gone")

    rule = Rule(title="luck", limit="", find=broken, needs_profile=False)
    installed("rule", {"luck": rule}, alone=True)
    run = builders.in_memory([CASE])
    assert findings.find(run) == ([], ["the rule luck could not be applied: ZeroDivisionError()"])
    installed("rule", {"luck": dataclasses.replace(rule, find=unreadable)}, alone=True)
    with pytest.raises(ResultsError):
        findings.find(run)


def test_every_rule_has_a_title_a_limit_and_a_fault_that_it_has_to_find(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "faults")
    faults = importlib.import_module("faults")
    rules = registry.loadable("rule")
    assert len({rule.title for rule in rules.values()}) == len(rules)
    assert all(rule.limit for rule in rules.values())
    assert rules.keys() == {fault.rule or name for name, fault in faults.FAULTS.items()} | {
        "little-communication"
    }


def test_rules_are_silent_about_records_of_ping_pongs_and_about_none():
    case = builders.case(workload="pingpong")
    assert not found(case, [builders.message(case, 1e-3, 8), builders.end(case)])
    assert not found(CASE, [])
    assert CaseRecords(builders.in_memory([CASE]), CASE).wall_s.empty


@pytest.mark.parametrize(
    ("backend", "better"),
    [
        ("ucx", "ucx:shm+thread-future"),
        ("ucx:shm+thread-future", ""),
        ("ucx:shm+thread-future@2", ""),
        ("ucx@2", "ucx:shm+thread-future"),
    ],
)
def test_a_control_has_the_settings_of_its_original(backend, better):
    case = case_of(backend)
    assert CaseRecords(builders.in_memory([case]), case).better == better


def test_no_settings_are_advised_that_close_a_way_which_the_bytes_took():
    case = case_of("ucx")
    records = [builders.transport(case, "rc_mlx5/mlx5_0:1")]
    assert CaseRecords(builders.in_memory([case], records), case).better == ""
    with_ib = case_of("ucx:ib+shm")
    assert CaseRecords(builders.in_memory([with_ib]), with_ib).better == "ucx:shm+ib+thread-future"


def test_an_effect_of_no_shares_is_none():
    empty = pd.Series([], pd.MultiIndex.from_arrays([[], []], names=["launch", "iteration"]), float)
    assert CaseRecords.effect(empty).share == 0
