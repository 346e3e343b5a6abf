import builders
import dask
import pytest
from distributed import Client, LocalCluster
from launching import make_launch

from commbench import backends
from commbench.backends.tcp import TcpBackend
from commbench.errors import UsageError
from commbench.harness import runner
from commbench.harness.cases import cases_for
from commbench.launchers.members import forwarded_env, workers_by_address
from commbench.model import ClusterSpec
from commbench.mpi import gpu_frames

KEY = "DASK_DISTRIBUTED__COMM__MPI__KEY"


def test_workers_are_known_while_the_client_updates_its_cache():
    quiet = {"dashboard_address": ":0", "processes": False, "threads_per_worker": 1}
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        LocalCluster(n_workers=2, **quiet) as cluster,
        Client(cluster) as client,
    ):
        assert {len(workers_by_address(client)) for _ in range(500)} == {2}


def test_variables_of_backend_and_case_are_forwarded_and_no_others(tmp_path, monkeypatch):
    class Fabric(TcpBackend):
        variables = ("FI_",)

        def environment(self, device, scratch):
            return {"FABRIC": "fast"}

    monkeypatch.setenv("FI_PROVIDER", "tcp")
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("PRIVATE", "no")
    case = builders.case(cluster=ClusterSpec(env={"OF_CASE": "1"}))
    environ = runner.environment(make_launch(case), Fabric(), tmp_path)
    forwarded = forwarded_env(environ, case.cluster.env, {"OMP_NUM_THREADS": "1"})
    assert {"FI_PROVIDER", "FABRIC", "OF_CASE", "OMP_NUM_THREADS"} <= forwarded.keys()
    assert not forwarded.keys() & {"UCX_TLS", "PRIVATE", "COMMBENCH_SCRATCH"}


@pytest.mark.parametrize(
    ("name", "variable"),
    [("ucx", "UCX_TLS"), ("mpi", "MPIR_CVAR_X"), ("mpi", "FI_PROVIDER")]
    + [("mpi", name) for name in gpu_frames._SWITCHES],
)
def test_variables_of_the_library_of_a_backend_are_forwarded(name, variable, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, "x")
    environ = runner.environment(make_launch(builders.case(name)), backends.parse(name), tmp_path)
    assert variable in forwarded_env(environ, {}, {})


def test_the_key_of_mpi_is_not_forwarded():
    assert forwarded_env({KEY: "s3cret", "DASK_X": "1"}, {}, {}) == {"DASK_X": "1"}


@pytest.mark.parametrize(
    ("workload", "params", "cluster"),
    [
        ("merge", {}, {"launcher": "ssh", "hosts": ("a", "b", "c")}),
        ("merge", {}, {"launcher": "slurm"}),
        ("pingpong", {"layers": ("comm",), "peer": "node2"}, {}),
    ],
)
def test_a_key_that_would_be_in_a_command_is_refused(workload, params, cluster, monkeypatch):
    monkeypatch.setenv(KEY, "s3cret")
    with pytest.raises(UsageError, match=f"{KEY} would be in .* YAML on each host") as error:
        cases_for(workload, ["mpi"], params, ClusterSpec(**cluster))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("workload", "params", "cluster"),
    [
        ("merge", {}, {"launcher": "slurm"}),
        ("pingpong", {"layers": ("comm",), "peer": "node2"}, {}),
    ],
)
def test_so_is_one_of_the_suite(workload, params, cluster):
    with pytest.raises(UsageError, match=f"{KEY} would be in .* YAML on each host"):
        cases_for(workload, ["mpi"], params, ClusterSpec(**cluster, env={KEY: "s3cret"}))


def test_a_running_cluster_may_have_the_key_in_a_variable(monkeypatch):
    monkeypatch.setenv(KEY, "s3cret")
    running = ClusterSpec(launcher="external", scheduler="mpi://10.0.0.1:8786")
    assert len(cases_for("merge", ["mpi"], {}, running)) == 1
