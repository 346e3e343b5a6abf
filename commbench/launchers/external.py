"""``external``: a cluster that is already running, which is measured and left as it was.

Nothing in it is started, stopped or set. The report has the settings that it already has: those of
its backend, the workers' memory limits, and whether there are nannies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import LaunchError, UsageError
from commbench.launchers import members
from commbench.launchers.launcher import Launcher, RunningCluster
from commbench.model import ClusterSpec

if TYPE_CHECKING:
    from commbench.backends.backend import Backend

_ANSWER_SECONDS = 10.0
"""The time limit for connecting, long enough for a busy scheduler."""


class ExternalCluster(RunningCluster):
    """A client of a cluster that the user has started."""

    preexisting = True

    def __init__(self, spec: ClusterSpec, protocol: str) -> None:
        deadline = time.monotonic() + spec.start_timeout_s
        self.client = _connect_client(scheduler_address(spec.scheduler))
        try:
            hint = "; the cluster is measured as it is: ask for fewer --workers, or add some"
            members.join(self, spec, protocol, deadline, hint)
            self._refuse_busy(deadline)
            members.watch_workers(self)
        except BaseException:
            self.close()
            raise

    def _refuse_busy(self, deadline: float) -> None:
        # The results of an earlier launch may not be released yet.
        while (n_tasks := self.client.run_on_scheduler(_count_tasks)) > 0:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"the cluster is busy with {n_tasks} tasks of other clients: they would share "
                    "its cores and links with what is measured; wait for them, or end them"
                )
            time.sleep(0.1)

    def close(self) -> None:
        """Close the client."""
        members.unwatch_workers(self)
        with contextlib.suppress(Exception):
            self.client.close(timeout=5)


class ExternalLauncher(Launcher):
    """Connect to a cluster by its scheduler's address or file."""

    name = "external"
    supports = frozenset({"scheduler"})

    def validate(self, spec: ClusterSpec, backend: Backend) -> None:  # noqa: D102
        if backend.has_secrets:
            raise UsageError(
                f"a running cluster has keys of its own, and {backend.name} makes a key for each "
                "run; profile your code on it with `commbench profile`"
            )
        super().validate(spec, backend)
        if not spec.scheduler:
            raise UsageError(
                "the launcher external needs a scheduler: --scheduler tcp://HOST:PORT or "
                "--scheduler FILE"
            )
        address = scheduler_address(spec.scheduler)
        scheme = address.partition("://")[0]
        if scheme != backend.protocol:
            raise UsageError(
                f"the scheduler at {address} uses {scheme}, and the addresses of the backend "
                f"{backend.name} begin with {backend.protocol}://. A running cluster has one "
                "backend; name it with --backends"
            )
        if backend.options:
            raise UsageError(
                f"the settings of {backend.name} can't be set on a cluster that is running; say "
                f"--backends {backend.protocol}, and the report shows the settings and the "
                "transport in use"
            )
        if spec.rmm:
            raise UsageError(
                f"RMM ({spec.rmm}) can't be set up on a cluster that is running; leave it out: it "
                "is measured with what its workers have"
            )
        for name in ("env", "dask_config"):
            if getattr(spec, name):
                raise UsageError(
                    f"{name} can't be set on a cluster that is running; leave it out, or start "
                    "the cluster with another launcher"
                )

    def start(  # noqa: D102
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        del scratch, preload
        return ExternalCluster(spec, protocol)


def scheduler_address(scheduler: str) -> str:
    """Return the scheduler's address: `scheduler`, or the address in the file of that name.

    Raises
    ------
    UsageError
        If it is neither an address nor a scheduler's file.

    Examples
    --------
    >>> scheduler_address("10.0.0.1:8786"), scheduler_address("ucx://10.0.0.1:8786")
    ('tcp://10.0.0.1:8786', 'ucx://10.0.0.1:8786')
    """
    if "://" in scheduler:
        return scheduler
    host, _, port = scheduler.rpartition(":")
    # Dask takes HOST:PORT for tcp, too.
    if host and port.isdecimal() and not os.path.exists(scheduler):
        return f"tcp://{scheduler}"
    try:
        address = json.loads(Path(scheduler).read_text(encoding="utf-8"))["address"]
    except OSError as error:
        may_be_host = re.fullmatch(r"[\w.-]+(?<!\.json)", scheduler)
        raise UsageError(
            f"can't read the scheduler's file {scheduler}: {error.strerror}; it is what `dask "
            "scheduler --scheduler-file FILE` writes"
            + f". An address has a port: tcp://{scheduler}:8786"
            * bool(may_be_host)
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{scheduler} is not a scheduler's file: no JSON with an address; it is what `dask "
            "scheduler --scheduler-file FILE` writes"
        ) from error
    return str(address)


def describe(scheduler: str) -> tuple[str, int, int]:
    """Return the protocol, the number of workers, and the threads of one, of a running cluster."""
    address = scheduler_address(scheduler)
    with _connect_client(address) as client:
        workers = members.workers_by_address(client)
    threads = [int(info["nthreads"]) for info in workers.values()]
    return address.partition("://")[0], len(workers), max(threads, default=1)


def _connect_client(address: str) -> Any:
    from distributed import Client

    try:
        return Client(address, timeout=_ANSWER_SECONDS)
    except Exception as error:
        cause = error.__cause__ or error
        text = str(cause) or type(cause).__name__
        raise LaunchError(
            f"no scheduler answers at {address} within {_ANSWER_SECONDS:g} s ({text}); is it "
            "running, of this version of distributed, and its port reachable?"
        ) from error


def _count_tasks(dask_scheduler: Any) -> int:
    return sum(len(worker.processing) for worker in dask_scheduler.workers.values())
