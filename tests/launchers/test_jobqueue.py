"""The queues are stand-ins: commands that start a script at once, or never.

A real Slurm is in ``test_jobqueue_slurm.py``.
"""

import asyncio
import itertools
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import dask
import processes
import pytest
from launching import make_launch

from commbench.errors import LaunchError, UnavailableError, UsageError
from commbench.harness import runner
from commbench.harness.cases import cases_for, unmet
from commbench.launchers import jobqueue, local, members
from commbench.machine import process
from commbench.model import ClusterSpec, registry
from commbench.model.observed import Sample

# Imported before a test changes its configuration, which would remove its defaults.
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
sleep 0.3
echo $1 >> {folder}/cancelled
"""
# Above the largest id of a process, for the stand-in kills the process of that id.
NEVER = "#!/bin/bash\necho Job 4194305 is queued\n"


def spec(queue, **options):
    return ClusterSpec(launcher=queue, launcher_options={"memory": "500MB", **options})


def dry_run(queue, *arguments):
    """Return the scripts that a dry run prints."""
    result = processes.invoke(
        "run", "merge", "--launcher", queue, "--dry-run", "--launcher-option", "memory=2GB",
        *arguments, figures=(), rules=())  # fmt: skip
    assert result.exit_code == 0, result.output
    return [f"#!{part}" for part in result.stdout.split("#!")[1:]]


@pytest.fixture
def install(tmp_path, monkeypatch, tag):
    """Return a function that puts a queue's commands on the PATH, and returns their folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(queue, submit=SUBMIT):
        names = QUEUES[queue][:2]
        for name, content in zip(names, (submit, CANCEL), strict=True):
            (folder / name).write_text(content.format(folder=folder) if "{" in content else content)
            (folder / name).chmod(0o755)
        return folder

    return install


@EACH_QUEUE
def test_options_and_configuration_become_directives(queue):
    _, _, mark, directives = QUEUES[queue]
    account = {"lsf": "project"}.get(queue, "account")
    with dask.config.set({f"jobqueue.{queue}.queue": "short"}):
        (script,) = dry_run(
            queue, "--launches", 3, "--launcher-option", "walltime=00:10:00",
            "--launcher-option", f"{account}=me",
            "--launcher-option", "job_extra_directives=--exclusive",
        )  # fmt: skip
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    lines = script.splitlines()
    assert {f"{mark} {directive}" for directive in directives} <= set(lines)
    (command,) = [line for line in lines if "distributed.cli.dask_worker" in line]
    assert "tcp://SCHEDULER:PORT" in command
    assert "--no-nanny" in command


@EACH_QUEUE
def test_a_script_exports_the_variables_of_backend_and_user(queue, tmp_path, monkeypatch):
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1 and 'more' $HOME")
    python = processes.program(tmp_path / "python", "env -0")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/login")
    prologue = (
        "job_script_prologue=export UCX_TLS=loses SITE=yes MKL_NUM_THREADS=4 "
        "LD_LIBRARY_PATH=/module:$LD_LIBRARY_PATH DASK_DISTRIBUTED__WORKER__PRELOAD=loses"
    )
    (script,) = dry_run(
        queue, "--launches", 1, "--backends", "ucx:shm",
        "--launcher-option", f"python={python}", "--launcher-option", prologue,
    )  # fmt: skip
    bash = ["env", "-i", f"PATH={os.environ['PATH']}", "bash"]
    output = subprocess.run(bash, input=script, capture_output=True, text=True, check=True).stdout
    environ = dict(pair.partition("=")[::2] for pair in output.split("\0"))
    assert environ["UCX_TLS"] == "tcp,sm"
    assert environ["UCX_NET_DEVICES"] == "mlx5_0:1 and 'more' $HOME"
    assert environ["OMP_NUM_THREADS"] == "1"
    assert (environ["SITE"], environ["MKL_NUM_THREADS"]) == ("yes", "4")
    assert environ["LD_LIBRARY_PATH"] == "/module:/login"
    preloads = dask.config.collect_env(environ)["distributed"]["worker"]["preload"]
    assert preloads == ["dask.dataframe"]


