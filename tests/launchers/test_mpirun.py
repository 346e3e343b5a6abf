"""The launcher ``mpirun``: a world of real ranks, and what stands in its way."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from unittest.mock import Mock

import builders
import processes
import pytest

from commbench import backends
from commbench.errors import LaunchError, UsageError
from commbench.launchers import mpirun
from commbench.model import (
    Case,
    ClusterSpec,
    CoreUse,
    Failure,
    Launch,
    Sample,
    TransportUsed,
    registry,
)

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
                iterations=2, timeout_s=240.0)  # fmt: skip
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = builders.measured(plan, tmp_path_factory.mktemp("world"))
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


def test_ucx_is_refused():
    """MPI and ucxx can't share the ranks; the error says what to do, before anything starts."""
    with pytest.raises(UsageError, match="--launcher local"):
        mpirun.MpirunLauncher().validate(ClusterSpec(launcher="mpirun"), backends.parse("ucx"))


def test_what_is_missing_is_told(tmp_path, monkeypatch):
    """Without mpiexec, and without dask-mpi, the error says what to install."""
    monkeypatch.setattr(mpirun.shutil, "which", Mock(return_value=None))
    monkeypatch.setattr(mpirun.importlib.util, "find_spec", Mock(return_value=object()))
    with pytest.raises(LaunchError, match="needs mpiexec"):
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
    # Each of the three ranks imports Dask, and more.
    imports = processes.cpu_seconds([sys.executable, "-c", "import distributed"])
    assert use.own_cpu_seconds > in_samples + 2 * imports


class SpawnedError(Exception):
    """A process would have been started."""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Return a function that gives the arguments that an ``mpiexec`` of some version is given."""

    def told(version, **cluster):
        mpiexec = tmp_path / "mpiexec"
        mpiexec.write_text(f"#!/bin/sh\necho '{version}'\n")
        mpiexec.chmod(0o755)
        monkeypatch.setattr(mpirun, "_mpiexec", lambda: str(mpiexec))
        spawn = Mock(side_effect=SpawnedError)
        monkeypatch.setattr(mpirun.MpirunCluster, "_spawn", spawn)
        spec = ClusterSpec(launcher="mpirun", **cluster)
        mpirun.MpirunLauncher().validate(spec, backends.parse("tcp"))
        with pytest.raises(SpawnedError):
            mpirun.MpirunLauncher().start(spec, "tcp", tmp_path)
        words = [str(word) for word in spawn.call_args.args]
        return words[words.index(str(mpiexec)) + 1 :]

    return told


HOSTS = ("head", "node1", "node2")


@needs_mpi
def test_without_hosts_all_is_on_this_one(told):
    """No host is named, and the ranks listen where no other host hears them."""
    arguments = told("HYDRA build details:", n_workers=3)
    assert arguments[:2] == ["-n", "4"]
    assert arguments[arguments.index("--interface") + 1] == "lo"


@needs_mpi
def test_mpich_goes_to_the_hosts(told):
    """Rank 0 is on the first host, the others are shared out, and each has its part of memory."""
    arguments = told("HYDRA build details:", n_workers=3, hosts=HOSTS)
    assert arguments[:4] == ["-hosts", "head:1,node1:2,node2:1", "-n", "4"]
    assert "--interface" not in arguments
    assert arguments[arguments.index("--memory-limit") + 1] == "0.5"
    limited = told("HYDRA build details:", n_workers=3, hosts=HOSTS, memory_limit="4GB")
    assert limited[limited.index("--memory-limit") + 1] == "4000000000"


@needs_mpi
def test_open_mpi_goes_to_the_hosts_with_the_environment(told, monkeypatch, tmp_path):
    """Its option is another, and it hands on only what it is told to; not this host's folder."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path / "tmp"))
    arguments = told(
        "mpiexec (Open MPI) 5.0.8", hosts=HOSTS, env={"OURS": "1"},
        launcher_options={"interface": "ib0"},
    )  # fmt: skip
    assert arguments[:2] == ["--host", "head:1,node1:1,node2:1"]
    handed = {value for word, value in itertools.pairwise(arguments) if word == "-x"}
    assert {"UCX_TLS", "OMP_NUM_THREADS", "DASK_DISTRIBUTED__WORKER__PRELOAD"} <= handed
    command = arguments[arguments.index("-n") :]
    assert command[:5] == ["-n", "3", "env", "-u", "DASK_TEMPORARY_DIRECTORY"]
    assert command[command.index("--interface") + 1] == "ib0"


@needs_mpi
def test_an_unknown_mpiexec_takes_no_hosts(told):
    """How it is told of hosts nobody knows; the error says whose it is."""
    with pytest.raises(LaunchError, match=r"this one is 'Some MPI 1\.0'; use --launcher ssh"):
        told("Some MPI 1.0", hosts=HOSTS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts": ("head",)}, "at least two"),
        ({"launcher_options": {"queue": "short"}}, "no option 'queue'; known: interface"),
    ],
)
def test_what_makes_no_sense_is_refused(given, says):
    """A scheduler's host without a worker's, and options of queues, are errors."""
    with pytest.raises(UsageError, match=says):
        mpirun.MpirunLauncher().validate(
            ClusterSpec(launcher="mpirun", **given), backends.parse("tcp")
        )
