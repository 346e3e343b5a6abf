"""Hosts to measure between that are network namespaces of this one, with links of known rates.

Hosts and switches, which are namespaces that forward, have one address each, on their ``lo``. A
link is a pair of virtual Ethernet devices; messages take the way with the fewest links. A rate is
set by a token bucket filter at both ends; it counts Ethernet frames, of which ``PAYLOAD_SHARE`` is
TCP's payload.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import processes
import pytest

_PREFIX = "commbenchtest"
_FORWARDER = Path(__file__).with_name("forwarder.py")
_numbers = itertools.count()
_MTU, _IP_AND_TCP, _ETHERNET = 1500, 20 + 32, 14
PAYLOAD_SHARE = (_MTU - _IP_AND_TCP) / (_MTU + _ETHERNET)
"""1448 of 1514 bytes: a full frame has headers of Ethernet, IP and, with time stamps, TCP."""

LAUNCHER = """
import os

from commbench.launchers.launcher import Launcher
from commbench.launchers.local import CHILD_COMMAND, LocalCluster, equal_share


class Cluster(LocalCluster):
    def _start(self, spec, protocol, preload):
        contact = self._scratch / "scheduler.json"
        hosts = [host.split("=") for host in os.environ["COMMBENCH_TEST_HOSTS"].split(",")]
        common = ("--scheduler-file", contact, "--protocol", protocol, "--no-dashboard", "--host")
        self._spawn("scheduler", *CHILD_COMMAND, "-m", "dask", "scheduler", "--port", "0", *common,
                    hosts[0][1])
        for index in range(spec.n_workers):
            namespace, address = hosts[index]
            self._spawn(
                f"worker {index}", "ip", "netns", "exec", namespace, *CHILD_COMMAND, "-m", "dask",
                "worker", "--name", str(index), "--no-nanny", "--nthreads",
                str(spec.threads_per_worker), "--memory-limit",
                str(equal_share(spec.n_workers)), *common, address,
            )
        self._connect_to_scheduler(contact, preload)
        self._await_workers(spec)


class NamespaceLauncher(Launcher):
    name = "namespaces"

    def start(self, spec, protocol, scratch, preload=()):
        return Cluster(spec, protocol, scratch, preload)
"""
"""A launcher with worker n on host n; the scheduler is on the host that it is started on, 0."""


@dataclass(frozen=True)
class Layout:
    """Hosts, numbered from 0, switches, which follow them, and the rates of the links in B/s.

    A link of rate 0 lets pass what the machine can do. `back` has the rates from the second node to
    the first, where they differ. `delay_s` has the seconds that a forwarder takes with each packet
    of a link, and `loss` the share of the large packets from the first host to the second that this
    one drops.
    """

    n_hosts: int
    links: Mapping[tuple[int, int], float]
    back: Mapping[tuple[int, int], float] = field(default_factory=dict)
    delay_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    loss: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @property
    def nodes(self) -> range:
        """The numbers of hosts and switches."""
        return range(max(self.n_hosts, 1 + max((node for link in self.links for node in link),
                                                default=0)))  # fmt: skip

    def way(self, here: int, there: int) -> tuple[int, ...]:
        """Return the nodes from one to the other, both included: as few as possible."""
        ways = [(here,)]
        for way in ways:
            if way[-1] == there:
                return way
            # A host forwards nothing.
            if len(way) == 1 or way[-1] >= self.n_hosts:
                ways += [(*way, node) for node in self._next_to(way[-1]) if node not in way]
        raise LookupError(f"no way from {here} to {there}")

    def rate_Bps(self, here: int, there: int) -> float:  # noqa: N802 - the unit's spelling
        """Return what the way lets pass: its slowest link's rate, infinite where none has one."""
        rates = [self._rate(link) for link in itertools.pairwise(self.way(here, there))]
        return min(filter(None, rates), default=float("inf"))

    def _rate(self, link: tuple[int, int]) -> float:
        there = self.links.get(link[::-1], 0.0)
        return self.links[link] if link in self.links else self.back.get(link[::-1], there)

    def _next_to(self, node: int) -> list[int]:
        return [b if a == node else a for a, b in self.links if node in (a, b)]


def mesh(
    number: int,
    rates_Bps: Mapping[tuple[int, int], float],  # noqa: N803
    *,
    one_way: bool = False,
) -> Layout:
    """Return hosts with a link for every pair, some of which have a rate."""
    pairs = itertools.combinations(range(number), 2)
    links = [pair[::-1] if pair[::-1] in rates_Bps else pair for pair in pairs]
    rates = {link: rates_Bps.get(link, 0.0) for link in links}
    return Layout(number, rates, dict.fromkeys(rates, 0.0) if one_way else {})


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
    """Give the hosts of a `mesh`; else skip the test."""
    with laid_out(mesh(number, rates_Bps)) as there:
        yield there


