"""How long to look for the next message before resting: as long as the last ones suggest.

Who looks is answered at once, and burns a core; who rests needs a doorbell, which costs both ends
a system call and the wait for the scheduler of the operating system. So a conversation is *hot*
while its messages come soon after each other, and cold otherwise: then nobody looks at all.
"""

from __future__ import annotations

__all__ = ["MAX_S", "MIN_S", "SOON_S", "Patience"]

SOON_S = 300e-6
"""About what a sleep and a doorbell cost: a message that comes sooner is looked for at once."""
MIN_S = 300e-6
MAX_S = 2e-3
"""The shortest and the longest time to look."""
_STREAK = 2
"""So many messages must come soon before the next one is looked for."""


class Patience:
    """Learns from every wait.

    Attributes
    ----------
    seconds
        How long to look for the next message; 0 where the conversation is cold.
    immediate
        Whether the next message is likely to come so soon that a turn of the event loop matters.

    Examples
    --------
    >>> patience = Patience()
    >>> patience.seconds
    0.0
    >>> for waited in (100e-6, 400e-6):
    ...     patience.learn(waited)
    >>> patience.seconds, patience.immediate
    (0.0008, False)
    >>> patience.learn(1.0)
    >>> patience.seconds
    0.0
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.immediate = False
        self._streak = 0

    def learn(self, waited: float) -> None:
        """Take note that a message came after so many seconds."""
        self.immediate = waited < SOON_S
        if waited >= MAX_S:
            self._streak = 0
        else:
            self._streak += 1
        hot = self._streak >= _STREAK
        self.seconds = min(max(MIN_S, 2 * waited), MAX_S) if hot else 0.0
