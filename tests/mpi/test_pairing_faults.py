"""Faults while two processes meet; ``python meeting_scenarios.py NAME`` runs one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from connection_scenarios import works
from distributed.comm import CommClosedError, connect, listen, parse_host_port
from distributed.comm.core import FatalCommClosedError
from faulty_peer import EVENTS
from peers import Peer, Turns, addresses, handler, peers, usage

from commbench.mpi import connect as mpi_connect
from commbench.mpi import pairing, pairs, shared_memory
from commbench.mpi import runtime as runtime_module
from commbench.mpi.control import Control
from commbench.mpi.handshake import Kind, encode
from commbench.mpi.pairs import RELEASE_AFTER_S
from commbench.mpi.receive_queue import ABANDONED_S, SENDERS
from commbench.mpi.runtime import runtime

FAULTY = str(Path(__file__).with_name("faulty_peer.py"))
STORMED = str(Path(__file__).with_name("stormed_peer.py"))


class Bystander:
    """A peer with which this process exchanges messages all the while, and another idle one."""

    def __init__(self, peer: Peer, idle: Peer) -> None:
        self._peer, self._idle = peer, idle
        self.worst_s = 0.0
        self.control_s = 0.0
        self.stopped_s = 0.0

    async def converse(self, over: asyncio.Event) -> None:
        """Exchange messages; note the worst round trip and turn of the loop, here and elsewhere."""
        comm = await connect(self._peer.address)
        idle = await connect(self._idle.address)
        turns = Turns()
        watching = asyncio.ensure_future(self._watch_queue())
        await idle.write({"op": "turns"})
        await idle.read()
        while not over.is_set():
            began = time.monotonic()
            await comm.write({"op": "echo"})
            await comm.read()
            self.worst_s = max(self.worst_s, time.monotonic() - began)
            await asyncio.sleep(0.001)
        self.worst_s = max(self.worst_s, await turns.stop())
        watching.cancel()
        await idle.write({"op": "turns"})
        self.control_s = await idle.read()
        await comm.close()
        await idle.close()

    async def _watch_queue(self) -> None:
        """Note for how long a peer that stands still in the middle of a write stops all others."""
        queue, since = SENDERS._queue, dict[int, float]()
        assert queue is not None
        while True:
            now = time.monotonic()
            since = {number: since.get(number, now) for number in queue.unwritten()}
            self.stopped_s = max([self.stopped_s, *(now - began for began in since.values())])
            await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for `condition`, with a bound that only a hang misses."""
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def echo(peer: Peer) -> None:
    """Exchange a small message over a new connection."""
    comm = await connect(peer.address)
    await comm.write({"op": "echo"})
    assert await comm.read() == {"op": "echo"}
    await comm.close()


def n_connecting() -> int:
    """Return the number of threads in, or kept after, a call of MPI_Comm_connect."""
    return sum(thread.name == "mpi-connect" for thread in threading.enumerate())


@asynccontextmanager
async def undisturbed(number: int = signal.SIGKILL) -> AsyncIterator[None]:
    """Check that the block costs bystanders nothing, and that nothing is left of it.

    In the block peers get the signal `number`. One that is stopped while it writes to this process
    makes all others wait; that happens in one run of about 14.

    MPI waits for a peer longer than a busy machine lets a process wait for a core. So a loop that
    stood still for less than that did not wait for MPI.
    """
    mpi_connect.CONNECT_TIMEOUT_S = 4
    async with peers(3) as (one, idle, fresh):
        await works(one)
        bystander, over = Bystander(one, idle), asyncio.Event()
        conversing = asyncio.ensure_future(bystander.converse(over))
        yield
        over.set()
        await conversing
        print({name: value for name, value in vars(bystander).items() if name.endswith("_s")})
        stopped_s = bystander.stopped_s if number == signal.SIGSTOP else 0
        assert bystander.worst_s - stopped_s < 3, vars(bystander)
        await until(lambda: n_connecting() == 0, "threads are left")
        await works(fresh)


