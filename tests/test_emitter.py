"""How records leave a launch: at once, or not before what they tell of is known to be right."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import builders
import pytest

from commbench import emitter, lines, model
from commbench.emitter import InMemory, Pipe
from commbench.records import decode

CASE = builders.case()


class WrongError(Exception):
    """What ends a block in these tests."""


@pytest.fixture
def pipe(tmp_path):
    """Return a pipe's emitter and the end from which its records are read."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with os.fdopen(read_end, "rb", buffering=0) as end:
        emit = Pipe(write_end, tmp_path)
        yield emit, end
        emit._pipe.close()


def arrived(end):
    """Return the records that have come so far."""
    return [decode(line) for line in (end.read(1 << 20) or b"").splitlines()]


def transfers(count):
    """Return as many records as lines, which are numbered."""
    fields = {**vars(builders.transfer(CASE, 0, 1)), "nbytes": list(range(count))}
    return lines.of(model.TransferRecord, **fields)


def test_a_record_has_left_when_the_call_returns(pipe):
    """Each record is in the pipe at once, and so are many together."""
    emit, end = pipe
    emit(builders.sample(CASE, 1.0))
    assert arrived(end) == [builders.sample(CASE, 1.0)]
    emit(transfers(3))
    assert [record.nbytes for record in arrived(end)] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["pipe", "memory"])
def test_what_is_held_leaves_in_order_at_the_end(kind, pipe):
    """Before the end of the block nothing has left; then all has, in its order."""
    emit, end = pipe if kind == "pipe" else (InMemory(), None)
    with emit.held() as hold:
        hold(builders.sample(CASE, 1.0))
        hold(transfers(2))
        hold(builders.sample(CASE, 2.0))
        assert (arrived(end) if end else emit) == []
    told = arrived(end) if end else list(emit)
    assert [type(record).__name__ for record in told] == [
        "Sample", "TransferRecord", "TransferRecord", "Sample"
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "memory"])
def test_what_is_held_is_lost_where_the_block_fails(kind, pipe):
    """A wrong result leaves nothing behind, and what comes later is not held up."""
    emit, end = pipe if kind == "pipe" else (InMemory(), None)

    def fail():
        with emit.held() as hold:
            hold(builders.sample(CASE, 1.0))
            hold(transfers(2))
            raise WrongError

    with pytest.raises(WrongError):
        fail()
    emit(builders.sample(CASE, 2.0))
    assert (arrived(end) if end else emit) == [builders.sample(CASE, 2.0)]


def test_a_failure_is_told_while_others_are_held(pipe):
    """What another thread has to tell does not wait for the check."""
    emit, end = pipe
    with emit.held() as hold:
        hold(transfers(3))
        thread = threading.Thread(target=emit, args=[builders.failure(CASE, "first")])
        thread.start()
        thread.join()
        assert arrived(end) == [builders.failure(CASE, "first")]
    assert len(arrived(end)) == 3


def test_lines_stay_whole_when_threads_tell_at_once(pipe):
    """More than a pipe takes leaves while it is read, and nothing comes in the middle of a line."""
    emit, end = pipe
    os.set_blocking(end.fileno(), True)
    found = []

    def read():
        with os.fdopen(os.dup(end.fileno()), "rb") as whole:
            found.extend(decode(next(whole)) for _ in range(5000 + 200))

    reader = threading.Thread(target=read)
    reader.start()
    with emit.held() as hold:
        hold(transfers(5000))
        other = threading.Thread(
            target=lambda: [emit(builders.sample(CASE, 1.0)) for _ in range(200)]
        )
        other.start()
    other.join()
    reader.join()
    numbers = [record.nbytes for record in found if isinstance(record, model.TransferRecord)]
    assert numbers == list(range(5000))


def files_of(folder):
    """Return the files in `folder` that this process has open, names or not."""
    opened = (str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return [name for name in opened if name.startswith(str(folder))]


def test_what_is_held_beyond_a_bound_is_not_in_memory(pipe, tmp_path, monkeypatch):
    """It lies in a file that has no name, comes back whole, and is gone with the block."""
    emit, end = pipe
    monkeypatch.setattr(emitter, "HELD_BYTES", 10_000)
    with emit.held() as hold:
        hold(transfers(10))
        assert files_of(tmp_path) == []
        hold(transfers(100))
        assert len(files_of(tmp_path)) == 1
        assert list(tmp_path.iterdir()) == []
    assert files_of(tmp_path) == []
    assert [record.nbytes for record in arrived(end)] == [*range(10), *range(100)]
