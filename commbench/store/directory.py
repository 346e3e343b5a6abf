"""Read and write the directory of a run.

``<run>/run.json`` has the manifest; ``<run>/samples.jsonl`` the records, one JSON object per line,
each flushed. Bulk records are in parts (`commbench.store.parts`), which are merged when the run
ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import json
import os
import re
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TextIO

from commbench import model
from commbench.errors import ResultsError, UnwritableError, UsageError
from commbench.model import Manifest
from commbench.model.observed import Failure, LaunchEnd, Record
from commbench.store import parts, records
from commbench.store.parts import Parts, writing

LATEST = "latest"
"""What users write for the newest run in ``results/``."""


class RunStore:
    """The writer of the directory of a run; a run that is measured has only one.

    Raises
    ------
    ResultsError
        From every method, if writing fails; earlier records stay readable.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._file: TextIO | None = None

    @classmethod
    def create(cls, output: Path, manifest: Manifest) -> RunStore:
        """Create ``output/manifest.id``, an id of ``new_run_id``, and write the manifest.

        Raises
        ------
        UnwritableError
            If the folder can't be written.
        """
        path = output / manifest.id
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write_whole(path / "run.json", _text(manifest))
        except OSError as error:
            raise _not_made(path, error) from error
        store = cls(path, manifest)
        store._open()
        return store

    @classmethod
    def reopen(cls, path: Path, *, to_measure: bool = False) -> RunStore:
        """Return the store of a run.

        Raises
        ------
        ResultsError
            If it is `to_measure`, and another process measures it.
        """
        _refuse_name(path)
        store = cls(path, read_manifest(path))
        if to_measure:
            store._open()
        return store

    def update(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        self.write("run.json", _text(manifest))
        self.manifest = manifest

    def append(self, record: Record) -> None:
        """Write `record` and flush the file."""
        try:
            file = self._open()
            with writing(self.path, self.path / records.FILE):
                file.write(records.encode(record) + "\n")
                file.flush()
        except UnwritableError:
            self.close()
            raise

    def add_block(
        self, run: Path, number: int, renamed: Callable[[str], str], notes: list[str]
    ) -> list[LaunchEnd]:
        """Add the records of a run with one launch per case as a block; return the ends of these.

        Parameters
        ----------
        renamed
            Returns the message of a failure with the paths that logs have in this run.
        notes
            A list to which a sentence is added for each invalid line.
        """
        ends: list[LaunchEnd] = []
        for fields in records.read(run / records.FILE, notes):
            record = records.from_fields({**fields, "launch": number})
            if isinstance(record, LaunchEnd):
                ends.append(dataclasses.replace(record, block=number))
            elif isinstance(record, Failure):
                self.append(dataclasses.replace(record, message=renamed(record.message)))
            else:
                self.append(record)
        block = self.parts(f"block-{number}")
        for kind in records.BULK:
            for part in parts.closed(run, kind):
                table = parts.read(part, kind)
                column = table.schema.get_field_index("launch")
                launches = [number] * len(table)
                block.add(table.set_column(column, table.schema.field(column), [launches]))
        block.close()
        # A launch without its transfers doesn't count.
        for end in ends:
            self.append(end)
        return ends

    def file(self) -> BinaryIO:
        """Return the file of the records, for a `Recorder` in the same process."""
        return self._open().buffer

    def _open(self) -> TextIO:
        if self._file is None:
            with writing(self.path, self.path / records.FILE):
                self._file = _open_for_append(self.path / records.FILE)
            # It is open from the start on, which keeps others from the run.
            weakref.finalize(self, self._file.close)
        return self._file

    def parts(self, name: str) -> Parts:
        """Return a writer of parts with the prefix `name`."""
        return Parts(self.path, name)

    def close(self) -> None:
        """Close the file; ``append`` opens it again."""
        if self._file is not None:
            # Every record was flushed; only a record that could not be written may be left.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def write(self, name: str, content: str | bytes) -> None:
        """Write a report or a figure next to the records."""
        path = self.path / name
        with writing(self.path, path):
            path.parent.mkdir(exist_ok=True)
            _write_whole(path, content)

    def finish(self) -> None:
        """Merge the parts of each kind, then close the file, which lets others have the run.

        Raises
        ------
        ResultsError
            If another process measures the run, or a merged part can't be written.
        """
        self._open()
        try:
            for kind in records.BULK:
                parts.merge(self.path, kind)
        finally:
            self.close()


def _open_for_append(path: Path) -> TextIO:
    file = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ResultsError(
            f"another process measures {path.parent}; wait until it has ended, or begin a new run"
        ) from error
    except OSError:
        # Not all file systems have locks.
        pass
    if file.tell():
        with path.open("rb") as written:
            written.seek(-1, os.SEEK_END)
            # A line that was cut short by a crash must not be joined with the next record.
            if written.read() != b"\n":
                file.write("\n")
    return file


def _text(manifest: Manifest) -> str:
    return json.dumps(dataclasses.asdict(manifest), indent=1)


def _write_whole(path: Path, content: str | bytes) -> None:
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _not_made(path: Path, error: OSError) -> UnwritableError:
    return UnwritableError(
        f"can't make {path}: {error.strerror or error}; choose another --output, or make room"
    )


def new_run_id(name: str, output: Path) -> str:
    """Create a directory named after the time in UTC and the suite; return its name.

    Raises
    ------
    UsageError
        If the path has a colon, or is not UTF-8.
    UnwritableError
        If the directory can't be made.
    """
    _refuse_name(output)
    stem = re.sub(r"[^\w.-]+", "-", f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}")[:80]
    number = 1
    while True:
        candidate = stem if number == 1 else f"{stem}-{number}"
        try:
            (output / candidate).mkdir(parents=True)
        except FileExistsError as error:
            # The folder itself may be a link to nothing.
            if not os.path.isdir(output):
                raise _not_made(output, error) from error
            number += 1
        except OSError as error:
            raise _not_made(output / candidate, error) from error
        else:
            return candidate


def _refuse_name(path: Path) -> None:
    text = str(path.absolute())
    # UCX reads what follows as options of its log, and Arrow what precedes as a scheme.
    problem = "with a colon" if ":" in text else ""
    # Arrow takes no other names.
    if text.encode(errors="ignore").decode() != text:
        problem = "that is not UTF-8"
    if problem:
        raise UsageError(
            f"results can't be stored under a path {problem}, {text}; choose another folder "
            "(--output)"
        )


def is_current(page: Path) -> bool:
    """Return whether a page in the directory of a run exists, and is as new as its records."""
    kinds = {".json", ".jsonl", ".parquet"}
    with contextlib.suppress(OSError):
        made = page.stat().st_mtime_ns
        records = (each for each in page.parent.rglob("*") if each.suffix in kinds)
        return all(each.stat().st_mtime_ns <= made for each in records)
    return False


def newest_run() -> Path:
    """Return the directory of the newest run in ``results/``."""
    if not (made := runs_in(Path("results"))):
        raise UsageError("there is no run in results/ yet; name a run's directory")
    return made[-1]


def runs_in(folder: Path) -> list[Path]:
    """Return the directories of the runs in `folder`; the newest is the last."""
    files = (folder / name for name in glob.glob("*/run.json", root_dir=folder))
    return sorted((file.parent for file in files), key=_begun)


def _begun(run: Path) -> tuple[str, str]:
    """Return when a run began, and its name: that of a copy may be any."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return str(json.loads((run / "run.json").read_bytes())["started_at"]), run.name
    return "", run.name


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in ``path/run.json``.

    Raises
    ------
    ResultsError
        If it is missing, damaged, not a manifest or of another schema version.
    """
    import cattrs

    file = path / "run.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(
            f"{path} holds no run: {file} is missing; give a directory that `commbench run` made"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"can't read {file}: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != model.SCHEMA_VERSION:
        raise ResultsError(
            f"{file} has schema version {version!r}, this commbench reads "
            f"{model.SCHEMA_VERSION}; use the commbench that wrote it"
        )
    try:
        return records.from_dict(content, Manifest)
    except cattrs.BaseValidationError as error:
        raise ResultsError(
            f"{file} is damaged: {'; '.join(cattrs.transform_error(error))}"
        ) from None
