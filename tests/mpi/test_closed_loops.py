"""What stays when an event loop ends in the middle of something."""

import asyncio
import gc
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from distributed.comm import connect, listen
from peers import Peer, ask, check_echo, exchange, handler, payload
from processes import until
from scenarios import or_slow, scenario

from commbench.mpi import pairing
from commbench.mpi.buffers import BUFFERS
from commbench.mpi.connect import CALLS
from commbench.mpi.receive_queue import SENDERS
from commbench.mpi.runtime import runtime

_FOLDER = Path(__file__).parent


@pytest.mark.parametrize("closes", [True, False])
@scenario(60)
def test_a_closed_loop_keeps_no_tags(closes: bool) -> None:
    peer = Peer(str(_FOLDER / "peers.py"), "mpi://127.0.0.1:0")
    asyncio.run(peer.ready())

    async def once() -> None:
        comm = await connect(peer.address)
        await exchange(comm)
        if closes:
            await comm.close()
        else:
            comm._finalizer.detach()  # It warns.

    try:
        for _ in range(3):
            asyncio.run(once())
        until(lambda: gc.collect() >= 0 and len(runtime().tags) == 0, "tags are left")
    finally:
        peer.end()


@pytest.mark.parametrize("cancels", or_slow(True, False))
@scenario(60)
def test_a_loop_that_ends_during_a_failed_connect_leaves_no_thread(cancels: bool) -> None:
    peer = Peer(str(_FOLDER / "faulty_peer.py"), "leads", "2", str(int(signal.SIGSTOP)))
    asyncio.run(peer.ready())

    async def fail() -> None:
        connecting = asyncio.ensure_future(connect(peer.address, timeout=60))
        while not CALLS.n_running:
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connecting, 1)

    try:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        loop.run_until_complete(fail())
        if cancels:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        del loop
        gc.collect()
        assert CALLS.n_running + CALLS.n_kept == 1
    finally:
        peer.end()
    until(lambda: gc.collect() >= 0 and CALLS.n_running + CALLS.n_kept == 0, "a call is left")
    until(lambda: gc.collect() >= 0 and threading.active_count() == 1, "a thread is left")


@scenario(60)
def test_a_connect_whose_loop_is_gone_ends_with_the_garbage() -> None:
    peer = Peer(str(_FOLDER / "peers.py"), "mpi://127.0.0.1:0")
    asyncio.run(peer.ready())
    strange: list[Any] = []
    sys.unraisablehook = strange.append
    try:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        task = loop.create_task(connect(peer.address, timeout=60))
        # Before CONNECT there is no sender.
        with mock.patch.object(pairing, "start_connect", wraps=pairing.start_connect) as called:
            while not called.call_count:
                loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        del loop, task
        until(lambda: gc.collect() >= 0 and CALLS.n_running + CALLS.n_kept == 0, "a call is left")
        until(lambda: gc.collect() >= 0 and threading.active_count() == 1, "a thread is left")
        # The peer may still write to this process.
        assert [sender.pid for sender in SENDERS._counts] == [peer.process.pid]
        assert not [each for each in strange if each.exc_type is not ResourceWarning], strange
    finally:
        peer.end()


@scenario(60)
def test_a_large_message_to_a_closed_loop_leaves_its_sender() -> None:
    """It was announced, and nobody had read it."""

    async def leave() -> None:
        async with listen("mpi://127.0.0.1:0", handler) as listener:
            comm = await connect(listener.contact_address)
            await comm.write({"op": "send", "nbytes": 50_000_000})
            await asyncio.sleep(0.2)
            comm._finalizer.detach()

    async def go_on() -> None:
        async with listen("mpi://127.0.0.1:0", handler) as listener:
            for _ in range(5):
                await check_echo(listener.contact_address)

    asyncio.run(leave())
    asyncio.run(go_on())
    until(lambda: gc.collect() >= 0 and len(runtime().tags) == 0, "tags are left")


@scenario(60)
def test_free_buffers_are_dropped_once_nothing_trims_them() -> None:
    async def receive() -> object:
        async with listen("mpi://127.0.0.1:0", handler) as listener:
            comm = await connect(listener.contact_address)
            array = (await ask(comm, "send", nbytes=20_000_000))["x"]
            # The buffer of this answer is free when the loop ends.
            await ask(comm, "send", nbytes=20_000_000)
            await comm.close()
            return array

    array = asyncio.run(receive())
    assert (array == payload(20_000_000)).all()
    gc.collect()
    del array
    assert BUFFERS.n_free_bytes == 0
