import json
import os
import signal
import socket
import time
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import builders
import cluster_state
import dask_clusters
import distributed
import processes
import pytest
from distributed import Client
from launching import make_launch, no_idle_cost

from commbench import backends
from commbench.conformance import check_launcher
from commbench.errors import LaunchError, UsageError
from commbench.harness import options, runner
from commbench.harness.cases import cases_for
from commbench.harness.measure import plugins, traffic
from commbench.harness.transfer_log import TransferLog
from commbench.launchers import external, members
from commbench.launchers.external import ExternalLauncher
from commbench.model import ClusterSpec
from commbench.model.observed import Failure, Sample


@pytest.fixture(scope="module")
def dask_cluster(tmp_path_factory):
    """Return a cluster that somebody else started."""
    with dask_clusters.started(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture
def owner(dask_cluster):
    """Return the client of the cluster's owner, who has data there."""
    with Client(dask_cluster.address, set_as_default=False) as client:
        client.wait_for_workers(2)
        yield client


def spec(cluster, **fields):
    address = cluster if isinstance(cluster, str) else cluster.address
    return ClusterSpec(launcher="external", scheduler=address, **fields)


class Measured(NamedTuple):
    """A run on somebody's cluster, and the state of the cluster before and after it."""

    before: dict[str, Any]
    after: dict[str, Any]
    samples: list[dict[str, Any]]
    core_use: dict[str, Any]
    report: Any


@pytest.fixture(scope="module")
def measured(dask_cluster, tmp_path_factory):
    with Client(dask_cluster.address, set_as_default=False) as owner:
        owner.wait_for_workers(2)
        return measure(dask_cluster, owner, tmp_path_factory.mktemp("results"))


def measure(dask_cluster, owner, output):
    here, there = owner.nthreads()
    # What moved before is in a worker's log, and stays.
    data = owner.submit(bytes, 1_000_000, workers=[here], key="their-data")
    moved = owner.submit(len, data, workers=[there], key="their-result")
    assert moved.result() == 1_000_000
    # Dask itself drops the second copy.
    processes.until(lambda: len(owner.who_has([data])[data.key]) == 1, "one copy of the data")
    before = cluster_state.snapshot(owner)
    assert any(entry["log"][1] for entry in before["workers"].values())
    tag = processes.Tag()
    with pytest.MonkeyPatch.context() as patch:
        tag.set(patch)
        run = processes.measured(
            "merge", "--rows", 20_000, "--launcher", "external", "--launches", 1,
            "--iterations", 4, "--scheduler", dask_cluster.file, "--shuffle", "tasks",
            "--output", output)  # fmt: skip
    assert tag.processes() == []
    (core_use,) = processes.records(run.path, "CoreUse")
    report = processes.report(run.path)
    after = cluster_state.snapshot(owner)
    return Measured(before, after, processes.records(run.path, "Sample"), core_use, report)


def test_a_measured_cluster_is_left_as_it_was(measured):
    assert measured.after == measured.before


def test_the_scheduler_sends_nothing_to_a_client_that_is_gone(measured, dask_cluster):
    log = dask_cluster.file.with_name("scheduler.log").read_text()
    assert "Remove client" in log
    assert "CommClosedError" not in log


def test_samples_transports_and_coverage_are_those_of_its_workers(measured):
    assert len(measured.samples) == 5
    assert all(sample["verified"] and sample["cpu_seconds"] > 0 for sample in measured.samples)
    pairs = {(row["src"], row["dst"]) for row in measured.report["transports"]}
    assert pairs == {("their-0", "their-1"), ("their-1", "their-0")}
    (coverage,) = measured.report["coverage"]
    assert coverage["coverage"] > 0.9
    assert coverage["n_lost"] == 0
    assert any("one running cluster" in warning for warning in measured.report["warnings"])


def test_the_cpu_time_of_the_cluster_is_not_that_of_other_processes(measured):
    in_samples = sum(sample["cpu_seconds"] for sample in measured.samples)
    assert measured.core_use["own_cpu_seconds"] > in_samples


@pytest.mark.slow
def test_links_of_a_running_cluster_need_what_to_expect_of_two_workers(
    dask_cluster, owner, tmp_path
):
    few = ("--sizes", "1,64KiB,2MiB", "--output", tmp_path / "results", "--format", "json")
    rates = [f"--expect={name}=1kB/s" for name in ("same NUMA", "cross-socket", "same host")]
    where = ("--scheduler", dask_cluster.file)
    fine = processes.invoke("links", *where, *few, *rates, figures=())
    open_ = processes.invoke("links", *where, *few, "--iterations", 1, figures=())
    assert fine.exit_code == 0, fine.output
    document = json.loads(fine.stdout)
    assert document["outcome"] == "fine"
    assert len(document["links"]) == 2
    assert open_.exit_code == 1, open_.output
    assert json.loads(open_.stdout)["outcome"] == "not judged"
    report = processes.invoke("report", document["run"])
    assert report.exit_code == 0, report.output
    assert "links, in rounds" in report.stdout


def test_the_launcher_meets_its_contract(dask_cluster, tmp_path, tag, monkeypatch):
    monkeypatch.setattr("commbench.harness.measure.cluster.measure_idle", no_idle_cost)
    check_launcher("external", tmp_path, scheduler=dask_cluster.address, start_timeout_s=30.0)
    with Client(dask_cluster.address, set_as_default=False) as client:
        assert len(client.run(os.getpid)) == 2
        assert client.submit(sum, [1, 2]).result() == 3


def without_log_entries(snapshot):
    for state in snapshot["workers"].values():
        state["log"] = state["log"][0]
    return snapshot


def test_the_scheduler_cleans_up_after_a_killed_launch(dask_cluster, owner, tmp_path, tag):
    # A task stream of the owner's keeps its length, too. The workers' logs may end with the last
    # fetches of the launch.
    owner.get_task_stream()
    before = without_log_entries(cluster_state.snapshot(owner))
    assert before["scheduler"]["task stream"] == 100_000
    (case,) = cases_for("merge", ["tcp"], {"rows": 20_000}, spec(dask_cluster), iterations=5000)
    records = runner.run_plan([make_launch(case)], tmp_path)
    next(record for record in records if isinstance(record, Sample))
    assert "commbench-cleaner" in cluster_state.snapshot(owner)["scheduler"]["plugins"]
    (launch,) = [each for each in tag.processes() if each.role == "launch"]
    launch.kill()
    assert [record for record in records if isinstance(record, Failure)]
    processes.until(
        lambda: without_log_entries(cluster_state.snapshot(owner)) == before, "the cleanup"
    )


def test_a_worker_that_leaves_is_a_death_and_one_before_the_launch_refuses_it(
    tmp_path, monkeypatch, deaths
):
    def leave(launched, _):
        """Be waiting for other clients meanwhile."""
        cluster.workers[2].terminate()
        processes.until(lambda: len(launched.client.nthreads()) == 2, "a worker left")

    with dask_clusters.started(tmp_path, n_workers=3) as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(external.ExternalCluster, "_refuse_busy", leave)
            with pytest.raises(LaunchError, match="left or joined the cluster before"):
                ExternalLauncher().start(spec(cluster, n_workers=3), "tcp", tmp_path)
        assert not deaths
        with ExternalLauncher().start(spec(cluster), "tcp", tmp_path):
            cluster.workers[1].send_signal(signal.SIGKILL)
            (message,) = processes.until(lambda: deaths, "the report")
    assert "worker their-1 (" in message
    assert "left the cluster while it was needed" in message


def test_a_scheduler_that_sends_no_events_is_refused(dask_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(members, "_SUBSCRIBE_SECONDS", 0.1)
    monkeypatch.setattr(Client, "subscribe_topic", lambda *_: None)
    with pytest.raises(LaunchError, match=r"sent no event .* a worker that leaves would not be"):
        ExternalLauncher().start(spec(dask_cluster), "tcp", tmp_path)


@pytest.mark.parametrize(
    ("scheduler", "hint"),
    [("127.0.0.1", "tcp://127.0.0.1:8786"), ("none.json", None), ("a/b", None)],
)
def test_a_scheduler_that_is_no_file_may_be_a_host(scheduler, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="can't read the scheduler's file") as raised:
        external.scheduler_address(scheduler)
    assert ("An address has a port" in str(raised.value)) is bool(hint)
    assert str(raised.value).endswith(hint or "writes")


def test_an_error_without_a_text_is_named_by_its_type(monkeypatch):
    monkeypatch.setattr("distributed.Client", Mock(side_effect=TimeoutError))
    with pytest.raises(LaunchError, match=r"within 10 s \(TimeoutError\)"):
        external._connect_client("tcp://127.0.0.1:1")


def test_an_address_where_no_scheduler_listens_is_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr(external, "_ANSWER_SECONDS", 0.5)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(LaunchError, match=f"no scheduler answers at {address} within 0.5 s"):
            ExternalLauncher().start(spec(address), "tcp", tmp_path)


def test_a_scheduler_with_another_version_is_refused(dask_cluster, tmp_path, monkeypatch):
    get_versions = Client.get_versions

    def older(client, **options):
        versions = get_versions(client, **options)
        versions["scheduler"]["packages"]["distributed"] = "2024.1.0"
        return versions

    monkeypatch.setattr(Client, "get_versions", older)
    both = rf"scheduler has distributed 2024\.1\.0.*distributed {distributed.__version__}"
    with pytest.raises(LaunchError, match=both):
        ExternalLauncher().start(spec(dask_cluster), "tcp", tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_workers": 3, "start_timeout_s": 0.3}, r"2 of 3 workers came within 0.3 s"),
        ({"n_workers": 1}, r"2 workers are there, and 1 were asked for.*--workers 2"),
        ({"threads_per_worker": 4}, r"1 threads each, and 4 were asked for; say --threads 1"),
    ],
)
def test_other_numbers_of_workers_and_threads_are_refused(
    fields, message, dask_cluster, owner, tmp_path
):
    with pytest.raises(LaunchError, match=message):
        ExternalLauncher().start(spec(dask_cluster, **fields), "tcp", tmp_path)


def test_a_cluster_is_refused_while_it_runs_tasks_of_other_clients(dask_cluster, owner, tmp_path):
    unfinished = tmp_path / "unfinished"
    unfinished.touch()
    busy = owner.submit(
        lambda: [time.sleep(0.02) for _ in iter(unfinished.exists, False)], pure=False
    )
    processes.until(lambda: owner.run_on_scheduler(external._count_tasks), "a task")
    with pytest.raises(LaunchError, match="busy with 1 tasks of other clients"):
        ExternalLauncher().start(spec(dask_cluster, start_timeout_s=0.2), "tcp", tmp_path)
    unfinished.unlink()
    busy.result()
    with ExternalLauncher().start(spec(dask_cluster), "tcp", tmp_path) as cluster:
        assert set(cluster.names.values()) == {"their-0", "their-1"}
        assert len(cluster.pids) == cluster.n_processes == 4
        assert os.getpid() not in cluster.foreign_pids


def test_a_second_launch_on_a_cluster_is_refused(dask_cluster, owner, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_FREE_SECONDS", 0.2)
    before = cluster_state.snapshot(owner)
    with (
        ExternalLauncher().start(spec(dask_cluster), "tcp", tmp_path) as first,
        ExternalLauncher().start(spec(dask_cluster), "tcp", tmp_path) as second,
        plugins.installed(first, TransferLog()),
    ):
        during = cluster_state.snapshot(owner)
        assert "commbench-transfer-log" in during["scheduler"]["worker plugins"]
        with (
            pytest.raises(LaunchError, match="another commbench is measuring"),
            plugins.installed(second, TransferLog()),
        ):
            pass
        assert cluster_state.snapshot(owner) == during
    assert cluster_state.snapshot(owner) == before


@pytest.mark.parametrize(
    ("scheduler", "backend", "message"),
    [
        ("", "tcp", "needs a scheduler: --scheduler tcp"),
        ("ucx://10.0.0.1:8786", "tcp", r"uses ucx, and the addresses of the backend tcp"),
        ("tcp://10.0.0.1:8786", "ucx", r"at tcp://10.0.0.1:8786 uses tcp"),
        ("ucx://10.0.0.1:8786", "ucx:shm", r"settings of ucx:shm can't be set.*--backends ucx,"),
        ("tls://10.0.0.1:8786", "tcp", r"uses tls"),
        ("nowhere.json", "tcp", r"can't read the scheduler's file nowhere.json: No such file"),
    ],
)
def test_an_unusable_scheduler_is_refused_before_anything_starts(scheduler, backend, message):
    with pytest.raises(UsageError, match=message):
        cases_for("merge", (backend,), {}, spec(scheduler))


def test_the_address_is_read_from_a_schedulers_file(tmp_path):
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"address": "tcp://127.0.0.1:1"}))
    assert external.scheduler_address(str(file)) == "tcp://127.0.0.1:1"


