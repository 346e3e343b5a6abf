"""A user's code is recorded, and left as it was."""

import asyncio
import contextlib
import dataclasses
import getpass
import inspect
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import builders
import dask
import dask.array as da
import dask.dataframe as dd
import dask_clusters
import numpy as np
import pandas as pd
import processes
import psutil
import pytest
from dask.sizeof import sizeof
from distributed import Client, LocalCluster, wait
from distributed.comm import Comm, CommClosedError
from distributed.comm.inproc import InProc
from distributed.core import Status
from distributed.deploy import Cluster
from distributed.metrics import context_meter
from spinning import spin

import commbench
from commbench.backends.backend import Transport
from commbench.backends.tcp import TcpBackend
from commbench.errors import LaunchError, UsageError
from commbench.harness.measure import plugins
from commbench.harness.transfer_log import TransferLog
from commbench.launchers import members
from commbench.model import registry
from commbench.reports.figures import drawn
from commbench.stats import worker_profile
from commbench.studies import anonymous, profile

QUIET = {"dashboard_address": "127.0.0.1:0"}
N = 600
"""The side of an array whose blocks of 300 × 300 have 720 kB."""


def compute(client):
    """Return a sum for which each worker fetches blocks of the other."""
    x = da.random.default_rng(0).random((N, N), chunks=(300, 300))
    x = client.persist(x)
    wait(x)
    return float(client.compute((x + x.T).sum()).result())


def shuffle(client):
    """Move rows between the workers by P2P."""
    rows = pd.DataFrame({"key": np.random.default_rng(0).permutation(100_000)})
    frame = dd.from_pandas(rows, npartitions=4)
    assert len(client.persist(frame.shuffle("key", shuffle_method="p2p"))) == 100_000


