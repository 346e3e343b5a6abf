"""The launcher ``external``: a running cluster is measured, and left as it was."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import builders
import cluster_state
import dask_clusters
import processes
import pytest
from click.testing import CliRunner
from dask_clusters import Started
from distributed import Client

from commbench.cli.main import main
from commbench.errors import LaunchError, UsageError
from commbench.harness import suite
from commbench.launchers import external
from commbench.launchers.external import ExternalLauncher
from commbench.model import ClusterSpec

MERGE = ("merge", "--rows", "20000", "--launcher", "external", "--launches", "1")
LIAR = """
from distributed import versions

# A preload may be read twice.
if not hasattr(versions, "honest"):
    versions.honest = versions.get_package_info
    versions.get_package_info = lambda names: {
        **versions.honest(names), "distributed": "2024.1.0"
    }
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Return somebody's cluster."""
    with dask_clusters.started(tmp_path_factory.mktemp("theirs")) as cluster:
        yield cluster


@pytest.fixture
def owner(theirs: Started) -> Iterator[Client]:
    """Return its owner's client, who has data there."""
    with Client(theirs.address, set_as_default=False) as client:
        client.wait_for_workers(2)
        yield client


def spec(cluster: Started | str, **given: Any) -> ClusterSpec:
    """Return what to ask for."""
    address = cluster if isinstance(cluster, str) else cluster.address
    return ClusterSpec(launcher="external", scheduler=address, **given)


@dataclass(frozen=True)
class Visit:
    """A run on somebody's cluster: how that was before and afterwards, and what came of it."""

    before: dict[str, Any]
    after: dict[str, Any]
    samples: list[dict[str, Any]]
    core_use: dict[str, Any]
    report: Any


