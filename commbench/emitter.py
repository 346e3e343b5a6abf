"""How records leave a launch: at once, or together when what they tell of has been checked."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from commbench import lines
from commbench.lines import Lines
from commbench.model import Record

Emit = Callable[[Record | Lines], None]
HELD_BYTES = 16_000_000
"""How much of what is held back is in memory; beyond that it lies in a file."""
_AT_ONCE = 1 << 16


class Emitter(Protocol):
    """What takes the records of a launch."""

    def __call__(self, record: Record | Lines, /) -> None:
        """Let `record` leave before returning."""

    def held(self) -> AbstractContextManager[Emit]:
        """Give what holds records back until the block ends well, and loses them if it fails."""


class Pipe:
    """Writes records to the runner's pipe, whole lines at a time, from any thread.

    Parameters
    ----------
    folder
        Where what is held back may lie in a file, which has no name and ends with this process.
    """

    def __init__(self, descriptor: int, folder: Path) -> None:
        self._pipe = os.fdopen(descriptor, "wb")
        self._lock = threading.Lock()
        self._folder = str(folder)

    def __call__(self, record: Record | Lines, /) -> None:
        """Write `record` and hand it to the operating system."""
        self._write(lines.told(record)[1].encode("ascii"))

    @contextmanager
    def held(self) -> Iterator[Emit]:
        """Hold records back, in bounded memory, until the block ends well."""
        with tempfile.SpooledTemporaryFile(HELD_BYTES, dir=self._folder) as spool:

            def hold(record: Record | Lines) -> None:
                spool.write(lines.told(record)[1].encode("ascii"))

            yield hold
            spool.seek(0)
            # Not all at once: a failure that another thread tells of must not wait for it.
            while whole := spool.readlines(_AT_ONCE):
                self._write(b"".join(whole))

    def _write(self, text: bytes) -> None:
        with self._lock:
            self._pipe.write(text)
            self._pipe.flush()


class InMemory(list[Record]):
    """Keeps records, for who measures without a runner."""

    def __call__(self, record: Record | Lines, /) -> None:
        """Append `record`, or each of its lines."""
        self.extend(record.records() if isinstance(record, Lines) else [record])

    @contextmanager
    def held(self) -> Iterator[Emit]:
        """Hold records back until the block ends well."""
        held = InMemory()
        yield held
        self.extend(held)
