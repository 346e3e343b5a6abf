"""UCX's queue is used only where it is as expected, and skipped only what nobody will write."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from commbench.mpi import receive_queue
from commbench.mpi.receive_queue import ReceiveQueue, Senders

SEGMENT = 7
SIZE = 36864


class Memory:
    """Memory with a queue as UCX makes it."""

    def __init__(self) -> None:
        self.buffer = (ctypes.c_uint8 * SIZE)()
        self.start = ctypes.addressof(self.buffer)
        self.write(136, os.getpid(), 4)
        for slot in range(192, 192 + 256 * 128, 128):
            self.write(slot, 1, 1)
            self.write(slot + 4, SEGMENT, 8)

    def write(self, offset: int, value: int, nbytes: int) -> None:
        """Write a number."""
        ctypes.memmove(self.start + offset, value.to_bytes(nbytes, "little"), nbytes)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Return memory that passes for a segment of this process."""
    memory = Memory()
    mappings = [(memory.start, memory.start + SIZE)]
    monkeypatch.setattr(receive_queue, "mapped", lambda _: mappings)
    return memory


@pytest.fixture
def sender() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that always computes."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_slots_that_were_taken_and_not_written(memory: Memory) -> None:
    """In every round through the queue; what is written is no more among them."""
    queue = ReceiveQueue.find([SEGMENT])
    assert queue is not None
    for number in range(600):
        assert queue.take() == number
        if number % 100 == 99:
            assert queue.unwritten() == [number]
        queue.skip(number)
        assert queue.unwritten() == []


@pytest.mark.parametrize(
    ("offset", "value", "nbytes"),
    [(0, 1, 8), (136, 1, 4), (192, 0, 1), (192 + 255 * 128, 3, 1), (192 + 4, SEGMENT + 1, 8)],
)
def test_another_layout_is_left_alone(memory: Memory, offset: int, value: int, nbytes: int) -> None:
    """Such as that of another version of UCX, or of a queue that is in use."""
    memory.write(offset, value, nbytes)
    assert ReceiveQueue.find([SEGMENT]) is None


def stuck(queue: ReceiveQueue, *pids: int) -> Senders:
    """Return the senders of a queue in which a slot was taken a while ago."""
    senders = Senders()
    senders.queue = queue
    for pid in pids:
        senders.add(pid)
    queue.take()
    assert senders.look()
    time.sleep(receive_queue.PATIENCE_S + 0.1)
    return senders


def dead() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_dead_sender_s_slot_is_skipped(memory: Memory, sender: subprocess.Popen[bytes]) -> None:
    """Another that computes, and this process, can't be in the middle of a write."""
    queue = ReceiveQueue(memory.start)
    senders = stuck(queue, dead(), sender.pid, os.getpid())
    deadline = time.monotonic() + 60
    while senders.look():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert queue.unwritten() == []


def test_nothing_is_skipped_while_all_senders_live(
    memory: Memory, sender: subprocess.Popen[bytes]
) -> None:
    """One of them will write."""
    queue = ReceiveQueue(memory.start)
    assert stuck(queue, sender.pid, os.getpid()).look()
    assert queue.unwritten() == [0]


def test_nothing_is_skipped_while_another_is_stopped(
    memory: Memory, sender: subprocess.Popen[bytes]
) -> None:
    """It may be the one that has taken the slot, whoever else has died."""
    os.kill(sender.pid, signal.SIGSTOP)
    queue = ReceiveQueue(memory.start)
    senders = stuck(queue, dead(), sender.pid)
    assert senders.look()
    assert queue.unwritten() == [0]
    os.kill(sender.pid, signal.SIGKILL)
    # It is a zombie, until its parent asks for it.
    deadline = time.monotonic() + 60
    while senders.look():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert queue.unwritten() == []
