"""The output of a launch: records through a pipe, and bulk records as parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from commbench.model import Record
from commbench.store import records
from commbench.store.parts import Batch, Parts

PHASE = "# "
"""The beginning of a line of the pipe that is no record, but the name of a phase."""
Emit = Callable[[Record | Batch], None]


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

    def __call__(self, record: Record | Batch, /) -> None:
        """Write and flush `record`; a batch may be buffered until the next single record."""
        with self._lock:
            if (single := _add(record, self._parts)) is not None:
                self._parts.close()
                self._write_line(records.encode(single))

    @contextmanager
    def region(self) -> Iterator[Emit]:
        """Buffer records, which count only if the block succeeds."""
        parts, few = Parts(self._run, self._name), list[Record]()

        def buffer(record: Record | Batch) -> None:
            if (single := _add(record, parts)) is not None:
                few.append(single)

        self.close()
        try:
            yield buffer
        except BaseException:
            parts.fail()
            raise
        parts.close()
        for record in few:
            self._write_line(records.encode(record))

    def phase(self, name: str) -> None:
        """Write `name` as a line that is no record."""
        self._write_line(f"{PHASE}{name}")

    def close(self) -> None:
        """Write the buffered batches."""
        with self._lock:
            self._parts.close()

    def _write_line(self, line: str) -> None:
        with self._lock:
            self._pipe.write(f"{line}\n".encode("ascii"))
            self._pipe.flush()


def _add(record: Record | Batch, parts: Parts) -> Record | None:
    """Add `record` to `parts` if it is a bulk record, else return it."""
    if isinstance(record, Batch):
        parts.add(record)
    elif (kind := type(record).__name__) in records.BULK:
        parts.add(Batch(kind, {name: [value] for name, value in vars(record).items()}))
    else:
        return record
    return None


class InMemory(list[Record]):
    """An emitter that keeps records in memory, to measure without a runner."""

    def __call__(self, record: Record | Batch, /) -> None:
        """Append `record`, or each record of a batch."""
        self.extend(record.records() if isinstance(record, Batch) else [record])

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