@pytest.fixture(scope="module", autouse=True)
def _quick_nannies():
    """Fork workers from a process that has imported Dask, which saves over a second for each."""
    # Clusters of other tests may still have disabled Dask's profiler.
    config = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.worker.profile.enabled": True,
    }
    with dask.config.set(config):
        yield


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with (
        contextlib.chdir(tmp_path_factory.mktemp("local")),
        LocalCluster(n_workers=2, threads_per_worker=1, **QUIET) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def profiled(output, **options):
    """Give a new cluster, its client and the run that records it."""
    with (
        LocalCluster(**QUIET | options) as cluster,
        Client(cluster) as client,
        commbench.profile(client, output=output) as run,
    ):
        yield cluster, client, run


def state(client):
    """Return what a profile may have changed: plugins, the task stream, and logs."""

    def scheduler(dask_scheduler):
        stream = dask_scheduler.plugins.get("task-stream")
        return sorted(dask_scheduler.plugins), stream and stream.buffer.maxlen

    def worker(dask_worker):
        log = dask_worker.transfer_incoming_log
        receive = dask_worker.handlers["shuffle_receive"].__qualname__
        names = sorted(dask_worker.plugins), sorted(dask_worker.handlers)
        return names, log.maxlen, "gather_dep" in vars(dask_worker), receive

    return client.run_on_scheduler(scheduler), client.run(worker)


@pytest.fixture(scope="module")
def recorded(started, tmp_path_factory):
    """Return a run of a region that was entered twice, and the cluster's state before and after."""
    before = state(started)
    with commbench.profile(started, "job", output=tmp_path_factory.mktemp("runs")) as run:
        for _ in range(2):
            with run.region("sum"):
                total = compute(started)
    return run, total, before, state(started)


def test_the_code_is_a_case_and_so_is_each_name_of_a_region(recorded):
    run = recorded[0]
    assert [case.workload for case in run.suite.cases] == ["job", "sum"]
    assert run.regions[["iteration", "parent", "name"]].values.tolist() == [
        [1, 0, "sum"], [2, 0, "sum"], [0, -1, "job"],
    ]  # fmt: skip
    inner, outer = (run.regions[run.regions["parent"] == parent] for parent in (0, -1))
    assert inner["seconds"].sum() < outer["seconds"].sum()
    assert run.summaries.set_index("workload")["n_samples"].to_dict() == {"job": 1, "sum": 2}


def test_transfers_and_tasks_belong_to_the_innermost_region(recorded):
    run = recorded[0]
    assert set(run.transfers["iteration"]) <= {1, 2}
    assert run.transfers["nbytes"].sum() > 0
    assert {1, 2} <= set(run.tasks["iteration"])
    names = {str(case.workload) for case in run.suite.cases}
    assert {*run.threads["workload"]} == names
    coverage = run.coverage.set_index("workload").loc["sum"]
    assert coverage["n_lost"] == 0
    assert 0.9 < coverage["coverage"] < 1.1


def test_every_task_has_a_graph_and_this_the_statement_that_sent_it(recorded):
    run = recorded[0]
    regions = run.graphs.astype({"code": "str"})
    assert {*run.tasks["graph"]} == {*regions["number"]}
    source = [line.strip() for line in inspect.getsource(compute).splitlines()]
    sends = [line for line in source if "persist" in line or "compute(" in line][1:]
    codes = sorted({*regions["code"]})
    assert len(codes) == len(sends) == 2
    for code, line in zip(codes, sends, strict=True):
        assert re.fullmatch(rf"test_profile\.py:\d+ {re.escape(line)}", code)
    assert {*regions["iteration"]} == {1, 2}
    assert (regions["nbytes"] > 0).all()
    assert 0 < run.statements["seconds"].sum() <= run.regions["seconds"].sum()


def squares(n):
    """Sum squares in two lines."""
    n += 3_000_000
    return sum(i * i for i in range(n))


@pytest.mark.parametrize("anonymize", [False, True])
def test_lines_of_tasks_and_of_the_script_have_their_times(started, tmp_path, anonymize):
    with commbench.profile(started, output=tmp_path, anonymize=anonymize) as run:
        wait(started.map(squares, range(4)))
        squares(0)
    source, first = inspect.getsourcelines(squares)
    (number,) = (first + n for n, line in enumerate(source) if "return" in line)
    code = f"test_profile.py:{number} return sum(i * i for i in range(n))"
    label = re.compile(r"code-\d+" if anonymize else re.escape(code))
    lines = run.lines[run.lines["code"].map(lambda text: bool(label.fullmatch(text)))]
    assert {"task", "script"} <= {*lines["role"]}
    tasks = run.tasks[run.tasks["action"] == "compute"]
    for role, seconds in (
        ("task", (tasks["stop_s"] - tasks["start_s"]).sum()),
        ("script", run.regions["seconds"].sum()),
    ):
        longest = lines[lines["role"] == role].iloc[0]
        assert longest["seconds"] < 1.5 * seconds
        if role == "task":
            assert longest["seconds"] > 0.5 * seconds
            assert (longest["name"] == "squares") is not anonymize
    if anonymize:
        # Nothing else has a name, either.
        assert all(re.fullmatch(r"(code-\d+)?", text) for text in run.lines["code"])
        assert all(re.fullmatch(r"(task-\d+)?", text) for text in run.lines["name"])
    # The sampling threads have ended.
    (n_left,) = {*started.run(count_sampling).values()}
    assert n_left == 0


def count_sampling():
    """Return the number of threads that sample in this process."""
    deadline = time.monotonic() + 60
    while True:
        names = [thread.name for thread in threading.enumerate()]
        if "commbench-lines" not in names or time.monotonic() > deadline:
            return names.count("commbench-lines")
        time.sleep(0.02)


def test_a_saved_run_is_read_again_and_reported(recorded):
    run = commbench.load(recorded[0].path)
    assert len(run.transfers) == len(recorded[0].transfers)
    text = registry.load("report", "terminal")(run)
    assert re.search(r"^sum took .* \(the median of 2\): its task threads \w+", text, re.MULTILINE)
    assert re.search(r"^region +times +median", text, re.MULTILINE)
    assert "--launches" not in text
    assert "Coverage" in registry.load("report", "tables")(run)


def test_the_result_and_the_cluster_are_unchanged(recorded, started):
    _, total, before, after = recorded
    assert total == compute(started)
    assert after == before


def test_a_dashboard_that_is_opened_in_a_profile_goes_on_after_it(own, tmp_path):
    def open_dashboard(dask_scheduler):
        dask_scheduler.get_task_stream()
        dask_scheduler.shown = dask_scheduler.plugins["task-stream"]

    with commbench.profile(own, output=tmp_path):
        own.run_on_scheduler(open_dashboard)
    assert own.submit(sum, [1, 2]).result() == 3
    assert own.run_on_scheduler(lambda dask_scheduler: dask_scheduler.shown.index) == 1


def test_nothing_of_the_state_of_dask_is_sent(started, tmp_path):
    # Dask's function keeps the types that it has seen, of which some can't be unpickled.
    sizeof(np.concatenate)
    with commbench.profile(started, output=tmp_path) as run:
        compute(started)
    assert run.failures.empty
    assert len(run.tasks)


def test_the_batches_of_a_p2p_shuffle_belong_to_the_region(started, tmp_path):
    before = state(started)
    with commbench.profile(started, output=tmp_path) as run, run.region("shuffle"):
        shuffle(started)
    assert state(started) == before
    assert {*run.shuffles["workload"]} == {"shuffle"}
    assert run.coverage.set_index("workload").loc["shuffle", "coverage"] > 0.97
    assert "P2P shuffles" in registry.load("report", "tables")(run)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_a_region_that_raises_is_kept_and_its_exception_is_unchanged(started, tmp_path, error):
    before = state(started)
    profile = commbench.profile(started, output=tmp_path)

    def fail():
        with profile as run, run.region("bad"):
            runs.append(run)
            compute(started)
            raise error

    runs = []
    with pytest.raises(type(error)) as raised:
        fail()
    (run,) = runs
    assert raised.value is error
    # The end of a script is no failure of its code.
    name = "" if isinstance(error, SystemExit) else type(error).__name__
    assert {*run.regions["error"].str.partition(":")[0]} == {name}
    assert len(run.tasks)
    assert state(started) == before


def test_a_profile_within_a_profile_is_refused_at_once(started, tmp_path):
    with (
        commbench.profile(started, output=tmp_path),
        pytest.raises(LaunchError, match="measured already"),
        commbench.profile(started, output=tmp_path),
    ):
        pass


def test_a_region_can_be_entered_again(started, tmp_path):
    with commbench.profile(started, output=tmp_path) as run:
        part = run.region("part")
        for _ in range(2):
            with part:
                pass
    assert run.regions["name"].tolist().count("part") == 2


def test_a_client_on_a_measured_cluster_leaves_the_reason_as_it_is(started, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_FREE_SECONDS", 0.2)
    watch = profile._FirstClient("script", output=tmp_path, anonymize=False)
    with (
        commbench.profile(started, output=tmp_path),
        watch.among(Client, LocalCluster),
        pytest.raises(LaunchError, match="another commbench is measuring"),
    ):
        Client(started.scheduler.address)
    # The end of the script has nothing to leave.
    watch.end(None)
    watch._client.close()


def test_a_region_that_began_without_workers_is_a_case_of_its_own(tmp_path):
    with profiled(tmp_path, n_workers=0, threads_per_worker=2) as (cluster, client, run):
        for n_workers in (0, 1, 1):
            cluster.scale(n_workers)
            if n_workers:
                client.wait_for_workers(n_workers)
            with run.region("step"):
                pass
    steps = [case.cluster for case in run.suite.cases if case.workload == "step"]
    assert [(each.n_workers, each.threads_per_worker) for each in steps] == [(0, 1), (1, 2)]
    assert run.regions["name"].tolist().count("step") == 3


def test_a_profile_within_a_launch_is_refused_at_once(started, tmp_path):
    meters = [TransferLog()]
    for plugin in meters:
        started.register_plugin(plugin)
    try:
        with (
            pytest.raises(LaunchError, match="measured already"),
            commbench.profile(started, output=tmp_path),
        ):
            pass
    finally:
        for plugin in meters:
            started.unregister_worker_plugin(plugin.name)


def test_clients_of_forked_children_are_not_observed(started, tmp_path):
    watch = profile._FirstClient("script", output=tmp_path, anonymize=False)
    watch.pid = -1
    with (
        watch.among(Client, Cluster),
        Client(started.scheduler.address, set_as_default=False) as client,
    ):
        assert client.submit(sum, [1]).result() == 1
    assert watch.run is None


def test_a_forked_child_leaves_the_record_to_its_parent(started, tmp_path):
    watch = profile._FirstClient("script", output=tmp_path, anonymize=False)
    pid = watch.pid
    with watch.among(Client, Cluster), Client(started.scheduler.address) as client:
        watch.pid = -1
        watch.end(None)
        assert client.submit(sum, [1]).result() == 1
        watch.pid = pid
    assert set(commbench.load(watch.run.path).tasks["name"]) == {"sum"}


def test_a_client_that_is_closed_in_the_region_keeps_what_was_recorded(tmp_path):
    with LocalCluster(n_workers=1, processes=False, **QUIET) as cluster:
        client = Client(cluster)
        with commbench.profile(client, output=tmp_path) as run:
            with run.region("first"):
                compute(client)
            client.close()
        with Client(cluster) as other:
            assert "commbench-cleaner" not in other.run_on_scheduler(
                lambda dask_scheduler: list(dask_scheduler.plugins)
            )
    assert set(run.tasks["workload"]) == {"first"}
    assert run.failures["message"].str.contains("closed").any()
    assert run.ends["ok"].all()
    report = processes.invoke("report", run.path)
    assert "first took " in " ".join(report.stdout.split())


@pytest.fixture
def own(tmp_path):
    """Return a client of a cluster whose workers may be killed."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **QUIET) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_a_worker_that_is_lost_with_tasks_or_results_is_reported(own, tmp_path):
    with commbench.profile(own, output=tmp_path) as run:
        # Workers that nobody misses, and those that the user restarts with their tasks, are not.
        kill_one(own)
        waiting = own.submit(time.sleep, 20, pure=False)
        processes.until(lambda: any(own.processing().values()), "a task")
        own.restart_workers([*own.nthreads()])
        del waiting
        assert run.failures.empty
        with run.region("lost"):
            kept = own.map(abs, range(4))
            wait(kept)
            kill_one(own)
            assert own.gather(kept) == [0, 1, 2, 3]
    (loss,) = run.failures["message"]
    assert re.match(r"a worker was lost, with [1-4] results\. If its nanny wrote that it exc", loss)


def kill_one(client):
    """Kill the process of worker 0, and wait until the scheduler has its successor."""
    (address,) = [
        address for address, info in members.workers_by_address(client).items() if info["name"] == 0
    ]
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)

    def replaced():
        workers = client.nthreads()
        return address not in workers and len(workers) == 2

    processes.until(replaced, "a successor")


@pytest.mark.parametrize("error", [pytest.param(None, marks=pytest.mark.slow), ValueError("mine")])
def test_a_worker_that_is_killed_changes_no_exception_and_keeps_its_name(own, tmp_path, error):
    runs = []

    def run_code():
        with commbench.profile(own, output=tmp_path) as run:
            runs.append(run)
            with run.region("before"):
                compute(own)
            kill_one(own)
            with run.region("after"):
                compute(own)
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="mine") if error else contextlib.nullcontext():
        run_code()
    (run,) = runs
    # It had nothing that anybody wanted.
    assert run.failures.empty
    assert set(run.regions["name"]) == {"code", "before", "after"}
    names = {*run.transfers["src"], *run.transfers["dst"], *run.tasks["worker"]}
    assert names == {"0", "1"}
    assert (run.samples["cpu_seconds"] >= 0).all()


def test_regions_of_coroutines_may_overlap(tmp_path):
    async def main():
        async with (
            LocalCluster(n_workers=1, processes=False, asynchronous=True, **QUIET) as cluster,
            Client(cluster, asynchronous=True) as client,
            commbench.profile(client, output=tmp_path) as run,
        ):
            with pytest.raises(UsageError, match="async with"), commbench.profile(client):
                pass

            async def part(number):
                async with run.region(f"part {number}"):
                    await client.submit(sum, [number])

            await asyncio.gather(*map(part, range(4)))
        return run

    run = asyncio.run(main())
    assert run.failures.empty
    assert sorted(run.regions["name"]) == ["code", "part 0", "part 1", "part 2", "part 3"]
    assert (run.regions["parent"] < run.regions["iteration"]).all()


def test_regions_of_threads_last_as_long_as_their_code(started, tmp_path):
    with commbench.profile(started, output=tmp_path) as run:

        def part(_number):
            with shared:
                time.sleep(0.5)

        shared = run.region("part")
        with ThreadPoolExecutor(4) as pool:
            [*pool.map(part, range(4))]
    parts = run.regions[run.regions["name"] == "part"]
    assert len(parts) == 4
    assert (parts["seconds"] >= 0.5).all()
    assert {*parts["parent"]} == {0}


def test_regions_are_within_those_of_the_task_or_code_that_began_them(started, tmp_path):
    with commbench.profile(started, output=tmp_path) as run:

        def step(name):
            with run.region(name):
                time.sleep(0.1)

        async def job(number):
            with run.region(f"job {number}"):
                await asyncio.gather(asyncio.to_thread(step, f"step {number}"))

        async def jobs():
            await asyncio.gather(job(0), job(1))

        with run.region("stage"):
            asyncio.run(jobs())
            with ThreadPoolExecutor(1) as pool:
                pool.submit(step, "thread").result()
    names = run.regions.set_index("iteration")["name"]
    parents = dict(zip(run.regions["name"], run.regions["parent"].map(names), strict=True))
    assert parents["stage"] == "code"
    assert [parents[f"job {n}"] for n in (0, 1)] == ["stage"] * 2
    assert [parents[f"step {n}"] for n in (0, 1)] == ["job 0", "job 1"]
    assert parents["thread"] == "stage"


def test_figures_of_a_region_are_not_those_of_the_whole(started, tmp_path, no_figures):
    with commbench.profile(started, output=tmp_path) as run:
        with run.region("first"):
            started.submit(sum, [1, 2]).result()
        inside = drawn(run)
    assert drawn(run) is drawn(run)
    assert drawn(run) is not inside


def test_a_region_after_the_end_is_refused(started, tmp_path):
    with commbench.profile(started, output=tmp_path) as run:
        pass
    with pytest.raises(UsageError, match="its profile has ended"), run.region("late"):
        pass


def test_the_time_of_a_region_has_not_what_commbench_does_within(started, tmp_path):
    with commbench.profile(started, output=tmp_path) as run:
        for _ in range(5):
            with run.region("sleep"):
                time.sleep(0.02)
    inner, outer = (run.regions[run.regions["parent"] == parent] for parent in (0, -1))
    # Each region takes commbench over 0.1 s, to observe the idle cluster.
    assert outer["seconds"].item() < inner["seconds"].sum() + 5 * 0.1


def test_a_region_ends_while_tasks_go_on_and_these_are_in_the_next(started, tmp_path):
    begun = tmp_path / "begun"

    def work(number):
        # The last tasks wait until the next region has begun.
        time.sleep(0.005)
        while number >= 100 and not begun.exists():
            time.sleep(0.01)

    with commbench.profile(started, output=tmp_path) as run:
        with run.region("submit"):
            futures = started.map(work, range(150), pure=False)
        with run.region("wait"):
            begun.touch()
            wait(futures)
    # On a busy machine, workers may also spill.
    counts = run.tasks.loc[run.tasks["action"] == "compute", "workload"].value_counts()
    assert counts.sum() == 150
    assert counts["wait"] >= 50


def test_the_memory_of_the_scheduler_is_bounded_and_what_is_lost_is_counted(
    started, tmp_path, monkeypatch
):
    monkeypatch.setattr(profile, "_MAX_TASKS", 100)
    with commbench.profile(started, output=tmp_path) as run:
        wait(started.map(str, range(300), pure=False))
    # A busy machine takes so long to deserialize that this is a bar, too.
    assert len(run.tasks.query("action == 'compute'")) == 100
    assert run.failures["message"].str.startswith("200 tasks of the region code are not").any()


def test_what_ends_while_records_are_collected_is_in_the_next_region(
    started, tmp_path, monkeypatch
):
    def n_fetches():
        def total(dask_worker):
            return dask_worker.state.transfer_incoming_count_total

        return sum(started.run(total).values())

    collect = profile.timing.collect

    def late(*args):
        records = [*collect(*args)]
        compute(started)
        return iter(records)

    with commbench.profile(started, output=tmp_path) as run:
        before = n_fetches()
        monkeypatch.setattr(profile.timing, "collect", late)
        with run.region("first"):
            compute(started)
        monkeypatch.undo()
        with run.region("second"):
            pass
        n_started = n_fetches() - before
    assert len(run.transfers) == n_started
    assert run.log_counts["n_started"].sum() == n_started


@pytest.fixture
def short_regions(monkeypatch):
    """Count the use of cores in short regions, too."""
    monkeypatch.setattr(profile, "_MIN_CORE_USE_S", 0.3)


@pytest.mark.usefixtures("short_regions")
def test_other_programs_on_the_cores_of_a_region_are_counted(started, tmp_path):
    busy = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(busy) for _ in os.sched_getaffinity(0)]
    try:
        with commbench.profile(started, output=tmp_path, anonymize=True) as run:
            time.sleep(0.6)
    finally:
        for each in others:
            each.kill()
            each.wait()
    (use,) = run.core_use.itertuples()
    assert use.host == "local"
    others_s = use.busy_cpu_seconds - use.own_cpu_seconds
    assert others_s > 0.3 * use.seconds
    assert any("used the cores in 1 of 1 regions of over a" in text for text in run.warnings)


@pytest.mark.usefixtures("short_regions")
def test_programs_that_tasks_start_are_part_of_the_region(started, tmp_path):
    busy = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.8: pass"]
    with commbench.profile(started, output=tmp_path) as run:
        wait([started.submit(subprocess.run, busy, pure=False) for _ in range(2)])
    (use,) = run.core_use.itertuples()
    assert use.own_cpu_seconds > 1.6


@pytest.mark.usefixtures("short_regions")
def test_the_use_of_cores_is_unknown_if_a_worker_ended(own, tmp_path):
    with commbench.profile(own, output=tmp_path) as run:
        kill_one(own)
        time.sleep(0.4)
    assert run.core_use.empty


@pytest.mark.usefixtures("short_regions")
@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_the_use_of_cores_in_long_pauses_is_not_that_of_a_region(
    seconds, started, tmp_path, monkeypatch
):
    begin = profile.Profiler.begin

    def late(profiler):
        spin(0.4)
        begin(profiler)

    with commbench.profile(started, output=tmp_path) as run:
        spin(seconds)
        monkeypatch.setattr(profile.Profiler, "begin", late)
        with run.region("within"):
            pass
    assert run.core_use.empty


@pytest.mark.usefixtures("short_regions")
def test_the_use_of_cores_is_unknown_if_a_worker_joined_and_ended(tmp_path):
    with profiled(tmp_path, n_workers=0, threads_per_worker=1) as (cluster, client, run):
        cluster.scale(1)
        pid = client.submit(lambda: spin(0.5) or os.getpid()).result()
        cluster.scale(0)
        processes.until(lambda: not psutil.pid_exists(pid), "the end of the worker")
    assert {*run.tasks["worker"]} == {"0"}
    assert run.core_use.empty


def test_cpu_time_of_a_region_is_its_own_and_that_of_workers_which_join(tmp_path, monkeypatch):
    begin = profile.Profiler.begin

    def slow(profiler):
        spin(0.5)
        begin(profiler)

    monkeypatch.setattr(profile.Profiler, "begin", slow)
    with profiled(tmp_path, n_workers=0, threads_per_worker=1) as (cluster, client, run):
        with run.region("nothing"):
            pass
        with run.region("joined"):
            cluster.scale(1)
            client.submit(spin, 1.0).result()
    cpu_s = run.samples.set_index("workload")["cpu_seconds"]
    assert cpu_s["nothing"] < 0.4
    assert cpu_s["joined"] > 1.0
    # The outer region has the CPU time of these, and not what commbench used to begin them.
    assert cpu_s["joined"] <= cpu_s["code"] < cpu_s["joined"] + cpu_s["nothing"] + 0.4


@pytest.mark.parametrize("error", [None, ValueError("mine")])
def test_a_full_disk_is_no_error_of_the_code(started, tmp_path, monkeypatch, error):
    before, create = state(started), profile.directory.RunStore.create

    def on_a_full_disk(*args):
        store = create(*args)
        store.close()
        (store.path / "samples.jsonl").unlink()
        (store.path / "samples.jsonl").symlink_to("/dev/full")
        return store

    monkeypatch.setattr(profile.directory.RunStore, "create", on_a_full_disk)

    def run_code():
        with commbench.profile(started, output=tmp_path):
            if error:
                raise error

    raises = pytest.raises(ValueError, match="mine") if error else contextlib.nullcontext()
    with raises as raised, pytest.warns(UserWarning, match="is incomplete: .*No space left"):
        run_code()
    assert error is None or raised.value is error
    assert state(started) == before


def test_a_client_that_was_disconnected_leaves_nothing_behind(started, tmp_path):
    before = state(started)
    with commbench.profile(started, output=tmp_path) as run:
        started.run_on_scheduler(profile.plugins.uninstall, started.id)
        with run.region("unseen"):
            compute(started)
    assert run.failures["message"].str.contains("disconnected").any()
    assert "unseen" not in [case.workload for case in run.cases.values()]
    assert state(started) == before
    wrapped = started.run(lambda: "select" in vars(asyncio.get_running_loop()._selector))
    assert not any(wrapped.values())


def test_a_failure_before_the_first_region_is_reported(started, tmp_path, monkeypatch):
    monkeypatch.setattr(profile.plugins, "is_installed", lambda *_, **__: False)
    with commbench.profile(started, output=tmp_path) as run:
        pass
    assert run.failures["message"].str.contains("disconnected").tolist() == [True]


def test_another_client_does_not_uninstall_what_a_profile_needs(started, tmp_path):
    with commbench.profile(started, output=tmp_path) as run:
        started.run_on_scheduler(profile.plugins.uninstall, "another-client")
        with run.region("seen"):
            compute(started)
    assert {*run.tasks["workload"]} == {"seen"}
    assert run.failures.empty


def test_a_profile_that_is_cancelled_while_it_begins_is_left(tmp_path, monkeypatch):
    installed = profile.plugins.installed

    @contextlib.contextmanager
    def slow(*args):
        with installed(*args):
            time.sleep(0.5)
            yield

    async def work():
        async with (
            LocalCluster(n_workers=1, processes=False, asynchronous=True, **QUIET) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            with monkeypatch.context() as patch:
                patch.setattr(profile.plugins, "installed", slow)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(
                        commbench.profile(client, output=tmp_path).__aenter__(), 0.1
                    )
            plugins = cluster.scheduler.plugins
            assert "commbench-cleaner" not in plugins
            async with commbench.profile(client, output=tmp_path) as run:
                await client.submit(sum, [1, 2])
        return run

    assert len(asyncio.run(work()).tasks) == 1


def test_of_two_records_in_one_loop_none_has_wrong_counts(tmp_path):
    async def work():
        options = QUIET | {"n_workers": 1, "asynchronous": True}
        async with (
            LocalCluster(**options) as one, LocalCluster(**options) as two,
            Client(one, asynchronous=True) as a, Client(two, asynchronous=True) as b,
            commbench.profile(a, "a", output=tmp_path) as outer,
        ):  # fmt: skip
            for n in range(20):
                await a.submit(abs, n, pure=False)
            # Its end stops the counters of the loop, which both have.
            async with commbench.profile(b, "b", output=tmp_path) as inner:
                await b.submit(abs, 1, pure=False)
            await a.submit(abs, 3, pure=False)
        return outer, inner

    outer, inner = asyncio.run(work())
    assert {*outer.threads["worker"]} == {"0"}
    assert {*inner.threads["worker"]} == {"0", "scheduler"}
    assert outer.failures.empty


def test_a_pause_of_a_worker_counts_in_all_regions_around_it(started, tmp_path):
    def switch(name, dask_worker):
        dask_worker.status = Status[name]

    def status(address, dask_scheduler):
        return dask_scheduler.workers[address].status

    with commbench.profile(started, "outer", output=tmp_path) as run:
        for _ in range(4):
            with run.region("inner"):
                wait(started.submit(time.sleep, 0.05, pure=False))
        with run.region("last"):
            (address, *_) = started.nthreads()
            started.run(switch, "paused", workers=[address])
            time.sleep(0.2)
            started.run(switch, "running", workers=[address])
            # The scheduler learns of it some time later.
            processes.until(
                lambda: started.run_on_scheduler(status, address) == Status.running,
                "the scheduler's record of the end of a pause",
            )
    paused_s = run.spills.set_index("workload")["paused_seconds"]
    assert {*paused_s.index} == {"outer", "last"}
    assert paused_s["outer"] == pytest.approx(paused_s["last"], rel=0.05)


def test_the_process_of_scheduler_and_client_is_recorded_once(recorded):
    threads = recorded[0].threads
    assert {*threads["worker"]} == {"0", "1", "scheduler"}


def test_workers_that_share_a_process_leave_its_methods_as_they_were(tmp_path):
    script = """
import asyncio, sys
from distributed import Worker
async def work():
    async with Worker(sys.argv[1], nthreads=1) as one, Worker(sys.argv[1], nthreads=1):
        await one.finished()
asyncio.run(work())
"""

    def methods():
        from distributed.comm.core import Comm
        from distributed.comm.tcp import TCP

        return [Comm.handshake_info.__qualname__, TCP.write.__qualname__]

    with (
        LocalCluster(n_workers=0, **QUIET) as cluster,
        subprocess.Popen([sys.executable, "-c", script, cluster.scheduler_address]) as both,
        contextlib.closing(SimpleNamespace(close=both.kill)),
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        with commbench.profile(client, output=tmp_path) as run:
            compute(client)
        assert [*client.run(methods).values()] == [["Comm.handshake_info", "TCP.write"]] * 2
    assert run.wire.empty
    assert len(run.transfers)


def test_workers_that_join_in_the_process_of_the_client_leave_its_methods_as_they_were(tmp_path):
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, processes=False, **QUIET) as cluster,
        Client(cluster) as client,
    ):
        with commbench.profile(client, output=tmp_path) as run:
            cluster.scale(2)
            client.wait_for_workers(2, timeout=60)
            compute(client)
        assert Comm.handshake_info.__qualname__ == "Comm.handshake_info"
        assert InProc.write.__qualname__ == "InProc.write"
    assert run.failures.empty
    assert len(run.transfers)
    assert run.wire.empty


def test_the_event_loop_of_the_client_is_left_as_it_was(started, tmp_path):
    with commbench.profile(started, output=tmp_path):
        pass
    assert "select" not in vars(started.loop.asyncio_loop._selector)


def test_no_client_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="a client that is connected"):
        commbench.profile(None, output=tmp_path)
    assert not any(tmp_path.iterdir())


def test_threads_share_a_process_and_have_transfers_but_no_wire_bytes(tmp_path):
    with profiled(tmp_path, n_workers=2, threads_per_worker=1, processes=False) as (_, client, run):
        compute(client)
        shuffle(client)
    assert set(run.transfers["backend"]) == {"inproc"}
    assert {*run.transfers["channel"]} == {"gather", "p2p"}
    assert run.wire.empty
    assert run.threads.empty


def test_a_cluster_with_encryption_is_observed_by_the_security_of_its_client(tmp_path):
    pytest.importorskip("cryptography")
    with profiled(
        tmp_path, n_workers=2, threads_per_worker=1, security=True, protocol="tls://"
    ) as (_, client, run):
        compute(client)
    assert set(run.transports["transport"]) == {"tls/lo"}
    assert run.wire["nbytes"].sum() > 0


def be_leaving(dask_worker):
    """Answer requests for a function as a worker that is closing its connections."""

    async def run(comm, **_):
        comm.abort()

    dask_worker.handlers["run"] = dask_worker.handlers["plugin-remove"] = run


def be_joining(dask_worker):
    """Be without plugins, as when the scheduler knows a worker that is still being set up."""
    dask_worker.plugins = {}


@pytest.mark.parametrize("be", [be_leaving, be_joining])
def test_the_record_has_the_other_workers_when_one_is_leaving_or_joining(own, tmp_path, be):
    with commbench.profile(own, output=tmp_path) as run:
        compute(own)
        own.run(be, workers=[min(own.nthreads())])
    assert run.failures.empty
    assert run.tasks["worker"].nunique() == 2
    assert len(run.transfers) > 0


def test_workers_that_join_and_leave_are_part_of_the_record(tmp_path):
    with profiled(tmp_path, n_workers=1, threads_per_worker=1) as (cluster, client, run):
        cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        with run.region("two"):
            compute(client)
        client.retire_workers(workers=[*client.nthreads()][:1])
        processes.until(lambda: len(client.nthreads()) == 1, "a worker left")
        compute(client)
    assert set(run.tasks["workload"]) == {"two", "code"}
    assert run.tasks[run.tasks["workload"] == "two"]["worker"].nunique() == 2


class Pigeons(TcpBackend):
    """A backend of a package that workers lack."""

    variables = ("PIGEON_",)
    config_keys = ("distributed.comm.timeouts",)
    nic_variable = "PIGEON_LOFT"

    @staticmethod
    def transport(comm):
        return with_pigeons(TcpBackend.transport(comm))


def with_pigeons(transport):
    return Transport(f"pigeons/{transport.name}", transport.evidence)


def test_processes_without_commbench_and_pyarrow_are_observed(tmp_path, installed, monkeypatch):
    installed("backend", {"tcp": Pigeons})
    for name, value in {"PIGEON_LOFT": "roof", "PIGEON_TOKEN": "s3cret", "UCX_TLS": "tcp"}.items():
        monkeypatch.setenv(name, value)
    with (
        dask_clusters.started(tmp_path, without=("commbench", "pyarrow")) as theirs,
        Client(theirs.address) as client,
    ):
        client.wait_for_workers(2)
        with commbench.profile(client, output=tmp_path) as run:
            compute(client)
            rows = da.ones((N, N), chunks=(N, N // 4))
            client.compute(rows.rechunk((N // 4, N), method="p2p").sum()).result()
    assert run.failures.to_dict("records") == []
    assert {*run.transfers["channel"]} == {"gather", "p2p"}
    assert {*run.transports["transport"]} == {"pigeons/tcp/lo"}
    assert {*run.places["nic"]} == {"roof"}
    settings = dict(zip(run.settings["name"], run.settings["value"], strict=True))
    assert settings.pop("distributed.comm.timeouts.connect")
    assert settings.items() >= {"PIGEON_LOFT": "roof", "PIGEON_TOKEN": "<redacted>"}.items()
    assert "UCX_TLS" not in settings
    missing = {"activities", "places", "tasks", "threads", "transfers", "transports", "wire"} - {
        name for name, frame in run.frames.items() if len(frame)
    }
    assert missing == set()


def versions(**changed):
    """Return versions of a client, a scheduler and two workers, whose second has others."""
    packages = {"python": "3.11.7.final.0", "distributed": "2026.7.1", "dask": "2026.7.1"}
    rows = [{"packages": packages | {"commbench": "0.1"}} for _ in range(3)]
    other = {"packages": packages | changed}
    return {
        "client": rows[0],
        "scheduler": rows[1],
        "workers": {"tcp://a": rows[2], "tcp://b": other},
    }


@pytest.mark.parametrize("changed", [{"distributed": "2025.1.0"}, {"commbench": "0.2"}])
def test_other_versions_are_warned_of_once(started, tmp_path, monkeypatch, changed):
    monkeypatch.setattr(started, "get_versions", lambda **_: versions(**changed))
    with (
        pytest.warns(UserWarning, match=r"on tcp://b") as warned,
        commbench.profile(started, output=tmp_path),
    ):
        pass
    assert len(warned) == 1


def test_another_python_is_refused_before_anything_starts(started, tmp_path, monkeypatch):
    monkeypatch.setattr(started, "get_versions", lambda **_: versions(python="3.10.1.final.0"))
    before = state(started)
    with (
        pytest.raises(LaunchError, match=r"tcp://b runs Python 3\.10"),
        commbench.profile(started, output=tmp_path),
    ):
        pass
    assert not any(tmp_path.iterdir())
    assert state(started) == before


def test_an_anonymous_record_has_the_activities_that_rules_read():
    read = set()
    for file in (Path(commbench.__file__).parent / "analysis" / "findings").glob("*.py"):
        for arguments in re.findall(r"case\.activity\(([^)]*)\)", file.read_text()):
            read |= {*re.findall('"([^"]*)"', arguments.partition("contexts")[0])}
    source = inspect.getsource(worker_profile._metrics)
    for labels in re.findall(r"label(?: ==|\.isin\()(.*)", source):
        read |= {*re.findall('"([^"]*)"', labels)}
    read |= {worker_profile._P2P_WAIT}.union(*worker_profile._LABELS.values())
    assert {"page-faults", "run-queue", "seceded"} < read
    assert read <= anonymous._KEPT_TEXTS["activity"]


def test_an_anonymous_shuffle_has_the_names_that_rules_read(started, tmp_path):
    labels, keys = {}, {}
    for anonymize in (False, True):
        with commbench.profile(started, output=tmp_path, anonymize=anonymize) as run:
            shuffle(started)
        executed = run.activities.query("context == 'execute'")["label"]
        labels[anonymize] = {each for each in executed if each.endswith("-cpu")}
        keys[anonymize] = [*run.tasks["key"]]
    assert "p2p-shard-partition-cpu" in labels[False]
    assert labels[True] == labels[False]
    named = [any("shuffle-transfer" in key for key in each) for each in keys.values()]
    assert named == [True, True]
    label = anonymous.AnonymousRecorder(None)._label
    assert label("task", "random-mine-rechunk-transfer") == "task-1-rechunk-transfer"
    assert label("key", "('shuffle-transfer-0f', 3)") == "key-1-shuffle-transfer"


def test_an_anonymous_record_has_no_name_of_the_user_the_machine_or_the_code(tmp_path):
    def plant():
        platform.node = lambda: "planted-host"
        os.environ["UCX_LOG_FILE"] = "/home/planted/ucx.log"

    def planted_task(path):
        context_meter.digest_metric("planted-activity", 1.0, "seconds")
        return path

    (tmp_path / "planted").mkdir()
    with (
        dask_clusters.started(tmp_path) as theirs,
        Client(theirs.address) as client,
        contextlib.suppress(ValueError),
        commbench.profile(client, output=tmp_path / "planted", anonymize=True) as run,
    ):
        client.run(plant)
        client.submit(planted_task, "/home/planted/file", key="planted-key").result()
        with run.region("chosen"):
            compute(client)
            raise ValueError("planted")
    texts = [frame.to_csv() for frame in run.frames.values()]
    texts += [path.read_bytes().decode(errors="replace") for path in run.path.rglob("*.json*")]
    names = ("planted", "their-", platform.node(), getpass.getuser(), "127.0.0.1", "random")
    for text in texts:
        assert [name for name in names if re.search(rf"\b{re.escape(name)}", text)] == []
    assert "task-1" in {*run.tasks["name"]}
    assert {*run.transfers["src"]} <= {"worker-1", "worker-2"}
    assert set(run.regions["name"]) == {"chosen", "code"}


def test_without_names_advice_knows_the_settings_of_backends_and_of_glibc(tmp_path):
    case, written = builders.case(), []
    record = anonymous.AnonymousRecorder(written.append)
    for name, value in (("UCX_TLS", "tcp,sm"), ("UCX_NET_DEVICES", "planted:1")):
        record(builders.setting(case, name, value))
    assert [each.value for each in written] == ["tcp,sm", "value-1"]
    store = builders.unfinished(tmp_path, [case], [])
    known = {"MALLOC_TRIM_THRESHOLD_": "5", "MALLOC_ARENA_TEST": "planted", "DASK_X": "planted"}
    environment = store.manifest.environment | {"host": {}, "variables": known}
    manifest = anonymous.anonymous(dataclasses.replace(store.manifest, environment=environment))
    assert manifest.environment["variables"] == {"MALLOC_TRIM_THRESHOLD_": "5"}


@pytest.mark.parametrize("error", [CommClosedError("in tcp"), OSError("Timed out"), TimeoutError()])
def test_a_worker_that_is_lost_has_no_answer(error):
    client = SimpleNamespace(asynchronous=False, run=lambda *_, **__: {"a": 1, "b": error})
    assert profile._Blocking(client).run(os.getpid) == {"a": 1}


def test_a_worker_that_has_left_is_not_asked(own):
    gone, other = own.nthreads()
    own.retire_workers(workers=[gone])
    processes.until(lambda: gone not in own.nthreads(), "a worker left")
    began = time.monotonic()
    assert [*profile._Blocking(own).run(os.getpid, workers=[gone, other])] == [other]
    # Dask tries for 30 s to connect.
    assert time.monotonic() - began < 20


def test_an_error_of_a_function_on_a_worker_is_raised():
    answers = {"a": 1, "b": PermissionError("/proc/1/stat")}
    client = SimpleNamespace(asynchronous=False, run=lambda *_, **__: answers)
    with pytest.raises(PermissionError):
        profile._Blocking(client).run(os.getpid)