@contextlib.contextmanager
def laid_out(layout: Layout) -> Iterator[Hosts]:
    """Give the hosts of `layout`; else skip the test.

    Those of a test that was killed before it could remove them go first.
    """
    packages = {"ip": "iproute2", "tc": "iproute2"} | ({"nft": "nftables"} if layout.loss else {})
    for tool, package in packages.items():
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} of {package} is not installed")
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    _remove(host for host in _hosts() if not Path(f"/proc/{host.split('-')[1]}").exists())
    names = tuple(name(os.getpid(), next(_numbers)) for _ in layout.nodes)
    addresses = tuple(f"10.213.0.{index + 1}" for index in layout.nodes)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: _remove(_hosts() & set(names)))
        try:
            _make(layout, names, addresses, stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces: {' '.join(error.cmd)}: {error.stderr.strip()}")
        yield Hosts(names[: layout.n_hosts], addresses[: layout.n_hosts])


def _make(
    layout: Layout,
    names: tuple[str, ...],
    addresses: tuple[str, ...],
    stack: contextlib.ExitStack,
) -> None:
    for node in layout.nodes:
        _do(f"ip netns add {names[node]}")
        _do(f"ip -n {names[node]} link set lo up")
        _do(f"ip -n {names[node]} address add {addresses[node]}/32 dev lo")
        if node >= layout.n_hosts:
            _do(f"ip netns exec {names[node]} tee /proc/sys/net/ipv4/ip_forward", "1")
    for (one, other), rate in layout.links.items():
        a, b = names[one], names[other]
        if delay_s := layout.delay_s.get((one, other)):
            stack.enter_context(_forwarded((a, f"to{other}"), (b, f"to{one}"), delay_s))
        else:
            _do(f"ip link add to{other} netns {a} type veth peer name to{one} netns {b}")
        _make_end(a, f"to{other}", rate)
        _make_end(b, f"to{one}", layout.back.get((one, other), rate))
    for here in layout.nodes:
        for there in layout.nodes:
            if here != there:
                _, first, *_ = layout.way(here, there)
                via = "" if first == there else f"via {addresses[first]} onlink"
                _do(
                    f"ip -n {names[here]} route add {addresses[there]}/32 {via} dev to{first} "
                    f"src {addresses[here]}"
                )
    for (source, node), share in layout.loss.items():
        # BBR, which some machines have, sends on in spite of losses.
        congestion_control = "/proc/sys/net/ipv4/tcp_congestion_control"
        _do(f"ip netns exec {names[source]} tee {congestion_control}", "reno")
        # Without those that open connections and acknowledge, which take a second or more.
        rule = (
            f"ip saddr {addresses[source]} ip length > {_MTU // 2} "
            f"numgen random mod 10000 < {round(10_000 * share)} drop"
        )
        for what in (
            f"table ip {_PREFIX}",
            f"chain ip {_PREFIX} input {{ type filter hook input priority 0 ; }}",
            f"rule ip {_PREFIX} input {rule}",
        ):
            _do(f"ip netns exec {names[node]} nft add {what}")


@contextlib.contextmanager
def _forwarded(one: tuple[str, str], other: tuple[str, str], delay_s: float) -> Iterator[None]:
    """Link two devices, given by their hosts and names, by a process that delays each packet."""
    made = [f"{_PREFIX[:4]}{os.getpid()}{end}" for end in "ab"]
    command = [sys.executable, str(_FORWARDER), *made, str(delay_s)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # The forwarder ends with its input.
    with subprocess.Popen(command, text=True, **pipes) as forwarder, forwarder.stdin:
        if not forwarder.stdout.readline():
            raise subprocess.CalledProcessError(1, command, stderr=forwarder.stderr.read())
        for device, (host, name) in zip(made, (one, other), strict=True):
            _do(f"ip link set {device} netns {host} name {name}")
            # The forwarder may get no core for a while.
            _do(f"ip -n {host} link set {name} txqueuelen 10000")
        yield


def _make_end(host: str, device: str, rate: float) -> None:
    _do(f"ip -n {host} link set {device} mtu {_MTU} up")
    if rate:
        # The bucket goes through at once: 1 % of what takes 0.2 s. A smaller one has segments of
        # 64 KiB cut up, and runs over whenever a busy core is late to serve it, which makes the
        # link slower than its rate.
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


def _do(command: str, said: str = "") -> None:
    subprocess.run(command.split(), input=said, capture_output=True, text=True, check=True)


@contextlib.contextmanager
def launches_on_host_0(folder: Path, there: Hosts) -> Iterator[None]:
    """Let launches of this process run on host 0, where they know the launcher ``namespaces``."""
    plugged = processes.plug_in(
        folder / "plugged", "namespace_launcher", LAUNCHER,
        launchers={"namespaces": "NamespaceLauncher"},
    )  # fmt: skip
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec ip netns exec {there.names[0]} {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(plugged)
        patch.setenv("PYTHONPATH", str(plugged), prepend=os.pathsep)
        for name, value in there.environ.items():
            patch.setenv(name, value)
        patch.setattr(sys, "executable", str(python))
        yield
