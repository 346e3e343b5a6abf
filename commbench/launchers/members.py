"""The members of a cluster that are not this process's children.

This module chooses the environment variables to forward to them, because SSH forwards none and job
queues forward what their site configured. Through the scheduler it then asks each member for its
host and its versions, and compares these with the specification.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from commbench.errors import LaunchError
from commbench.launchers.launcher import SCHEDULER, RunningCluster
from commbench.machine import process
from commbench.machine.environment import SECRETS, kernel_id
from commbench.model import ClusterSpec

_POLL_SECONDS = 0.05
_TOPIC = "all"
_SUBSCRIBE_SECONDS = 30.0
_PREFIXES = (
    "DASK_", "COMMBENCH_", "CUDA_", "RAPIDS_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_",
)  # fmt: skip
SEARCH_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")
_NAMES = (*SEARCH_PATHS, "PYTHONSAFEPATH")
_HOST_SPECIFIC = ("COMMBENCH_RECORDS_FD", "COMMBENCH_SCRATCH", "DASK_INTERNAL_INHERIT_CONFIG")
PACKAGES = ("distributed", "dask", "commbench")
"""The packages of which all processes need the same version."""


class ProcessLocation(NamedTuple):
    """The host of a process, and its id; ids are comparable within one ``system``."""

    host: str
    system: str
    pid: int


def process_location() -> ProcessLocation:
    """Return the location of this process."""
    ids = Path("/proc/self/ns/pid")
    # Containers on one host have separate PID namespaces.
    system = (kernel_id(), str(ids.readlink()) if ids.is_symlink() else "")
    return ProcessLocation(socket.gethostname(), " ".join(system), os.getpid())


def workers_by_address(client: Any) -> dict[str, Any]:
    """Return the scheduler's information about each worker by address."""
    # `Client.scheduler_info` returns a cache, from which the client's own updates remove workers.
    workers: dict[str, Any] = client.sync(client.scheduler.identity)["workers"]
    return workers


def missing_modules(names: Iterable[str]) -> list[str]:
    """Return which of these modules the process in which this runs can't import."""
    from importlib import import_module

    missing = []
    for name in names:
        try:
            import_module(name)
        except Exception:  # noqa: BLE001 - a module may have any fault
            missing.append(name)
    return missing


def wait_for_workers(
    client: Any, spec: ClusterSpec, deadline: float, hint: str = ""
) -> dict[str, Any]:
    """Wait for the workers of `spec`, and return the scheduler's information about each.

    Raises
    ------
    LaunchError
        If fewer came until `deadline`, of ``time.monotonic``, or there are more.
    """
    while True:
        workers = workers_by_address(client)
        if len(workers) == spec.n_workers:
            return workers
        if len(workers) > spec.n_workers:
            raise LaunchError(
                f"{len(workers)} workers are there, and {spec.n_workers} were asked for: a "
                f"workload uses all of a cluster, so say --workers {len(workers)}"
            )
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{len(workers)} of {spec.n_workers} workers came within {spec.start_timeout_s:g} "
                f"s (--start-timeout){hint}"
            )
        time.sleep(_POLL_SECONDS)


def join(
    cluster: RunningCluster, spec: ClusterSpec, protocol: str, deadline: float, hint: str = ""
) -> None:
    """Wait for the workers of `cluster`, check them, and locate all processes.

    All processes on this host but the client count as not started by this process.

    Raises
    ------
    LaunchError
        If workers don't come in time, or don't match `spec`.
    """
    # Processes of another version may not even answer how many workers there are.
    check_versions(cluster.client)
    workers = wait_for_workers(cluster.client, spec, deadline, hint)
    # Workers that joined meanwhile.
    check_versions(cluster.client)
    check_workers(workers, spec, protocol)
    cluster.names = {address: str(info["name"]) for address, info in workers.items()}
    locate(cluster)
    cluster.foreign_pids = cluster.pids[1:]


def check_versions(client: Any) -> None:
    """Compare the versions of scheduler and workers with those of this process.

    Raises
    ------
    LaunchError
        If Python (3.x), distributed, dask or commbench differ; the message has both versions.
    """
    answers = client.get_versions(packages=["commbench"])
    differing = [*differing_versions(answers)]
    if differing:
        who, name, theirs, here = differing[0]
        whose = "the scheduler" if who == SCHEDULER else f"worker {who}"
        n_differ = sum(each[0] != SCHEDULER and each[1] == name for each in differing)
        raise LaunchError(
            f"{whose} has {name} {theirs or '(not installed)'}, and commbench runs with {name} "
            f"{here} ({n_differ} of {len(answers['workers'])} workers differ): their messages "
            "need not fit, nor their times; install the same on all"
        )


