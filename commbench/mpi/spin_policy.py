"""How long a receiver polls for the next message before it sleeps.

Polling finds a message at once, and burns a core. Sleeping needs a doorbell, which costs each end a
system call, and the receiver the latency of the kernel's scheduler. So a receiver polls while
messages follow each other closely, and only then.
"""

from __future__ import annotations

__all__ = ["MAX_S", "MIN_S", "SOON_S", "SpinPolicy"]

SOON_S = 300e-6
"""About what a sleep and a doorbell cost together."""
MIN_S = 300e-6
MAX_S = 2e-3
"""The shortest and the longest time to poll."""
_STREAK = 2
"""The number of closely following messages before polling begins."""


class SpinPolicy:
    """Adapts the time of polling to the last waits.

    Attributes
    ----------
    spin_s
        How long to poll for the next message, in seconds; 0: sleep at once.
    immediate
        Whether the next message will probably come before the event loop could run once.

    Examples
    --------
    >>> policy = SpinPolicy()
    >>> policy.spin_s
    0.0
    >>> for waited_s in (100e-6, 400e-6):
    ...     policy.update(waited_s)
    >>> policy.spin_s, policy.immediate
    (0.0008, False)
    >>> policy.update(1.0)
    >>> policy.spin_s
    0.0
    """

    def __init__(self) -> None:
        self.spin_s = 0.0
        self.immediate = False
        self._streak = 0

    def update(self, waited_s: float) -> None:
        """Adapt to a message that came after `waited_s` seconds."""
        self.immediate = waited_s < SOON_S
        if waited_s >= MAX_S:
            self._streak = 0
        else:
            self._streak += 1
        hot = self._streak >= _STREAK
        self.spin_s = min(max(MIN_S, 2 * waited_s), MAX_S) if hot else 0.0
