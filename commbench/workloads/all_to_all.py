"""``all-to-all``: each worker fetches blocks from each other, one pair at a time, then all at once.

Unlike with other workloads, every pair of workers has a result. A block is a NumPy (or CuPy) array
of random bytes, which is in its owner's memory like the result of a task. Alone, one pair fetches
at a time, which shows the bandwidth of its link. Together, all ``W * (W - 1)`` ordered pairs of W
workers fetch at once, which shows what they share.

``links`` asks the same of whole clusters: one worker of each host takes part, or each worker if
there is one host. A round has pairs that share no host, all of which fetch at once, in one
direction and then in the other. ``n - 1`` rounds (n for odd numbers of hosts) have every pair, so
that the time grows as the number of hosts. The pairs of one round fetch one at a time, too.

Payload of a sample: alone and in rounds, one block; together, the blocks of all pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.errors import UsageError, VerificationError
from commbench.workloads.device import random_bytes
from commbench.workloads.workload import Context, FetchWorkload, option

_KIB, _MIB = 1 << 10, 1 << 20


class AllToAll(FetchWorkload):
    """Blocks of several sizes between every ordered pair of workers."""

    name = "all-to-all"
    summary = "every ordered pair of workers, one at a time and all at once"
    stresses = "all pairs"
    quick: ClassVar[Mapping[str, Any]] = {"sizes": (_KIB, _MIB, 4 * _MIB)}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        sizes: tuple[int, ...] = option(
            (_KIB, 64 * _KIB, _MIB, 4 * _MIB, 16 * _MIB),
            "sizes of the blocks, for example 1KiB,1MiB,16MiB; together, a worker "
            "holds one of every other worker's",
            unit="bytes",
        )

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        if context.n_workers < 2:
            raise UsageError(f"{self.name}: one worker has no other to fetch from; --workers 2")
        self._validate_sizes()

    def block(self, owner: int, size: int) -> Any:
        """Return a uint8 array of shape ``(size,)`` on the device; no two blocks are equal."""
        return random_bytes(self.context.device, size, self.context.seed, owner, size)

    def verify(self, owner: int, size: int, fetched: Any) -> None:  # noqa: D102
        expected = self.block(owner, size)
        received = getattr(fetched, "shape", None), str(getattr(fetched, "dtype", ""))
        if type(fetched) is not type(expected) or received != ((size,), "uint8"):
            raise VerificationError(
                f"{self.name}: a block of worker {owner} should be {size} B, and came as "
                f"{type(fetched).__name__} of shape {received[0]}"
            )
        if n_wrong := int((fetched != expected).sum()):
            raise VerificationError(
                f"{self.name}: {n_wrong} of the {size} B of a block of worker {owner} arrived wrong"
            )


class Links(AllToAll):
    """Blocks of few sizes between every ordered pair of hosts, in rounds."""

    name = "links"
    summary = "every ordered pair of hosts, in rounds; `commbench links` judges it"
    defaults: ClassVar[Mapping[str, int]] = {"launches": 1, "timeout_s": 1800}
    quick: ClassVar[Mapping[str, Any]] = {"sizes": (1, 64 * _KIB, 2 * _MIB)}
    in_rounds = True

    @dataclass(frozen=True, kw_only=True)
    class Params:
        sizes: tuple[int, ...] = option(
            (1, 64 * _KIB, 8 * _MIB), "sizes of the blocks, for example 1,64KiB,8MiB", unit="bytes"
        )
