"""The names of the layers at which messages and fetches are timed."""

LAYERS = ("memcpy", "raw", "coroutine", "comm", "worker")
"""The layers of the software between two processes, from the wire up."""
FETCHES = {
    "alone": "one pair at a time", "together": "all pairs at once", "rounds": "in rounds",
}  # fmt: skip
"""The layers of fetches between workers, and how many ordered pairs fetch, in words."""
AGAIN = "again"
"""The channel of pairs that were slow in a round, and fetch again alone."""
