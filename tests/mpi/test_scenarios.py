"""The backend's behaviour in whole, each scenario in a process of its own with a bound in time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

BUSY = 4
"""How many times as long as on a machine with nothing else to do a scenario may take."""
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"
    ),
    pytest.mark.timeout(1000),
]

CONNECTIONS = {
    "kill_receiver": 60,
    "kill_sender": 90,
    "stop_peer": 60,
    "many_connections": 90,
    "aborted_transfers": 60,
    "pairing_storm": 90,
    "strangers": 120,
    "listener_stops_during_handshake": 30,
}
CLUSTERS = {
    "asynchronous_client": 60,
    "threads": 90,
    "processes_with_nannies": 150,
    "adaptive": 120,
    "kill_worker_in_merge": 240,
    "from_the_shell": 150,
}
"""The scenarios and their bounds in seconds."""
SLOW = {"processes_with_nannies"}
"""``adaptive`` and ``kill_worker_in_merge`` have nannies, too."""


def run_scenario(module: str, name: str, bound_s: float, *launcher: str) -> None:
    """Run one scenario; its assertions are its exit status."""
    done = subprocess.run(
        [*launcher, sys.executable, "-W", "error", str(HERE / f"{module}.py"), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUSY * bound_s,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.parametrize("name", CONNECTIONS)
def test_connection(name: str) -> None:
    """Single connections survive what the scenario's docstring says."""
    run_scenario("connection_scenarios", name, CONNECTIONS[name])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CLUSTERS],
)
def test_cluster(name: str) -> None:
    """Clusters do what the scenario's docstring says."""
    run_scenario("cluster_scenarios", name, CLUSTERS[name])


@pytest.mark.slow
@pytest.mark.timeout(3300)
def test_workers_join_and_leave() -> None:
    """50 workers join and leave during a computation that stays right."""
    run_scenario("cluster_scenarios", "workers_join_and_leave", 800)


@pytest.mark.soak
@pytest.mark.timeout(3300)
def test_soak() -> None:
    """Mixed traffic with checked payloads runs for long without an error or growth."""
    run_scenario("soak", os.environ.get("COMMBENCH_SOAK_SECONDS", "3"), 800)
