"""What an idle cluster over ``mpi://`` costs, compared with one over ``tcp://``."""

import statistics
from pathlib import Path

import pytest
from launching import make_launch
from scenarios import scenario

from commbench import backends
from commbench.harness.measure.conditions import measure_idle
from commbench.launchers.local import LocalLauncher
from commbench.model import Case, ClusterSpec

SPEC = ClusterSpec(n_workers=4)


def idle_cores(name, scratch):
    """Return the cores that scheduler, client and four workers burn in 10 s."""
    backend = backends.parse(name)
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in backend.environment("cpu", scratch).items():
            patch.setenv(variable, value)
        with LocalLauncher().start(SPEC, backend.protocol, scratch) as cluster:
            launch = make_launch(Case(workload="", backend=name))
            cost = measure_idle(launch, cluster.cpu_seconds, cluster.n_processes, seconds=10.0)
    return cost.cpu_seconds / cost.seconds


@pytest.mark.slow
@scenario(300)
def test_idle_cluster_costs_what_tcp_costs(tmp_path):
    cores = {"tcp": [], "mpi": []}
    for turn in range(6):
        for name in cores if turn % 2 else reversed(cores):
            cores[name].append(idle_cores(name, Path(tmp_path, f"{name}-{turn}")))
    medians = {name: statistics.median(values) for name, values in cores.items()}
    print(medians, medians["mpi"] / medians["tcp"])
    assert medians["mpi"] <= 1.2 * medians["tcp"]
