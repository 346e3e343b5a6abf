"""How records leave a launch: few as lines through a pipe, many as parts of files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from commbench.model import Record
from commbench.store import records
from commbench.store.parts import Batch, Parts

Emit = Callable[[Record | Batch], None]


class Emitter(Protocol):
    """What takes the records of a launch."""

    def __call__(self, record: Record | Batch, /) -> None:
        """Let `record` leave, at the latest before the next that is no batch."""

    def region(self) -> AbstractContextManager[Emit]:
        """Give what buffers records until the block ends well, and drops them if it fails."""


class Recorder:
    """Writes records to the runner's pipe, and those of `records.BULK` to parts.

    Records may come from any thread, those of a region from one at a time.

    Parameters
    ----------
    descriptor
        The pipe.
    run
        The run's directory.
    name
        What the names of the parts begin with.
    """

    def __init__(self, descriptor: int, run: Path, name: str) -> None:
        self._pipe = os.fdopen(descriptor, "wb")
        self._lock = threading.RLock()
        self._run, self._name = run, name
        self._parts = Parts(run, name)

    def __call__(self, record: Record | Batch, /) -> None:
        """Write `record` and hand it to the operating system; a batch before the next record."""
        with self._lock:
            if (single := _add(record, self._parts)) is not None:
                self._parts.close()
                self._write(single)

    @contextmanager
    def region(self) -> Iterator[Emit]:
        """Buffer records; write them only if the block succeeds."""
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
            self._write(record)

    def close(self) -> None:
        """Write the batches that no record has followed."""
        with self._lock:
            self._parts.close()

    def _write(self, record: Record) -> None:
        line = records.encode(record) + "\n"
        with self._lock:
            self._pipe.write(line.encode("ascii"))
            self._pipe.flush()


def _add(record: Record | Batch, parts: Parts) -> Record | None:
    """Add `record` to `parts` if it belongs there; else return it."""
    if isinstance(record, Batch):
        parts.add(record)
    elif type(record).__name__ in records.BULK:
        parts.add(Batch.of(type(record), **{name: [value] for name, value in vars(record).items()}))
    else:
        return record
    return None


class InMemory(list[Record]):
    """Keeps records, for who measures without a runner."""

    def __call__(self, record: Record | Batch, /) -> None:
        """Append `record`, or each of a batch."""
        self.extend(record.records() if isinstance(record, Batch) else [record])

    @contextmanager
    def region(self) -> Iterator[Emit]:
        """Buffer records; append them only if the block succeeds."""
        buffer = InMemory()
        yield buffer
        self.extend(buffer)
