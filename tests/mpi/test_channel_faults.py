"""Faults of single connections; ``python connection_scenarios.py NAME`` runs one.

Each asserts what must hold, and its test gives it a bound in time. They run in processes of their
own, for a process that has started MPI can't start it afresh, and must not load ucxx.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from peers import Peer, addresses, handler, payload, peers, usage

from commbench.mpi import handshake
from commbench.mpi.runtime import runtime

GIB = 2**30


async def works(peer: Peer) -> None:
    """Check that a new connection to `peer` carries small and large messages."""
    comm = await connect(peer.address)
    for nbytes in (1, 10_000_000):
        await comm.write({"op": "take", "x": to_serialize(payload(nbytes))})
        assert await comm.read() == payload(nbytes).sum(dtype="u8")
    await comm.close()


async def fails_within(seconds: float, awaitable: Awaitable[Any]) -> None:
    """Check that `awaitable` raises CommClosedError in time."""
    began = time.monotonic()
    try:
        await asyncio.wait_for(awaitable, seconds)
    except CommClosedError:
        return
    raise AssertionError(f"no CommClosedError after {time.monotonic() - began:.1f} s")


async def rests(share: float) -> None:
    """Check that this process uses less than that share of the CPU time of one that spins."""
    cpu_s: dict[str, float] = defaultdict(float)
    wall_s: dict[str, float] = defaultdict(float)
    for _ in range(12):
        for name, seconds in (("at rest", 2.0), ("spinning", 1.0)):
            began, used = time.monotonic(), time.process_time()
            if name == "at rest":
                await asyncio.sleep(seconds)
            # The control: on a busy machine it has less than a core.
            while time.monotonic() < began + seconds:
                pass
            cpu_s[name] += time.process_time() - used
            wall_s[name] += time.monotonic() - began
        cores = {name: cpu_s[name] / wall_s[name] for name in cpu_s}
        if cores["at rest"] < share * cores["spinning"]:
            return
    raise AssertionError(f"busy: {cores}")


async def kill_receiver() -> None:
    """The receiver of 1 GiB is killed: the sender learns it, and goes on with others."""
    async with peers(2) as (victim, other):
        await works(other)
        comm = await connect(victim.address)
        await comm.write({"op": "take", "x": to_serialize(payload(GIB))})
        await asyncio.sleep(0.1)
        os.kill(victim.process.pid, signal.SIGKILL)
        await fails_within(60, comm.read())
        assert comm.closed()
        await fails_within(60, comm.write("more"))
        await asyncio.wait_for(comm.close(), 60)
        await works(other)
        await rests(0.1)


async def kill_sender() -> None:
    """The sender of 1 GiB is killed: the receiver learns it, and goes on with others."""
    killed_in_the_middle = 0
    async with peers(1) as (other,):
        for delay in (0.02, 0.1, 0.0, 0.0, 0.0):
            if killed_in_the_middle and not delay:
                break
            async with peers(1) as (victim,):
                await works(other)
                comm = await connect(victim.address)
                # Once in full: the peer has its data ready for the second time.
                for _ in range(2):
                    await comm.write({"op": "send", "nbytes": GIB})
                    if _ == 0:
                        assert (await comm.read())["x"].nbytes == GIB
                reading = asyncio.ensure_future(comm.read())
                while not comm.channel._receiver.busy and not reading.done():
                    await asyncio.sleep(0)
                # From a thread: this one may be deep in the transfer.
                timer = threading.Timer(delay, os.kill, (victim.process.pid, signal.SIGKILL))
                timer.start()
                try:
                    received = (await asyncio.wait_for(reading, 60))["x"]
                    assert (received == payload(GIB)).all(), "torn"
                except CommClosedError:
                    killed_in_the_middle += 1
                    assert comm.closed()
                timer.join()
                await works(other)
        assert killed_in_the_middle, "each transfer was too fast to be killed in the middle"
        await rests(0.1)


async def stop_peer() -> None:
    """A peer that stands still for seconds loses nothing, and costs little CPU meanwhile."""
    async with peers(1) as (peer,):
        await works(peer)
        comm = await connect(peer.address)
        os.kill(peer.process.pid, signal.SIGSTOP)
        x = payload(GIB // 4)
        await comm.write({"op": "take", "x": to_serialize(x)})
        for number in range(100):
            await comm.write({"op": "echo", "number": number})
        reading = asyncio.ensure_future(comm.read())
        await rests(1 / 3)
        assert not reading.done()
        os.kill(peer.process.pid, signal.SIGCONT)
        assert await asyncio.wait_for(reading, 60) == x.sum(dtype="u8")
        for number in range(100):
            assert (await comm.read())["number"] == number
        await comm.close()


async def many_connections() -> None:
    """2,000 connections leave no descriptor, tag, communicator or memory behind, at either end."""
    async with peers(1) as (peer,):
        control = await connect(peer.address)

        async def use(abort: bool) -> None:
            comm = await connect(peer.address)
            await comm.write({"op": "echo", "data": b"x" * 50_000})
            if abort:
                comm.abort()
            else:
                await comm.read()
                await comm.close()

        async def measure() -> list[dict[str, float]]:
            await asyncio.sleep(1)
            await control.write({"op": "usage"})
            return [usage(), await control.read()]

        for number in range(200):
            await use(abort=number % 2 == 0)
        before = await measure()
        tags = len(runtime().tags)
        for number in range(200):
            await asyncio.gather(*(use(abort=(number + i) % 2 == 0) for i in range(10)))
        after = await measure()
        for first, second in zip(before, after, strict=True):
            assert second["descriptors"] <= first["descriptors"] + 1, (first, second)
            assert second["threads"] <= first["threads"] + 1, (first, second)
            assert second["resident"] - first["resident"] < 20e6, (first, second)
        assert len(runtime().tags) <= tags + 1, (tags, len(runtime().tags))
        # One communicator for the pair, however many connections: the next gets the next id.
        await control.close()


async def aborted_transfers() -> None:
    """Reads cancelled in the middle of large messages free the sender's memory, too."""
    async with peers(1) as (peer,):
        control = await connect(peer.address)
        for _ in range(20):
            comm = await connect(peer.address)
            await comm.write({"op": "send", "nbytes": 100_000_000})
            reading = asyncio.ensure_future(comm.read())
            while not comm.channel._receiver.busy and not reading.done():
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        for _ in range(120):
            await asyncio.sleep(1.5)
            await control.write({"op": "usage"})
            resident = max((await control.read())["resident"], usage()["resident"])
            if resident < 600e6 and not control.channel.engine._transfers:
                break
        assert resident < 600e6
        assert not control.channel.engine._transfers
        await control.close()


