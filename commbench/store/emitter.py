"""The output of a launch: records through a pipe, and bulk records as parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from commbench.model.observed import Record
from commbench.store import parts, records
from commbench.store.parts import Parts

if TYPE_CHECKING:
    import pyarrow as pa

PHASE = "# "
"""The beginning of a line of the pipe that is no record, but the name of a phase."""
Emit = Callable[["Record | pa.Table"], None]
"""Takes a record, or a table of records of one kind."""


class Recorder:
    """An emitter that writes records to the runner's pipe, and bulk records to parts.

    Threads may emit records concurrently, but not those of the same region.

    Parameters
    ----------
    pipe
        The file to which small records are written.
    run
        The run's directory.
    name
        The prefix of the names of parts.
    """

    def __init__(self, pipe: BinaryIO, run: Path, name: str) -> None:
        self._pipe = pipe
        self._lock = threading.RLock()
        self._run, self._name = run, name
        self._parts = Parts(run, name)

    def __call__(self, record: Record | pa.Table, /) -> None:
        """Write and flush `record`; a table may be buffered until the next single record."""
        with self._lock:
            if (single := _add(record, self._parts)) is not None:
                self._parts.close()
                self._write_line(records.encode(single))

    @contextmanager
    def region(self) -> Iterator[Emit]:
        """Buffer records, which count only if the block succeeds."""
        bulk, few = Parts(self._run, self._name), list[Record]()

        def buffer(record: Record | pa.Table) -> None:
            if (single := _add(record, bulk)) is not None:
                few.append(single)

        self.close()
        try:
            yield buffer
        except BaseException:
            bulk.fail()
            raise
        bulk.close()
        for record in few:
            self._write_line(records.encode(record))

    def phase(self, name: str) -> None:
        """Write `name` as a line that is no record."""
        self._write_line(f"{PHASE}{name}")

    def close(self) -> None:
        """Write the buffered tables."""
        with self._lock:
            self._parts.close()

    def _write_line(self, line: str) -> None:
        with self._lock:
            self._pipe.write(f"{line}\n".encode("ascii"))
            self._pipe.flush()


def _add(record: Record | pa.Table, bulk: Parts) -> Record | None:
    """Add `record` to `bulk` if it is a table or a bulk record, else return it."""
    if not isinstance(record, Record):
        bulk.add(record)
    elif record.in_parts:
        bulk.add(parts.table(type(record), **vars(record)))
    else:
        return record
    return None


class InMemory(list[Record]):
    """An emitter that keeps records in memory, to measure without a runner."""

    def __call__(self, record: Record | pa.Table, /) -> None:
        """Append `record`, or each record of a table."""
        self.extend([record] if isinstance(record, Record) else parts.to_records(record))

    def phase(self, name: str) -> None:
        """Ignore the phase."""

    @contextmanager
    def region(self) -> Iterator[Emit]:
        """Buffer records; append them only if the block succeeds."""
        buffer = InMemory()
        yield buffer
        self.extend(buffer)


Emitter = Recorder | InMemory
"""A sink for the records of a launch."""
