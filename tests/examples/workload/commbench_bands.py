"""bands: bands of rows become bands of columns.

Payload: x.nbytes, 8 bytes for each of the size² numbers; on W workers about (1 - 1/W) of it crosses
the wire.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import commbench


class Bands(commbench.ClusterWorkload):
    name = "bands"  # the entry point's name
    summary = "bands of rows become bands of columns"  # for `commbench list`
    stresses = "arrays"  # the group there
    preload = ("dask.array",)  # imported in every process before it communicates
    quick: ClassVar = {"size": 1000}  # the parameters of --quick

    @dataclass(frozen=True, kw_only=True)
    class Params:  # each field is an option of `commbench run bands`
        size: int = commbench.option(4000, "x has size x size numbers of 8 bytes", least=1)
        bands: int = commbench.option(8, "into how many bands x is cut", least=1)
        method: Literal["tasks", "p2p"] = commbench.option(
            "tasks", "how blocks move: tasks, or p2p (peer to peer)"
        )

    def __init__(self, params, context):
        super().__init__(params, context)
        if params.bands > params.size:
            raise commbench.UsageError(
                f"bands is {params.bands}; it must be at most size ({params.size})"
            )

    @property
    def payload_bytes(self):
        return 8 * self.params.size**2

    def prepare(self, client):
        size, width = self.params.size, math.ceil(self.params.size / self.params.bands)
        # Random numbers, which no compressor makes smaller, and any worker can make again.
        x = commbench.uniform_array(
            self.context.device, self.context.seed, (size, size), (width, size)
        )
        (self.x,) = commbench.persist_input(client, x)
        commbench.rebalance(client, self.x)  # the same layout at the begin of every iteration

    def build(self):
        rows, columns = self.x.chunks
        return self.x.rechunk((columns, rows), method=self.params.method)

    def verify(self, client, result):
        rows, columns = self.x.chunks
        # Each worker compares its blocks with what `expected` returns for their start and shape:
        # the transport can't garble the check as well. Raises where a block is missing, too.
        expected = partial(commbench.uniform_block, self.context.device, self.context.seed)
        commbench.verify_blocks(client, "x in bands of columns", result, (columns, rows), expected)
        commbench.rebalance(client, self.x)