async def _at_every_step(number: int) -> None:
    ends: list[Peer] = []

    async def one(role: str, step: int, connects: bool, address: str) -> None:
        faulty = Peer(FAULTY, role, str(step), str(number), *([address] if connects else []))
        ends.append(faulty)
        if connects:
            assert faulty.process.stdout is not None
            reader = threading.Thread(target=faulty.process.stdout.readline, daemon=True)
            reader.start()
            process = psutil.Process(faulty.process.pid)
            await until(
                lambda: not reader.is_alive() or process.status() == psutil.STATUS_STOPPED,
                "the step",
            )
            return
        await faulty.ready()
        try:
            comm = await connect(faulty.address, timeout=3)
            await comm.write({"op": "echo"})
            await asyncio.wait_for(comm.read(), 3)
            await comm.close()
        except (CommClosedError, OSError, TimeoutError):
            pass

    slots = asyncio.Semaphore(3)

    async def limited(*arguments: Any) -> None:
        async with slots:
            await asyncio.wait_for(one(*arguments), 250)

    async with listen("mpi://127.0.0.1:0", handler) as listener, undisturbed(number):
        await asyncio.gather(
            *(
                limited(role, step, connects, listener.contact_address)
                for step in range(EVENTS)
                for role in ("leads", "follows")
                for connects in (True, False)
            )
        )
        await asyncio.sleep(2 * mpi_connect.CONNECT_TIMEOUT_S)
        # Those who stand still go on, and send what they have to send: too late.
        for faulty in ends:
            faulty.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(3)
        for faulty in ends:
            await asyncio.to_thread(faulty.end)


async def kill_at_every_step() -> None:
    """A peer killed at any step of the handshake costs only its own connection."""
    await _at_every_step(signal.SIGKILL)


async def stop_at_every_step() -> None:
    """A peer stopped at any step of the handshake, and one that goes on too late, likewise."""
    await _at_every_step(signal.SIGSTOP)


async def faint_peers() -> None:
    """A peer killed while it writes a message to this process delays all others for seconds.

    One that is stopped then delays them until it goes on: they write to one queue, in order.
    """
    own = runtime("127.0.0.1")
    queue = SENDERS._queue
    assert queue is not None
    async with peers(5) as (one, killed, stopped, other, fresh):
        for peer in (one, stopped, other):
            await works(peer)

        async def faint(peer: Peer, number: int) -> int:
            comm = await connect(peer.address)
            await comm.write({"op": "echo"})
            await comm.read()
            await comm.write({"op": "faint", "segments": sorted(own.segments), "signal": number})
            while not (unwritten := queue.unwritten()):
                await asyncio.sleep(0.01)
            ends.append(comm)
            return unwritten[0]

        ends: list[Any] = []
        await faint(killed, signal.SIGKILL)
        began = time.monotonic()
        await asyncio.wait_for(echo(one), 100)
        print(f"deaf for {time.monotonic() - began:.2f} s")
        await works(fresh)

        slot = await faint(stopped, signal.SIGSTOP)
        answer = asyncio.ensure_future(echo(one))
        other.end()
        await asyncio.sleep(RELEASE_AFTER_S[0] + 5 * ABANDONED_S)
        assert queue.unwritten()[0] == slot
        assert not answer.done()
        stopped.process.send_signal(signal.SIGCONT)
        await asyncio.wait_for(answer, 100)
        for comm in ends:
            comm.abort()
        await works(fresh)


async def late_peers() -> None:
    """A peer that calls MPI too late is met at the next attempt, and nothing is damaged.

    This process has no other connections: nothing else calls MPI meanwhile.
    """
    for role, step in (("leads", 2), ("follows", 3)) * 4:
        faulty = Peer(FAULTY, role, str(step), "0")
        await faulty.ready()
        await echo(faulty)
        faulty.end()
    await until(lambda: n_connecting() == 0, "threads are left")
    assert not pairing._connecting


async def many_at_once() -> None:
    """More meetings at once than MPICH can take are refused, and the process goes on."""
    own = runtime("127.0.0.1")
    loop = asyncio.get_running_loop()
    outcomes = Counter[str]()

    async def one(number: int, host: str, port: int) -> None:
        line = Control(loop)
        await loop.create_connection(lambda: line, host, port)
        line.send(
            Kind.HELLO, process=f"{number:032x}", mode="elastic", library=own.library, world="",
            rank=0, host=own.host, pid=1, tag=2**20, gpu_memory="host", nonce="ab" * 16,
        )  # fmt: skip
        await line.receive(Kind.HELLO)
        await line.receive(Kind.PROOF)
        line.send(Kind.CONNECT, tag=number, port=own.port, segments=sorted(own.segments))
        try:
            outcomes[(await line.receive(Kind.CONNECTING))[0].name] += 1
            await line.receive(*Kind)
        except OSError as error:
            outcomes[str(error)] += 1
        line.abort()

    async with peers(1) as (victim,):
        host, port = parse_host_port(victim.address)
        await asyncio.gather(*(one(number, host, port) for number in range(150)))
        assert outcomes["CONNECTING"] <= mpi_connect.MAX_CALLS
        assert outcomes.total() - outcomes["CONNECTING"] == 150, outcomes
        await works(victim)


