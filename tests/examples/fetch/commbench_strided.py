"""strided: each worker fetches arrays that are not contiguous, which Dask copies to send them.

Payload: the bytes of the elements. Compare it with all-to-all, whose blocks are contiguous.
"""

from dataclasses import dataclass

from commbench import FetchWorkload, UsageError, VerificationError, array_library, option


class Strided(FetchWorkload):
    name = "strided"
    summary = "every other element of an array, between every ordered pair of workers"

    @dataclass(frozen=True, kw_only=True)
    class Params:
        sizes: tuple[int, ...] = option((1 << 20, 16 << 20), "of what is sent", unit="bytes")

    def __init__(self, params, context):
        super().__init__(params, context)
        for size in params.sizes:
            if size < 1:
                raise UsageError(f"strided: a block of {size} B can't be fetched; at least 1")

    @property
    def sizes(self):
        return self.params.sizes

    def block(self, owner, size):
        import numpy as np

        random = np.random.default_rng([self.context.seed, owner, size])
        numbers = random.integers(0, 256, 2 * size, "u1")
        return array_library(self.context.device).asarray(numbers)[::2]

    def verify(self, owner, size, fetched):
        # Every byte: the fetch is over when this is called.
        if fetched.shape != (size,) or bool((fetched != self.block(owner, size)).any()):
            raise VerificationError(f"strided: {size} B of worker {owner} arrived wrong")
