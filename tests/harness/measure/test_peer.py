"""The peer of a pair: its command on another host, and its end."""

import json
import shlex
import subprocess

import processes
import pytest
from distributed.comm import get_address_host

import commbench
from commbench.errors import LaunchError, SuiteError, UsageError
from commbench.harness import cases
from commbench.harness.measure import peer
from commbench.model import Case, ClusterSpec

VARIABLES = {"UCX_TLS": "tcp,self", "LABEL": "it's; $HOME"}


def stand_in(folder, name, body):
    """Return a program that takes the place of ssh or srun."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", ["ssh", "srun"])
def test_variables_reach_the_other_host_as_they_are(tmp_path, name):
    # Like ssh, it hands a shell one text; like srun, it runs the words.
    run = 'shift; exec sh -c "$*"' if name == "ssh" else 'shift; exec "$@"'
    program = stand_in(tmp_path, name, run)
    command = peer._command_on([program, "node2"], ["this"], VARIABLES)
    assert (len(command) == 3) == (name == "ssh")
    printed = [*command[:2], *command[2:]]
    shown = "import json, os; print(json.dumps(dict(os.environ)))"
    swap = {"-m": "-c", "this": shown}
    if name == "ssh":
        printed[2] = shlex.join(swap.get(word, word) for word in shlex.split(printed[2]))
    else:
        printed = [swap.get(word, word) for word in printed]
    environ = json.loads(subprocess.check_output(printed, text=True))
    assert {key: environ[key] for key in VARIABLES} == VARIABLES


def test_a_name_is_a_host_for_ssh_that_asks_for_no_password():
    command = peer._command_on(["node2"], ["module"], {})
    assert command[:4] == ["ssh", "-o", "BatchMode=yes", "node2"]


def test_a_peer_on_a_host_serves_there_and_ends_with_its_input(tmp_path):
    program = stand_in(tmp_path, "run-on", 'echo "a message of the day"; shift; exec "$@"')
    with peer.started("tcp", "comm", tmp_path / "log", {}, f"{program} 127.0.0.2") as other:
        assert get_address_host(other.address).startswith("127.")
        assert other.location["pid"] == other.child.pid
        before_s = other.cpu_seconds()
        assert 0 < before_s <= other.cpu_seconds()
        other.child.stdin.close()
        other.child.wait(processes.PATIENCE_SECONDS)


def test_a_peer_that_has_ended_has_no_cpu_seconds(tmp_path):
    with peer.started("tcp", "comm", tmp_path / "log", {}) as other:
        other.child.kill()
        other.child.wait()
        with pytest.raises(LaunchError, match="the peer ended"):
            other.cpu_seconds()


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("/nonexistent/srun -w node2", "/nonexistent/srun can't be run: No such file"),
        ("{refusing} node2", r"the peer on .*refusing node2 exited with status 255.*no route"),
        ("{old} node2", rf"has commbench 0.0.1, and this is {commbench.__version__}"),
    ],
)
def test_a_peer_that_does_not_start_is_explained(tmp_path, host, message):
    programs = {
        "refusing": stand_in(tmp_path, "refusing", "echo no route to host >&2; exit 255"),
        "old": stand_in(tmp_path, "old", """echo '{"version": "0.0.1"}'; exec cat"""),
    }
    with (
        pytest.raises(LaunchError, match=f"(?s){message}"),
        peer.started("tcp", "comm", tmp_path / "log", {}, host.format(**programs)),
    ):
        pass


@pytest.mark.parametrize(
    ("backend", "layers", "error", "message"),
    [
        ("tcp", ("comm", "worker"), UsageError, "commbench links --hosts"),
        ("tls", ("comm",), SuiteError, "the key of tls would be in a command"),
    ],
)
def test_what_would_be_wrong_between_hosts_is_refused(backend, layers, error, message):
    params = {"layers": layers, "peer": "node2"}
    with pytest.raises(error, match=message):
        cases.cases_for("pingpong", (backend,), params, ClusterSpec())


def test_a_program_for_both_ends_on_this_host_is_unavailable(monkeypatch):
    pytest.importorskip("ucxx")
    case = Case(workload="pingpong", backend="ucx", params={"layers": ("raw",), "peer": "node2"})
    problem = cases.unmet(case)
    assert "the peer is on another" in problem.reason or "perftest" in problem.reason


def test_the_option_changes_no_id_of_earlier_cases():
    (here,) = cases.cases_for("pingpong", ("tcp",), {}, ClusterSpec())
    assert here.later_params == ("peer",)