def rename(prefix: str) -> None:
    """Have this process lead (``"0"``) or follow (``"f"``) when it meets others."""
    own = runtime("127.0.0.1")
    runtime_module._runtime = dataclasses.replace(own, process=prefix * 8 + own.process[8:])


async def containers() -> None:
    """Processes whose segments have the same ids, because each has an IPC namespace, meet.

    Run it in an IPC namespace of its process alone, as ``test_containers`` does.
    """
    command = (
        "import os, sys\nos.execlp('unshare', 'unshare', '--ipc', sys.executable, *sys.argv[1:])"
    )
    host = next(iter(addresses() - {"127.0.0.1"}), "")
    if not host:
        print("this machine has no interface but the loopback")
        return
    own = runtime(host)
    for prefix in "0f":
        rename(prefix)
        peer = Peer("-c", command, str(Path(__file__).with_name("peers.py")), f"mpi://{host}:0")
        await peer.ready()
        comm = await connect(peer.address, timeout=60)
        for nbytes in (1, 10_000_000):
            await comm.write({"op": "send", "nbytes": nbytes})
            assert (await comm.read())["x"].nbytes == nbytes
        await comm.close()
        (pair,) = (pair for name, (pair,) in pairs.PAIRS.items() if pair.pid == peer.process.pid)
        assert not pair.segments
        peer.end()
    assert own.segments == shared_memory.segments()


async def cancel_at_every_step() -> None:
    """A first connection that is cancelled at any step hurts no other, at the time or later."""
    steps = ("send", "send", "send", "agree_on_key", "_connect", "send")
    for role in "0f":
        rename(role)
        async with peers(len(steps)) as group:
            for number, (peer, step) in enumerate(zip(group, steps, strict=True)):
                await _cancel(peer, step, steps[: number + 1].count(step))


async def _cancel(peer: Peer, step: str, count: int) -> None:
    owners: dict[str, Any] = {"send": Control, "agree_on_key": pairing, "_connect": pairing._Side}
    owner = owners[step]
    as_is = getattr(owner, step)
    first = asyncio.ensure_future(connect(peer.address, timeout=60))
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            first.cancel()
        return as_is(*args, **kwargs)

    setattr(owner, step, call)
    try:
        second = asyncio.ensure_future(connect(peer.address, timeout=60))
        with contextlib.suppress(asyncio.CancelledError, CommClosedError):
            await (await first).close()
        await (await second).close()
    finally:
        setattr(owner, step, as_is)
    await works(peer)
    await until(lambda: n_connecting() == 0, "threads are left")
    assert not pairing._connecting


async def strangers_who_know_the_protocol() -> None:
    """Who says the right library, but lies or breaks off at any point, costs one connection."""
    own = runtime("127.0.0.1")
    rng = random.Random(20)
    loop = asyncio.get_running_loop()
    async with peers(1) as (victim,), listen("mpi://127.0.0.1:0", handler) as listener:
        before = await connect(victim.address)
        host, port = listener.get_host_port()
        truth = {
            "process": "", "mode": "elastic", "library": own.library, "world": "", "rank": 0,
            "host": own.host, "pid": victim.process.pid, "tag": 2**20, "gpu_memory": "host",
        }  # fmt: skip
        contact = {"port": own.port, "segments": sorted(own.segments)}

        async def attack(line: Control, number: int) -> None:
            """Be honest for some messages; then say something else, or nothing."""
            name = rng.choice(["0" * 32, "f" * 32, *pairs.PAIRS])
            line.send(Kind.HELLO, **{**truth, "process": name, "nonce": rng.randbytes(16).hex()})
            with contextlib.suppress(OSError, TimeoutError):
                for _ in range(number % 4):
                    kind, _ = await asyncio.wait_for(line.receive(*Kind), 2)
                    seen[kind] += 1
                    if kind is Kind.CONNECT:
                        line.send(Kind.CONNECTING, **contact)
                    elif kind is Kind.PROOF:
                        line.send(Kind.CONNECT, tag=number, **contact)
                    elif own.process < name:
                        line.send(Kind.PROOF, proofs=[rng.randbytes(32).hex()])
                kind = rng.choice(list(Kind))
                bodies: list[dict[str, Any]] = [
                    {}, {"proofs": [1, None, "x"]}, {"proof": "x"}, {"proof": "é"}, contact,
                    {"port": "x", "segments": [-1]}, {"port": own.port, "segments": ["1"]},
                    {"tag": 2**40, **contact}, {"tag": 7, "port": "tag#0$connentry#00$",
                    "segments": []}, {**truth, "nonce": "0" * 32}, {"reason": 1},
                ]  # fmt: skip
                message = bytearray(encode(kind, rng.choice(bodies)))
                if rng.random() < 0.3:
                    message[rng.randrange(len(message))] ^= 1 << rng.randrange(8)
                assert line._transport is not None
                line._transport.write(bytes(message))
                await asyncio.sleep(0.02)
            line.abort()

        async def one(number: int) -> None:
            line = Control(loop)
            await loop.create_connection(lambda: line, host, port)
            await attack(line, number)

        n_tags = len(own.tags)
        seen = Counter[Kind]()
        for start in range(0, 400, 20):
            await asyncio.gather(*(one(number) for number in range(start, start + 20)))
        await before.write({"op": "echo"})
        assert await before.read() == {"op": "echo"}
        await works(victim)
        await until(lambda: n_connecting() == 0, "threads are left")
        await until(lambda: len(own.tags) <= n_tags + 2, "tags are left")
        assert not pairing._connecting
        print(seen)
        assert (
            min(seen[kind] for kind in (Kind.HELLO, Kind.PROOF, Kind.CONNECT, Kind.CONNECTING)) > 10
        )
        await before.close()


