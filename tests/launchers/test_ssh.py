"""The launcher ``ssh``, on an SSH server that the tests start on loopback."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import dask
import distributed  # noqa: F401 - before a test changes its configuration
import processes
import pytest
import sshd

from commbench.errors import LaunchError, UnavailableError, UsageError
from commbench.harness.cases import cases_for
from commbench.launchers import members, ssh
from commbench.launchers.ssh import SshLauncher
from commbench.machine import process
from commbench.model import ClusterSpec

asyncssh = pytest.importorskip("asyncssh")
HOSTS = ("127.0.0.1", "127.0.0.1")
LATE_WORKER = """case "$*" in *'"name": "0"'*) touch {started}; exec sleep 1000;; esac
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd.server(tmp_path_factory.mktemp("ssh") / "sshd") as running:
        yield running


@pytest.fixture
def spec(server):
    """Return two workers on the scheduler's host."""
    return ClusterSpec(launcher="ssh", hosts=HOSTS, launcher_options=server.options)


def with_option(spec, **options):
    return replace(spec, launcher_options={**spec.launcher_options, **options})


def test_variables_and_the_configuration_are_forwarded_without_secrets(
    spec, tmp_path, monkeypatch, tag
):
    """Other hosts lack folders of this one, and command lines are public."""
    monkeypatch.setenv(process.FORWARDED, "UCX_")
    monkeypatch.setenv("UCX_TLS", "tcp,sm")
    monkeypatch.setenv("UCX_LOG_FILE", str(tmp_path / "ucx-%p.log"))
    monkeypatch.setenv("DASK_DISTRIBUTED__ADMIN__TICK__LIMIT", "'7s'")
    secrets = {"SECRET", "DASK_GATEWAY__AUTH__KWARGS", "DASK_DISTRIBUTED__COMM__MPI__KEY"}
    for name in secrets:
        monkeypatch.setenv(name, "{}")
    monkeypatch.setenv("ODD", "a 'quoted' $word\tand more")
    odd = {"ODD": "overridden by the variable of this process"}
    requested = replace(spec, env=odd, memory_limit="300MB")
    hidden = {"distributed.comm.mpi.key": "s3cret", "gateway.auth.kwargs.password": "pa55"}
    stores = [{"password": "pa55", "name": "a store"}]
    with (
        dask.config.set({**hidden, "mine.name": "x-y", "mine.stores": stores}),
        SshLauncher().start(requested, "tcp", tmp_path) as cluster,
    ):
        assert all(dask.config.get(key) == value for key, value in hidden.items())
        workers = cluster.client.run(lambda: dict(os.environ)).values()
        scheduler = cluster.client.run_on_scheduler(lambda: dict(os.environ))
        for environ in workers:
            assert environ["UCX_TLS"] == "tcp,sm"
            assert environ["DASK_DISTRIBUTED__ADMIN__TICK__LIMIT"] == "'7s'"
            assert environ["OMP_NUM_THREADS"] == "1"
            assert environ["ODD"] == "a 'quoted' $word\tand more"
            assert not {"UCX_LOG_FILE", *secrets} & set(environ)
        for environ in (scheduler, *workers):
            config = dask.config.deserialize(environ["DASK_INTERNAL_INHERIT_CONFIG"])
            assert dask.config.get("mine.name", config=config) == "x-y"
            assert not any(dask.config.get(key, None, config=config) for key in hidden)
            assert dask.config.get("mine.stores", config=config) == [{"name": "a store"}]
            assert "ensure-deterministic" in config["tokenize"]
        assert sorted(cluster.names.values()) == ["0", "1"]
        workers = members.workers_by_address(cluster.client).values()
        assert {worker["memory_limit"] for worker in workers} == {300_000_000}
        assert not cluster.remote_members
        pids = cluster.foreign_pids
    assert len(pids) == 3
    processes.until(lambda: not any(map(processes.lives, pids)), "the end of all processes")


def test_what_tasks_print_is_logged_and_stops_no_worker(spec, tmp_path, tag):
    """Neither its amount nor bytes that are no UTF-8."""

    def talk():
        return os.write(1, b"caf\xe9\n" * 800_000), os.write(2, b"caf\xe9 on stderr\n")

    with SshLauncher().start(spec, "tcp", tmp_path) as cluster:
        (address,) = [address for address, name in cluster.names.items() if name == "1"]
        assert cluster.client.run(talk, workers=[address]) == {address: (4_000_000, 15)}
        assert set(cluster.client.run(os.getpid)) == set(cluster.names)
        log = tmp_path / "worker-1.log"
        processes.until(lambda: log.stat().st_size > 4_000_000, "the log")
    text = log.read_text(encoding="utf-8")
    assert text.count("caf\N{REPLACEMENT CHARACTER}") == 800_001


