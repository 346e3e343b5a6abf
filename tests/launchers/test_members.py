"""Processes on other hosts get what backend, case and libraries need, and nothing else."""

from __future__ import annotations

from pathlib import Path

import builders
import pytest

from commbench import backends
from commbench.backends.tcp import TcpBackend
from commbench.harness import runner
from commbench.launchers.members import forwarded_env
from commbench.model import ClusterSpec, Launch


def test_what_a_backend_names_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the beginnings of its libraries' variables, and all that it sets itself."""

    class Fabric(TcpBackend):
        variables = ("FI_",)

        def environment(self, device: str, scratch: Path) -> dict[str, str]:
            return {"FABRIC": "fast"}

    monkeypatch.setenv("FI_PROVIDER", "tcp")
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("PRIVATE", "no")
    case = builders.case(cluster=ClusterSpec(env={"OF_CASE": "1"}))
    environ = runner.environment(
        Launch(case=case, index=0, block=0, position=0), Fabric(), tmp_path
    )
    found = forwarded_env(environ, case.cluster.env, {"OMP_NUM_THREADS": "1"})
    assert {"FI_PROVIDER", "FABRIC", "OF_CASE", "OMP_NUM_THREADS"} <= found.keys()
    assert not found.keys() & {"UCX_TLS", "PRIVATE", "COMMBENCH_SCRATCH"}


@pytest.mark.parametrize(("name", "variable"), [("ucx", "UCX_TLS"), ("mpi", "MPIR_CVAR_X")])
def test_variables_of_our_backends_go_along(
    name: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that users set in their shells."""
    monkeypatch.setenv(variable, "x")
    launch = Launch(case=builders.case(name), index=0, block=0, position=0)
    assert variable in forwarded_env(
        runner.environment(launch, backends.parse(launch.case.backend), tmp_path), {}, {}
    )