async def claimed_name() -> None:
    """Who calls himself by the name of a live process gets no connection in its place."""
    own = runtime("127.0.0.1")
    async with peers(1) as (victim,), listen("mpi://127.0.0.1:0", handler) as listener:
        await works(victim)
        name, (pair,) = next((n, p) for n, p in pairs.PAIRS.items() if n != own.process)
        host, port = listener.get_host_port()
        for proof in ("", pair.key.hex(), "0" * 64):
            line = Control(asyncio.get_running_loop())
            await asyncio.get_running_loop().create_connection(lambda line=line: line, host, port)
            line.send(
                Kind.HELLO, process=name, mode="elastic", library=own.library, world="", rank=0,
                host=own.host, pid=victim.process.pid, tag=2**20, gpu_memory="host",
                nonce="ab" * 16,
            )  # fmt: skip
            await line.receive(Kind.HELLO)
            if own.process < name:
                line.send(Kind.PROOF, proofs=[proof])
                await line.receive(Kind.CONNECT)
            else:
                await line.receive(Kind.PROOF)
                line.send(Kind.READY, proof=proof)
                await until(lambda line=line: line.error is not None, "still open")
            line.abort()
        assert pairs.PAIRS[name] == [pair]
        await works(victim)


async def too_many_peers() -> None:
    """Beyond the number of peers that MPICH can take, new ones are refused, old ones served."""
    mpi_connect.MAX_PEERS = 2
    async with peers(3) as (one, two, three), listen("mpi://127.0.0.1:0", handler) as listener:
        await works(one)
        await works(two)
        with pytest.raises(FatalCommClosedError, match="start it anew"):
            await connect(three.address, timeout=60)
        comm = await connect(one.address)
        await comm.write({"op": "connect", "addresses": [listener.contact_address]})
        assert await comm.read() == "connected"
        await comm.close()
        await works(two)


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
            return (
                Failing(answer, self._method, self._failed)
                if name in ("Dup", "Connect")
                else answer
            )

        return call


async def errors_of_mpi() -> None:
    """Whatever fails in MPI while two processes meet, the next attempt comes through."""
    own = runtime("127.0.0.1")
    methods = ("Dup", "Create", "Connect", "Set_errhandler", "Irecv", "Isend", "Testall", "Free")
    for prefix in "0f":
        async with peers(len(methods)) as group:
            for peer, method in zip(group, methods, strict=True):
                failed: list[str] = []
                rename(prefix)
                runtime_module._runtime = dataclasses.replace(
                    runtime(),
                    mpi=Failing(own.mpi, method, failed),
                    self_comm=Failing(own.self_comm, method, failed),
                )
                comm = await connect(peer.address, timeout=60)
                assert failed == [method], (method, failed)
                await comm.write({"op": "echo"})
                assert await comm.read() == {"op": "echo"}
                await comm.close()
                assert not pairing._connecting
        await until(lambda: n_connecting() == 0, "threads are left")


