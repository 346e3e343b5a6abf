"""The backend's behaviour in whole, each scenario in a process of its own with a bound in time."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

BUSY = 4
"""How many times as long as on a machine with nothing else to do a scenario may take."""
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"
    ),
    pytest.mark.timeout(1200),
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
    "only_the_interface_asked_for": 120,
}
MEETINGS = {
    "kill_at_every_step": 280,
    "stop_at_every_step": 280,
    "cancel_at_every_step": 200,
    "faint_peers": 280,
    "late_peers": 200,
    "many_at_once": 100,
    "strangers_who_know_the_protocol": 200,
    "claimed_name": 200,
    "too_many_peers": 200,
    "errors_of_mpi": 250,
    "a_thousand_peers": 3000,
}
MESSAGES = {
    "beyond_32_bits": 120,
    "in_pieces": 30,
    "errors_of_mpi": 60,
    "keep_one_of_many": 150,
    "arrays_share_nothing": 30,
    "many_large_receives": 150,
    "stopped_senders": 60,
    "closed_loops": 90,
}
CLUSTERS = {
    "asynchronous_client": 60,
    "threads": 90,
    "processes_with_nannies": 150,
    "adaptive": 120,
    "kill_worker_in_merge": 240,
    "from_the_shell": 150,
    "interface_of_a_worker": 120,
}
"""The scenarios and their bounds in seconds."""
SLOW = {"processes_with_nannies", "beyond_32_bits", "a_thousand_peers"}
"""``adaptive`` and ``kill_worker_in_merge`` have nannies, too; ``test_world`` sends 2 GiB, too."""


def marked(bounds: Mapping[str, int]) -> list[Any]:
    """Return the parameters of a test: the slow ones marked, none ended before its bound."""
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.timeout(BUSY * bound_s + 60),
                *([pytest.mark.slow] if name in SLOW else []),
            ],
        )
        for name, bound_s in bounds.items()
    ]


def run_scenario(module: str, name: str, bound_s: float, *launcher: str) -> str:
    """Run one scenario; its assertions are its exit status. Return what it prints."""
    done = subprocess.run(
        [*launcher, sys.executable, "-W", "error", str(HERE / f"{module}.py"), *name.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUSY * bound_s,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.mark.parametrize("name", marked(CONNECTIONS))
def test_connection(name: str) -> None:
    """Single connections survive what the scenario's docstring says."""
    run_scenario("connection_scenarios", name, CONNECTIONS[name])


@pytest.mark.parametrize("name", marked(MEETINGS))
def test_meeting(name: str) -> None:
    """Processes meet, and faults meanwhile do no more than the scenario's docstring says."""
    run_scenario("meeting_scenarios", name, MEETINGS[name])


def private(*command: str) -> tuple[str, ...]:
    """Return a command that runs others in new namespaces; skip the test where it can't."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        pytest.skip("new namespaces take root and unshare")
    return command


@pytest.mark.parametrize("rounds", ["2", pytest.param("10", marks=pytest.mark.slow)])
def test_lives(rounds: str) -> None:
    """Processes that end or are killed leave no shared memory behind, nor in those they met."""
    script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    command = private("unshare", "--mount", "--ipc", "sh", "-c", script, "sh")
    run_scenario("meeting_scenarios", f"lives {rounds}", 280, *command)


def test_containers() -> None:
    """Processes in IPC namespaces of their own meet, though their segments have the same ids."""
    run_scenario("meeting_scenarios", "containers", 60, *private("unshare", "--ipc"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_storm(seed: int) -> None:
    """100 peers killed as they connect disturb an exchange of others no more than over tcp."""
    figures = {
        protocol: json.loads(
            run_scenario("meeting_scenarios", f"storm {protocol} {seed}", 600).splitlines()[-1]
        )
        for protocol in ("tcp", "mpi")
    }
    print(figures)
    assert figures["mpi"]["worst_s"] <= max(0.5, 2 * figures["tcp"]["worst_s"])
    assert figures["mpi"]["fresh_s"] <= max(2, 2 * figures["tcp"]["fresh_s"])


@pytest.mark.parametrize("name", marked(MESSAGES))
def test_messages(name: str) -> None:
    """Large messages and many do what the scenario's docstring says."""
    run_scenario("message_scenarios", name, MESSAGES[name])


@pytest.mark.parametrize("name", marked(CLUSTERS))
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
