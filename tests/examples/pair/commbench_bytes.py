"""bytes: latency of a bytes object, which Dask sends without the header of a NumPy array.

Payload: the object's length. Compare it with pingpong's layer comm, where an array is sent.
"""

from dataclasses import dataclass

from commbench import PairWorkload, VerificationError, option

STAMP_BYTES = 8


class Bytes(PairWorkload):
    name = "bytes"
    summary = "latency of bytes objects between two processes"

    @dataclass(frozen=True, kw_only=True)
    class Params:
        sizes: tuple[int, ...] = option((1, 1024, 1 << 20), "of the messages", unit="bytes")

    layers = ("comm",)  # where `exchange` is timed; pingpong has the others
    mode = "latency"  # each message waits for the reply to the one before
    window = 1

    @property
    def sizes(self):
        return self.params.sizes

    def n_samples(self, size, iterations):
        return iterations

    def payload(self, size):
        import numpy as np

        return np.random.default_rng([self.context.seed, size]).integers(0, 256, size, "u1")

    def stamp(self, payload, number):
        # A reply to another message can't pass for the one to this.
        stamp = number.to_bytes(STAMP_BYTES, "little")[: payload.size]
        payload[: len(stamp)] = list(stamp)

    async def exchange(self, comm, payload):
        await comm.write(payload.tobytes())
        return await comm.read()

    def verify(self, payload, reply, *, whole):
        end = None if whole else STAMP_BYTES
        if len(reply) != payload.size or bytes(reply[:end]) != payload[:end].tobytes():
            raise VerificationError(f"bytes: the reply to {payload.size} B is not what was sent")
