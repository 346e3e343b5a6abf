"""rechunk: bands of rows become bands of columns.

Payload: x.nbytes, 8 bytes for each of the size² numbers; on W workers about (1 - 1/W) of it crosses
the wire.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import commbench


class Rechunk(commbench.ClusterWorkload):
    name = "rechunk"  # the entry point's name
    summary = "bands of rows become bands of columns"  # for `commbench list`
    preload = ("dask.array",)  # imported in every process before it communicates
    quick: ClassVar = {"size": 1000}  # the parameters of --quick

    @dataclass(frozen=True, kw_only=True)
    class Params:  # each field is an option of `commbench run rechunk`
        size: int = field(default=4000, metadata={"help": "x has size x size numbers of 8 bytes"})
        bands: int = field(default=8, metadata={"help": "into how many bands x is cut"})
        method: Literal["tasks", "p2p"] = field(
            default="tasks", metadata={"help": "how blocks move: tasks, or p2p (peer to peer)"}
        )

    def __init__(self, params, context):
        super().__init__(params, context)
        if not 1 <= params.bands <= params.size:
            raise commbench.UsageError(
                f"bands is {params.bands}; it must be from 1 to size ({params.size})"
            )
        self.width = math.ceil(params.size / params.bands)

    @property
    def payload_bytes(self):
        return 8 * self.params.size**2

    def prepare(self, client):
        size, device, seed = self.params.size, self.context.device, self.context.seed
        # Random numbers, which no compressor makes smaller, and any worker can make again.
        x = commbench.uniform_array(device, seed, (size, size), (self.width, size))
        (self.x,) = commbench.persist_input(client, x)
        commbench.rebalance(client, self.x)  # the same layout at the begin of every iteration

    def build(self):
        return self.x.rechunk((self.params.size, self.width), method=self.params.method)

    def verify(self, client, result):
        n_bands = math.ceil(self.params.size / self.width)
        # Raises where a block is missing, or its task has failed.
        blocks = commbench.finished_blocks(result, (1, n_bands))
        # Each worker looks at its own blocks: the transport can't garble the check as well.
        given = (self.context.device, self.context.seed, self.params.size, self.width)
        wrong = client.gather(
            [
                client.submit(count_wrong, block, j, *given, pure=False)
                for (_, j), block in blocks.items()
            ]
        )
        for (_, j), n_wrong in zip(blocks, wrong, strict=True):
            if n_wrong:
                raise commbench.VerificationError(
                    f"band {j} of columns: {n_wrong} numbers are wrong"
                )
        commbench.rebalance(client, self.x)


def count_wrong(block, j, device, seed, size, width):
    columns = slice(j * width, (j + 1) * width)
    rows = [
        commbench.uniform_block(device, seed, (i, 0), (min(width, size - i * width), size))[
            :, columns
        ]
        for i in range(math.ceil(size / width))
    ]
    if block.shape != (size, rows[0].shape[1]):
        return block.size
    return sum(int((block[i * width : i * width + len(r)] != r).sum()) for i, r in enumerate(rows))
