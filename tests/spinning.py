"""Tasks that use the processor; workers import them."""

import threading
import time


def spin(seconds: float) -> None:
    """Use the processor of this thread."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def spin_in_threads(seconds: float, n_threads: int) -> None:
    """Use the processor for that long in each of some threads."""
    threads = [threading.Thread(target=spin, args=[seconds]) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