def differing_versions(
    answers: Mapping[str, Any],
) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Yield a process, a package, and its versions there and here, wherever they differ.

    `answers` are those of ``get_versions``. The process is ``SCHEDULER`` or a worker's address; the
    version is None where the package is missing.
    """
    local = _versions(answers["client"])
    for who, row in ((SCHEDULER, answers["scheduler"]), *answers["workers"].items()):
        theirs = _versions(row)
        for name, here in local.items():
            if theirs[name] != here:
                yield who, name, theirs[name], here


def _versions(row: Mapping[str, Any]) -> dict[str, str | None]:
    packages = row["packages"]
    python = {"python": ".".join(str(packages["python"]).split(".")[:2])}
    return python | {name: packages.get(name) for name in PACKAGES}


def check_workers(workers: Mapping[str, Any], spec: ClusterSpec, protocol: str) -> None:
    """Compare the protocol and the threads of the workers with `spec`.

    Raises
    ------
    LaunchError
        If a worker has another protocol or number of threads.
    """
    for address, info in workers.items():
        scheme = address.partition("://")[0]
        if scheme != protocol:
            raise LaunchError(
                f"worker {info['name']} listens at {address}, and the backend's addresses begin "
                f"with {protocol}://; measure it as the backend that it is"
            )
    threads = sorted({int(info["nthreads"]) for info in workers.values()})
    if threads != [spec.threads_per_worker]:
        if len(threads) > 1:
            raise LaunchError(
                f"the workers have from {threads[0]} to {threads[-1]} threads; commbench measures "
                "workers that are alike"
            )
        raise LaunchError(
            f"the workers have {threads[0]} threads each, and {spec.threads_per_worker} were asked "
            f"for; say --threads {threads[0]}"
        )


def locate(cluster: RunningCluster) -> None:
    """Set the processes of `cluster`, here and elsewhere, and whether members share one."""
    client, here = cluster.client, process_location()
    # A tuple that went through msgpack is a list.
    locations = {SCHEDULER: ProcessLocation(*client.run_on_scheduler(process_location))}
    locations |= {
        address: ProcessLocation(*location)
        for address, location in client.run(process_location).items()
    }
    pids = {location.pid for location in locations.values() if location.system == here.system}
    cluster.pids = (here.pid, *sorted(pids - {here.pid}))
    processes = {(location.system, location.pid) for location in locations.values()}
    cluster.shares_processes = len(processes) < len(locations)
    elsewhere = {
        member: (location.system, location.pid)
        for member, location in locations.items()
        if location.system != here.system
    }
    cluster.remote_members = frozenset(elsewhere)
    # Those that stand for their process already go on.
    last = sorted(elsewhere, key=lambda member: member in cluster.remote_processes)
    one_by_process = {elsewhere[member]: member for member in last}
    cluster.remote_processes = frozenset(one_by_process.values())


def watch_workers(cluster: RunningCluster, log: Path | None = None) -> None:
    """End the launch if a worker leaves or joins `cluster`, until ``unwatch_workers``.

    Parameters
    ----------
    log
        The file whose end may say why.

    Raises
    ------
    LaunchError
        If the workers are already others than those in ``cluster.names``, or if the scheduler sends
        no events.
    """
    names = dict(cluster.names)
    for name in names.values():
        process.watch_remote(f"worker {name}")

    is_subscribed = threading.Event()

    def report(event: tuple[float, Any]) -> None:
        _, message = event
        if not isinstance(message, Mapping):
            is_subscribed.set()
            return
        address, action = message.get("worker"), message.get("action")
        if action == "remove-worker" and address in names:
            who = f"worker {names[address]}"
            text = f"{who} ({address}) left the cluster while it was needed"
            process.report_death(who, text + (process.tail(log) if log else ""))
        elif action == "add-worker" and address not in names:
            process.report_death(
                f"worker {next(iter(names.values()))}",
                f"another worker, {address}, joined the cluster while it was measured: it is no "
                "longer the one that was asked for",
            )

    cluster.client.subscribe_topic(_TOPIC, report)
    # Requests may overtake the subscription.
    deadline = time.monotonic() + _SUBSCRIBE_SECONDS
    while not is_subscribed.wait(0.01) and time.monotonic() < deadline:
        cluster.client.log_event(_TOPIC, "commbench watches the workers")
    if not is_subscribed.is_set():
        raise LaunchError(
            f"the scheduler sent no event for {_SUBSCRIBE_SECONDS:.0f} s, so that a worker that "
            "leaves would not be noticed; it may be too busy: start again when it is idle"
        )
    # Earlier events are not reported.
    if (now := workers_by_address(cluster.client)).keys() != names.keys():
        raise LaunchError(
            f"workers left or joined the cluster before it was measured: {len(names)} were there, "
            f"and now {len(now)} are; start again when their number stays the same"
        )


def unwatch_workers(cluster: RunningCluster) -> None:
    """End ``watch_workers``, before the client or workers are closed."""
    process.unwatch()
    # The scheduler would fail to send events to a client that is gone.
    with contextlib.suppress(Exception):
        cluster.client.unsubscribe_topic(_TOPIC)


def forwarded_env(
    environ: Mapping[str, str], env: Mapping[str, str], defaults: Mapping[str, str],
    prefixes: tuple[str, ...] = (),
) -> dict[str, str]:  # fmt: skip
    """Return the environment variables to forward to the processes of a cluster.

    These are the variables of Dask, commbench and numerical libraries, those that the backend
    names, and the search paths of modules and libraries. Command lines and scripts of jobs, which
    others can read, have them; so names that are typical of secrets are left out.

    Parameters
    ----------
    environ
        The environment of the launch, with the variables of the user, the backend and the case.
    env
        The case's variables; all of them are forwarded.
    defaults
        Values of variables that are not set otherwise.
    prefixes
        Prefixes of further variables, which the launcher's libraries read.
    """
    forwarded = environ.get(process.FORWARDED, "").split(",")
    prefixes = (*_PREFIXES, *prefixes, *filter(None, forwarded))
    chosen = {
        name: value
        for name, value in environ.items()
        if (name.startswith(prefixes) or name in _NAMES) and name not in _HOST_SPECIFIC
        if not SECRETS.search(name)
    }
    return {**defaults, **chosen, **{name: environ.get(name, env[name]) for name in env}}


def without_paths_in(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` without those that name a path in `folder`, which other hosts lack."""
    return {name: value for name, value in variables.items() if str(folder) not in value}
