"""Hosts to measure between that are network namespaces of this one, with links of known rates.

Every host has one address, on its ``lo``, and a link of its own to each other host: a pair of
virtual Ethernet devices, over which alone the two addresses are routed. So one link can be slow
while the others are not. A rate is set by a token bucket filter at both ends; it counts Ethernet
frames, of which ``PAYLOAD_SHARE`` is TCP's payload.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import processes
import pytest

_PREFIX = "commbenchtest"
_numbers = itertools.count()
_MTU, _IP_AND_TCP, _ETHERNET = 1500, 20 + 32, 14
PAYLOAD_SHARE = (_MTU - _IP_AND_TCP) / (_MTU + _ETHERNET)
"""1448 of 1514 bytes: a full frame has headers of Ethernet, IP and, with time stamps, TCP."""

LAUNCHER = """
import os

from commbench.launchers.base import Launcher
from commbench.launchers.local import BOUND, LocalCluster, memory_limit


class Cluster(LocalCluster):
    def _start(self, spec, protocol, preload):
        contact = self._scratch / "scheduler.json"
        hosts = [host.split("=") for host in os.environ["COMMBENCH_TEST_HOSTS"].split(",")]
        common = ("--scheduler-file", contact, "--protocol", protocol, "--no-dashboard", "--host")
        self._spawn("scheduler", *BOUND, "-m", "dask", "scheduler", "--port", "0", *common,
                    hosts[0][1])
        for index in range(spec.n_workers):
            namespace, address = hosts[index]
            self._spawn(
                f"worker {index}", "ip", "netns", "exec", namespace, *BOUND, "-m", "dask",
                "worker", "--name", str(index), "--no-nanny", "--nthreads",
                str(spec.threads_per_worker), "--memory-limit",
                str(memory_limit(spec.n_workers)), *common, address,
            )
        self._connect(contact, spec, preload)
        self.pids = (os.getpid(), *(process.pid for process in self._processes))


class NamespaceLauncher(Launcher):
    name = "namespaces"

    def start(self, spec, protocol, scratch, preload=()):
        return Cluster(spec, protocol, scratch, preload)
"""
"""A launcher with worker n on host n; the scheduler is on the host that it is started on, 0."""


@dataclass(frozen=True)
class Hosts:
    """The namespaces by number, and the address of each."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def environ(self) -> dict[str, str]:
        """What the launcher must find in its environment."""
        pairs = zip(self.names, self.addresses, strict=True)
        return {"COMMBENCH_TEST_HOSTS": ",".join(f"{name}={where}" for name, where in pairs)}


def name(pid: int, number: int) -> str:
    """Return the name of a host of the test that runs in the process `pid`."""
    return f"{_PREFIX}-{pid}-{number}"


@contextlib.contextmanager
def hosts(number: int, rates_Bps: Mapping[tuple[int, int], float]) -> Iterator[Hosts]:  # noqa: N803
    """Give so many hosts, the links between some of which have a rate; else skip the test.

    Those of a test that was killed before it could remove them go first.
    """
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} of iproute2 is not installed")
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    _remove(host for host in _hosts() if not Path(f"/proc/{host.split('-')[1]}").exists())
    found = Hosts(
        tuple(name(os.getpid(), next(_numbers)) for _ in range(number)),
        tuple(f"10.213.0.{index + 1}" for index in range(number)),
    )
    try:
        try:
            _make(found, rates_Bps)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces: {' '.join(error.cmd)}: {error.stderr.strip()}")
        yield found
    finally:
        _remove(_hosts() & set(found.names))


def _make(found: Hosts, rates_Bps: Mapping[tuple[int, int], float]) -> None:  # noqa: N803
    for host, address in zip(found.names, found.addresses, strict=True):
        _do(f"ip netns add {host}")
        _do(f"ip -n {host} link set lo up")
        _do(f"ip -n {host} address add {address}/32 dev lo")
    for one, other in itertools.combinations(range(len(found.names)), 2):
        a, b = found.names[one], found.names[other]
        _do(f"ip link add to{other} netns {a} type veth peer name to{one} netns {b}")
        for here, there in ((one, other), (other, one)):
            host, device = found.names[here], f"to{there}"
            _do(f"ip -n {host} link set {device} mtu {_MTU} up")
            _do(
                f"ip -n {host} route add {found.addresses[there]}/32 dev {device} "
                f"src {found.addresses[here]}"
            )
            if rate := rates_Bps.get((one, other)):
                # The bucket goes through at once: 1 % of what takes 0.2 s. A smaller one
                # has segments of 64 KiB cut up, and runs over whenever a busy core is late to
                # serve it, which makes the link slower than its rate.
                burst = max(128 * 1024, round(rate * 2e-3))
                _do(
                    f"tc -n {host} qdisc add dev {device} root tbf rate {8 * rate:.0f}bit "
                    f"burst {burst} limit 8mb"
                )


def _hosts() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    names = (line.split()[0] for line in listed.stdout.splitlines())
    return {name for name in names if name.startswith(f"{_PREFIX}-")}


def _remove(hosts: Iterable[str]) -> None:
    for host in hosts:
        subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


def _do(command: str) -> None:
    subprocess.run(command.split(), capture_output=True, text=True, check=True)


@contextlib.contextmanager
def command_line(folder: Path, there: Hosts) -> Iterator[processes.CommandLine]:
    """Give a command line on host 0 that has the launcher ``namespaces``."""
    plugged = processes.plug_in(
        folder / "plugged", "namespace_launcher", LAUNCHER,
        launchers={"namespaces": "NamespaceLauncher"},
    )  # fmt: skip
    prefix = ["ip", "netns", "exec", there.names[0]]
    with processes.command_line(folder, prefix) as line:
        line.environ |= there.environ
        line.environ["PYTHONPATH"] = f"{plugged}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        yield line