def test_a_script_has_the_preloads_of_the_case_before_those_of_the_workload(tmp_path):
    environ = {**os.environ, "DASK_DISTRIBUTED__WORKER__PRELOAD": "['mine']"}
    script = registry.load("launcher", "slurm")().script(
        spec("slurm"), "tcp", tmp_path, environ, ("ours",)
    )
    preloads = shlex.quote(repr(["mine", "ours"]))
    assert f"export DASK_DISTRIBUTED__WORKER__PRELOAD={preloads}\n" in script


@EACH_QUEUE
def test_a_script_has_the_settings_of_the_queue_that_each_case_varies(queue):
    _, _, mark, (directive, *_) = QUEUES[queue]
    flag = directive.split()[0]
    scripts = dry_run(queue, "--vary", f"jobqueue.{queue}.queue=long|other", "--launches", 1)
    (first,), (second,) = (
        [line for line in script.splitlines() if line.startswith(f"{mark} {flag} ")]
        for script in scripts
    )
    assert {first, second} == {f"{mark} {flag} long", f"{mark} {flag} other"}
    assert dask.config.get(f"jobqueue.{queue}.queue") is None


def test_what_a_job_requires_may_be_in_the_configuration_of_the_case():
    given = {"jobqueue.slurm.memory": "3GB"}
    cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="slurm", dask_config=given))
    refused = {"jobqueue.slurm.scheduler-options.contact_address": "a"}
    with pytest.raises(UsageError, match="contact_address can't be set"):
        cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="slurm", dask_config=given | refused))


@EACH_QUEUE
def test_a_script_finds_an_interpreter_in_a_folder_with_blanks(queue, tmp_path, monkeypatch):
    python = processes.program(tmp_path / "my project" / "python", "echo started")
    monkeypatch.setattr(sys, "executable", str(python))
    (script,) = dry_run(queue, "--launches", 1)
    output = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert output.stdout == "started\n"


@EACH_QUEUE
def test_logs_go_to_the_folder_of_the_option(queue, tmp_path):
    (script,) = dry_run(queue, "--launcher-option", f"log_directory={tmp_path}")
    mark = QUEUES[queue][2]
    written = [
        line for line in script.splitlines() if line.startswith((f"{mark} -o", f"{mark} -e"))
    ]
    assert len(written) == 2
    assert all(f" {tmp_path}/" in line for line in written)


def test_names_that_look_like_numbers_stay_as_they_are():
    given = ("queue=1e5", "account=1_0", "job_cpu=3", "job_directives_skip=['-J']")
    (script,) = dry_run("slurm", *(f"--launcher-option={pair}" for pair in given))
    directives = {"#SBATCH -p 1e5", "#SBATCH -A 1_0", "#SBATCH --cpus-per-task=3"}
    assert directives <= set(script.splitlines())
    assert "#SBATCH -J" not in script


@pytest.mark.filterwarnings("ignore:.* has been renamed:FutureWarning")
def test_a_configuration_with_older_names_is_used():
    older = {"env-extra": ["module load x"], "job-extra": ["--exclusive"], "extra": ["--no-reconn"]}
    with dask.config.set({f"jobqueue.slurm.{key}": value for key, value in older.items()}):
        (script,) = dry_run("slurm", "--launches", 1)
    lines = script.splitlines()
    assert {"module load x", "#SBATCH --exclusive"} <= set(lines)
    assert "--no-reconn" in lines[-1]


def test_a_dry_run_writes_no_file_and_submits_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dry_run("slurm")
    assert list(tmp_path.iterdir()) == []


def test_a_job_has_one_worker_and_requests_its_cores():
    with dask.config.set({"jobqueue.slurm.processes": 4}):
        (script,) = dry_run("slurm", "--launches", 2, "--workers", 4, "--threads", 3)
    assert "--cpus-per-task=3" in script
    assert "--nthreads 3" in script
    # With it, dask worker refuses --no-nanny.
    assert "--nworkers" not in script


