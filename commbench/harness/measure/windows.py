"""Windows of messages that follow each other over one connection, each checked."""

from __future__ import annotations

import time

from commbench.harness.measure.layers import Conversation
from commbench.machine import gpu
from commbench.workloads.base import PairWorkload

_AHEAD = 10
_SMALL = 8192

Timing = tuple[float, float]
"""When a window began and ended, by the clock that all processes of a host share."""


class Windows:
    """Windows of one message size.

    Parameters
    ----------
    conversation
        A connection of which an exchange is a window.
    workload
        Makes the messages and checks them.
    size
        Of a message, in bytes.
    pair
        A number that every window carries, so that no other pair's passes for it.
    """

    def __init__(
        self, conversation: Conversation, workload: PairWorkload, size: int, pair: int = 0
    ) -> None:
        self._conversation, self._workload = conversation, workload
        self._payload = workload.payload(size)
        # Large windows that were announced in vain would take long.
        self._ahead = _AHEAD if size <= _SMALL else 1
        self._announced = 0
        self._number = pair << 32

    async def exchange(self) -> Timing:
        """Send one window, and check what its acknowledgement holds when the clock has stopped."""
        if not self._announced:
            await self._conversation.announce(self._payload, self._ahead)
            self._announced = self._ahead
        self._announced -= 1
        self._workload.stamp(self._payload, self._number)
        self._number += 1
        device = self._workload.context.device
        gpu.synchronize(device)
        began = time.perf_counter()
        acknowledgement = await self._conversation.exchange(self._payload)
        gpu.synchronize(device)
        ended = time.perf_counter()
        for sent, found in self._conversation.checks(self._payload, acknowledgement):
            self._workload.check(sent, found, whole=False)
        return began, ended

    async def finish(self) -> None:
        """Send the windows that the peer expects yet, and check every byte of the last message."""
        while self._announced:
            await self.exchange()
        for sent, found in await self._conversation.whole_checks(self._payload, None):
            self._workload.check(sent, found, whole=True)
