"""What every communication backend of Dask must do.

``python comm.py PROTOCOL`` runs every check and prints one JSON object per line:
``{"check": …, "error": null or a traceback, "seconds": …}``. Checks that talk to an echo service
run twice: with the service in this process, and in another.

A backend's tests call this in a fresh process: two communication stacks can rarely share one.
"""

import asyncio
import contextlib
import gc
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import dask
import distributed.protocol.numpy  # noqa: F401 - registers arrays
import numpy as np
import pandas as pd
import pyarrow as pa
from distributed.comm import CommClosedError, connect, get_address_host, listen, parse_address
from distributed.protocol import Serialized, ToPickle, deserialize, to_serialize

BOUND_S = 120
"""No check takes longer, unless it says so: they take seconds where nothing hangs."""

Check = Callable[..., Awaitable[None]]
CHECKS: dict[str, tuple[Check, bool, bool]] = {}
"""Name: the check, whether it wants an echo service, whether it is slow."""


def check(*, echo: bool = False, slow: bool = False) -> Callable[[Check], Check]:
    """Register a check under its name."""

    def register(function: Check) -> Check:
        CHECKS[function.__name__.removeprefix("check_")] = (function, echo, slow)
        return function

    return register


def answering(answer: Callable[[Any], Any]) -> Callable[[Any], Awaitable[None]]:
    """Return a handler that answers each message with `answer` of it until the peer leaves."""

    async def handler(comm: Any) -> None:
        try:
            while True:
                await comm.write(answer(await comm.read()))
        except CommClosedError:
            await comm.close()

    return handler


echo_handler = answering(lambda message: message)
"""Listen with ``deserialize=False``, so that marked objects go back as they came."""


@asynccontextmanager
async def listening(protocol: str, handler: Any, **kwargs: Any) -> AsyncIterator[str]:
    """Listen, and yield the address."""
    listener = await listen(f"{protocol}://127.0.0.1:0", handler, **kwargs)
    try:
        yield listener.contact_address
    finally:
        listener.stop()


async def eventually(condition: Callable[[], bool], what: str, within_s: float = 60) -> None:
    """Wait for something that another task or process brings about."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        await asyncio.sleep(0.01)


async def fails(error: type[Exception], awaitable: Awaitable[Any], within_s: float = 60) -> str:
    """Check that `awaitable` raises `error`, and return what it says."""
    try:
        result = await asyncio.wait_for(awaitable, within_s)
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__}, but {str(result)[:80]!r}")


async def closes(comm: Any) -> None:
    """Check that a read on `comm` fails because it is closed."""
    await fails(CommClosedError, comm.read())


async def exchange(comm: Any, message: Any) -> None:
    """Check that `message` comes back."""
    await comm.write(message)
    answer = await comm.read()
    assert answer == message, (str(answer)[:80], str(message)[:80])


@asynccontextmanager
async def connected(address: str, **kwargs: Any) -> AsyncIterator[Any]:
    """Connect, and close in the end."""
    comm = await connect(address, **kwargs)
    yield comm
    await comm.close()


@check(echo=True)
async def check_connect_and_accept(protocol: str, echo: str) -> None:
    """A message written at one end is read at the other."""
    comm = await connect(echo)
    assert not comm.closed()
    assert await comm.write({"op": "ping", "n": [1, 2, 3]}) > 0
    assert await comm.read() == {"op": "ping", "n": (1, 2, 3)}
    await comm.close()
    assert comm.closed()


@check(echo=True)
async def check_order(protocol: str, echo: str) -> None:
    """Messages of mixed sizes are read in the order in which they were written."""
    async with connected(echo) as comm:
        sizes = [0, 5, 70_000, 1, 3_000_000, 0, 40_000, 2]
        for number, size in enumerate(sizes):
            # A write that waits for the peer, who waits for us, would never return.
            await asyncio.wait_for(comm.write([number, bytes([number]) * size]), 60)
        for number, size in enumerate(sizes):
            assert await comm.read() == (number, bytes([number]) * size), (number, size)


@check(echo=True)
async def check_loop_has_its_turn(protocol: str, echo: str) -> None:
    """A conversation at full speed keeps nothing else waiting in its event loop."""
    async with connected(echo) as comm:
        # CPU time: of a second a busy machine may give this process little.
        until = time.process_time() + 0.4
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while time.process_time() < until:
                await asyncio.sleep(0.005)
                ticks += 1

        ticker = asyncio.ensure_future(tick())
        while time.process_time() < until:
            await exchange(comm, "x")
        await ticker
        assert ticks > 8, ticks


@check(echo=True)
async def check_concurrent_clients(protocol: str, echo: str) -> None:
    """20 clients talk at the same time, and none gets another's answer."""

    async def client(number: int) -> None:
        async with connected(echo) as comm:
            for turn in range(10):
                message = (number, turn, bytes([number]) * (number * 5_000))
                await exchange(comm, message)

    await asyncio.gather(*(client(number) for number in range(20)))