def test_a_worker_ends_and_is_reported_once_when_its_connection_breaks(
    spec, tmp_path, monkeypatch, tag, deaths
):
    monkeypatch.setattr(process, "_NOTICE_SECONDS", 0.01)
    cluster = SshLauncher().start(spec, "tcp", tmp_path)
    try:
        pids = cluster.client.run(os.getpid)
        (address,) = [address for address, name in cluster.names.items() if name == "1"]
        cluster._loop.call_soon_threadsafe(cluster._ends["worker 1"].connection.abort)
        processes.until(lambda: not processes.lives(pids[address]), "the end of the worker")
        processes.until(lambda: deaths, "the report")
    finally:
        cluster.close()
    (message,) = deaths
    assert "worker 1" in message
    assert "while it was needed" in message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"port": "1"}, r"no SSH server answers at 127\.0\.0\.1:1 .*: ssh -p 1 127\.0\.0\.1 true"),
        ({"username": "12345"}, r"scheduler on 127\.0\.0\.1 did not start: PermissionDenied"),
        ({"username": "nobody-here"}, r"scheduler on 127\.0\.0\.1 did not start: PermissionDenied"),
        ({"known_hosts": os.devnull}, r"did not start: HostKeyNotVerifiable"),
        ({"python": "/no/python"}, r"(?s)did not start: .*No such file"),
    ],
)
def test_the_reason_why_a_host_did_not_start_is_in_the_error(option, message, spec, tmp_path):
    with pytest.raises(LaunchError, match=message):
        SshLauncher().start(with_option(spec, **option), "tcp", tmp_path)


def test_workers_that_do_not_come_in_time_are_counted(spec, tmp_path, monkeypatch, tag):
    python, started = tmp_path / "python", tmp_path / "started"
    processes.program(python, LATE_WORKER.format(python=sys.executable, started=started))
    submit, result, starts = ssh.SshCluster._submit, ssh.SshCluster._result, []

    def submitted(cluster, work):
        starts.append(submit(cluster, work))
        return starts[-1]

    def expired(cluster, starting, name):
        if name.startswith("worker"):
            # The deadline passes when worker 0 is late and worker 1 is there, however slow the
            # machine is.
            processes.until(lambda: started.exists() and starts[2].done(), "a start of each worker")
            cluster._deadline = 0.0
        result(cluster, starting, name)

    monkeypatch.setattr(ssh.SshCluster, "_submit", submitted)
    monkeypatch.setattr(ssh.SshCluster, "_result", expired)
    late = replace(with_option(spec, python=str(python)), start_timeout_s=170.0)
    words = r"1 of 2 workers came, but worker 0 on 127\.0\.0\.1 did not start within 170 s \(--s"
    with pytest.raises(LaunchError, match=words):
        SshLauncher().start(late, "tcp", tmp_path)


def test_the_configuration_without_secrets_has_the_defaults_of_distributed():
    code = (
        "from commbench.launchers import local, ssh\n"
        "with ssh._without_secrets():\n    print(*local.nanny_environment())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "OMP_NUM_THREADS" in done.stdout.split()


def test_as_many_log_in_at_a_time_as_sshd_admits_also_without_a_check_of_host_keys(
    spec, tmp_path, monkeypatch, tag
):
    """By default sshd drops connections once ten log in."""
    unchecked = with_option(replace(spec, n_workers=2), known_hosts="None")
    logging_in, most = 0, 0
    connect = asyncssh.connect

    async def counted(*args, **kwargs):
        nonlocal logging_in, most
        assert kwargs["known_hosts"] is None
        logging_in += 1
        most = max(most, logging_in)
        await asyncio.sleep(0.1)
        try:
            return await connect(*args, **kwargs)
        finally:
            logging_in -= 1

    monkeypatch.setattr(asyncssh, "connect", counted)
    monkeypatch.setattr(ssh, "_MAX_LOGINS", 1)
    with SshLauncher().start(unchecked, "tcp", tmp_path) as cluster:
        assert len(cluster.names) == 2
    assert most == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs --hosts with at least two"),
        ({"hosts": ("a",)}, "needs --hosts with at least two"),
        ({"hosts": ("a", "b"), "launcher_options": {"prt": "1"}}, "no option 'prt'; known: .*port"),
    ],
)
def test_too_few_hosts_and_unknown_options_are_usage_errors(fields, message):
    with pytest.raises(UsageError, match=message):
        cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="ssh", **fields))


def test_a_missing_asyncssh_is_named_with_the_extra_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", Mock(return_value=None))
    with pytest.raises(UnavailableError, match="pip install 'asyncssh"):
        cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="ssh", hosts=("a", "b")))
