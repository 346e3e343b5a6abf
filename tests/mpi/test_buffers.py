from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from commbench.mpi.buffers import Buffers

MB = 1_000_000


def test_a_buffer_is_not_lent_again_while_anything_is_made_of_it():
    """Arrays, slices of arrays and buffers of slices each keep the memory to themselves."""
    buffers = Buffers()
    makers = [
        lambda lent: lent,
        lambda lent: lent[100:200],
        lambda lent: np.frombuffer(lent, "u1"),
        lambda lent: np.asarray(lent)[5:],
        lambda lent: np.asarray(lent.obj).view("u2")[3:9],
        lambda lent: np.ndarray(10, "u1", buffer=lent, offset=7),
        lambda lent: np.ndarray(10, "u1", buffer=np.asarray(lent).data),
        lambda lent: memoryview(np.asarray(lent)[::2]),
    ]
    for make in makers:
        lent = buffers.take(MB)
        np.asarray(lent)[:] = 1
        kept = make(lent)
        del lent
        other = np.asarray(buffers.take(MB))
        other[:] = 2
        assert set(np.asarray(kept).tobytes()) == {1}
        del kept, other


def test_a_buffer_revived_by_a_finalizer_is_not_lent_again():
    """What the garbage collector has given up may come back to life: it stays intact."""
    buffers = Buffers()
    revived = []

    class Phoenix:
        def __del__(self) -> None:
            revived.append(self.data)

    phoenix = Phoenix()
    phoenix.myself = phoenix
    phoenix.data = np.asarray(buffers.take(MB))
    phoenix.data[:] = 1
    del phoenix
    gc.collect()
    np.asarray(buffers.take(MB))[:] = 2
    assert (revived[0] == 1).all()


def test_a_free_buffer_is_lent_again():
    """The same memory serves the next message of about the same size."""
    buffers = Buffers()
    address = np.asarray(buffers.take(MB)).ctypes.data
    assert np.asarray(buffers.take(MB - 1000)).ctypes.data == address


def test_what_is_kept_is_limited():
    """No more than that is kept, however much was in use at once."""
    buffers = Buffers(max_free=3 * 2**20)
    lent = [buffers.take(2**20) for _ in range(10)]
    del lent
    assert buffers.n_free_bytes == 3 * 2**20


def test_what_nobody_wants_is_let_go():
    """After its time a free buffer goes back to the system."""
    buffers = Buffers(keep_s=0.0)
    buffers.take(MB)
    assert buffers.n_free_bytes > 0
    buffers.trim()
    assert buffers.n_free_bytes == 0


def test_small_buffers_are_not_kept():
    """The allocator recycles these by itself."""
    buffers = Buffers()
    buffers.take(Buffers.SMALL - 1)
    assert buffers.n_free_bytes == 0


def test_more_than_there_is_memory_is_told():
    """A size that no machine has is a MemoryError, not a crash."""
    with pytest.raises(MemoryError, match="no memory for a message of"):
        Buffers().take(2**62)


def test_threads_drop_buffers_at_any_time():
    """Buffers taken in one thread and dropped in others are never lent twice at once."""
    buffers = Buffers()
    failures = []

    def work(number: int) -> None:
        for _ in range(300):
            mine = np.asarray(buffers.take(200_000))
            mine[:] = number
            if not (mine == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