@pytest.mark.parametrize(
    "queue", ["slurm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pbs", "lsf"))]
)
def test_workers_are_jobs_that_are_cancelled_at_the_end(queue, install, tmp_path):
    folder = install(queue)
    launcher = registry.load("launcher", queue)()
    with launcher.start(spec(queue), "tcp", tmp_path, ()) as cluster:
        assert sorted(cluster.names.values()) == ["0", "1"]
        assert cluster.client.submit(sum, [1, 2]).result() == 3
        assert cluster.n_processes == 4
        # The scheduler is a child of this process, and the jobs are not.
        assert set(cluster.foreign_pids) == set(cluster.client.run(os.getpid).values())
        workers = cluster.foreign_pids
    submitted = (folder / "submitted").read_text().split()
    assert sorted((folder / "cancelled").read_text().split()) == sorted(submitted)
    assert len(submitted) == 2
    processes.until(lambda: not any(map(processes.lives, workers)), "the end of the workers")


def test_jobs_that_do_not_start_in_time_are_named_and_cancelled(install, tmp_path, monkeypatch):
    folder = install("slurm", NEVER)
    wait = members.wait_for_workers
    # The deadline passes when the scheduler runs, however slow the machine is.
    monkeypatch.setattr(
        members, "wait_for_workers", lambda client, spec, _, hint: wait(client, spec, 0.0, hint)
    )
    logs = tmp_path / "elsewhere"
    requested = replace(spec("slurm", log_directory=str(logs)), start_timeout_s=170.0)
    message = (
        r"0 of 2 workers came within 170 s \(--start-timeout\); the jobs are (\d+), \1 of slurm: "
        rf".*logs are in {logs}$"
    )
    with pytest.raises(LaunchError, match=message):
        registry.load("launcher", "slurm")().start(requested, "tcp", tmp_path)
    assert (folder / "cancelled").read_text().split() == ["4194305"] * 2


@pytest.mark.parametrize(
    ("submit", "message"),
    [
        ("#!/bin/bash\necho no such partition >&2\nexit 1\n", "took no job: .*no such partition"),
        ("#!/bin/bash\necho thanks\n", "took no job: .*job id"),
        (None, "took no job: .*sbatch"),
    ],
    ids=["refused", "no number", "no queue"],
)
def test_the_reason_why_a_queue_refuses_a_job_is_in_the_error(
    submit, message, install, tmp_path, monkeypatch
):
    if submit is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        install("slurm", submit)
    with pytest.raises(LaunchError, match=message):
        registry.load("launcher", "slurm")().start(spec("slurm"), "tcp", tmp_path)


def test_a_queue_that_is_missing_is_an_error_before_a_launch(install, tmp_path, monkeypatch):
    (one,) = cases_for("merge", ("tcp",), {}, spec("slurm"))
    install("slurm")
    assert unmet(one) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no command sbatch" in unmet(one).reason


@pytest.mark.parametrize("in_loop", [True, False])
def test_jobs_are_cancelled_when_the_launch_is_ended(install, tmp_path, monkeypatch, in_loop):
    folder = install("slurm", NEVER)
    monkeypatch.setattr(process, "_undo", [])

    async def undo_in_loop():
        process.undo_all()

    def end_launch(*arguments):
        assert arguments[-1].endswith(f"their logs are in {tmp_path}")
        if in_loop:
            asyncio.run(undo_in_loop())
        else:
            process.undo_all()
        assert (folder / "cancelled").read_text().split() == ["4194305"] * 2
        raise LaunchError("ended")

    monkeypatch.setattr(members, "wait_for_workers", end_launch)
    with pytest.raises(LaunchError, match="ended"):
        registry.load("launcher", "slurm")().start(spec("slurm"), "tcp", tmp_path)


