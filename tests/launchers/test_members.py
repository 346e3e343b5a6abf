import builders
import dask
import pytest
from distributed import Client, LocalCluster

from commbench import backends
from commbench.backends.tcp import TcpBackend
from commbench.harness import runner
from commbench.launchers.members import forwarded_env, workers_of
from commbench.model import ClusterSpec, Launch


def launch_of(case):
    return Launch(case=case, index=0, block=0, position=0)


def test_workers_are_known_while_the_client_updates_its_cache():
    quiet = {"dashboard_address": ":0", "processes": False, "threads_per_worker": 1}
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        LocalCluster(n_workers=2, **quiet) as cluster,
        Client(cluster) as client,
    ):
        assert {len(workers_of(client)) for _ in range(500)} == {2}


def test_variables_of_backend_and_case_are_forwarded_and_no_others(tmp_path, monkeypatch):
    class Fabric(TcpBackend):
        variables = ("FI_",)

        def environment(self, device, scratch):
            return {"FABRIC": "fast"}

    monkeypatch.setenv("FI_PROVIDER", "tcp")
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("PRIVATE", "no")
    case = builders.case(cluster=ClusterSpec(env={"OF_CASE": "1"}))
    environ = runner.environment(launch_of(case), Fabric(), tmp_path)
    forwarded = forwarded_env(environ, case.cluster.env, {"OMP_NUM_THREADS": "1"})
    assert {"FI_PROVIDER", "FABRIC", "OF_CASE", "OMP_NUM_THREADS"} <= forwarded.keys()
    assert not forwarded.keys() & {"UCX_TLS", "PRIVATE", "COMMBENCH_SCRATCH"}


@pytest.mark.parametrize(("name", "variable"), [("ucx", "UCX_TLS"), ("mpi", "MPIR_CVAR_X")])
def test_variables_of_the_library_of_a_backend_are_forwarded(name, variable, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, "x")
    environ = runner.environment(launch_of(builders.case(name)), backends.parse(name), tmp_path)
    assert variable in forwarded_env(environ, {}, {})
