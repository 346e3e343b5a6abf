"""UCX's queue is used only where it is as expected, and skipped only what nobody will write."""

import asyncio
import ctypes
import importlib.util
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peers import reserve
from processes import until

from commbench.mpi import pairs, receive_queue
from commbench.mpi.receive_queue import (
    RAN_TICKS,
    ReceiveQueue,
    Senders,
    _may_write,
    _Thread,
    _threads,
)

SEGMENT = 7


class Memory:
    """Memory with a queue as UCX makes it.

    Parameters
    ----------
    n_slots, nbytes
        How many slots it has, and the size of each.
    """

    def __init__(self, n_slots: int = 256, nbytes: int = 128) -> None:
        size = -(-(192 + n_slots * nbytes + 63) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.buffer = (ctypes.c_uint8 * size)()
        self.start = ctypes.addressof(self.buffer)
        self.mapping = (self.start, self.start + size)
        self.write(136, os.getpid(), 4)
        for slot in range(192, 192 + n_slots * nbytes, nbytes):
            self.write(slot, 1, 1)
            self.write(slot + 4, SEGMENT, 8)

    def write(self, offset: int, value: int, nbytes: int) -> None:
        """Write a number."""
        ctypes.memmove(self.start + offset, value.to_bytes(nbytes, "little"), nbytes)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Return memory that passes for a segment of this process."""
    memory = Memory()
    monkeypatch.setattr(receive_queue, "mapped", lambda _: [memory.mapping])
    return memory


@pytest.fixture
def queue(memory: Memory) -> ReceiveQueue:
    return ReceiveQueue(memory.start)


@pytest.fixture
def sender() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that always computes."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_reserved_slots_are_unwritten_until_skipped_in_every_round(memory: Memory) -> None:
    queue = ReceiveQueue.find([SEGMENT])
    assert queue is not None
    for number in range(600):
        assert reserve(queue) == number
        if number % 100 == 99:
            assert queue.unwritten() == [number]
        queue.skip(number)
        assert queue.unwritten() == []


@pytest.mark.parametrize(
    ("offset", "value", "nbytes"),
    [(0, 1, 8), (136, 1, 4), (192, 0, 1), (192 + 255 * 128, 3, 1), (192 + 4, SEGMENT + 1, 8)],
)
def test_queue_of_another_layout_is_not_used(
    memory: Memory, offset: int, value: int, nbytes: int
) -> None:
    memory.write(offset, value, nbytes)
    assert ReceiveQueue.find([SEGMENT]) is None


@pytest.mark.parametrize(
    ("n_slots", "nbytes"), [(64, 128), (128, 128), (512, 128), (1024, 128), (512, 64)]
)
def test_queue_of_another_size_is_not_used(
    n_slots: int, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Memory(n_slots, nbytes)
    monkeypatch.setattr(receive_queue, "mapped", lambda _: [other.mapping])
    assert ReceiveQueue.find([SEGMENT]) is None


def stuck(queue: ReceiveQueue, *pids: int) -> Senders:
    """Return the senders of a queue in which a slot was taken a while ago."""
    senders = Senders()
    senders.watch(queue)
    for pid in pids:
        senders.add(pid)
    reserve(queue)
    # At first sight it may be about to be written.
    assert senders.skip_abandoned()
    assert senders.skip_abandoned()
    time.sleep(receive_queue.ABANDONED_S + 0.1)
    return senders


def check_until_free(senders: Senders, queue: ReceiveQueue) -> None:
    """Look until a slot has been skipped, and none is unwritten."""
    until(lambda: not senders.skip_abandoned() and senders.has_skipped, "a slot is skipped")
    assert queue.unwritten() == []


def dead() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_slot_of_a_dead_sender_is_skipped(
    queue: ReceiveQueue, sender: subprocess.Popen[bytes]
) -> None:
    check_until_free(stuck(queue, dead(), sender.pid, os.getpid()), queue)


def test_nothing_is_skipped_while_all_senders_live(
    queue: ReceiveQueue, sender: subprocess.Popen[bytes]
) -> None:
    senders = stuck(queue, sender.pid)
    for _ in range(20):
        assert senders.skip_abandoned()
        time.sleep(0.05)
    assert queue.unwritten() == [0]


def test_nothing_is_skipped_while_another_sender_is_stopped(
    queue: ReceiveQueue, sender: subprocess.Popen[bytes]
) -> None:
    """It may be the one that has taken the slot, whoever else has died."""
    os.kill(sender.pid, signal.SIGSTOP)
    senders = stuck(queue, dead(), sender.pid)
    assert senders.skip_abandoned()
    assert queue.unwritten() == [0]
    os.kill(sender.pid, signal.SIGKILL)
    # It is a zombie, until its parent asks for it.
    check_until_free(senders, queue)


ASLEEP, AWAKE = _Thread(True, 0), _Thread(False, 0)
SEEN_TWICE = {
    "it slept": ({"1": ASLEEP}, {"1": ASLEEP}, False),
    "it slept at first": ({"1": ASLEEP}, {"1": AWAKE}, False),
    "it sleeps now": ({"1": AWAKE}, {"1": ASLEEP}, False),
    "it never slept": ({"1": AWAKE}, {"1": AWAKE}, True),
    "it hardly ran": ({"1": AWAKE}, {"1": _Thread(False, RAN_TICKS - 1)}, True),
    "it ran": ({"1": AWAKE}, {"1": _Thread(False, RAN_TICKS)}, False),
    "another did": ({"1": AWAKE, "2": AWAKE}, {"1": AWAKE, "2": ASLEEP}, True),
    "it is new": ({"1": ASLEEP}, {"2": AWAKE}, False),
    "it was not seen": (None, {"1": ASLEEP}, True),
    "it is not seen": ({"1": ASLEEP}, None, True),
    "it died": (None, {}, False),
}


@pytest.mark.parametrize(("before", "now", "may"), SEEN_TWICE.values(), ids=SEEN_TWICE)
def test_thread_that_neither_slept_nor_ran_may_be_in_a_write(
    before: Any, now: Any, may: bool
) -> None:
    assert _may_write(before, now) is may


def test_only_threads_that_wait_in_a_system_call_are_in_call(
    sender: subprocess.Popen[bytes],
) -> None:
    code = "import ctypes, sys, time; ctypes.CDLL(None).prctl(15, b'aaaaaaaaaaaaaa\\xc3\\xa9'); " \
        "print(flush=True); time.sleep(1e6)"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()

        def seen(pid: int) -> list[bool]:
            return [thread.in_call for thread in (_threads(pid) or {}).values()]

        until(lambda: seen(waiting.pid) == [True], "it waits")
        assert seen(sender.pid) == [False]
        os.kill(sender.pid, signal.SIGSTOP)
        assert seen(sender.pid) == [False]
        waiting.kill()


def test_message_written_while_the_senders_are_checked_is_kept(
    memory: Memory, queue: ReceiveQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    senders = stuck(queue, dead())
    threads = receive_queue._threads

    def written(pid: int) -> Any:
        memory.write(192, 0x000C0200, 4)
        return threads(pid)

    monkeypatch.setattr(receive_queue, "_threads", written)
    senders.skip_abandoned()
    assert bytes(memory.buffer)[192:196] == bytes.fromhex("00020c00")


def test_event_loops_do_not_wait_while_threads_are_read(
    queue: ReceiveQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some processes have thousands, and `are_blocked` is called in event loops."""
    senders = stuck(queue, dead())
    answers: list[bool] = []

    def threads(_: int) -> dict[str, _Thread]:
        event_loop = threading.Thread(
            target=lambda: answers.append(senders.are_blocked()), daemon=True
        )
        event_loop.start()
        event_loop.join(60)
        return {}

    monkeypatch.setattr(receive_queue, "_threads", threads)
    assert senders.skip_abandoned()
    assert answers == [True]


def test_sender_that_dies_between_two_checks_is_not_forgotten(
    queue: ReceiveQueue, sender: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    senders = Senders()
    senders.watch(queue)
    senders.add(sender.pid)
    unwritten = queue.unwritten

    def dies() -> list[int]:
        if sender.poll() is None:
            numbers = unwritten()
            reserve(queue)
            sender.kill()
            sender.wait()
            return numbers
        return unwritten()

    monkeypatch.setattr(queue, "unwritten", dies)
    assert not senders.skip_abandoned()
    check_until_free(senders, queue)


EXITING = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.PyDLL(None).pthread_exit(None)
"""


def test_sender_that_is_about_to_end_is_not_forgotten(queue: ReceiveQueue) -> None:
    """Its connections may be closed before the kernel says that it has ended."""
    senders = Senders()
    senders.watch(queue)
    command = [sys.executable, "-c", EXITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            sender = senders.add(process.pid)
            until(lambda: sender.is_ending, "the main thread has not ended")
            assert not sender.is_dead
            senders.discard(sender)
            assert senders._counts
        finally:
            process.kill()
    alive = senders.add(os.getpid())
    senders.discard(alive)
    assert alive not in senders._counts


def test_checks_are_scheduled_anew_in_another_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = []
    monkeypatch.setattr(pairs, "RELEASE_AFTER_S", (0.05,))
    monkeypatch.setattr(pairs, "_check", lambda _: loops.append(asyncio.get_running_loop()))

    async def connection_ends(stay_s: float) -> None:
        pairs.release_dead_soon()
        pairs.release_dead_soon()
        await asyncio.sleep(stay_s)

    asyncio.run(connection_ends(0))
    asyncio.run(connection_ends(0.5))
    assert len(loops) == 1


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("first", ["", "from mpi4py import MPI"])
def test_nothing_is_skipped_after_mpi_has_ended(first: str) -> None:
    """Whether commbench or the application has initialised it."""
    code = """
        from commbench.mpi.receive_queue import SENDERS
        from commbench.mpi.runtime import runtime
        own = runtime("127.0.0.1")
        assert own.mode != "elastic" or (SENDERS._queue is not None and own.segments)
        SENDERS.skip_abandoned()
        own.mpi.Finalize()
        assert not SENDERS.skip_abandoned()
        print("loops")
    """
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    command = [mpiexec, "-n", "1", sys.executable, "-c", first + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "loops", done.stderr
