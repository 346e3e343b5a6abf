"""The peer of a pair: its command on another host, and its end."""

import importlib.util
import json
import shlex
import subprocess

import processes
import pytest
from processes import program

from commbench.errors import LaunchError, UsageError
from commbench.harness import cases
from commbench.harness.measure import peer
from commbench.model import ClusterSpec

VARIABLES = {"UCX_TLS": "tcp,self", "LABEL": "it's; $HOME"}


@pytest.mark.parametrize("name", ["ssh", "srun"])
def test_variables_reach_the_other_host_as_they_are(tmp_path, name):
    # Like ssh, it hands a shell one text; like srun, it runs the words.
    run = 'shift; exec sh -c "$*"' if name == "ssh" else 'shift; exec "$@"'
    start = str(program(tmp_path / name, run))
    command = peer._command_on([start, "node2"], ["this"], VARIABLES)
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
    ssh, *options, host, command = peer._command_on(["node2"], ["module"], {})
    assert (ssh, host) == ("ssh", "node2")
    assert "BatchMode=yes" in options
    assert command.startswith("env ")


@pytest.fixture
def elsewhere(monkeypatch):
    """Let a peer on this host pass for one of another host."""
    monkeypatch.setattr(peer, "_validate", lambda *_: None)


SSH = 'echo "a message of the day"; shift; SSH_CONNECTION="1 2 0.0.0.0 22" exec sh -c "exec $*"'


def test_a_peer_on_a_host_serves_there_and_ends_with_its_input(tmp_path, elsewhere):
    ssh = program(tmp_path / "ssh", SSH)
    with peer.started("tcp", "comm", tmp_path / "log", {}, f"{ssh} node2") as other:
        assert other.location["pid"] == other.child.pid
        before_s = other.cpu_seconds()
        assert 0 < before_s <= other.cpu_seconds()
        other.child.stdin.close()
        other.child.wait(processes.PATIENCE_SECONDS)


def test_a_peer_that_has_ended_has_no_cpu_seconds(tmp_path, elsewhere):
    ssh = program(tmp_path / "ssh", SSH)
    with peer.started("tcp", "comm", tmp_path / "log", {}, f"{ssh} node2") as other:
        other.child.kill()
        other.child.wait()
        with pytest.raises(LaunchError, match=r"the peer on .*ssh node2 ended"):
            other.cpu_seconds()


def test_a_peer_elsewhere_that_is_here_is_refused(tmp_path):
    ssh = program(tmp_path / "ssh", SSH)
    with (
        pytest.raises(LaunchError, match=r"ssh node2 runs on this host, .* srun needs -N1 -n1"),
        peer.started("tcp", "comm", tmp_path / "log", {}, f"{ssh} node2"),
    ):
        pass


@pytest.mark.parametrize(
    ("connection", "host", "expected"),
    [
        ("10.0.0.1 40000 10.0.0.2 22", "anything", "10.0.0.2"),
        ("::1 40000 ::1 22", "anything", "would have to connect to ::1"),
        ("", "localhost", "would have to connect to 127."),
        ("", "no.such.host.invalid", "no route back to the initiator, no.such.host.invalid"),
    ],
)
def test_the_address_of_a_peer(monkeypatch, connection, host, expected):
    monkeypatch.setenv("SSH_CONNECTION", connection)
    if expected[0].isdigit():
        assert peer._address_towards(host) == expected
        return
    with pytest.raises(LaunchError, match=expected):
        peer._address_towards(host)


def test_other_versions_are_refused():
    location = {"host_id": "elsewhere", "host": "node2"}
    peer._validate("node2", location, peer._versions())
    with pytest.raises(LaunchError, match=r"node2 has dask 1 there and .* install the same"):
        peer._validate("node2", location, {**peer._versions(), "dask": "1"})


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("/nonexistent/srun -w node2", "/nonexistent/srun can't be run: No such file"),
        ("{refusing} node2", r"the peer on .*refusing node2 exited with status 255.*no route"),
        ("{silent} node2", r"the peer on .*silent node2 was killed.* for which it has 0.2 s"),
    ],
)
def test_a_peer_that_does_not_start_is_explained(tmp_path, monkeypatch, host, message):
    monkeypatch.setattr(peer, "_START_SECONDS", 0.2)
    programs = {
        "refusing": program(tmp_path / "refusing", "echo no route to host >&2; exit 255"),
        "silent": program(tmp_path / "silent", "exec cat"),
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
        ("tls", ("comm",), UsageError, "the key of tls would be in a command"),
    ],
)
def test_what_would_be_wrong_between_hosts_is_refused(backend, layers, error, message):
    params = {"layers": layers, "peer": "node2"}
    with pytest.raises(error, match=message):
        cases.cases_for("pingpong", (backend,), params, ClusterSpec())


def test_a_program_for_both_ends_on_this_host_is_unavailable(monkeypatch):
    if importlib.util.find_spec("ucxx") is None:
        pytest.skip("ucxx is missing")
    monkeypatch.setattr("commbench.backends.ucx.UcxBackend.unavailable_layer", lambda *_: None)
    params = {"layers": ("raw",), "peer": "node2"}
    (case,) = cases.cases_for("pingpong", ("ucx",), params, ClusterSpec())
    assert "the peer is on another" in cases.unmet(case).reason


@pytest.mark.parametrize("host", ["it's", " ", "no-such-program -w node2"])
def test_a_peer_that_is_no_host_and_no_command_is_refused(host):
    with pytest.raises(UsageError, match="pingpong: --peer"):
        cases.cases_for("pingpong", ("tcp",), {"peer": host}, ClusterSpec())


def test_the_option_changes_no_id_of_earlier_cases():
    (here,) = cases.cases_for("pingpong", ("tcp",), {}, ClusterSpec())
    assert here.later_params == ("peer",)