async def lives(rounds: str) -> None:
    """After the lives of processes, half of them killed, a survivor keeps none of their memory.

    Run it in mount and IPC namespaces of its process alone, as ``test_lives`` does.
    """
    own = runtime("127.0.0.1")
    mine = set(own.segments)

    def left() -> tuple[list[str], set[int]]:
        rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        files = [path.name for path in Path("/dev/shm").iterdir()]
        return files, {int(row.split()[1]) for row in rows} - mine

    before: dict[str, float] = {}
    for turn in range(int(rounds)):
        async with peers(5) as group:
            await asyncio.gather(*(echo(peer) for peer in group))
            # Every second time they die so long after their connections that it is seen late.
            await asyncio.sleep(turn % 2 * 2 * pairs.RELEASE_AFTER_S[0])
            for number, peer in enumerate(group):
                if number % 2 == turn % 2:
                    peer.process.kill()
                else:
                    peer.process.stdin.close()
                peer.process.wait()
        await until(lambda: left() == ([], set()), "files or segments are left")
        assert shared_memory.segments() == mine
        before = before or usage()
    after = usage()
    assert after["resident"] - before["resident"] < 20e6, (before, after)
    assert after["descriptors"] <= before["descriptors"] + 1, (before, after)
    assert after["threads"] <= before["threads"], (before, after)
    assert len(own.tags) <= 1


def _meet_once(address: str, answers: Any) -> None:
    async def meet() -> None:
        try:
            comm = await connect(address, timeout=60)
        except FatalCommClosedError as error:
            answers.put(str(error))
            return
        await comm.write({"op": "echo"})
        answers.put(await comm.read())
        await comm.close()

    asyncio.run(meet())


async def a_thousand_peers() -> None:
    """A process meets as many others as is said, refuses the next, and serves the first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["distributed.comm", "commbench.mpi.backend"])
    answers = context.Queue()
    async with peers(1) as (first,), listen("mpi://127.0.0.1:0", handler) as listener:
        comm = await connect(first.address)
        for _ in range(0, mpi_connect.MAX_PEERS + 24, 8):
            processes = [
                context.Process(target=_meet_once, args=(listener.contact_address, answers))
                for _ in range(8)
            ]
            for process in processes:
                process.start()
            for process in processes:
                await asyncio.to_thread(process.join)
                assert process.exitcode == 0
        seen = Counter(str(answers.get()) for _ in range(mpi_connect.MAX_PEERS + 24))
        assert seen.pop("{'op': 'echo'}") == mpi_connect.MAX_PEERS - 1, seen
        assert all("start it anew" in text for text in seen)
        await comm.write({"op": "echo"})
        assert await comm.read() == {"op": "echo"}
        await comm.close()
        print(usage())


async def storm(protocol: str, seed: str) -> None:
    """Peers are killed within 0.5 s of their first connect: a bystander notices next to nothing.

    Prints the worst round trip and the time that a fresh peer takes to connect afterwards.
    """
    rng = random.Random(int(seed))
    comms = 0

    async def count(comm: Any) -> None:
        nonlocal comms
        comms += 1
        await handler(comm)

    slots = asyncio.Semaphore(8)

    async def one(address: str) -> None:
        async with slots:
            victim = Peer(STORMED, address)
            await asyncio.to_thread(victim.process.stdout.readline)
            await asyncio.sleep(rng.uniform(0, 0.5))
            await asyncio.to_thread(victim.end)

    async with (
        peers(2, protocol) as (one_peer, fresh),
        listen(f"{protocol}://127.0.0.1:0", count) as listener,
    ):
        comm = await connect(one_peer.address)
        over = False

        async def converse() -> float:
            worst = 0.0
            while not over:
                began = time.monotonic()
                await comm.write({"op": "echo"})
                await comm.read()
                worst = max(worst, time.monotonic() - began)
                await asyncio.sleep(0.001)
            return worst

        conversing = asyncio.ensure_future(converse())
        await asyncio.gather(*(one(listener.contact_address) for _ in range(100)))
        began = time.monotonic()
        await works(fresh)
        fresh_s = time.monotonic() - began
        over = True
        print(json.dumps({"worst_s": await conversing, "fresh_s": fresh_s, "connected": comms}))
        await comm.close()


SCENARIOS: dict[str, Callable[..., Awaitable[None]]] = {
    function.__name__: function
    for function in (
        kill_at_every_step,
        stop_at_every_step,
        faint_peers,
        containers,
        cancel_at_every_step,
        late_peers,
        many_at_once,
        strangers_who_know_the_protocol,
        claimed_name,
        too_many_peers,
        errors_of_mpi,
        lives,
        a_thousand_peers,
        storm,
    )
}

if __name__ == "__main__":
    asyncio.run(SCENARIOS[sys.argv[1]](*sys.argv[2:]))
