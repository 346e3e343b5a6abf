"""The launchers ``slurm``, ``pbs`` and ``lsf``: their scripts, and how they deal with a queue.

The queue is a stand-in: commands that start a script at once, or never. A real Slurm is in
``test_jobqueue_slurm.py``.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dask
import processes
import pytest
from click.testing import CliRunner

from commbench.cli.main import main
from commbench.errors import LaunchError, UnavailableError, UsageError
from commbench.harness import suite
from commbench.launchers import jobqueue, members
from commbench.model import ClusterSpec, registry

# Before its configuration is changed: what it has as defaults would go with the change.
pytest.importorskip("dask_jobqueue")
QUEUES = {
    "slurm": ("sbatch", "scancel", "#SBATCH", ["-p short", "-t 00:10:00", "-A me", "--exclusive"]),
    "pbs": ("qsub", "qdel", "#PBS", ["-q short", "-l walltime=00:10:00", "-A me", "--exclusive"]),
    "lsf": ("bsub", "bkill", "#BSUB", ["-q short", "-W 00:10:00", '-P "me"', "--exclusive"]),
}
EACH_QUEUE = pytest.mark.parametrize("queue", QUEUES)
SUBMIT = """#!/bin/bash
# LSF's reads the script from its standard input.
script=$(mktemp -p {folder} job-XXXX.sh)
cat "${{1:-/dev/stdin}}" > $script
setsid bash $script > $script.log 2>&1 < /dev/null &
echo "Submitted batch job $!"
echo $! >> {folder}/submitted
"""
CANCEL = """#!/bin/bash
kill -- -$1
# As queues do: a worker that closes already when its signal comes may wait for ever.
(sleep 2; kill -KILL -- -$1) > /dev/null 2>&1 < /dev/null &
# The worker is gone well before this command is.
while kill -0 -- -$1; do sleep 0.05; done
sleep 1
echo $1 >> {folder}/cancelled
"""
# Above the largest id of a process, for the stand-in kills the process of that id.
NEVER = "#!/bin/bash\necho Job 4194305 is queued\n"


def spec(queue: str, **options: str) -> ClusterSpec:
    """Return two workers as jobs."""
    return ClusterSpec(launcher=queue, launcher_options={"memory": "500MB", **options})


def printed(queue: str, *arguments: str) -> str:
    """Return what a dry run prints."""
    done = CliRunner().invoke(
        main,
        ["run", "merge", "--launcher", queue, "--dry-run", "--launcher-option", "memory=2GB",
         *arguments],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return done.stdout


def check_syntax(script: str) -> None:
    """Let bash read it."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def scripts_of(text: str) -> list[str]:
    """Return the scripts that a dry run printed one after another."""
    return [f"#!{part}" for part in text.split("#!")[1:]]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: processes.Tag) -> Any:
    """Return a function that puts commands of that content into the path, and where they write."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(queue: str, submit: str = SUBMIT) -> Path:
        names = QUEUES[queue][:2]
        for name, content in zip(names, (submit, CANCEL), strict=True):
            (folder / name).write_text(content.format(folder=folder) if "{" in content else content)
            (folder / name).chmod(0o755)
        return folder

    return put


@EACH_QUEUE
def test_a_script_has_what_the_site_wants(queue: str) -> None:
    """Options and configuration become directives; bash accepts every script; there is one each."""
    _, _, mark, wanted = QUEUES[queue]
    account = {"lsf": "project"}.get(queue, "account")
    with dask.config.set({f"jobqueue.{queue}.queue": "short"}):
        text = printed(
            queue, "--launches", "3", "--launcher-option", "walltime=00:10:00",
            "--launcher-option", f"{account}=me",
            "--launcher-option", "job_extra_directives=--exclusive",
        )  # fmt: skip
    scripts = scripts_of(text)
    assert len(scripts) == 3
    for script in scripts:
        check_syntax(script)
        lines = script.splitlines()
        for directive in wanted:
            assert f"{mark} {directive}" in lines
        (command,) = [line for line in lines if "distributed.cli.dask_worker" in line]
        assert "tcp://SCHEDULER:PORT" in command
        assert "--no-nanny" in command


@EACH_QUEUE
def test_a_script_exports_the_case_s_environment(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as it is printed, the worker's command has the backend's variables and the user's."""
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1 and 'more' $HOME")
    python = tmp_path / "python"
    python.write_text("#!/bin/bash\nenv -0\n")
    python.chmod(0o755)
    option = ("--launcher-option", f"python={python}", "--launcher-option",
              "job_script_prologue=export UCX_TLS=loses SITE=yes")  # fmt: skip
    text = printed(queue, "--launches", "1", "--backends", "ucx:shm", *option)
    done = subprocess.run(
        ["env", "-i", f"PATH={os.environ['PATH']}", "bash"], input=text, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    environ = dict(pair.partition("=")[::2] for pair in done.stdout.split("\0"))
    assert environ["UCX_TLS"] == "tcp,sm"
    assert environ["UCX_NET_DEVICES"] == "mlx5_0:1 and 'more' $HOME"
    assert environ["OMP_NUM_THREADS"] == "1"
    assert environ["SITE"] == "yes"
    assert "DASK_TEMPORARY_DIRECTORY" not in environ


def test_a_dry_run_starts_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder of results, no process, no submission."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert printed("slurm")
    assert list(tmp_path.iterdir()) == []


def test_several_workers_in_a_job() -> None:
    """The job asks for all their cores, and starts them all."""
    text = printed(
        "slurm", "--launches", "1", "--workers", "4", "--threads", "3",
        "--launcher-option", "processes=2",
    )  # fmt: skip
    assert "--cpus-per-task=6" in text
    assert "--nthreads 3" in text
    assert "--nworkers 2" in text


@EACH_QUEUE
def test_workers_come_as_jobs_and_go(queue: str, commands: Any, tmp_path: Path) -> None:
    """Each is a job, with its name; the cluster's end cancels all, and no process is left."""
    folder = commands(queue)
    launcher = registry.load("launcher", queue)()
    with launcher.start(spec(queue), "tcp", tmp_path, ()) as cluster:
        assert sorted(cluster.names.values()) == ["0", "1"]
        assert cluster.client.submit(sum, [1, 2]).result() == 3
        assert cluster.n_processes == 4
        # The scheduler is a child of this process, and the jobs are not.
        assert set(cluster.foreign_pids) == set(cluster.client.run(os.getpid).values())
        workers = cluster.foreign_pids
    submitted = (folder / "submitted").read_text().split()
    assert (folder / "cancelled").read_text().split() == submitted
    assert len(submitted) == 2
    processes.until(lambda: not any(map(_lives, workers)), "the end of the workers")


def test_jobs_that_never_start(
    commands: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the count, the deadline, the jobs and where to look; the jobs are cancelled."""
    folder = commands("slurm", NEVER)
    wait_for = members.wait_for
    # The scheduler may take long to start: the deadline passes when it is there.
    monkeypatch.setattr(
        members, "wait_for", lambda client, spec, _, hint: wait_for(client, spec, 0.0, hint)
    )
    asked = replace(spec("slurm"), start_timeout_s=170.0)
    said = r"0 of 2 workers came within 170 s \(--start-timeout\); the jobs are (\d+), \1 of slurm"
    with pytest.raises(LaunchError, match=said):
        registry.load("launcher", "slurm")().start(asked, "tcp", tmp_path)
    assert (folder / "cancelled").read_text().split() == ["4194305"] * 2


@pytest.mark.parametrize(
    ("submit", "said"),
    [
        ("#!/bin/bash\necho no such partition >&2\nexit 1\n", "took no job: .*no such partition"),
        ("#!/bin/bash\necho thanks\n", "took no job: .*job id"),
        (None, "took no job: .*sbatch"),
    ],
    ids=["refused", "no number", "no queue"],
)
def test_a_queue_that_takes_no_job(
    submit: str | None, said: str, commands: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said is told."""
    if submit is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        commands("slurm", submit)
    with pytest.raises(LaunchError, match=said):
        registry.load("launcher", "slurm")().start(spec("slurm"), "tcp", tmp_path)


def test_a_launch_that_is_killed_cancels_its_jobs(commands: Any, tmp_path: Path) -> None:
    """Where the orchestrator dies, the launch takes back what it has submitted."""
    folder = commands("slurm")
    with processes.command_line(tmp_path) as line:
        running = line.start(
            "run", "merge", "--rows", "20000", "--iterations", "500", "--launches", "1",
            "--launcher", "slurm", "--launcher-option", "memory=500MB",
        )  # fmt: skip
        running.until_record("Sample")
        running.child.kill()
        running.finish()
        submitted = (folder / "submitted").read_text().split()
        cancelled = folder / "cancelled"
        processes.until(
            lambda: cancelled.exists() and cancelled.read_text().split() == submitted, "scancel"
        )
        processes.until(lambda: not line.tag.processes(), "no process of the test")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"que": "short"}, "no option 'que'; known: .*queue"),
        ({"cores": "4"}, "no option 'cores'"),
        ({"processes": "3"}, "2 workers can't be divided into jobs of 3"),
        ({"processes": "none"}, "processes is 'none'"),
        ({"memory": "much"}, "dask-jobqueue can't make a job for slurm"),
    ],
)
def test_options_that_make_no_job(options: dict[str, str], said: str) -> None:
    """They are usage errors, before anything starts."""
    with pytest.raises(UsageError, match=said):
        suite.cases_for("merge", ("tcp",), {}, spec("slurm", **options))


def test_without_memory_and_without_dask_jobqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is named, and where to say or get it."""
    with pytest.raises(UsageError, match=r"memory per job.*memory=8GB, or in jobqueue\.yaml"):
        suite.cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="pbs"))
    limited = replace(spec("slurm"), memory_limit="1GB")
    with pytest.raises(UsageError, match=r"takes no --memory-limit.*--launcher-option memory=8GB"):
        suite.cases_for("merge", ("tcp",), {}, limited)
    monkeypatch.setattr(jobqueue.importlib.util, "find_spec", Mock(return_value=None))
    with pytest.raises(UnavailableError, match=r"commbench\[jobqueue\]"):
        suite.cases_for("merge", ("tcp",), {}, spec("lsf"))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
