"""Large messages and many; ``python message_scenarios.py NAME`` runs one scenario.

Figures of memory and time are compared with those of the same over tcp, in the same run.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from peers import Peer, payload, peers

from commbench.mpi import transfers, wire
from commbench.mpi.buffers import BUFFERS
from commbench.mpi.engine import Engine
from commbench.mpi.receive_queue import SENDERS
from commbench.mpi.transfers import Transfer

MB = 10**6
MIB = 2**20


def resident() -> int:
    """Return the bytes that this process has, without what it could give back."""
    gc.collect()
    BUFFERS.trim()
    assert not BUFFERS.n_free_bytes
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


async def beyond_32_bits() -> None:
    """Frames of 2 GiB, of a byte less and of a byte more arrive whole."""
    async with peers(1) as (peer,):
        comm = await connect(peer.address)
        for nbytes in (2**31 - 1, 2**31, 2**31 + 1):
            await comm.write({"op": "send", "nbytes": nbytes})
            x = (await comm.read())["x"]
            assert x.nbytes == nbytes
            for start in (0, 2**30 - 500, 2**31 - 1000, nbytes - 1000):
                expected = np.arange(start, min(start + 1000, nbytes)) % 251
                assert (x[start : start + 1000] == expected).all(), (nbytes, start)
            del x
        await comm.close()


async def in_pieces() -> None:
    """Frames of each size around the multiples of a piece arrive whole, and in their order."""
    wire.MAX_PIECE = size = 64 * 1024

    async def answer(comm: Any) -> None:
        message = await comm.read()
        await comm.write({"xs": [to_serialize(x) for x in message["xs"]]})
        await comm.close()

    async with listen("mpi://127.0.0.1:0", answer) as listener:
        sizes = [n * size + more for n in (1, 2, 3) for more in (-1, 0, 1)]
        # The last are a bundle of 3 pieces.
        xs = [payload(nbytes) for nbytes in sizes + [30_000] * 6]
        comm = await connect(listener.contact_address)
        n_requests = 0
        communicator = comm.channel.communicator

        class Counting:
            def __getattr__(self, name: str) -> Any:
                nonlocal n_requests
                n_requests += name == "Isend"
                return getattr(communicator, name)

            def Isend(self, message: Any, rank: int, tag: int) -> Any:  # noqa: N802
                nonlocal n_requests
                n_requests += 1
                assert len(message[0]) <= size
                return communicator.Isend(message, rank, tag)

        comm.channel._sender._communicator = Counting()
        await comm.write({"xs": [to_serialize(x) for x in xs]})
        assert n_requests == 1 + sum(-(-nbytes // size) for nbytes in sizes) + 3, n_requests
        for x, received in zip(xs, (await comm.read())["xs"], strict=True):
            assert (x == received).all()
        await comm.close()


async def errors_of_mpi() -> None:
    """Whatever fails in MPI, at either end, the connection is closed, and Dask sees just that."""

    class Failing:
        def __init__(self, communicator: Any, name: str, after: int) -> None:
            self.communicator, self.name, self.left = communicator, name, after

        def __getattr__(self, name: str) -> Any:
            return self.call if name == self.name else getattr(self.communicator, name)

        def call(self, *arguments: Any) -> Any:
            if not self.left:
                raise RuntimeError("MPI_ERR_OTHER: known error not in list")
            self.left -= 1
            return getattr(self.communicator, self.name)(*arguments)

    async def exchange(comm: Any) -> None:
        x, y = payload(100_000), payload(200_000)
        await comm.write({"op": "echo", "x": to_serialize(x), "y": to_serialize(y)})
        await comm.read()

    async with peers(1) as (peer,):
        for name, after in (
            ("Isend", 0), ("Isend", 1), ("Isend", 2), ("Irecv", 0), ("Irecv", 1), ("Improbe", 0),
        ):  # fmt: skip
            comm = await connect(peer.address)
            half = comm.channel._sender if name == "Isend" else comm.channel._receiver
            half._communicator = Failing(comm.channel.communicator, name, after)
            with pytest.raises(CommClosedError, match="MPI"):
                await exchange(comm)
            assert comm.closed()
        comm = await connect(peer.address)
        await comm.write({"op": "echo"})
        assert await comm.read() == {"op": "echo"}
        await comm.close()


async def kept(protocol: str, n_arrays: int, nbytes: int, n_messages: int) -> int:
    """Return how much memory grows where one array of each message is kept."""

    async def answer(comm: Any) -> None:
        try:
            while True:
                await comm.read()
                arrays = [to_serialize(np.ones(nbytes, "u1")) for _ in range(n_arrays)]
                await comm.write(arrays)
        except CommClosedError:
            pass

    async with listen(f"{protocol}://127.0.0.1:0", answer) as listener:
        comm = await connect(listener.contact_address)
        keep: list[Any] = []
        before = 0
        # The first ones are for what the libraries keep.
        for number in range(3 + n_messages):
            await comm.write("next")
            arrays = await comm.read()
            assert all(x.flags.writeable for x in arrays)
            keep.append(arrays[len(arrays) // 2])
            del arrays
            if number == 2:
                before = resident()
        after = resident()
        comm.abort()
        return after - before


async def keep_one_of_many() -> None:
    """Who keeps one small array of each message keeps little else, as with tcp."""
    BUFFERS._keep_s = 0.0
    for n_arrays, nbytes, n_messages in ((5000, 12_000, 5), (2000, 30_000, 8)):
        # Python's allocator keeps a MB here and there: the least of two tries counts.
        tcp = await kept("tcp", n_arrays, nbytes, n_messages)
        mpi = await kept("mpi", n_arrays, nbytes, n_messages)
        if mpi > tcp + 5 * MB:
            mpi = await kept("mpi", n_arrays, nbytes, n_messages)
        print(f"kept: tcp {tcp / MB:.1f} MB, mpi {mpi / MB:.1f} MB")
        assert mpi <= tcp + 5 * MB, (mpi, tcp)


async def arrays_share_nothing() -> None:
    """Two arrays never share memory; one of a message shares it with little else, if at all."""

    async def answer(comm: Any) -> None:
        try:
            while True:
                sizes, other = await comm.read()
                xs = [to_serialize(np.full(size, 7, "u1")) for size in sizes]
                await comm.write([xs, bytes(other)])
        except CommClosedError:
            pass

    def memory(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        while x.base is not None:
            base = x.base.obj if isinstance(x.base, memoryview) else x.base
            if not isinstance(base, np.ndarray):
                return np.frombuffer(base, "u1")
            x = base
        return x

    async with listen("mpi://127.0.0.1:0", answer) as listener:
        comm = await connect(listener.contact_address)
        for sizes, other in (
            ([16, 16], 0), ([16, 0, 16], 50_000), ([1], 2100), ([1], 60_000), ([30_000], 3000),
            ([31_000] * 5, 0), ([40_000, 10, 10], 0),
        ):  # fmt: skip
            await comm.write([sizes, other])
            xs, rest = await comm.read()
            assert len(rest) == other
            assert [x.nbytes for x in xs] == sizes
            wholes = [memory(x) for x in xs]
            for number, x in enumerate(xs):
                assert (x == 7).all()
                assert x.flags.writeable
                assert wholes[number].nbytes <= x.nbytes + max(2048, x.nbytes // 20), sizes
                for whole in wholes[:number]:
                    assert not np.shares_memory(whole, wholes[number]), sizes
        await comm.close()


async def worst_turns(protocol: str, n_messages: int, nbytes: int) -> tuple[float, float]:
    """Return the longest turn of the event loop while all arrive, and the seconds that they take.

    The median of several rounds, of each.
    """
    loop = asyncio.get_running_loop()
    turns: list[float] = []
    stamp = 0.0

    def tick() -> None:
        nonlocal stamp
        now = time.perf_counter()
        turns.append(now - stamp)
        stamp = now
        if not done.is_set():
            loop.call_soon(tick)

    async with peers(3, protocol) as group:
        comms = [await connect(group[number % 3].address) for number in range(n_messages)]
        worst, seconds = [], []
        for _ in range(6):
            done = asyncio.Event()
            turns.clear()
            for comm in comms:
                await comm.write({"op": "send", "nbytes": nbytes})
            stamp = began = time.perf_counter()
            tick()
            for x in asyncio.as_completed([comm.read() for comm in comms]):
                assert (await x)["x"].nbytes == nbytes
            seconds.append(time.perf_counter() - began)
            done.set()
            await asyncio.sleep(0.01)
            worst.append(max(turns))
        for comm in comms:
            comm.abort()
    # The first is for what the peers have to make.
    return sorted(worst[1:])[2], sorted(seconds[1:])[2]


async def many_large_receives() -> None:
    """While 50 messages of 16 MiB arrive, the event loop goes on, no slower than with tcp."""
    moving, n_most = set[int](), 0
    post, finish = Transfer.post, Transfer.finish

    def counted_post(one: Transfer) -> bool:
        nonlocal n_most
        moving.add(id(one))
        n_most = max(n_most, len(moving))
        return post(one)

    def counted_finish(one: Transfer) -> None:
        moving.discard(id(one))
        finish(one)

    tcp, tcp_s = await worst_turns("tcp", 50, 16 * MIB)
    Transfer.post, Transfer.finish = counted_post, counted_finish  # type: ignore[method-assign]
    # On a busy machine senders stand still, and those that move are late.
    transfers.STILL_S = 1e3
    transfers.RECEIVE_SECONDS_PER_BYTE = 1e-3
    mpi, mpi_s = await worst_turns("mpi", 50, 16 * MIB)
    print(f"longest turn: tcp {tcp * 1e3:.1f} ms, mpi {mpi * 1e3:.1f} ms")
    print(f"at most {n_most} receives at once")
    print(f"bandwidth: tcp {0.84 / tcp_s:.2f} GB/s, mpi {0.84 / mpi_s:.2f} GB/s")
    assert mpi < max(20e-3, 2 * tcp), (mpi, tcp)
    assert 0 < n_most <= 2, n_most


async def stopped_senders() -> None:
    """Senders that stand still, with more under way than is admitted, hold up nobody else."""
    async with peers(2) as (stopped, other):
        waiting = [await connect(stopped.address) for _ in range(6)]
        comm = await connect(other.address)
        for each in (comm, *waiting):
            await each.write({"op": "send", "nbytes": 64 * MIB})
            await each.read()
        receive = Engine.for_loop(asyncio.get_running_loop())
        for each in waiting:
            # Their headers arrive, and nothing else: as if they had stopped in between.
            each.channel._receiver._communicator = Deaf(each.channel.communicator)
            await each.write({"op": "send", "nbytes": 64 * MIB})
        reads = [asyncio.ensure_future(each.read()) for each in waiting]
        while not receive._transfers._waiting:
            await asyncio.sleep(0)
        await stop_between_writes(stopped)
        began = time.monotonic()
        for _ in range(5):
            await comm.write({"op": "send", "nbytes": 64 * MIB})
            assert (await asyncio.wait_for(comm.read(), 20))["x"].nbytes == 64 * MIB
        assert time.monotonic() - began < 20
        assert not any(read.done() for read in reads)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await comm.close()


async def stop_between_writes(peer: Peer) -> None:
    """Stop a peer, but not while it writes to this process: that would stop all others, too."""
    queue = SENDERS._queue
    assert queue is not None
    process = psutil.Process(peer.process.pid)
    while True:
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        if not queue.unwritten():
            return
        process.resume()
        await asyncio.sleep(0.01)


class Deaf:
    """A communicator on which no large frame ever arrives."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.Improbe = communicator.Improbe

    def Irecv(self, buffer: Any, rank: int, tag: int) -> Any:  # noqa: N802
        """Receive on a tag that nobody sends on."""
        return self._communicator.Irecv(buffer, rank, 2**20 + tag)


def closed_loops() -> None:
    """Closed event loops leave nothing but what MPI still writes to, until that is complete."""
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
        end = time.monotonic() + 20
        while Engine.for_loop(asyncio.get_running_loop())._parked and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await comm.write({"op": "usage"})
        used = await comm.read()
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


SCENARIOS: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (
        beyond_32_bits,
        in_pieces,
        errors_of_mpi,
        keep_one_of_many,
        arrays_share_nothing,
        many_large_receives,
        stopped_senders,
        closed_loops,
    )
}

if __name__ == "__main__":
    scenario = SCENARIOS[sys.argv[1]]
    if asyncio.iscoroutinefunction(scenario):
        asyncio.run(scenario())
    else:
        scenario()
