"""``ssh``: scheduler and workers on the hosts in ``--hosts``, with the parts of SSHCluster.

As with ``distributed.SSHCluster``, the first host runs the scheduler, and the workers are assigned
to the others in turn. Each process has no nanny, and ends when its connection breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as ResultTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import LaunchError, UsageError
from commbench.launchers import members
from commbench.launchers.launcher import (
    Launcher,
    RunningCluster,
    memory_limit,
    scheduler_preloads,
    worker_preloads,
)
from commbench.launchers.local import nanny_environment
from commbench.launchers.members import forwarded_env, without_paths_in
from commbench.machine import gpu, process
from commbench.machine.environment import SECRETS
from commbench.model import ClusterSpec, registry

if TYPE_CHECKING:
    from commbench.backends.backend import Backend

_CONNECT = ("username", "port", "known_hosts", "client_keys", "config")
_NONE = {("known_hosts", "None"): None}
"""Texts that are no text for asyncssh: no host keys are compared."""
_FURTHER = ("interface", "python")
_CLOSE_SECONDS = 10.0
_MAX_LOGINS = 8
"""The connections to one host that are being made at a time."""
_TURNS_SECONDS = 0.05
_LOGGER = "distributed.deploy.ssh"


class SshCluster(RunningCluster):
    """A running scheduler and its workers, with one SSH connection each."""

    def __init__(
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str]
    ) -> None:
        self._spec, self._protocol, self._scratch = spec, protocol, scratch
        self._preload = list(preload)
        self._options = dict(spec.launcher_options)
        self._deadline = time.monotonic() + spec.start_timeout_s
        self._ends: dict[str, Any] = {}
        # By default sshd drops connections at random once ten log in at once.
        self._logins = {host: asyncio.Semaphore(_MAX_LOGINS) for host in spec.hosts}
        self._log = scratch / "ssh.log"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ssh", daemon=True)
        self._thread.start()
        with contextlib.ExitStack() as starting:
            try:
                starting.enter_context(_logged(self._log))
                starting.enter_context(_without_secrets())
                address = self._start_ends()
                starting.close()
                self._connect(address)
            except BaseException:
                self._stop()
                raise

    def _start_ends(self) -> str:
        """Start scheduler and workers, and return the scheduler's address."""
        scheduler_host, *others = self._spec.hosts
        hosts = [others[index % len(others)] for index in range(self._spec.n_workers)]
        crowd = Counter(hosts)
        options = {"port": 0, "preload": scheduler_preloads(self._preload)}
        starting = self._submit(self._start_end("scheduler", scheduler_host, "", options))
        self._result(starting, f"scheduler on {scheduler_host}")
        address: str = self._ends["scheduler"].address
        starts = {
            f"worker {index}": self._start_end(
                f"worker {index}", host, address,
                {
                    "name": str(index), "nthreads": self._spec.threads_per_worker,
                    "memory_limit": memory_limit(self._spec, 1 / crowd[host]),
                    "preload": worker_preloads(self._spec, self._preload),
                },
                gpu.env_for_remote_worker(
                    hosts[:index].count(host), crowd[host], self._spec.workers_per_gpu, os.environ
                ) if self._spec.device == "gpu" else {},
            )
            for index, host in enumerate(hosts)
        }  # fmt: skip
        started = {name: self._submit(start) for name, start in starts.items()}
        for host, (name, start) in zip(hosts, started.items(), strict=True):
            try:
                self._result(start, f"{name} on {host}")
            except LaunchError as error:
                came = sum(each.done() and not each.exception() for each in started.values())
                raise LaunchError(f"{came} of {len(hosts)} workers came, but {error}") from error
        return address

    def _connect(self, address: str) -> None:
        from distributed import Client

        self.client = Client(address, timeout=self._left())
        members.join(self, self._spec, self._protocol, self._deadline)
        members.watch_workers(self)
        for name in self._ends:
            self._submit(self._follow(name))

    async def _start_end(
        self, name: str, host: str, scheduler: str, options: Mapping[str, Any],
        gpu_variables: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        from distributed.deploy import ssh

        connect = {
            key: _NONE.get((key, text), int(text) if key == "port" and text.isdecimal() else text)
            for key, text in self._options.items()
            if key in _CONNECT
        }
        python = self._options.get("python", sys.executable)
        defaults = nanny_environment() if scheduler else {}
        chosen = forwarded_env(os.environ, self._spec.env, defaults)
        variables = {**without_paths_in(self._scratch, chosen), **(gpu_variables or {})}
        common: dict[str, Any] = {
            "address": host,
            # What tasks print may be no UTF-8.
            "connect_options": {
                "connect_timeout": self._left(), "errors": "replace", **connect
            },
            # SSHCluster inserts this into a shell command without quoting.
            "remote_python": shlex.join(
                ["env", *(f"{key}={value}" for key, value in variables.items()), python,
                 "-m", "commbench.launchers.child", "--tethered"]
            ),
            "kwargs": {
                "protocol": self._protocol, "dashboard": False,
                **self._listens_at(host), **options,
            },
        }  # fmt: skip
        end = (
            ssh.Worker(scheduler, worker_class="distributed.Worker", **common)
            if scheduler
            else ssh.Scheduler(**common)
        )
        self._ends[name] = end
        try:
            async with self._logins[host]:
                starting = asyncio.ensure_future(end.start())
                while end.connection is None and not starting.done():
                    await asyncio.sleep(_TURNS_SECONDS)
            await starting
        except Exception as error:
            reason = await _reason(end, error)
            if isinstance(error, OSError) and error.filename is None and end.connection is None:
                port = connect.get("port", "")
                option = f"-p {port} " * bool(port)
                reason = (
                    f"no SSH server answers at {host}{':' * bool(port)}{port} ({reason}); to test "
                    f"it: ssh {option}{host} true"
                )
            said = process.tail(self._log)
            raise LaunchError(f"{name} on {host} did not start: {reason}{said}") from error

    def _listens_at(self, host: str) -> dict[str, str]:
        if interface := self._options.get("interface"):
            return {"interface": interface}
        try:
            address = socket.gethostbyname(host)
        except OSError:
            # The host is an alias of the SSH configuration; Dask will choose an address.
            return {}
        # On many hosts the host name resolves to a loopback address.
        several = len(set(self._spec.hosts)) > 1
        return {} if several and address.startswith("127.") else {"host": address}

    async def _follow(self, name: str) -> None:
        """Write the output of a process to its log, and report its end."""
        remote = self._ends[name].proc
        log = self._scratch / f"{name.replace(' ', '-')}.log"
        process.watch_remote(name)
        with log.open("a", encoding="utf-8") as file:

            async def write(stream: Any) -> None:
                # A broken connection raises an exception, and is the end, too.
                with contextlib.suppress(Exception):
                    async for line in stream:
                        file.write(line)
                        file.flush()

            # SSH stops the process when too much of either isn't read.
            await asyncio.gather(write(remote.stdout), write(remote.stderr))
        process.report_death(
            name,
            f"{name} on {self._ends[name].address} ended while it was needed" + process.tail(log),
        )

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _result(self, started: Any, name: str) -> None:
        try:
            started.result(self._left())
        except ResultTimeoutError:
            raise LaunchError(
                f"{name} did not start within {self._spec.start_timeout_s:g} s "
                "(--start-timeout)" + process.tail(self._log)
            ) from None

    def close(self) -> None:
        """Ask the scheduler to shut down the cluster, then close the connections."""
        process.unwatch()
        self.shut_down()
        self._stop(_CLOSE_SECONDS)

    def _stop(self, timeout_s: float = 0.5) -> None:
        """Wait `timeout_s` for the processes to end, then close their connections."""
        process.unwatch()
        with contextlib.suppress(ResultTimeoutError):
            self._submit(self._end_all(timeout_s)).result(timeout_s + _CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self, timeout_s: float) -> None:
        async def finish(end: Any) -> None:
            if end.proc is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(end.proc.wait_closed(), timeout_s)
            with contextlib.suppress(Exception):
                await end.close()
                await asyncio.wait_for(end.connection.wait_closed(), _CLOSE_SECONDS / 2)

        await asyncio.gather(*(finish(end) for end in self._ends.values()))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # Refused connections close in the next turns of the event loop.
        await asyncio.sleep(_TURNS_SECONDS)


class SshLauncher(Launcher):
    """Start every process over SSH."""

    name = "ssh"
    supports = frozenset({"hosts", "memory_limit"})
    requires = ("asyncssh", "ssh")
    shows_variables = True
    options = _CONNECT + _FURTHER

    def validate(self, spec: ClusterSpec, backend: Backend) -> None:  # noqa: D102
        super().validate(spec, backend)
        if len(spec.hosts) < 2:
            raise UsageError(
                "the launcher ssh needs --hosts with at least two: the scheduler's, then the "
                "workers', for example --hosts node1,node1,node2"
            )

    def start(  # noqa: D102
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        return SshCluster(spec, protocol, scratch, preload)


@contextlib.contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Write SSHCluster's log to `file`; it has the processes' output until they have started."""
    handler = logging.FileHandler(file, encoding="utf-8")
    logger = logging.getLogger(_LOGGER)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


@contextlib.contextmanager
def _without_secrets() -> Iterator[None]:
    """Leave secrets out of Dask's configuration, which SSHCluster writes into commands."""
    import dask
    import distributed  # noqa: F401 - it fills in the configuration, which is replaced here

    given = dask.config.global_config
    keys = {backend.key_variable for backend in registry.loadable("backend").values()} - {""}
    secret = re.compile("|".join((SECRETS.pattern, *keys)), re.IGNORECASE)
    dask.config.global_config = _public(given, secret)
    try:
        yield
    finally:
        dask.config.global_config = given


def _public(value: Any, secret: re.Pattern[str], name: str = "DASK") -> Any:
    """Return a configuration without the keys whose variables have a name that matches `secret`."""
    if isinstance(value, list | tuple):
        return [_public(each, secret, name) for each in value]
    if not isinstance(value, Mapping):
        return value
    names = {key: f"{name}__{key}".replace("-", "_") for key in value}
    return {
        key: _public(value[key], secret, name)
        for key, name in names.items()
        if not secret.search(name)
    }


async def _reason(end: Any, error: Exception) -> str:
    said = ""
    if end.proc is not None:
        with contextlib.suppress(Exception):
            said = await asyncio.wait_for(end.proc.stderr.read(), 2)
    last = said.strip().splitlines()[-3:]
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " | ".join([cause, *last])
