import gc
import threading

import numpy as np
import pytest

from commbench.mpi.buffers import Buffers

MB = 1_000_000


def test_buffer_is_not_reused_while_a_slice_or_array_of_it_lives():
    buffers = Buffers()
    makers = [
        lambda taken: taken,
        lambda taken: taken[100:200],
        lambda taken: np.frombuffer(taken, "u1"),
        lambda taken: np.asarray(taken)[5:],
        lambda taken: np.asarray(taken.obj).view("u2")[3:9],
        lambda taken: np.ndarray(10, "u1", buffer=taken, offset=7),
        lambda taken: np.ndarray(10, "u1", buffer=np.asarray(taken).data),
        lambda taken: memoryview(np.asarray(taken)[::2]),
    ]
    for make in makers:
        taken = buffers.take(MB)
        np.asarray(taken)[:] = 1
        kept = make(taken)
        del taken
        other = np.asarray(buffers.take(MB))
        other[:] = 2
        assert set(np.asarray(kept).tobytes()) == {1}
        del kept, other


def test_buffer_revived_by_a_finalizer_is_not_reused():
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


def test_free_buffer_is_reused_for_about_the_same_size():
    buffers = Buffers()
    address = np.asarray(buffers.take(MB)).ctypes.data
    assert np.asarray(buffers.take(MB - 1000)).ctypes.data == address


@pytest.mark.parametrize(
    ("options", "nbytes", "n_kept"),
    [({"max_free": 3 * 2**20}, 2**20, 3), ({}, 2**20, 10), ({}, Buffers.SMALL - 1, 0)],
)
def test_free_buffers_but_small_ones_are_kept_up_to_a_limit_and_for_their_time(
    options, nbytes, n_kept
):
    buffers = Buffers(**options, keep_s=1e6)
    taken = [buffers.take(nbytes) for _ in range(10)]
    del taken
    for keep_s, n_left in ((1e6, n_kept), (0.0, 0)):
        assert buffers.n_free_bytes == n_kept * nbytes
        buffers._keep_s = keep_s
        buffers.trim()
        assert buffers.n_free_bytes == n_left * nbytes


def test_more_than_there_is_memory_is_a_memory_error():
    with pytest.raises(MemoryError, match="no memory for a message of"):
        Buffers().take(2**62)


def test_buffers_dropped_in_other_threads_are_never_used_twice_at_once():
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
