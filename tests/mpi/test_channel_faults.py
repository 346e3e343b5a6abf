"""Connections whose peer is killed or stopped, or whose reads are cancelled."""

import asyncio
import gc
import os
import signal
import threading
import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any

import pytest
from distributed.comm import CommClosedError, connect
from distributed.protocol import to_serialize
from peers import ask, payload, peers, until, usage
from scenarios import or_slow, scenario

from commbench.mpi import transfers
from commbench.mpi.engine import Engine
from commbench.mpi.runtime import runtime

MB = 10**6
GIB = 2**30


async def fails(awaitable: Awaitable[Any]) -> None:
    """Check that `awaitable` raises CommClosedError, and doesn't hang."""
    with pytest.raises(CommClosedError):
        await asyncio.wait_for(awaitable, 60)


async def rests(share: float, cores_at_rest: float = 0.05) -> None:
    """Check that this process uses less than that share of the CPU time of one that spins.

    What rests wakes up as often on a machine so busy that one that spins has hardly more:
    `cores_at_rest` always pass.
    """
    cpu_s: dict[str, float] = defaultdict(float)
    wall_s: dict[str, float] = defaultdict(float)
    for _ in range(60):
        for name, seconds in (("at rest", 0.4), ("spinning", 0.2)):
            began, used = time.monotonic(), time.process_time()
            if name == "at rest":
                await asyncio.sleep(seconds)
            # The control: on a busy machine it has less than a core.
            while time.monotonic() < began + seconds:
                pass
            cpu_s[name] += time.process_time() - used
            wall_s[name] += time.monotonic() - began
        cores = {name: cpu_s[name] / wall_s[name] for name in cpu_s}
        if cores["at rest"] < max(share * cores["spinning"], cores_at_rest):
            return
    raise AssertionError(f"busy: {cores}")


async def receive_begins(comm: Any, nbytes: int) -> asyncio.Future[Any]:
    """Have the peer send an array; return the read of it when its transfer is under way."""
    await comm.write({"op": "send", "nbytes": nbytes})
    reading = asyncio.ensure_future(comm.read())
    while not comm.channel._receiver.busy and not reading.done():
        await asyncio.sleep(0)
    return reading