def test_a_relative_file_of_a_scheduler_is_resolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").touch()
    assert options.overrides({"scheduler": "s.json"}) == {"scheduler": str(tmp_path / "s.json")}
    assert options.overrides({"scheduler": "a:1"}) == {"scheduler": "a:1"}


@pytest.mark.parametrize("content", ["", "[1]", '{"workers": {}}', "tcp://127.0.0.1:8786"])
def test_a_file_without_an_address_is_refused(content, tmp_path):
    file = tmp_path / "s.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"s\.json is not a scheduler's file.*--scheduler-file"):
        external.scheduler_address(str(file))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scheduler", "a:1", "--launcher", "local"), "local takes no --scheduler; add"),
        (("--hosts", "a,b"), "local takes no --hosts; add --launcher mpirun or ssh"),
        (("--launcher-option", "queue=a"), "local has no option queue=a; it has start=fork|spawn"),
        (("--launcher-option", "start=b"), "local has no option start=b; it has start=fork|spawn"),
        (("--launcher-option", "queue"), "no KEY=VALUE"),
        (("--launcher", "ssh", "--hosts", f"{__file__},b"), ".py is a file; name the hosts one by"),
        (("--workers", "0"), "--workers is 0; a cluster has at least one worker"),
        (("--start-timeout", "500"), "--timeout); raise the latter"),
        (("--start-timeout", "0"), "must be above 0"),
        (("--dry-run",), "--dry-run is for lsf, pbs, slurm"),
    ],
)
def test_options_that_the_launcher_does_not_take_are_usage_errors(arguments, message):
    result = processes.invoke("run", "merge", *arguments, figures=(), rules=())
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_pair_workload_takes_no_launcher():
    with pytest.raises(UsageError, match="launcher ssh is for workloads on a cluster"):
        cases_for("pingpong", ("tcp",), {}, ClusterSpec(launcher="ssh", hosts=("a", "b")))


def test_of_a_setting_that_each_worker_has_otherwise_the_number_of_values_is_recorded():
    pairs = {n: [("OMPI_RANK", f"{n}"), ("OMPI_TOKEN", f"s3cret {n}")] for n in range(9)}
    cluster: Any = SimpleNamespace(client=SimpleNamespace(run=lambda *_: pairs))
    recorded = traffic._settings(backends.parse("mpi"), cluster)
    assert recorded == {("OMPI_RANK", "9 values"), ("OMPI_TOKEN", "<redacted>")}


def test_the_report_warns_of_the_ucx_settings_of_a_running_cluster(recorded):
    case = builders.case("ucx", cluster=spec("ucx://10.0.0.1:8786"), launches=8)
    records = builders.launches(case, [1.0] * 8)
    records += [builders.setting(case, "UCX_TLS", "tcp,sm", launch=n) for n in range(8)]
    records.append(builders.setting(case, "distributed.comm.compression", "lz4"))
    run = recorded([case], builders.ended(records))
    (warning,) = [text for text in run.warnings if "running cluster" in text]
    assert "(ucx://10.0.0.1:8786)" in warning
    assert warning.endswith("settings found on its workers: UCX_TLS=tcp,sm")
