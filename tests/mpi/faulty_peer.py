"""A process that gets a signal at one step of the handshake.

``python faulty_peer.py leads|follows STEP SIGNAL [ADDRESS]`` connects to ADDRESS, or listens and
prints its address. STEP is the number of an event: before each message over TCP, before and after
the call of MPI, before the exchange of keys. A step that never comes ends well. The signal 0 delays
this step, so that the peer gives up first.
"""

import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from typing import Any

from distributed.comm import CommClosedError, connect, listen
from peers import exchange, handler

from commbench.mpi import connect as mpi_connect
from commbench.mpi import pairing
from commbench.mpi import runtime as runtime_module
from commbench.mpi.control import Control

N_STEPS = 7


def rename(role: str) -> None:
    """Have this process lead or follow when it connects to others."""
    runtime = runtime_module.runtime("127.0.0.1")
    name = {"leads": "0", "follows": "f"}[role] * 8 + runtime.process[8:]
    runtime_module._runtime = dataclasses.replace(runtime, process=name)


def arrange(role: str, step: int, signal: int) -> None:
    """Have this process get `signal` at the event number `step`, and lead or follow."""
    count = -1

    def event() -> None:
        nonlocal count
        count += 1
        if count == step and signal:
            os.kill(os.getpid(), signal)
        elif count == step:
            time.sleep(1.4 * mpi_connect.CONNECT_TIMEOUT_S)

    def wrap(owner: Any, name: str, *, after: bool = False) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            event()
            try:
                return original(*args, **kwargs)
            finally:
                if after:
                    event()

        setattr(owner, name, call)

    wrap(Control, "send")
    wrap(mpi_connect, "_connect", after=True)
    wrap(pairing, "agree_on_key")
    rename(role)


async def main(role: str, step: str, signal: str, *address: str) -> None:
    """Do one handshake and an exchange; then wait for the end."""
    if address:
        arrange(role, int(step), int(signal))
        with contextlib.suppress(CommClosedError, OSError):
            await exchange(await connect(address[0], timeout=60))
        print("done", flush=True)
    else:
        async with listen("mpi://127.0.0.1:0", handler) as listener:
            arrange(role, int(step), int(signal))
            print(listener.contact_address, flush=True)
            await asyncio.to_thread(sys.stdin.read)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