@check()
async def check_many_listeners(protocol: str) -> None:
    """100 listeners in one process have 100 addresses, and each answers."""
    listeners = [await listen(f"{protocol}://127.0.0.1:0", echo_handler) for _ in range(100)]
    assert len({listener.contact_address for listener in listeners}) == 100
    for listener in listeners:
        comm = await connect(listener.contact_address)
        await exchange(comm, listener.contact_address)
        await comm.close()
        listener.stop()


@check()
async def check_explicit_close(protocol: str) -> None:
    """What was written before a close is still read; then both ends are closed for good."""
    served: list[Any] = []

    async def handler(comm: Any) -> None:
        served.append(comm)
        await comm.write("first")
        await comm.write("last")
        await comm.close()

    async with listening(protocol, handler) as address:
        comm = await connect(address)
        assert await comm.read() == "first"
        assert await comm.read() == "last"
        await closes(comm)
        assert comm.closed()
        assert served[0].closed()
        for end in (comm, served[0]):
            await fails(CommClosedError, end.write("more"))
        await comm.close()


@check()
async def check_implicit_close(protocol: str) -> None:
    """A connection that nobody holds any more is closed for its peer, too."""
    ended = asyncio.Event()

    async def handler(comm: Any) -> None:
        try:
            await comm.read()
        except CommClosedError:
            ended.set()

    async with listening(protocol, handler) as address:
        comm = await connect(address)
        logging.disable(logging.WARNING)
        del comm
        gc.collect()
        await asyncio.wait_for(ended.wait(), 60)
        logging.disable(logging.NOTSET)


@check()
async def check_idle_peer_sees_close(protocol: str) -> None:
    """`closed()` turns true after the peer's close although nobody reads."""

    async def handler(comm: Any) -> None:
        await comm.close()

    async with listening(protocol, handler) as address, connected(address) as comm:
        await eventually(comm.closed, "closed() after the peer closed")


@check()
async def check_abort(protocol: str) -> None:
    """After an abort at one end a pending read at either end fails; a second abort is harmless."""
    served: asyncio.Queue[Any] = asyncio.Queue()

    async def handler(comm: Any) -> None:
        served.put_nowait(asyncio.ensure_future(closes(comm)))

    async with listening(protocol, handler) as address:
        comm = await connect(address)
        peer_reads = await served.get()
        pending = asyncio.ensure_future(closes(comm))
        await asyncio.sleep(0.05)
        comm.abort()
        comm.abort()
        assert comm.closed()
        await asyncio.wait_for(pending, 60)
        await asyncio.wait_for(peer_reads, 60)


@check()
async def check_connect_refused(protocol: str) -> None:
    """Connecting where nobody listens fails with OSError before Dask's time-out."""
    async with listening(protocol, echo_handler) as address:
        pass
    began = time.monotonic()
    text = await fails(OSError, connect(address, timeout=0.5))
    assert time.monotonic() - began < dask.utils.parse_timedelta(
        dask.config.get("distributed.comm.timeouts.connect")
    )
    assert parse_address(address)[1] in text, text


