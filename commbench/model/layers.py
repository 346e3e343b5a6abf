"""The names of the layers at which messages and fetches are timed."""

LAYERS = ("memcpy", "raw", "coroutine", "comm", "worker")
"""The layers of the software between two processes, from the wire up."""
FETCHES = ("alone", "together", "rounds")
"""The layers of fetches between workers: one ordered pair at a time, all at once, or in rounds."""
AGAIN = "again"
"""The channel of pairs that were slow in a round, and fetch again alone."""