async def pairing_storm() -> None:
    """Six processes that all connect to all others at once come through."""
    async with peers(6) as group:
        addresses = [peer.address for peer in group]
        comms = await asyncio.gather(*map(connect, addresses))
        for comm in comms:
            await comm.write({"op": "connect", "addresses": addresses})
        for comm in comms:
            assert await comm.read() == "connected"
            await comm.close()


def strange_inputs(number: int) -> list[bytes]:
    """Return what a stranger might send: seeded, each kind about as often."""
    rng = random.Random(20)
    own = runtime("127.0.0.1")
    hello = handshake.encode(
        handshake.Kind.HELLO,
        {"process": "f" * 32, "mode": own.mode, "library": own.library, "world": "", "rank": 0,
         "host": own.host, "pid": 1, "tag": 1, "gpu_memory": "host", "nonce": "0" * 32},
    )  # fmt: skip
    inputs: list[bytes] = []
    while len(inputs) < number:
        mutated = bytearray(hello)
        for _ in range(rng.randint(1, 6)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        inputs += [
            b"",
            rng.randbytes(rng.randint(1, 300)),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            handshake.HEADER.pack(b"DMPI", handshake.VERSION, 1, rng.randint(4097, 2**32 - 1))
            + b"x" * 50,
            hello[: rng.randint(1, len(hello) - 1)],
            bytes(mutated),
            hello,
            hello + rng.randbytes(40),
            handshake.encode(handshake.Kind(rng.randint(2, 8)), {}),
            handshake.HEADER.pack(b"DMPI", handshake.VERSION, 1, 4) + rng.randbytes(4),
        ]
    return inputs[:number]


async def strangers() -> None:
    """10,000 strange inputs at the port: no crash, no hang, no leak, and friends still served."""
    calls = 0

    async def counting(comm: Any) -> None:
        nonlocal calls
        calls += 1
        await handler(comm)

    async with await listen("mpi://127.0.0.1:0", counting) as listener:
        host, port = listener.get_host_port()

        def attack(inputs: list[bytes]) -> None:
            for data in inputs:
                with socket.create_connection((host, port)) as stranger:
                    stranger.settimeout(5)
                    try:
                        stranger.sendall(data)
                        if random.random() < 0.1:
                            stranger.shutdown(socket.SHUT_WR)
                            while stranger.recv(4096):
                                pass
                    except OSError:
                        pass

        async def friend() -> None:
            comm = await connect(listener.contact_address)
            await comm.write({"op": "echo"})
            assert await comm.read() == {"op": "echo"}
            await comm.close()

        inputs = strange_inputs(11_000)
        await asyncio.to_thread(attack, inputs[:1_000])
        await friend()
        await asyncio.sleep(0.5)
        before, tags = usage(), len(runtime().tags)
        await asyncio.to_thread(attack, inputs[1_000:])
        await friend()
        await asyncio.sleep(0.5)
        after = usage()
        assert calls == 2
        assert after["descriptors"] <= before["descriptors"], (before, after)
        assert after["resident"] - before["resident"] < 20e6, (before, after)
        assert len(runtime().tags) <= tags
        assert len(asyncio.all_tasks()) <= 3, asyncio.all_tasks()


async def listener_stops_during_handshake() -> None:
    """Who has connected but not introduced himself is let go when the listener stops."""
    listener = await listen("mpi://127.0.0.1:0", handler)
    host, port = listener.get_host_port()
    reader, writer = await asyncio.open_connection(host, port)
    await asyncio.sleep(0.1)
    listener.stop()
    listener.abort_handshaking_comms()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def only_the_interface_asked_for() -> None:
    """A process listens on the interface of its address alone, TCP and MPI alike."""
    for address in addresses():
        async with peers(1, f"mpi://{address}:0") as (peer,):
            listening = {
                connection.laddr.ip
                for connection in psutil.Process(peer.process.pid).net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            }
            assert listening == {address}, (address, listening)


SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    function.__name__: function
    for function in (
        kill_receiver,
        kill_sender,
        stop_peer,
        many_connections,
        aborted_transfers,
        pairing_storm,
        strangers,
        listener_stops_during_handshake,
        only_the_interface_asked_for,
    )
}

if __name__ == "__main__":
    asyncio.run(SCENARIOS[sys.argv[1]]())
