"""The launcher ``mpirun``: a world of real ranks, and what stands in its way."""

from __future__ import annotations

import importlib.util
from unittest.mock import Mock

import builders
import pytest

from commbench import registry
from commbench.errors import LaunchError
from commbench.launchers import mpirun
from commbench.model import Case, ClusterSpec, CoreUse, Failure, Launch, Sample, TransportUsed
from commbench.runner import run_plan

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("dask_mpi") is None, reason="dask-mpi is not installed"
)


def start(protocol, tmp_path):
    """Start a world."""
    return registry.load("launcher", "mpirun")().start(ClusterSpec(), protocol, tmp_path)


# Over tcp, a workload on a world is what the kit for launchers measures.
@pytest.fixture(scope="module", params=["mpi", pytest.param("tcp", marks=pytest.mark.slow)])
def merged(request, tmp_path_factory):
    """Return a backend and the records of a merge on the ranks of a world."""
    params = {"rows": 10_000, "partitions": 0, "frac_match": 0.3, "shuffle": "tasks"}
    cluster = ClusterSpec(n_workers=2, launcher="mpirun")
    case = Case(workload="merge", backend=request.param, params=params, cluster=cluster,
                iterations=2, timeout_s=120.0)  # fmt: skip
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = builders.expanded(run_plan(plan, tmp_path_factory.mktemp("world") / "logs"))
    assert not [record for record in records if isinstance(record, Failure)], records
    return request.param, records


@needs_mpi
def test_a_workload_on_a_world(merged):
    """Ranks merge, the result is right, and mpi's connections are of world mode."""
    backend, records = merged
    samples = [record for record in records if isinstance(record, Sample)]
    assert len(samples) == 3
    assert all(sample.verified for sample in samples)
    used = [record for record in records if isinstance(record, TransportUsed)]
    assert {(record.src, record.dst) for record in used} == {
        ("rank-1", "rank-2"), ("rank-2", "rank-1"),
    }  # fmt: skip
    if backend == "mpi":
        assert all("mode world" in record.evidence for record in used)


def test_ucx_is_refused(tmp_path):
    """MPI and ucxx can't share the ranks; the error says what to do."""
    with pytest.raises(LaunchError, match="--launcher local"):
        start("ucx", tmp_path)


def test_what_is_missing_is_told(tmp_path, monkeypatch):
    """Without mpiexec, and without dask-mpi, the error says what to install."""
    monkeypatch.setattr(mpirun.shutil, "which", Mock(return_value=None))
    monkeypatch.setattr(mpirun.importlib.util, "find_spec", Mock(return_value=object()))
    with pytest.raises(LaunchError, match="finds no mpiexec"):
        start("mpi", tmp_path)
    monkeypatch.setattr(mpirun.importlib.util, "find_spec", Mock(return_value=None))
    with pytest.raises(LaunchError, match="commbench\\[mpi\\]"):
        start("mpi", tmp_path)


@needs_mpi
def test_the_ranks_cpu_time_is_the_launch_s_own(merged):
    """What ``mpiexec`` started, and its children, do not pass for other processes."""
    _, records = merged
    (use,) = [record for record in records if isinstance(record, CoreUse)]
    in_samples = sum(record.cpu_seconds for record in records if isinstance(record, Sample))
    # Starting three ranks takes more than a second each, mostly on imports.
    assert use.own_cpu_seconds > in_samples + 2.0