def test_no_job_is_submitted_once_the_launch_is_ended(install, tmp_path, monkeypatch):
    folder = install("slurm", NEVER)
    monkeypatch.setattr(process, "_undo", [])
    submit = jobqueue.JobCluster._submit

    def end_before_the_second(cluster, job):
        if cluster._jobs:
            process.undo_all()
        submit(cluster, job)

    monkeypatch.setattr(jobqueue.JobCluster, "_submit", end_before_the_second)
    with pytest.raises(LaunchError, match="ended before all jobs were submitted"):
        registry.load("launcher", "slurm")().start(spec("slurm"), "tcp", tmp_path)
    assert (folder / "cancelled").read_text().split() == ["4194305"]


@pytest.mark.slow
def test_a_launch_cancels_its_jobs_when_the_runner_is_gone(install, tmp_path, monkeypatch, tag):
    folder = install("slurm")
    # How long the launch may take for it before it is killed.
    monkeypatch.setattr(runner, "_UNDO_SECONDS", 120.0)
    (case,) = cases_for("merge", ["tcp"], {"rows": 20_000}, spec("slurm"), iterations=5000)
    plan = [make_launch(case)]
    records = runner.run_plan(plan, tmp_path / "run")
    next(record for record in records if isinstance(record, Sample))
    records.close()
    submitted = (folder / "submitted").read_text().split()
    assert sorted((folder / "cancelled").read_text().split()) == sorted(submitted)
    processes.until(lambda: not tag.processes(), "the end of all processes")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"que": "short"}, "no option 'que'; known: .*queue"),
        ({"cores": "4"}, "no option 'cores'"),
        ({"env_extra": "module load x"}, "calls env_extra job_script_prologue now"),
        ({"job-extra": "--exclusive"}, "calls job-extra job_extra_directives now"),
        ({"processes": "2"}, "a job has one worker"),
        ({"memory": "much"}, "dask-jobqueue can't make a job for slurm"),
        ({"log_directory": f"{__file__}/logs"}, "folder of the jobs' logs can't be made: .*Not a"),
    ],
)
def test_invalid_options_are_usage_errors_before_anything_starts(options, message):
    with pytest.raises(UsageError, match=message):
        cases_for("merge", ("tcp",), {}, spec("slurm", **options))


def test_the_memory_of_a_job_is_required_and_set_by_its_option():
    words = r"memory per job you want to use\. Say .*memory=8GB, or in jobqueue\.yaml"
    with pytest.raises(UsageError, match=words):
        cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="pbs"))
    limited = replace(spec("slurm"), memory_limit="1GB")
    with pytest.raises(UsageError, match=r"takes no --memory-limit.*--launcher-option memory=8GB"):
        cases_for("merge", ("tcp",), {}, limited)


def test_the_options_of_the_scheduler_are_those_of_the_configuration(tmp_path, monkeypatch):
    class StartedError(Exception):
        """The scheduler would have been started."""

    def start(_, name, /, *options, **environ):
        raise StartedError(*map(str, options))

    monkeypatch.setattr(local.LocalCluster, "_start_dask", start)
    launcher = registry.load("launcher", "slurm")()
    given = {"port": 8790, "host": "10.0.0.1", "idle_timeout": "1h"}
    with (
        dask.config.set({"jobqueue.slurm.scheduler-options": given}),
        pytest.raises(StartedError) as started,
    ):
        launcher.start(spec("slurm"), "tcp", tmp_path)
    words = started.value.args
    # The last one counts.
    ports = [value for word, value in itertools.pairwise(words) if word == "--port"]
    assert ports == ["0", "8790"]
    with (
        dask.config.set({"jobqueue.slurm.scheduler-options": {"contact_address": "tcp://a:1"}}),
        pytest.raises(UsageError, match="contact_address can't be set; remove it"),
    ):
        cases_for("merge", ("tcp",), {}, spec("slurm"))


def test_blank_scheduler_options_are_none():
    with dask.config.set({"jobqueue.slurm.scheduler-options": None}):
        assert registry.load("launcher", "slurm")().scheduler_options() == {}


def test_a_missing_dask_jobqueue_is_named_with_the_extra_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", Mock(return_value=None))
    with pytest.raises(UnavailableError, match="pip install 'dask-jobqueue"):
        cases_for("merge", ("tcp",), {}, spec("lsf"))