@pytest.mark.parametrize("nbytes", or_slow(GIB // 4, GIB))
@scenario(60)
async def test_sender_goes_on_when_the_receiver_is_killed(nbytes: int) -> None:
    async with peers(2) as (victim, other):
        await other.check()
        comm = await connect(victim.address)
        await comm.write({"op": "sum", "x": to_serialize(payload(nbytes))})
        await asyncio.sleep(0.1 * nbytes / GIB)
        os.kill(victim.process.pid, signal.SIGKILL)
        await fails(comm.read())
        assert comm.closed()
        await fails(comm.write("more"))
        await asyncio.wait_for(comm.close(), 60)
        await other.check()
        await rests(0.1)


@pytest.mark.parametrize(("nbytes", "n_kills"), or_slow((GIB // 2, 1), (GIB, 3)))
@scenario(90)
async def test_receiver_goes_on_when_the_sender_is_killed(nbytes: int, n_kills: int) -> None:
    n_killed_in_the_middle = 0
    async with peers(1) as (other,):
        for delay in (0.02, 0.1, *[0.0] * 5):
            if n_killed_in_the_middle == n_kills:
                break
            async with peers(1) as (victim,):
                comm = await connect(victim.address)
                # Once in full: the peer has its data ready for the second time.
                assert (await ask(comm, "send", nbytes=nbytes))["x"].nbytes == nbytes
                reading = await receive_begins(comm, nbytes)
                # From a thread: this one may be deep in the transfer.
                timer = threading.Timer(delay, os.kill, (victim.process.pid, signal.SIGKILL))
                timer.start()
                try:
                    received = (await asyncio.wait_for(reading, 60))["x"]
                    assert (received == payload(nbytes)).all(), "torn"
                except CommClosedError:
                    n_killed_in_the_middle += 1
                    assert comm.closed()
                timer.join()
                await other.check()
        assert n_killed_in_the_middle, "each transfer was too fast to be killed in the middle"
        await rests(0.1)


@scenario(60)
async def test_stopped_peer_loses_nothing_and_costs_a_tenth_of_a_core() -> None:
    async with peers(1) as (peer,):
        await peer.check()
        comm = await connect(peer.address)
        os.kill(peer.process.pid, signal.SIGSTOP)
        x = payload(GIB // 4)
        await comm.write({"op": "sum", "x": to_serialize(x)})
        for number in range(100):
            await comm.write({"op": "echo", "number": number})
        reading = asyncio.ensure_future(comm.read())
        await asyncio.sleep(transfers.MAX_SPIN_S)
        await rests(0.15, 0.12)
        assert not reading.done()
        os.kill(peer.process.pid, signal.SIGCONT)
        assert await asyncio.wait_for(reading, 60) == x.sum(dtype="u8")
        for number in range(100):
            assert (await comm.read())["number"] == number
        await comm.close()


@scenario(60)
async def test_receiver_rests_while_the_sender_is_stopped_between_header_and_payload() -> None:
    # As long as a message of many GiB takes.
    transfers.RECEIVE_SECONDS_PER_BYTE = 1.0
    async with peers(1) as (peer,):
        await peer.check()
        comm = await connect(peer.address)
        await comm.write({"op": "falter", "nbytes": 4 * MB})
        reading = asyncio.ensure_future(comm.read())
        # Its doorbell has not rung.
        while not comm.channel._receiver.busy:
            await asyncio.sleep(0.01)
        await asyncio.sleep(transfers.MAX_SPIN_S)
        await rests(0.15, 0.12)
        assert not reading.done()
        os.kill(peer.process.pid, signal.SIGCONT)
        assert ((await asyncio.wait_for(reading, 60))["x"] == payload(4 * MB)).all()
        await comm.close()


@scenario(60)
async def test_sends_to_a_peer_that_lacks_memory_for_them_complete() -> None:
    async with peers(1) as (peer,):
        await peer.check()
        comm = await connect(peer.address)
        await ask(comm, "limit", nbytes=64 * MB)
        xs = [to_serialize(payload(nbytes)) for nbytes in (MB, 200 * MB, 300 * MB, MB)]
        await comm.write({"op": "sum", "xs": xs})
        await fails(comm.read())
        engine = comm.channel.engine
        await until(lambda: not engine._parked and not engine._transfers, "sends are left")


@pytest.mark.parametrize("n_rounds", or_slow(40, 200))
@scenario(90)
async def test_connections_leave_no_resources_at_either_end(n_rounds: int) -> None:
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
            return [usage(), await ask(control, "usage")]

        for number in range(n_rounds):
            await use(abort=number % 2 == 0)
        before = await measure()
        tags = len(runtime().tags)
        for number in range(n_rounds):
            await asyncio.gather(*(use(abort=(number + i) % 2 == 0) for i in range(10)))
        for first, second in zip(before, await measure(), strict=True):
            assert second["descriptors"] <= first["descriptors"] + 1, (first, second)
            assert second["threads"] <= first["threads"] + 1, (first, second)
            assert second["resident"] - first["resident"] < 20e6, (first, second)
        assert len(runtime().tags) <= tags + 1, (tags, len(runtime().tags))
        await control.close()


@scenario(60)
async def test_cancelled_reads_free_memory_at_both_ends() -> None:
    async with peers(1) as (peer,):
        control = await connect(peer.address)
        for _ in range(20):
            reading = await receive_begins(await connect(peer.address), 100 * MB)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        for _ in range(360):
            await asyncio.sleep(0.5)
            resident = max((await ask(control, "usage"))["resident"], usage()["resident"])
            if resident < 600e6 and not control.channel.engine._transfers:
                break
        assert resident < 600e6
        assert not control.channel.engine._transfers
        await control.close()


@scenario(150)
def test_closed_event_loops_leave_only_buffers_that_mpi_still_writes_to() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []
    buffers: list[weakref.ref[Any]] = []

    async def leave(address: str) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        comm = await connect(address)
        await comm.write({"op": "send", "nbytes": 200 * MB})
        reading = asyncio.ensure_future(comm.read())
        half = comm.channel._receiver
        while not (half._transfer and half._transfer.buffers and half._transfer.nbytes > MB):
            await asyncio.sleep(0)
        assert not reading.done()
        buffers.append(weakref.ref(half._transfer.buffers[0].obj))

    async def settle(address: str) -> None:
        comm = await connect(address)
        end = time.monotonic() + 60
        while Engine.for_loop(asyncio.get_running_loop())._parked and time.monotonic() < end:
            await asyncio.sleep(0.01)
        used = await ask(comm, "usage")
        await comm.close()
        assert used["resident"] < 800 * MB, used

    # The connections' sockets are left to the garbage collector, as the loops' are.
    warnings.simplefilter("ignore", ResourceWarning)
    runner = asyncio.Runner()
    started = peers(1)
    (peer,) = runner.run(started.__aenter__())
    try:
        runner.run(settle(peer.address))
        for _ in range(5):
            asyncio.run(leave(peer.address))
            gc.collect()
            assert loops[-1]() is None, "the closed event loop is still there"
            assert buffers[-1]() is not None, "MPI may still write to what is freed"
        asyncio.run(settle(peer.address))
        gc.collect()
        assert all(buffer() is None for buffer in buffers)
        assert not Engine._orphans
    finally:
        runner.run(started.__aexit__(None, None, None))
        runner.close()
