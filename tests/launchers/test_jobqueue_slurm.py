"""The launcher ``slurm`` on a real Slurm of one node, which the test starts as root."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
import slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("dask_jobqueue") is None, reason="dask-jobqueue is not installed"
    ),
]
RUN = ("merge", "--rows", "20000", "--launcher", "slurm", "--launches", "1",
       "--launcher-option", "memory=500MB")  # fmt: skip


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment in which ``sbatch`` works."""
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.fixture
def line(tmp_path: Path, environ: dict[str, str]) -> Iterator[processes.CommandLine]:
    """Return a command line that knows the node."""
    with processes.command_line(tmp_path) as line:
        line.environ |= environ
        yield line


def test_a_workload_on_jobs(line: processes.CommandLine, environ: dict[str, str]) -> None:
    """Two jobs run, the result is right, and the queue is empty afterwards."""
    ended = line.run(*RUN, "--iterations", "2", "--launcher-option", "queue=test")
    assert ended.status == 0, ended.said
    samples = processes.records(ended.run, "Sample")
    assert len(samples) == 3
    assert all(sample["verified"] and sample["cpu_seconds"] > 0 for sample in samples)
    (use,) = processes.records(ended.run, "CoreUse")
    assert use["own_cpu_seconds"] > sum(sample["cpu_seconds"] for sample in samples)
    processes.until(lambda: not slurm.queue(environ), "an empty queue")
    assert line.tag.processes() == []


def test_jobs_that_must_wait(line: processes.CommandLine, environ: dict[str, str]) -> None:
    """More than the node has: the count, the deadline and the jobs are told; none stays queued."""
    ended = line.run(*RUN, "--workers", "10", "--start-timeout", "20")
    assert ended.status == 1
    (failure,) = processes.records(ended.run, "Failure")
    assert "8 of 10 workers came within 20 s (--start-timeout); the jobs are " in failure["message"]
    assert "squeue tells why one waits" in failure["message"]
    processes.until(lambda: not slurm.queue(environ), "an empty queue")


def test_what_slurm_refuses(line: processes.CommandLine) -> None:
    """Its own words are in the failure."""
    ended = line.run(*RUN, "--launcher-option", "queue=nowhere")
    (failure,) = processes.records(ended.run, "Failure")
    assert "slurm took no job" in failure["message"]
    assert "invalid partition" in failure["message"]


def test_slurm_accepts_what_is_printed(line: processes.CommandLine) -> None:
    """``sbatch --test-only`` finds nothing to object to."""
    printed = line.start("run", *RUN, "--dry-run").finish()
    assert printed.status == 0, printed.said
    subprocess.run(
        ["sbatch", "--test-only"], input=printed.stdout, text=True, check=True,
        env=os.environ | line.environ, capture_output=True,
    )  # fmt: skip
