"""The members of a cluster that are not this process's children.

What of this process's environment they are given, where they are, and if they fit. SSH hands
nothing on, and job queues what their sites have chosen. The members are asked through the
scheduler; nothing is taken for granted of processes that somebody else started, or that another
host runs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from commbench.errors import LaunchError
from commbench.launchers.base import SCHEDULER, RunningCluster
from commbench.machine import process
from commbench.model import ClusterSpec

_ASK_SECONDS = 0.05
_PREFIXES = (
    "DASK_", "COMMBENCH_", "CUDA_", "RAPIDS_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_",
)  # fmt: skip
_NAMES = ("PYTHONPATH", "LD_LIBRARY_PATH")
_OF_THIS_HOST = ("COMMBENCH_RECORDS_FD", "COMMBENCH_SCRATCH", "DASK_INTERNAL_INHERIT_CONFIG")
_PACKAGES = ("distributed", "dask", "commbench")


class Place(NamedTuple):
    """Where a process is: ``pid`` is its id for whoever shares its ``system``."""

    host: str
    system: str
    pid: int


def place() -> Place:
    """Return where this process is."""
    boot, ids = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    # Two containers of a host don't see each other's processes, and each has its own ids.
    system = (
        boot.read_text().strip() if boot.exists() else "",
        str(ids.readlink()) if ids.is_symlink() else "",
    )
    return Place(socket.gethostname(), " ".join(system), os.getpid())


def wait_for(client: Any, spec: ClusterSpec, deadline: float, hint: str = "") -> dict[str, Any]:
    """Wait until as many workers are there as `spec` asks for and return them.

    Raises
    ------
    LaunchError
        Where fewer came until `deadline`, of ``time.monotonic``, or where there are more.
    """
    while True:
        found: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
        if len(found) == spec.n_workers:
            return found
        if len(found) > spec.n_workers:
            raise LaunchError(
                f"{len(found)} workers are there, and {spec.n_workers} were asked for: a workload "
                f"uses all of a cluster, so say --workers {len(found)}"
            )
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{len(found)} of {spec.n_workers} workers came within {spec.start_timeout_s:g} s "
                f"(--start-timeout){hint}"
            )
        time.sleep(_ASK_SECONDS)


def join(
    cluster: RunningCluster, spec: ClusterSpec, protocol: str, deadline: float, hint: str = ""
) -> None:
    """Wait for the workers of `cluster`, check them, and find out where all its processes are.

    None of those on this host passes for one that this process has started.

    Raises
    ------
    LaunchError
        Where they don't come in time, or are not as asked for.
    """
    # Other versions may not even answer how many workers there are; workers may come late.
    check_versions(cluster.client)
    found = wait_for(cluster.client, spec, deadline, hint)
    check_versions(cluster.client)
    check_workers(found, spec, protocol)
    cluster.names = {address: str(info["name"]) for address, info in found.items()}
    locate(cluster)
    cluster.adopted = cluster.pids[1:]


def check_versions(client: Any) -> None:
    """Compare the versions of scheduler and workers with those of this process.

    Raises
    ------
    LaunchError
        Where Python (3.x), distributed, dask or commbench differ, with both versions.
    """
    told = client.get_versions(packages=["commbench"])
    own = _versions(told["client"])
    for who, row in ((SCHEDULER, told["scheduler"]), *told["workers"].items()):
        theirs = _versions(row)
        for name, version in own.items():
            if theirs.get(name) == version:
                continue
            others = [_versions(other).get(name) for other in told["workers"].values()]
            n_differ = sum(other != version for other in others)
            whose = "the scheduler" if who == SCHEDULER else f"worker {who}"
            raise LaunchError(
                f"{whose} has {name} {theirs.get(name) or '(not installed)'}, and commbench runs "
                f"with {name} {version} ({n_differ} of {len(others)} workers differ): "
                "their messages need not fit, nor their times; install the same on all"
            )


def _versions(told: Mapping[str, Any]) -> dict[str, str]:
    packages = told["packages"]
    found = {"python": ".".join(str(packages["python"]).split(".")[:2])}
    return found | {name: packages.get(name) for name in _PACKAGES}


def check_workers(found: Mapping[str, Any], spec: ClusterSpec, protocol: str) -> None:
    """Compare the workers `found` with what is asked for, but for their number.

    Raises
    ------
    LaunchError
        Where their addresses are of another protocol, or they have other numbers of threads.
    """
    for address, info in found.items():
        scheme = address.partition("://")[0]
        if scheme != protocol:
            raise LaunchError(
                f"worker {info['name']} listens at {address}, and the backend's addresses begin "
                f"with {protocol}://; measure it as the backend that it is"
            )
    threads = sorted({int(info["nthreads"]) for info in found.values()})
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
    """Find out which processes of `cluster` are on this host, and which are elsewhere."""
    client, own = cluster.client, place()
    # It comes as a list where it went through msgpack.
    told = {SCHEDULER: Place(*client.run_on_scheduler(place))}
    told |= {address: Place(*found) for address, found in client.run(place).items()}
    here = {found.pid for found in told.values() if found.system == own.system} - {own.pid}
    cluster.pids = (own.pid, *sorted(here))
    cluster.elsewhere = frozenset(
        member for member, found in told.items() if found.system != own.system
    )


def watch(cluster: RunningCluster) -> None:
    """Report, as a death, whoever leaves `cluster` or joins it, until ``process.unwatch``."""
    names = dict(cluster.names)
    for name in names.values():
        process.expect_life(f"worker {name}")

    def tell(event: tuple[float, Any]) -> None:
        _, message = event
        if not isinstance(message, Mapping):
            return
        address, action = message.get("worker"), message.get("action")
        if action == "remove-worker" and address in names:
            who = f"worker {names[address]}"
            process.tell_death(who, f"{who} ({address}) left the cluster while it was needed")
        elif action == "add-worker" and address not in names:
            process.tell_death(
                f"worker {next(iter(names.values()))}",
                f"another worker, {address}, joined the cluster while it was measured: it is no "
                "longer the one that was asked for",
            )

    cluster.client.subscribe_topic("all", tell)


def handed_on(
    environ: Mapping[str, str], env: Mapping[str, str], defaults: Mapping[str, str],
    own: tuple[str, ...] = (),
) -> dict[str, str]:  # fmt: skip
    """Return the variables that the processes of a cluster are to have wherever they run.

    Those of Dask, commbench and libraries that compute, those that the backend names, and where
    libraries are found.

    Parameters
    ----------
    environ
        The environment of the launch: what the user, the backend and the case set.
    env
        What the case has set in it, to go along whatever its name.
    defaults
        What is set where nothing else does it.
    own
        What the names of variables begin with that the launcher's own libraries read.
    """
    prefixes = (*_PREFIXES, *own, *filter(None, environ.get(process.FORWARDED, "").split(",")))
    chosen = {
        name: value
        for name, value in environ.items()
        if (name.startswith(prefixes) or name in _NAMES) and name not in _OF_THIS_HOST
    }
    return {**defaults, **chosen, **{name: environ.get(name, env[name]) for name in env}}


def without_paths_in(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` but those that name something in `folder`, which other hosts lack."""
    return {name: value for name, value in variables.items() if str(folder) not in value}
