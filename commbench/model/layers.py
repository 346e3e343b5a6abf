"""The names of the layers at which messages and fetches are timed."""

LAYERS = ("memcpy", "raw", "coroutine", "comm", "worker")
"""The layers of the software between two processes, from the wire up."""
FETCHES = ("alone", "together")
"""The layers of fetches between workers: one ordered pair at a time, or all at once."""
