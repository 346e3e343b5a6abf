"""The ping-pong that anyone would write by hand: the yardstick for the harness's cost.

Nothing of commbench is in it. ``python pingpong.py PROTOCOL SIZE COUNT`` prints the one-way
seconds of every message as a JSON list.
"""

import asyncio
import json
import subprocess
import sys
import time

import numpy
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize


async def echo(comm):
    """Send back what comes."""
    try:
        while True:
            await comm.write(to_serialize(await comm.read()))
    except CommClosedError:
        pass


async def serve(protocol):
    """Listen until killed."""
    async with listen(f"{protocol}://127.0.0.1:0", echo) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.Event().wait()


async def measure(protocol, size, count):
    """Time `count` messages of `size` bytes after a tenth as many for warm-up."""
    command = [sys.executable, __file__, protocol]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as peer:
        comm = await connect(peer.stdout.readline().decode().strip())
        payload = numpy.random.default_rng(0).integers(0, 256, size, dtype="u1")
        seconds = []
        for number in range(-(count // 10), count):
            began = time.perf_counter()
            await comm.write(to_serialize(payload))
            # A program that reads a reply keeps it until the next one. A reply dropped at once
            # lets the allocator reuse its memory, and hides part of the cost.
            reply = await comm.read()
            if number >= 0:
                seconds.append((time.perf_counter() - began) / 2)
            assert reply.nbytes == size
        await comm.close()
        peer.terminate()
    return seconds


if __name__ == "__main__":
    if len(sys.argv) == 2:
        asyncio.run(serve(sys.argv[1]))
    else:
        protocol, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        print(json.dumps(asyncio.run(measure(protocol, size, count))))
