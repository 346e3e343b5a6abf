"""Each launcher gives every worker another GPU."""

import importlib.util
import shlex

import processes
import pytest
import sshd
from fake_machine import launch, of_kind

from commbench.launchers.mpirun import _ranks
from commbench.model.observed import Failure, TransportUsed, WorkerPlace

pytestmark = pytest.mark.usefixtures("two_gpus")
BLOCKS = {"sizes": (65536,)}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("dask_mpi") is None, reason="dask-mpi is missing")
def test_ranks_of_mpirun_have_different_gpus(tmp_path):
    records = launch(tmp_path, "all-to-all", "mpi", BLOCKS, launcher="mpirun", rmm_pool="1GB")
    gpus = {record.worker: record.gpu for record in of_kind(WorkerPlace, records)}
    assert gpus == {"rank-1": "0", "rank-2": "1"}
    assert {used.transport for used in of_kind(TransportUsed, records)} == {"mpi/shm, staged"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("asyncssh") is None, reason="asyncssh is missing")
def test_workers_over_ssh_have_different_gpus(tmp_path):
    with sshd.server(tmp_path / "sshd") as server:
        cluster = {
            "launcher": "ssh", "hosts": ("127.0.0.1",) * 2, "launcher_options": server.options,
        }  # fmt: skip
        records = launch(tmp_path, "all-to-all", "tcp", BLOCKS, **cluster)
        assert of_kind(WorkerPlace, records)
        records = launch(tmp_path, "all-to-all", "tcp", BLOCKS, **cluster, n_workers=3)
    (failure,) = [record for record in records if isinstance(record, Failure)]
    assert "first of CUDA_VISIBLE_DEVICES=2,0,1: cudaErrorNoDevice" in failure.message


def test_job_scripts_have_all_variables_but_the_gpu(monkeypatch):
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is missing")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    words = ["run", "merge", "--device", "gpu", "--rmm-pool", "10GB", "--launcher", "slurm",
             "--launcher-option", "memory=8GB", "--launches", "1", "--dry-run"]  # fmt: skip
    done = processes.invoke(*words)
    assert done.exit_code == 0, done.output
    preloads = shlex.quote(repr(["commbench.machine.gpu.preload", "dask.dataframe"]))
    assert f"export DASK_DISTRIBUTED__WORKER__PRELOAD={preloads}" in done.output
    assert "export COMMBENCH_GPU='{" in done.output
    assert '"rmm_pool": "10GB"' in done.output
    assert "CUDA_VISIBLE_DEVICES" not in done.output


def test_ranks_with_equal_variables_are_one_command():
    assert _ranks([{}, {}, {}], ["rank"]) == ["-n", "4", "rank"]
    assert _ranks([{"A": "x"}], ["rank"])[2:] == ["rank", ":", "-n", "1", "env", "A=x", "rank"]
