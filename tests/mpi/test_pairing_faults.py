"""Faults while two processes connect for the first time."""

import asyncio
import contextlib
import dataclasses
import itertools
import random
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed.comm import CommClosedError, connect, listen
from faulty_peer import N_STEPS, rename
from peers import SOON_S, Peer, check_echo, exchange, handler, no_connect_is_left, peers, until
from scenarios import PRIVATE_SHM, or_slow, scenario

from commbench.mpi import connect as mpi_connect
from commbench.mpi import pairing, pairs, shared_memory
from commbench.mpi import runtime as runtime_module
from commbench.mpi.control import Control
from commbench.mpi.receive_queue import SENDERS
from commbench.mpi.runtime import runtime

FAULTY = str(Path(__file__).with_name("faulty_peer.py"))
ROLES = ("leads", "follows")


def pairs_of(steps: Any, others: Any, every_other: bool, first: int = 0) -> list[tuple[Any, Any]]:
    """Pair each step with all others, or with one of them in turn."""
    return [
        (step, other)
        for number, step in enumerate(steps)
        for other in (others if every_other else [others[(number + first) % len(others)]])
    ]


class Turns:
    """Measures for how long the event loop does not get to a task that always wants to run."""

    def __init__(self) -> None:
        self._worst_s = 0.0
        self._task = asyncio.ensure_future(self._measure())

    async def _measure(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            self._worst_s, last = max(self._worst_s, now - last - 0.001), now

    async def stop(self) -> float:
        """Return the longest time in seconds."""
        self._task.cancel()
        await asyncio.wait([self._task])
        return self._worst_s


class Bystander:
    """A peer with which this process exchanges messages all the while."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.worst_s = 0.0
        self.stopped_s = 0.0

    async def converse(self, over: asyncio.Event) -> None:
        """Exchange messages; note the worst round trip, and the longest turn of the event loop."""
        comm = await connect(self._peer.address)
        turns = Turns()
        watching = asyncio.ensure_future(self._watch_queue())
        while not over.is_set():
            began = time.monotonic()
            await exchange(comm)
            self.worst_s = max(self.worst_s, time.monotonic() - began)
            await asyncio.sleep(0.001)
        self.worst_s = max(self.worst_s, await turns.stop())
        watching.cancel()
        await comm.close()

    async def _watch_queue(self) -> None:
        """Note for how long a peer that stands still in the middle of a write stops all others."""
        queue, since = SENDERS._queue, dict[int, float]()
        assert queue is not None
        while True:
            now = time.monotonic()
            since = {number: since.get(number, now) for number in queue.unwritten()}
            self.stopped_s = max([self.stopped_s, *(now - began for began in since.values())])
            await asyncio.sleep(0.05)


@asynccontextmanager
async def undisturbed(number: int) -> AsyncIterator[None]:
    """Check that the block costs bystanders nothing, and that nothing is left of it.

    In the block peers get the signal `number`. One that is stopped while it writes to this process
    makes all others wait; that happens in one run of about 14.

    MPI waits for a peer longer than a busy machine lets a process wait for a core. So a loop that
    stood still for less than that did not wait for MPI.
    """
    mpi_connect.CONNECT_TIMEOUT_S = 4
    async with peers(2) as (partner, fresh):
        await partner.check()
        bystander, over = Bystander(partner), asyncio.Event()
        conversing = asyncio.ensure_future(bystander.converse(over))
        yield
        await no_connect_is_left()
        over.set()
        await conversing
        print(f"worst turn or round trip of a bystander: {bystander.worst_s:.3f} s")
        stopped_s = bystander.stopped_s if number == signal.SIGSTOP else 0
        assert bystander.worst_s - stopped_s < 3, vars(bystander)
        await fresh.check()


@pytest.mark.parametrize("every_end", or_slow(False, True))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@scenario(280)
async def test_fault_at_any_step_costs_only_one_connection(number: int, every_end: bool) -> None:
    """A stopped peer goes on at last, and sends what it has to send: too late."""
    pairs.RELEASE_AFTER_S = SOON_S
    faulty_peers: list[Peer] = []
    slots = asyncio.Semaphore(4)

    async def connects_to(address: str, faulty: Peer) -> None:
        assert faulty.process.stdout is not None
        reader = threading.Thread(target=faulty.process.stdout.readline, daemon=True)
        reader.start()
        process = psutil.Process(faulty.process.pid)
        await until(
            lambda: not reader.is_alive() or process.status() == psutil.STATUS_STOPPED, "the step"
        )

    async def is_connected_to(faulty: Peer) -> None:
        await faulty.ready()
        with contextlib.suppress(CommClosedError, OSError, TimeoutError):
            comm = await connect(faulty.address, timeout=3)
            await asyncio.wait_for(exchange(comm), 3)
            await comm.close()

    async def meet(step: int, end: tuple[str, bool], address: str) -> None:
        role, connects = end
        async with slots:
            arguments = [role, str(step), str(int(number)), *([address] if connects else [])]
            faulty_peers.append(faulty := await asyncio.to_thread(Peer, FAULTY, *arguments))
            meeting = connects_to(address, faulty) if connects else is_connected_to(faulty)
            await asyncio.wait_for(meeting, 250)

    async with listen("mpi://127.0.0.1:0", handler) as listener, undisturbed(number):
        # The role of the faulty peer, and whether it connects.
        ends = list(itertools.product(ROLES, (True, False)))
        first = 2 * (number == signal.SIGSTOP)
        chosen = pairs_of(range(N_STEPS), ends, every_end, first)
        await asyncio.gather(*(meet(*each, listener.contact_address) for each in chosen))
        await until(lambda: not mpi_connect.CALLS.n_running, "calls of MPI go on")
        for faulty in faulty_peers:
            faulty.process.send_signal(signal.SIGCONT)
        if number == signal.SIGSTOP:
            await asyncio.sleep(3)
        for faulty in faulty_peers:
            await asyncio.to_thread(faulty.end)
        pids = {faulty.process.pid for faulty in faulty_peers}
        await until(lambda: not shared_memory.made_by(pids), "memory of the dead is left")


@pytest.mark.parametrize("rounds", or_slow(1, 4))
@scenario(200)
async def test_peer_that_calls_mpi_too_late_is_met_at_the_next_attempt(rounds: int) -> None:
    """With no other connections: nothing else calls MPI meanwhile."""
    for role, step in (("leads", 2), ("follows", 3)) * rounds:
        faulty = Peer(FAULTY, role, str(step), "0")
        await faulty.ready()
        await check_echo(faulty.address)
        faulty.end()
    await no_connect_is_left()


@pytest.mark.parametrize("both_roles", or_slow(False, True))
@scenario(200)
async def test_cancelled_first_connection_hurts_no_other(both_roles: bool) -> None:
    calls = ("send", "send", "send", "agree_on_key", "_connect", "send")
    cases = pairs_of(range(len(calls)), ROLES, both_roles)
    async with peers(len(cases)) as group:
        for peer, (step, role) in zip(group, cases, strict=True):
            rename(role)
            await cancel(peer, calls[step], calls[: step + 1].count(calls[step]))


async def cancel(peer: Peer, name: str, count: int) -> None:
    """Cancel the first of two connects at a call of a function, the `count`-th."""
    handshake = pairing._Handshake
    owners: dict[str, Any] = {"send": Control, "agree_on_key": pairing, "_connect": handshake}
    original = getattr(owners[name], name)
    first = asyncio.ensure_future(connect(peer.address, timeout=60))
    n_calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == count:
            first.cancel()
        return original(*args, **kwargs)

    setattr(owners[name], name, call)
    try:
        second = asyncio.ensure_future(connect(peer.address, timeout=60))
        with contextlib.suppress(asyncio.CancelledError, CommClosedError):
            await (await first).close()
        await (await second).close()
    finally:
        setattr(owners[name], name, original)
    assert n_calls >= count
    await peer.check()
    await no_connect_is_left()


class Failing:
    """What passes everything on to an object of mpi4py, and fails in one call of a method."""

    def __init__(self, target: Any, method: str, failed: list[str]) -> None:
        self._target, self._method, self._failed = target, method, failed

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name in ("COMM_SELF", "Request", "Info"):
            return Failing(value, self._method, self._failed)
        if not callable(value) or isinstance(value, type):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == self._method and not self._failed:
                self._failed.append(name)
                raise RuntimeError("an error of MPI")
            answer = value(*args, **kwargs)
            if name in ("Dup", "Connect"):
                return Failing(answer, self._method, self._failed)
            return answer

        return call


@pytest.mark.parametrize("both_roles", or_slow(False, True))
@scenario(250)
async def test_attempt_after_an_error_of_mpi_comes_through(both_roles: bool) -> None:
    local = runtime("127.0.0.1")
    methods = ("Dup", "Create", "Connect", "Set_errhandler", "Improbe", "Isend", "Testall", "Free")
    cases = pairs_of(methods, ROLES, both_roles)
    async with peers(len(cases)) as group:
        for peer, (method, role) in zip(group, cases, strict=True):
            failed: list[str] = []
            rename(role)
            runtime_module._runtime = dataclasses.replace(
                runtime(),
                mpi=Failing(local.mpi, method, failed),
                self_comm=Failing(local.self_comm, method, failed),
            )
            await check_echo(peer.address, timeout=60)
            assert failed == [method], (method, failed)
        await no_connect_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@scenario(1200, namespaces=PRIVATE_SHM)  # A process killed while MPI starts leaves some.
async def test_peers_killed_as_they_connect_disturb_others_no_more_than_over_tcp(seed: int) -> None:
    figures = {protocol: await storm(protocol, seed) for protocol in ("tcp", "mpi")}
    print(figures)
    (tcp_worst_s, tcp_fresh_s), (worst_s, fresh_s) = figures["tcp"], figures["mpi"]
    assert worst_s <= max(0.5, 2 * tcp_worst_s)
    assert fresh_s <= max(2, 2 * tcp_fresh_s)


async def storm(protocol: str, seed: int) -> tuple[float, float]:
    """Kill 100 peers within 0.5 s of their first connect.

    Return the worst round trip of others meanwhile, and the time that a fresh peer takes afterwards
    to connect and to exchange messages.
    """
    rng = random.Random(seed)
    slots = asyncio.Semaphore(8)
    over = asyncio.Event()

    async def kill_one(address: str) -> None:
        async with slots:
            script = str(Path(__file__).with_name("peers.py"))
            # On a busy machine a thread that starts a process waits for long until it runs.
            victim = await asyncio.to_thread(Peer, script, "connect", address)
            await asyncio.to_thread(victim.process.stdout.readline)
            await asyncio.sleep(rng.uniform(0, 0.5))
            await asyncio.to_thread(victim.end)

    async def converse(comm: Any) -> float:
        worst_s = 0.0
        while not over.is_set():
            began = time.monotonic()
            await exchange(comm)
            worst_s = max(worst_s, time.monotonic() - began)
            await asyncio.sleep(0.001)
        return worst_s

    async with (
        peers(2, protocol) as (partner, fresh),
        listen(f"{protocol}://127.0.0.1:0", handler) as listener,
    ):
        comm = await connect(partner.address)
        conversing = asyncio.ensure_future(converse(comm))
        await asyncio.gather(*(kill_one(listener.contact_address) for _ in range(100)))
        began = time.monotonic()
        await fresh.check()
        fresh_s = time.monotonic() - began
        over.set()
        worst_s = await conversing
        await comm.close()
        return worst_s, fresh_s
