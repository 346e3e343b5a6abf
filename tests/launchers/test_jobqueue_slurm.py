"""The launcher ``slurm`` on a real Slurm of one node, which the tests start as root."""

import os
import subprocess

import processes
import pytest
import slurm

pytest.importorskip("dask_jobqueue")
pytestmark = pytest.mark.slow
MERGE = ("merge", "--rows", "20000", "--launcher", "slurm", "--launches", "1",
         "--launcher-option", "memory=500MB")  # fmt: skip


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """Return the environment in which ``sbatch`` works."""
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.fixture
def line(tmp_path, environ):
    folder = tmp_path / "with blanks"
    folder.mkdir()
    with processes.command_line(folder) as line:
        line.environ |= environ
        yield line


def test_a_workload_on_two_jobs_leaves_an_empty_queue(line, environ):
    ended = line.run(*MERGE, "--iterations", "2", "--launcher-option", "queue=test")
    assert ended.status == 0, ended.said
    samples = processes.records(ended.run, "Sample")
    assert len(samples) == 3
    assert all(sample["verified"] and sample["cpu_seconds"] > 0 for sample in samples)
    (use,) = processes.records(ended.run, "CoreUse")
    assert use["own_cpu_seconds"] > sum(sample["cpu_seconds"] for sample in samples)
    processes.until(lambda: not slurm.queue(environ), "an empty queue")
    assert line.tag.processes() == []


def test_jobs_beyond_the_cores_of_the_node_are_named_and_cancelled(line, environ):
    ended = line.run(*MERGE, "--workers", "10", "--start-timeout", "20")
    assert ended.status == 1
    (failure,) = processes.records(ended.run, "Failure")
    assert "8 of 10 workers came within 20 s (--start-timeout); the jobs are " in failure["message"]
    assert "squeue shows why one waits" in failure["message"]
    processes.until(lambda: not slurm.queue(environ), "an empty queue")


def test_the_message_of_sbatch_is_in_the_failure(line):
    ended = line.run(*MERGE, "--launcher-option", "queue=nowhere")
    (failure,) = processes.records(ended.run, "Failure")
    assert "slurm took no job" in failure["message"]
    assert "invalid partition" in failure["message"]


def test_sbatch_accepts_the_printed_script(line):
    printed = line.start("run", *MERGE, "--dry-run").finish()
    assert printed.status == 0, printed.said
    subprocess.run(
        ["sbatch", "--test-only"], input=printed.stdout, text=True, check=True,
        env=os.environ | line.environ, capture_output=True,
    )  # fmt: skip