@check()
async def check_half_dead_peer(protocol: str) -> None:
    """A peer that accepts but never answers lets a connect be given up within its time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        # TimeoutError is an OSError: distributed itself doesn't bound its handshake.
        await fails(OSError, connect(f"{protocol}://{host}:{port}", timeout=0.5), within_s=1.5)


@check()
async def check_peer_that_does_not_read(protocol: str) -> None:
    """A small write succeeds although the peer never reads."""
    release = asyncio.Event()

    async def handler(comm: Any) -> None:
        await release.wait()
        comm.abort()

    async with listening(protocol, handler) as address:
        comm = await connect(address)
        for _ in range(10):
            await asyncio.wait_for(comm.write({"op": "x", "data": b"y" * 1000}), 60)
        release.set()
        comm.abort()


@check()
async def check_deserialize(protocol: str) -> None:
    """With ``deserialize=False`` marked objects stay serialized, and can be passed on."""
    data = np.arange(100_000)

    async def relay(comm: Any) -> None:
        assert comm.deserialize is False
        try:
            while True:
                message = await comm.read()
                assert isinstance(message["x"], Serialized), type(message["x"])
                await comm.write(message)
        except CommClosedError:
            await comm.close()

    async with listening(protocol, relay, deserialize=False) as address:
        for expected in (np.ndarray, Serialized):
            comm = await connect(address, deserialize=expected is np.ndarray)
            await comm.write({"op": "update", "x": to_serialize(data), "n": 1})
            x = (await comm.read())["x"]
            assert isinstance(x, expected), type(x)
            if isinstance(x, Serialized):
                x = deserialize(x.header, x.frames)
            assert (x == data).all()
            await comm.close()


@check(echo=True)
async def check_array_round_trips(protocol: str, echo: str) -> None:
    """Arrays come back equal: empty, one byte, every order, read-only, strided."""
    async with connected(echo) as comm:
        base = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype="u1")
        read_only = base.copy()
        read_only.flags.writeable = False
        arrays = {
            "empty": base[:0],
            "one": base[:1],
            "just under 32 KiB": base[: 2**15 - 1],
            "32 KiB": base[: 2**15],
            "64 KiB": base[: 2**16],
            "large": base,
            "read-only": read_only,
            "strided": base[::3],
            "transposed": base.reshape(1000, 3000).T,
            "broadcast": np.broadcast_to(base[:10], (50, 10)),
            "float": base[:80].view("f8"),
        }
        for name, array in arrays.items():
            await comm.write({"x": to_serialize(array)})
            x = (await comm.read())["x"]
            assert (x.shape, x.dtype) == (array.shape, array.dtype), name
            assert x.tobytes() == array.tobytes(), name


@check()
async def check_buffers_are_writable(protocol: str) -> None:
    """A received array of any size can be written to."""

    def double(x: Any) -> int:
        x *= 2
        return int(x.sum())

    async with listening(protocol, answering(double)) as address, connected(address) as comm:
        for size in (1, 1000, 40_000, 5_000_000):
            await comm.write(to_serialize(np.ones(size)))
            assert await comm.read() == size * 2


@check(echo=True)
async def check_received_data_is_kept(protocol: str, echo: str) -> None:
    """What was made of a message stays as it is while later messages arrive.

    Not only the objects themselves: parts and views of them, when the message is long gone.
    """
    async with connected(echo) as comm:
        rng = np.random.default_rng(0)
        made = {
            "array": lambda x: x,
            "slice": lambda x: x[1000:2000],
            "view": lambda x: x.view("u2")[::3],
            "transposed": lambda x: x.reshape(-1, 8).T[3],
            "array of a memoryview": lambda x: np.asarray(memoryview(x))[5:],
            "array of a buffer": lambda x: np.ndarray(10, "u1", buffer=x.data, offset=7),
            "frame": lambda x: pd.DataFrame(x.reshape(-1, 8), copy=False)[4],
            "arrow": lambda x: pa.py_buffer(x)[100:200],
        }
        kept = []
        for size in (40_000, 200_000, 1_000_000, 5_000_000, 1_000_000, 200_000):
            for name, make in made.items():
                sent = rng.integers(0, 256, size, dtype="u1")
                for mark in (to_serialize, lambda x: ToPickle({"pickled": x})):
                    await comm.write({"x": mark(sent)})
                    received = (await comm.read())["x"]
                    received = received["pickled"] if isinstance(received, dict) else received
                    kept.append((name, size, bytes(make(sent)), make(received)))
                    del received
        for name, size, expected, part in kept:
            assert bytes(part) == expected, (name, size)


@check(echo=True)
async def check_many_frames(protocol: str, echo: str) -> None:
    """Thousands of frames in one message, empty ones among them, arrive whole and in order."""
    async with connected(echo) as comm:
        for size in (0, 1, 5_000, 50_000):
            arrays = [
                np.full(size * (i % 3), i, dtype="u2") for i in range(2000 if size < 9999 else 200)
            ]
            await comm.write({"x": [to_serialize(array) for array in arrays]})
            received = (await comm.read())["x"]
            assert len(received) == len(arrays)
            for i, array in enumerate(received):
                assert array.shape == (size * (i % 3),), (size, i)
                assert (array == i).all(), (size, i)


@check()
async def check_crossing_writes(protocol: str) -> None:
    """Both ends write much before either reads, and nobody waits for ever."""
    data = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype="u1")

    async def handler(comm: Any) -> None:
        writing = asyncio.ensure_future(comm.write(to_serialize(data)))
        await asyncio.sleep(0.1)
        assert ((await comm.read()) == data).all()
        await writing
        await comm.write("done")
        await closes(comm)

    async with listening(protocol, handler) as address, connected(address) as comm:
        writing = asyncio.ensure_future(comm.write(to_serialize(data)))
        await asyncio.sleep(0.1)
        assert ((await comm.read()) == data).all()
        await writing
        assert await comm.read() == "done"


@check(echo=True)
async def check_cancelled_read(protocol: str, echo: str) -> None:
    """A read that is cancelled, idle or in the middle of a message, closes the connection.

    One that is cancelled after the last byte leaves it as it is.
    """
    for message in (None, to_serialize(np.ones(30_000_000, dtype="u1"))):
        comm = await connect(echo)
        if message is not None:
            await comm.write(message)
        reading = asyncio.ensure_future(comm.read())
        await asyncio.sleep(0.005)
        if reading.done():
            await comm.close()
            continue
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, CommClosedError):
            await reading
        if message is not None and not comm.closed():
            # It had come whole, and was being deserialized.
            await exchange(comm, "the next")
        else:
            assert comm.closed()
        comm.abort()
    async with connected(echo) as comm:
        await exchange(comm, "still there?")


@check(echo=True)
async def check_cancelled_write(protocol: str, echo: str) -> None:
    """A write that is cancelled leaves a connection that works or is closed, never a hang."""
    comm = await connect(echo)
    data = to_serialize(np.ones(30_000_000, dtype="u1"))
    writing = asyncio.ensure_future(comm.write(data))
    await asyncio.sleep(0)
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError, CommClosedError):
        await writing
    with contextlib.suppress(CommClosedError):
        await asyncio.wait_for(comm.write("after"), 60)
        while not isinstance(await asyncio.wait_for(comm.read(), 60), str):
            pass
    comm.abort()


@check()
async def check_addresses(protocol: str) -> None:
    """Both ends know their addresses: the protocol, the host, and for the connector the port."""
    seen: asyncio.Queue[Any] = asyncio.Queue()

    async def handler(comm: Any) -> None:
        seen.put_nowait((comm.local_address, comm.peer_address))
        await closes(comm)

    async with listening(protocol, handler) as address, connected(address) as comm:
        assert comm.peer_address == address
        local, peer = await seen.get()
        for each in (local, peer, comm.local_address):
            assert each.startswith(f"{protocol}://"), each
            assert get_address_host(each) == "127.0.0.1"
        assert comm.local_address == peer
        assert comm.same_host


@check()
async def check_two_event_loops(protocol: str) -> None:
    """Two event loops in one process talk to each other and to themselves."""
    async with listening(protocol, echo_handler) as address:
        failures: list[BaseException] = []

        async def other_loop() -> None:
            async with listening(protocol, echo_handler) as other_address:
                for target in (address, other_address):
                    async with connected(target) as comm:
                        for size in (1, 100_000, 10_000_000):
                            await comm.write(b"x" * size)
                            assert len(await comm.read()) == size

        def run() -> None:
            try:
                asyncio.run(asyncio.wait_for(other_loop(), 60))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        async with connected(address) as comm:
            while thread.is_alive():
                await exchange(comm, "here")
                await asyncio.sleep(0.001)
            thread.join()
            if failures:
                raise failures[0]


@check()
async def check_error_messages(protocol: str) -> None:
    """Required encryption is refused by name, and a bad address is a ValueError that shows it."""
    strict = {"require_encryption": True}
    for attempt in (
        connect(f"{protocol}://127.0.0.1:1", timeout=1, **strict),
        start_listening(f"{protocol}://127.0.0.1:0", **strict),
    ):
        text = await fails(RuntimeError, attempt)
        assert "encryption required" in text, text
    text = await fails(ValueError, connect(f"{protocol}://127.0.0.1", timeout=1))
    assert "127.0.0.1" in text, text


async def start_listening(address: str, **kwargs: Any) -> None:
    """Start a listener."""
    await listen(address, echo_handler, **kwargs)


@check(slow=True)
async def check_4_gib_and_1_byte(protocol: str) -> None:
    """A message of 4 GiB + 1 byte in one buffer arrives whole."""
    size = 2**32 + 1
    marks = {0: 7, 2**31: 8, 2**32 - 1: 9, 2**32: 10}
    received: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def handler(comm: Any) -> None:
        x = await comm.read()
        received.set_result(
            x.nbytes == size and all(x[i] == m for i, m in marks.items()) and not x[1:1000].any()
        )
        await comm.write("got it")

    async with listening(protocol, handler) as address, connected(address) as comm:
        data = np.zeros(size, dtype="u1")
        for index, mark in marks.items():
            data[index] = mark
        await comm.write(to_serialize(data))
        assert await comm.read() == "got it"
        assert received.result()


async def serve(protocol: str) -> None:
    """Echo until standard input ends."""
    async with listening(protocol, echo_handler, deserialize=False) as address:
        print(address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def run(protocol: str, names: list[str]) -> None:
    """Run the checks and print how each went."""
    other = subprocess.Popen(
        [sys.executable, __file__, "--serve", protocol],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        elsewhere = ""
        while not elsewhere.startswith(f"{protocol}://"):
            # Some libraries log to standard output, too.
            elsewhere = (await asyncio.to_thread(other.stdout.readline)).strip()
        async with listening(protocol, echo_handler, deserialize=False) as here:
            for name in names:
                function, wants_echo, slow = CHECKS[name]
                variants: dict[str, tuple[str, ...]] = {"": ()}
                if wants_echo:
                    variants = {"-same-process": (here,), "-other-process": (elsewhere,)}
                for suffix, address in variants.items():
                    began = time.monotonic()
                    error = None
                    try:
                        bound = 300 if slow else BOUND_S
                        await asyncio.wait_for(function(protocol, *address), bound)
                    except BaseException:
                        error = traceback.format_exc()
                    seconds = time.monotonic() - began
                    print(json.dumps({"check": name + suffix, "error": error, "seconds": seconds}))
                    sys.stdout.flush()
    finally:
        other.stdin.close()
        other.stdout.close()
        try:
            other.wait(60)
        finally:
            other.kill()


def variants() -> dict[str, bool]:
    """Return the name of every result, and whether it is slow."""
    return {
        name + suffix: slow
        for name, (_, wants_echo, slow) in CHECKS.items()
        for suffix in (("-same-process", "-other-process") if wants_echo else ("",))
    }


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        asyncio.run(serve(sys.argv[2]))
    else:
        asyncio.run(run(sys.argv[1], sys.argv[2:] or [n for n, c in CHECKS.items() if not c[2]]))
