"""Records leave a launch at once, or when their region has ended well."""

import errno
import os
import threading

import builders
import pytest

from commbench.errors import UnwritableError
from commbench.model import observed
from commbench.store import parts
from commbench.store.emitter import InMemory, Recorder
from commbench.store.parts import closed
from commbench.store.records import decode

CASE = builders.case()


@pytest.fixture
def recorder(tmp_path):
    """Return a recorder, and the end of the pipe from which its records are read."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with os.fdopen(read_end, "rb", buffering=0) as end, os.fdopen(write_end, "wb") as pipe:
        yield Recorder(pipe, tmp_path, "launch"), end


def arrived(end):
    """Return the records that have come through the pipe so far."""
    return [decode(line) for line in (end.read(1 << 20) or b"").splitlines()]


def transfers(count):
    """Return a table of transfers with the sizes 0, 1, and so on."""
    fields = {**vars(builders.transfer(CASE, 0, 1)), "nbytes": list(range(count))}
    return parts.table(observed.TransferRecord, **fields)


def emit_region(emit, check=None, error=None):
    """Emit a sample and two transfers in a region, `check` before its end, and raise `error`."""
    with emit.region() as keep:
        keep(builders.sample(CASE, 1.0))
        keep(transfers(2))
        if check is not None:
            check()
        if error is not None:
            raise error


def sizes(run):
    return [record.nbytes for record in builders.all_records(run)]


def test_a_phase_is_a_line_of_the_pipe(recorder):
    emit, end = recorder
    emit.phase("collecting")
    assert end.read(100) == b"# collecting\n"


def test_batch_is_on_disk_before_the_next_record_leaves(recorder, tmp_path):
    emit, end = recorder
    emit(transfers(2))
    emit(builders.transfer(CASE, 0, 1, 7))
    assert sizes(tmp_path) == []
    emit(builders.sample(CASE, 1.0))
    assert sizes(tmp_path) == [0, 1, 7]
    assert arrived(end) == [builders.sample(CASE, 1.0)]
    emit(transfers(1))
    emit.close()
    assert sorted(sizes(tmp_path)) == [0, 0, 1, 7]


def test_region_is_emitted_as_a_whole(recorder, tmp_path):
    emit, end = recorder

    def check():
        assert arrived(end) == []
        assert sizes(tmp_path) == []

    emit_region(emit, check)
    assert arrived(end) == [builders.sample(CASE, 1.0)]
    assert sizes(tmp_path) == [0, 1]


def test_parts_of_a_failed_region_are_kept_as_failed(recorder, tmp_path):
    emit, end = recorder
    with pytest.raises(ZeroDivisionError):
        emit_region(emit, error=ZeroDivisionError())
    emit(builders.sample(CASE, 2.0))
    assert arrived(end) == [builders.sample(CASE, 2.0)]
    assert sizes(tmp_path) == []
    (part,) = (tmp_path / "transfers").iterdir()
    assert part.name.endswith(".failed.parquet")


def test_region_in_memory_is_all_or_nothing():
    emit = InMemory()
    with pytest.raises(ZeroDivisionError):
        emit_region(emit, error=ZeroDivisionError())
    assert emit == []

    def check():
        assert emit == []

    emit_region(emit, check)
    assert [type(r).__name__ for r in emit] == ["Sample", "TransferRecord", "TransferRecord"]


def test_failure_does_not_wait_for_the_end_of_a_region(recorder):
    emit, end = recorder
    with emit.region() as keep:
        keep(transfers(3))
        thread = threading.Thread(target=emit, args=[builders.failure(CASE, "first")])
        thread.start()
        thread.join()
        assert arrived(end) == [builders.failure(CASE, "first")]


def test_lines_stay_whole_when_threads_write_at_once(recorder):
    emit, end = recorder
    os.set_blocking(end.fileno(), True)
    records = []

    def read():
        with os.fdopen(os.dup(end.fileno()), "rb") as whole:
            records.extend(decode(next(whole)) for _ in range(2000 + 200))

    reader = threading.Thread(target=read)
    reader.start()
    with emit.region() as keep:
        for number in range(2000):
            keep(builders.sample(CASE, float(number)))
        other = threading.Thread(
            target=lambda: [emit(builders.idle(CASE, float(n))) for n in range(200)]
        )
        other.start()
    other.join()
    reader.join()
    seconds = [record.seconds for record in records if isinstance(record, observed.Sample)]
    assert seconds == [float(number) for number in range(2000)]


def test_part_that_cannot_be_written_is_named(recorder, tmp_path):
    emit, end = recorder
    (tmp_path / "transfers").write_text("no folder")
    with pytest.raises(UnwritableError, match=r"can't write .*/transfers.* is kept in"):
        emit_region(emit)
    assert arrived(end) == []
    assert closed(tmp_path, "TransferRecord") == []


def test_part_cut_by_a_full_disk_is_never_closed(recorder, tmp_path, monkeypatch):
    emit, end = recorder
    emit(transfers(2))
    emit(builders.sample(CASE, 1.0))
    arrived(end)

    def full(table, path):
        path.write_bytes(b"PAR1 and then no room")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    emit(transfers(3))
    with monkeypatch.context() as disk:
        disk.setattr("pyarrow.parquet.write_table", full)
        with pytest.raises(UnwritableError, match="No space left on device"):
            emit(builders.sample(CASE, 2.0))
    assert arrived(end) == []
    emit(builders.failure(CASE, "no room"))
    emit.close()
    assert arrived(end) == [builders.failure(CASE, "no room")]
    assert sizes(tmp_path) == [0, 1]
    assert len(list((tmp_path / "transfers").iterdir())) == 1
