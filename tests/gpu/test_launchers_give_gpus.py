"""Each launcher gives every worker a GPU of its own; that they have one, the workers tell."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import fake_machine
import pytest
import sshd
from click.testing import CliRunner
from fake_machine import launch, of_kind

from commbench.cli.main import main
from commbench.launchers.mpirun import _ranks
from commbench.model import Failure, TransportUsed, WorkerPlace

BLOCKS = {"sizes": (65536,)}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a machine of two GPUs."""
    fake_machine.two_gpus(tmp_path, monkeypatch)


@pytest.mark.skipif(importlib.util.find_spec("dask_mpi") is None, reason="dask-mpi is missing")
def test_mpirun(tmp_path: Path) -> None:
    found = launch(tmp_path, "all-to-all", "mpi", BLOCKS, launcher="mpirun", rmm_pool="1GB")
    places = {place.worker: place.gpu for place in of_kind(WorkerPlace, found)}
    assert places == {"rank-1": "0", "rank-2": "1"}
    assert {used.transport for used in of_kind(TransportUsed, found)} == {"mpi/shm, staged"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("asyncssh") is None, reason="asyncssh is missing")
def test_ssh(tmp_path: Path) -> None:
    with sshd.server(tmp_path / "sshd") as server:
        cluster = {
            "launcher": "ssh", "hosts": ("127.0.0.1",) * 2, "launcher_options": server.options,
        }  # fmt: skip
        found = launch(tmp_path, "all-to-all", "tcp", BLOCKS, **cluster)
        assert of_kind(WorkerPlace, found)
        found = launch(tmp_path, "all-to-all", "tcp", BLOCKS, **cluster, n_workers=3)
    (failure,) = [record for record in found if isinstance(record, Failure)]
    assert "first of CUDA_VISIBLE_DEVICES=2,0,1: cudaErrorNoDevice" in failure.message


def test_jobs_are_told_all_but_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is missing")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    words = ["run", "merge", "--device", "gpu", "--rmm-pool", "10GB", "--launcher", "slurm",
             "--launcher-option", "memory=8GB", "--launches", "1", "--dry-run"]  # fmt: skip
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "--preload commbench.machine.gpu.preload" in done.output
    assert "export COMMBENCH_GPU='{" in done.output
    assert '"rmm_pool": "10GB"' in done.output
    assert "CUDA_VISIBLE_DEVICES" not in done.output


def test_a_world_is_one_command_where_its_ranks_are_alike() -> None:
    assert _ranks([{}, {}, {}], ["rank"]) == ["-n", "4", "rank"]
    assert _ranks([{"A": "x"}], ["rank"])[2:] == ["rank", ":", "-n", "1", "env", "A=x", "rank"]
