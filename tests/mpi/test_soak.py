"""Mixed traffic between processes, for as many seconds as COMMBENCH_SOAK_SECONDS says."""

import asyncio
import os
import random
import time

import numpy as np
import pytest
from distributed.comm import connect
from distributed.protocol import to_serialize
from peers import Peer, ask, payload, peers, usage
from scenarios import scenario

SECONDS = float(os.environ.get("COMMBENCH_SOAK_SECONDS", "2"))


async def converse(peer: Peer, seed: int, until: float) -> int:
    """Open connections, talk over each for a while, end them in every way; count the messages."""
    rng = random.Random(seed)
    n_messages = 0
    while time.monotonic() < until:
        comm = await connect(peer.address)
        for _ in range(rng.randint(1, 30)):
            nbytes = int(10 ** rng.uniform(0, 7.3))
            kind = rng.choice(["sum", "send", "echo", "pause", "idle"])
            if kind == "sum":
                x = payload(nbytes)
                assert await ask(comm, "sum", x=to_serialize(x)) == x.sum(dtype="u8")
            elif kind == "send":
                x = (await ask(comm, "send", nbytes=nbytes))["x"]
                assert np.array_equal(x, payload(nbytes))
            elif kind == "echo":
                numbers = [rng.random() for _ in range(rng.randint(1, 20))]
                for number in numbers:
                    await comm.write(
                        {"op": "echo", "number": number, "pad": b"." * (nbytes % 9999)}
                    )
                for number in numbers:
                    assert (await comm.read())["number"] == number
            else:
                await asyncio.sleep(0.0005 if kind == "pause" else 0.01)
            n_messages += 1
        if rng.random() < 0.3:
            await comm.write({"op": "send", "nbytes": 3_000_000})
            comm.abort()
        else:
            await comm.close()
    return n_messages


@pytest.mark.soak
@scenario(200 + SECONDS)
async def test_mixed_traffic_arrives_right_and_memory_does_not_grow() -> None:
    async with peers(3) as group:
        await asyncio.gather(*(converse(peer, 0, time.monotonic() + 1) for peer in group))
        before = usage()
        until = time.monotonic() + SECONDS
        counts = await asyncio.gather(*(converse(group[i % 3], i, until) for i in range(12)))
        await asyncio.sleep(1)
        after = usage()
        assert min(counts) > 0, counts
        assert after["descriptors"] <= before["descriptors"] + 2, (before, after)
        assert after["resident"] - before["resident"] < 300e6, (before, after)
        print(sum(counts), "messages")