@pytest.fixture(scope="module")
def visit(theirs: Started, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """Return a run while the cluster's owner has data there."""
    with (
        Client(theirs.address, set_as_default=False) as owner,
        processes.command_line(tmp_path_factory.mktemp("visit")) as line,
    ):
        owner.wait_for_workers(2)
        return _visit(theirs, owner, line)


def _visit(theirs: Started, owner: Client, line: processes.CommandLine) -> Visit:
    here, there = owner.scheduler_info(n_workers=-1)["workers"]
    # What moved before is in a worker's log, and stays.
    data = owner.submit(bytes, 1_000_000, workers=[here], key="their-data")
    moved = owner.submit(len, data, workers=[there], key="their-result")
    assert moved.result() == 1_000_000
    # Dask itself drops what is there twice.
    processes.until(lambda: len(owner.who_has([data])[data.key]) == 1, "one of the data")
    before = cluster_state.snapshot(owner)
    assert any(entry["log"][1] for entry in before["workers"].values())
    ended = line.run(*MERGE, "--iterations", "8", "--scheduler-file", theirs.file)
    assert ended.status == 0, ended.said
    assert line.tag.processes() == []
    (core_use,) = processes.records(ended.run, "CoreUse")
    return Visit(
        before,
        cluster_state.snapshot(owner),
        processes.records(ended.run, "Sample"),
        core_use,
        line.report(ended.run),
    )


def test_a_cluster_is_left_as_it_was(visit: Visit) -> None:
    """Keys, plugins, configuration, logs, classes, loops and workers are the same afterwards."""
    assert visit.after == visit.before


def test_a_cluster_is_measured(visit: Visit) -> None:
    """Samples are right and have a CPU time, and pairs and coverage are those of its workers."""
    assert len(visit.samples) == 9
    assert all(sample["verified"] and sample["cpu_seconds"] > 0 for sample in visit.samples)
    pairs = {(row["src"], row["dst"]) for row in visit.report["transports"]}
    assert pairs == {("their-0", "their-1"), ("their-1", "their-0")}
    (coverage,) = visit.report["coverage"]
    assert coverage["coverage"] > 0.9
    assert coverage["n_lost"] == 0
    assert any("one running cluster" in warning for warning in visit.report["warnings"])


def test_the_cpu_time_of_the_cluster_is_the_launch_s_own(visit: Visit) -> None:
    """What its processes burn while they are measured does not pass for that of others."""
    # Those of the client are in the time of the launch's own process anyway.
    in_samples = sum(sample["cpu_seconds"] for sample in visit.samples)
    assert visit.core_use["own_cpu_seconds"] > in_samples


def test_a_killed_launch_leaves_nothing_either(
    theirs: Started, owner: Client, tmp_path: Path
) -> None:
    """Where the launch can't clean up, the scheduler does when it sees the client go.

    Only the workers' logs, which are theirs again, may end with the launch's last fetches.
    """
    # A task stream of the owner's is as long as before, too.
    owner.get_task_stream()
    before = _without_entries(cluster_state.snapshot(owner))
    assert before["scheduler"]["task stream"] == 100_000
    with processes.command_line(tmp_path) as line:
        running = line.start("run", *MERGE, "--iterations", "500", "--scheduler-file", theirs.file)
        running.until_record("Sample")
        assert "commbench-cleaner" in cluster_state.snapshot(owner)["scheduler"]["plugins"]
        running.find("launch").kill()
        assert running.finish().status == 1
    processes.until(
        lambda: _without_entries(cluster_state.snapshot(owner)) == before, "the cluster as it was"
    )


def test_a_worker_that_leaves_voids_the_launch(tmp_path: Path) -> None:
    """The launch fails at once and says who left."""
    with (
        dask_clusters.started(tmp_path) as cluster,
        processes.command_line(tmp_path) as line,
    ):
        running = line.start("run", *MERGE, "--iterations", "500", "--scheduler-file", cluster.file)
        running.until_record("Sample")
        cluster.workers[1].send_signal(signal.SIGKILL)
        ended = running.finish()
        (failure,) = processes.records(ended.run, "Failure")
    assert "worker their-1 (" in failure["message"]
    assert "left the cluster while it was needed" in failure["message"]


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the address, and what to look at."""
    monkeypatch.setattr(external, "_ANSWER_SECONDS", 0.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LaunchError, match=f"no scheduler answers at {address} within 0.5 s"):
            ExternalLauncher().start(spec(address), "tcp", tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_of_another_version(tmp_path: Path) -> None:
    """Both versions are told."""
    (tmp_path / "liar.py").write_text(LIAR)
    preload = ("--preload", str(tmp_path / "liar.py"))
    with dask_clusters.started(tmp_path, n_workers=0, scheduler=preload) as cluster:
        own = subprocess.check_output(
            [sys.executable, "-c", "import distributed; print(distributed.__version__)"], text=True
        ).strip()
        with pytest.raises(
            LaunchError, match=rf"scheduler has distributed 2024\.1\.0.*distributed {own}"
        ):
            ExternalLauncher().start(spec(cluster), "tcp", tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_workers": 3, "start_timeout_s": 0.3}, r"2 of 3 workers came within 0.3 s"),
        ({"n_workers": 1}, r"2 workers are there, and 1 were asked for.*--workers 2"),
        ({"threads_per_worker": 4}, r"1 threads each, and 4 were asked for; say --threads 1"),
    ],
)
def test_another_cluster_than_was_asked_for(
    given: dict[str, Any], said: str, theirs: Started, owner: Client, tmp_path: Path
) -> None:
    """Fewer or more workers, or other threads, are refused with the number that is right."""
    with pytest.raises(LaunchError, match=said):
        ExternalLauncher().start(spec(theirs, **given), "tcp", tmp_path)


def test_a_cluster_that_works_for_others(theirs: Started, owner: Client, tmp_path: Path) -> None:
    """It is refused as long as it does, with the number of tasks."""
    unfinished = tmp_path / "unfinished"
    unfinished.touch()
    busy = owner.submit(
        lambda: [time.sleep(0.02) for _ in iter(unfinished.exists, False)], pure=False
    )
    processes.until(lambda: owner.run_on_scheduler(external._count_tasks), "a task")
    with pytest.raises(LaunchError, match="busy with 1 tasks of other clients"):
        ExternalLauncher().start(spec(theirs, start_timeout_s=0.2), "tcp", tmp_path)
    unfinished.unlink()
    busy.result()
    with ExternalLauncher().start(spec(theirs), "tcp", tmp_path) as cluster:
        assert set(cluster.names.values()) == {"their-0", "their-1"}
        assert len(cluster.pids) == cluster.n_processes == 4
        assert os.getpid() not in cluster.foreign_pids


def test_two_guests_at_once(theirs: Started, owner: Client, tmp_path: Path, monkeypatch) -> None:
    """The second is told of the first, and leaves its instruments alone."""
    from commbench.harness.measure import plugins
    from commbench.harness.transfers import TransferLog

    monkeypatch.setattr(plugins, "_FREE_SECONDS", 0.2)
    before = cluster_state.snapshot(owner)
    launcher = ExternalLauncher()
    with (
        launcher.start(spec(theirs), "tcp", tmp_path) as first,
        launcher.start(spec(theirs), "tcp", tmp_path) as second,
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
    ("scheduler", "backend", "said"),
    [
        ("", "tcp", "needs a scheduler: --scheduler-address"),
        ("ucx://10.0.0.1:8786", "tcp", r"uses ucx, and the addresses of the backend tcp"),
        ("tcp://10.0.0.1:8786", "ucx", r"at tcp://10.0.0.1:8786 uses tcp"),
        ("ucx://10.0.0.1:8786", "ucx:shm", r"settings of ucx:shm can't be set.*--backends ucx,"),
        ("tls://10.0.0.1:8786", "tcp", r"uses tls"),
        ("nowhere.json", "tcp", r"can't read the scheduler's file nowhere.json: No such file"),
    ],
)
def test_what_can_t_be_is_refused_before_anything_starts(
    scheduler: str, backend: str, said: str
) -> None:
    """A missing, unreadable or contradicting address is told on the command line."""
    with pytest.raises(UsageError, match=said):
        suite.cases_for("merge", (backend,), {}, spec(scheduler))


@pytest.mark.parametrize("content", ["", "[1]", '{"workers": {}}', "tcp://127.0.0.1:8786"])
def test_a_file_that_is_no_scheduler_s(content: str, tmp_path: Path) -> None:
    """It is named, and what would be right."""
    file = tmp_path / "s.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"s\.json is not a scheduler's file.*--scheduler-file"):
        external.scheduler_address(str(file))
    file.write_text(json.dumps({"address": "tcp://127.0.0.1:1"}))
    assert external.scheduler_address(str(file)) == "tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scheduler-address", "a:1", "--scheduler-file", "b"), "name one scheduler; give one"),
        (("--scheduler-address", "a:1", "--launcher", "local"), "local takes no --scheduler-"),
        (("--hosts", "a,b"), "local takes no --hosts; add --launcher mpirun or ssh"),
        (("--launcher-option", "queue=a"), "local takes no --launcher-option; add --launcher"),
        (("--launcher-option", "queue"), "no KEY=VALUE"),
        (("--start-timeout", "500"), "--timeout); raise the latter"),
        (("--start-timeout", "0"), "must be above 0"),
        (("--dry-run",), "local submits no job"),
    ],
)
def test_options_that_don_t_go_together(arguments: tuple[str, ...], said: str) -> None:
    """They are usage errors, whatever the launcher."""
    done = CliRunner().invoke(main, ["run", "merge", *arguments])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_ping_pong_has_no_launcher(tmp_path: Path) -> None:
    """A suite that asks for it would bear a wrong name."""
    with pytest.raises(UsageError, match="launcher ssh is for workloads on a cluster"):
        suite.cases_for("pingpong", ("tcp",), {}, ClusterSpec(launcher="ssh", hosts=("a", "b")))


def test_the_settings_found_are_told(recorded: Any) -> None:
    """Every setting of UCX on a running cluster is in the warning, with where that is."""
    cluster = ClusterSpec(launcher="external", scheduler="ucx://10.0.0.1:8786")
    case = builders.case("ucx", cluster=cluster, launches=8)
    records = builders.launches(case, [1.0] * 8)
    records += [builders.setting(case, "UCX_TLS", "tcp,sm", launch=n) for n in range(8)]
    records.append(builders.setting(case, "distributed.comm.compression", "lz4"))
    content = recorded([case], builders.ended(records))
    (warning,) = [text for text in content.warnings if "running cluster" in text]
    assert "(ucx://10.0.0.1:8786)" in warning
    assert warning.endswith("settings of UCX found on its workers: UCX_TLS=tcp,sm")


def _without_entries(snapshot: dict[str, Any]) -> dict[str, Any]:
    for state in snapshot["workers"].values():
        state["log"] = state["log"][0]
    return snapshot
