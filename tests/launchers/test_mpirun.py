import importlib.util
import itertools
import os
import sys
from unittest.mock import Mock

import builders
import dask
import processes
import pytest
from launching import make_launch

from commbench import backends
from commbench.errors import LaunchError, UnavailableError, UsageError
from commbench.harness.cases import cases_for
from commbench.launchers import mpirun
from commbench.launchers.mpirun import MpirunLauncher
from commbench.machine import installed
from commbench.model import ClusterSpec
from commbench.model.observed import CoreUse, Failure, Sample, TransportUsed

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("dask_mpi") is None, reason="dask-mpi is not installed"
)
MPICH = "HYDRA build details:"
HOSTS = ("head", "node1", "node2")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Return the records of a merge on the ranks of a world, over mpi."""
    cluster = ClusterSpec(launcher="mpirun")
    params = {"rows": 10_000, "shuffle": "tasks"}
    (case,) = cases_for("merge", ["mpi"], params, cluster, iterations=2)
    plan = [make_launch(case)]
    return builders.measured(plan, tmp_path_factory.mktemp("world"))


@needs_mpi
def test_workers_are_ranks_that_communicate_in_world_mode(records):
    assert not [record for record in records if isinstance(record, Failure)]
    samples = [record for record in records if isinstance(record, Sample)]
    assert len(samples) == 3
    assert all(sample.verified for sample in samples)
    used = [record for record in records if isinstance(record, TransportUsed)]
    pairs = {(record.src, record.dst) for record in used}
    assert pairs == {("rank-1", "rank-2"), ("rank-2", "rank-1")}
    assert all("mode world" in record.evidence for record in used)


@needs_mpi
def test_the_cpu_time_of_the_ranks_is_not_that_of_other_processes(records):
    (use,) = [record for record in records if isinstance(record, CoreUse)]
    in_samples = sum(record.cpu_seconds for record in records if isinstance(record, Sample))
    # Each of the three ranks imports Dask, and more.
    imports = processes.cpu_seconds([sys.executable, "-c", "import distributed"])
    assert use.own_cpu_seconds > in_samples + 2 * imports


def test_ucx_is_refused_because_mpi_and_ucxx_cannot_share_a_rank():
    with pytest.raises(UsageError, match="--launcher local"):
        MpirunLauncher().validate(ClusterSpec(launcher="mpirun"), backends.parse("ucx"))


@pytest.mark.parametrize(
    ("module", "message"), [(object(), "there is no mpiexec"), (None, "pip install 'dask-mpi")]
)
def test_a_missing_mpiexec_or_dask_mpi_is_named(module, message, monkeypatch):
    monkeypatch.setattr("shutil.which", Mock(return_value=None))
    monkeypatch.setattr("importlib.util.find_spec", Mock(return_value=module))
    with pytest.raises(UnavailableError, match=message):
        MpirunLauncher().validate(ClusterSpec(launcher="mpirun"), backends.parse("tcp"))


class SpawnedError(Exception):
    """A process would have been started."""


@pytest.fixture
def mpiexec_arguments(tmp_path, monkeypatch):
    """Return a function that returns the arguments which an ``mpiexec`` of a version receives."""

    def arguments(version, **cluster):
        mpiexec = processes.program(tmp_path / "mpiexec", f"echo '{version}'")
        monkeypatch.setattr(installed, "find_mpiexec", lambda: str(mpiexec))
        spawn = Mock(side_effect=SpawnedError)
        monkeypatch.setattr(mpirun.MpirunCluster, "_spawn", spawn)
        spec = ClusterSpec(launcher="mpirun", **cluster)
        MpirunLauncher().validate(spec, backends.parse("tcp"))
        with pytest.raises(SpawnedError):
            MpirunLauncher().start(spec, "tcp", tmp_path)
        words = [str(word) for word in spawn.call_args.args]
        return words[words.index(str(mpiexec)) + 1 :]

    return arguments


def value_of(option, arguments):
    return arguments[arguments.index(option) + 1]


@needs_mpi
def test_ranks_on_this_host_listen_on_loopback(mpiexec_arguments):
    arguments = mpiexec_arguments("Some MPI 1.0", n_workers=3)
    assert arguments[:2] == ["-n", "4"]
    assert value_of("--interface", arguments) == "lo"


@needs_mpi
def test_hydra_detects_no_job_if_ranks_are_to_run_on_this_host(mpiexec_arguments):
    arguments = mpiexec_arguments(MPICH, n_workers=3)
    assert arguments[:6] == ["-launcher", "fork", "-rmk", "user", "-n", "4"]


@needs_mpi
def test_ranks_stay_on_this_host_within_a_job_of_slurm_and_one_that_leaves_is_reported_as_a_death(
    tmp_path, monkeypatch, tag, deaths
):
    """Its rank, and so mpiexec, waits in MPI_Finalize."""
    called = tmp_path / "called"
    processes.program(tmp_path / "srun", f"touch {called}; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    job = {"NODELIST": "node[1-2]", "NNODES": "2", "TASKS_PER_NODE": "2(x2)", "JOBID": "1"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with MpirunLauncher().start(ClusterSpec(launcher="mpirun"), "tcp", tmp_path) as cluster:
        assert len(cluster.names) == 2
        assert not cluster.remote_members
        cluster.client.retire_workers([next(iter(cluster.names))])
        (message,) = processes.until(lambda: deaths, "the report")
    assert "left the cluster while it was needed" in message
    assert not called.exists()


@needs_mpi
def test_mpich_places_rank_0_on_the_first_host_and_shares_out_the_others(mpiexec_arguments):
    arguments = mpiexec_arguments(MPICH, n_workers=3, hosts=HOSTS)
    assert arguments[:4] == ["-hosts", "head:1,node1:2,node2:1", "-n", "4"]
    assert "--interface" not in arguments
    assert value_of("--memory-limit", arguments) == "0.5"
    limited = mpiexec_arguments(MPICH, n_workers=3, hosts=HOSTS, memory_limit="4GB")
    assert value_of("--memory-limit", limited) == "4000000000"


@needs_mpi
def test_open_mpi_exports_the_environment_to_the_hosts(mpiexec_arguments, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    key = "DASK_DISTRIBUTED__COMM__MPI__KEY"
    monkeypatch.setenv(key, "s3cret")
    with dask.config.set({"distributed.worker.preload": "mine"}):
        arguments = mpiexec_arguments(
            "mpiexec (Open MPI) 5.0.8", hosts=HOSTS, env={"OURS": "1"},
            launcher_options={"interface": "ib0"},
        )  # fmt: skip
    assert arguments[:4] == ["--host", "head:1,node1:1,node2:1", "--bind-to", "none"]
    exported = {value for word, value in itertools.pairwise(arguments) if word == "-x"}
    assert {"UCX_TLS", "OMP_NUM_THREADS", "DASK_DISTRIBUTED__WORKER__PRELOAD", key} <= exported
    assert not any("s3cret" in word for word in arguments)
    command = arguments[arguments.index("-n") :]
    assert command[:2] == ["-n", "3"]
    assert value_of("--interface", command) == "ib0"


@needs_mpi
@pytest.mark.parametrize("name", ["Open MPI", "OpenRTE"])
def test_open_mpi_does_not_bind_a_rank_with_all_its_threads_to_a_core(name, mpiexec_arguments):
    arguments = mpiexec_arguments(f"mpiexec ({name}) 4.1.4", n_workers=1, threads_per_worker=8)
    assert arguments[:2] == ["--bind-to", "none"]


@needs_mpi
def test_open_mpi_starts_more_ranks_than_cores(mpiexec_arguments):
    arguments = mpiexec_arguments("mpiexec (Open MPI) 5.0.8", n_workers=999)
    assert arguments[2:6] == ["--map-by", ":OVERSUBSCRIBE", "-n", "1000"]


@needs_mpi
def test_an_unknown_mpiexec_takes_no_hosts(mpiexec_arguments):
    with pytest.raises(LaunchError, match=r"this one is 'Some MPI 1\.0'; use --launcher ssh"):
        mpiexec_arguments("Some MPI 1.0", hosts=HOSTS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hosts": ("head",)}, "at least two"),
        ({"launcher_options": {"queue": "short"}}, "no option 'queue'; known: interface"),
    ],
)
def test_a_single_host_and_options_of_queues_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        MpirunLauncher().validate(ClusterSpec(launcher="mpirun", **fields), backends.parse("tcp"))
