"""The launcher ``ssh``, on a server of SSH that the test starts on loopback."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import processes
import pytest
import sshd

from commbench.errors import LaunchError, UnavailableError, UsageError
from commbench.harness import suite
from commbench.launchers import ssh
from commbench.launchers.ssh import SshLauncher
from commbench.machine import process
from commbench.model import ClusterSpec

needs_asyncssh = pytest.mark.skipif(
    importlib.util.find_spec("asyncssh") is None, reason="asyncssh is not installed"
)
HERE = "127.0.0.1"
SLOW = """#!/bin/sh
case "$*" in *distributed.Worker*) touch {tried}; exec sleep 1000;; esac
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Server]:
    """Return the server."""
    with sshd.server(tmp_path_factory.mktemp("ssh") / "sshd") as running:
        yield running


@pytest.fixture
def spec(server: sshd.Server) -> ClusterSpec:
    """Return two workers beside the scheduler."""
    return ClusterSpec(launcher="ssh", hosts=(HERE, HERE), launcher_options=server.options)


def with_option(spec: ClusterSpec, **options: str) -> ClusterSpec:
    """Return `spec` with other options."""
    return replace(spec, launcher_options={**spec.launcher_options, **options})


@needs_asyncssh
def test_a_workload_over_ssh(server: sshd.Server, tmp_path: Path) -> None:
    """The result is right, the CPU time counted, and no process is left."""
    with processes.command_line(tmp_path) as line:
        ended = line.run(
            "merge", "--rows", "20000", "--launcher", "ssh", "--hosts", f"{HERE},{HERE}",
            "--launches", "1", "--iterations", "2", *server.arguments,
        )  # fmt: skip
        assert ended.status == 0, ended.said
        samples = processes.records(ended.run, "Sample")
        (use,) = processes.records(ended.run, "CoreUse")
        processes.until(lambda: not line.tag.processes(), "no process of the test")
    assert len(samples) == 3
    assert all(sample["verified"] and sample["cpu_seconds"] > 0 for sample in samples)
    assert use["own_cpu_seconds"] > sum(sample["cpu_seconds"] for sample in samples)


@needs_asyncssh
def test_the_environment_of_the_case_goes_along(
    spec: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: processes.Tag
) -> None:
    """SSH hands nothing on: what backend, case and user have set is there all the same."""
    monkeypatch.setenv(process.FORWARDED, "UCX_")
    monkeypatch.setenv("UCX_TLS", "tcp,sm")
    monkeypatch.setenv("UCX_LOG_FILE", str(tmp_path / "ucx-%p.log"))
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path / "tmp"))
    monkeypatch.setenv("DASK_DISTRIBUTED__ADMIN__TICK__LIMIT", "'7s'")
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("ODD", "a 'quoted' $word\tand more")
    odd = {"ODD": "overridden by the process's own"}
    asked = replace(spec, env=odd, memory_limit="300MB")
    with SshLauncher().start(asked, "tcp", tmp_path) as cluster:
        for environ in cluster.client.run(lambda: dict(os.environ)).values():
            assert environ["UCX_TLS"] == "tcp,sm"
            assert environ["DASK_DISTRIBUTED__ADMIN__TICK__LIMIT"] == "'7s'"
            assert environ["OMP_NUM_THREADS"] == "1"
            assert environ["ODD"] == "a 'quoted' $word\tand more"
            # A folder of this host's, and what is nobody's business.
            assert not {"UCX_LOG_FILE", "DASK_TEMPORARY_DIRECTORY", "SECRET"} & set(environ)
        assert sorted(cluster.names.values()) == ["0", "1"]
        workers = cluster.client.scheduler_info()["workers"].values()
        assert {worker["memory_limit"] for worker in workers} == {300_000_000}
        assert len(cluster.foreign_pids) == 3
        assert not cluster.remote_members
        adopted = cluster.foreign_pids
    processes.until(lambda: not any(map(_lives, adopted)), "the end of all processes")


@needs_asyncssh
def test_a_worker_whose_connection_breaks_ends_and_is_told(
    spec: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: processes.Tag
) -> None:
    """It does not outlive who started it, and the launch is told once, with its name."""
    told: list[str] = []
    monkeypatch.setattr(process, "_on_death", None)
    monkeypatch.setattr(process, "_reported", False)
    process.on_death(told.append)
    monkeypatch.setattr(process, "_NOTICE_SECONDS", 0.01)
    cluster = SshLauncher().start(spec, "tcp", tmp_path)
    try:
        pids = cluster.client.run(os.getpid)
        (address,) = [where for where, name in cluster.names.items() if name == "1"]
        cluster._loop.call_soon_threadsafe(cluster._ends["worker 1"].connection.abort)
        processes.until(lambda: not _lives(pids[address]), "the end of the worker")
        processes.until(lambda: told, "a word of it")
    finally:
        cluster.close()
    assert len(told) == 1
    assert "worker 1" in told[0]
    assert "while it was needed" in told[0]


@needs_asyncssh
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"port": "1"}, r"scheduler on 127\.0\.0\.1 did not start: ConnectionRefusedError"),
        ({"username": "nobody-here"}, r"scheduler on 127\.0\.0\.1 did not start: PermissionDenied"),
        ({"known_hosts": os.devnull}, r"did not start: HostKeyNotVerifiable"),
        ({"python": "/no/python"}, r"(?s)did not start: .*No such file"),
    ],
)
def test_why_a_host_did_not_start(
    option: dict[str, str], said: str, spec: ClusterSpec, tmp_path: Path
) -> None:
    """An unreachable host, a refused user, an unknown host and a missing Python are told apart."""
    with pytest.raises(LaunchError, match=said):
        SshLauncher().start(with_option(spec, **option), "tcp", tmp_path)


@needs_asyncssh
def test_workers_that_don_t_come(
    spec: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: processes.Tag
) -> None:
    """The error has the count and the deadline."""
    slow, tried = tmp_path / "slow-python", tmp_path / "tried"
    slow.write_text(SLOW.format(python=os.sys.executable, tried=tried))
    slow.chmod(0o755)
    result = ssh.SshCluster._result

    def impatient(cluster: ssh.SshCluster, started: Any, name: str, *came: str) -> None:
        if name != "scheduler":
            # However long it took until then.
            processes.until(tried.exists, "the start of a worker")
            cluster._deadline = 0.0
        result(cluster, started, name, *came)

    monkeypatch.setattr(ssh.SshCluster, "_result", impatient)
    late = replace(with_option(spec, python=str(slow)), start_timeout_s=170.0)
    with pytest.raises(LaunchError, match=r"0 of 2 workers came.*within 170 s \(--start-timeout\)"):
        SshLauncher().start(late, "tcp", tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs --hosts with at least two"),
        ({"hosts": ("a",)}, "needs --hosts with at least two"),
        ({"hosts": ("a", "b"), "launcher_options": {"prt": "1"}}, "no option 'prt'; known: .*port"),
    ],
)
@needs_asyncssh
def test_what_can_t_be_over_ssh(given: dict[str, Any], said: str) -> None:
    """Too few hosts and unknown options are usage errors."""
    with pytest.raises(UsageError, match=said):
        suite.cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="ssh", **given))


def test_without_asyncssh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setattr(ssh.importlib.util, "find_spec", Mock(return_value=None))
    with pytest.raises(UnavailableError, match=r"commbench\[ssh\]"):
        suite.cases_for("merge", ("tcp",), {}, ClusterSpec(launcher="ssh", hosts=("a", "b")))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
