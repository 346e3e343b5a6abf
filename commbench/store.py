"""The only reader and writer of results.

``<run>/run.json`` holds what was asked and where; ``<run>/samples.jsonl`` every record but two
kinds, one JSON object a line, flushed one by one. Transfer and task records, which are many, are
appended to ``transfers.jsonl`` and ``tasks.jsonl`` in the same way, and become Parquet when the
run ends; a run that never ended is read from the lines.
"""

from __future__ import annotations

import dataclasses
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from commbench import model
from commbench.errors import ResultsError
from commbench.model import Record, Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        model.Sample,
        model.TransferRecord,
        model.WireBytes,
        model.LogCount,
        model.TaskRecord,
        model.TransportUsed,
        model.NetworkCounter,
        model.IdleCost,
        model.Failure,
        model.LaunchEnd,
    )
}
_FIELDS = {name: {f.name for f in dataclasses.fields(kind)} for name, kind in _KINDS.items()}
_TABLES = {"TransferRecord": "transfers", "TaskRecord": "tasks"}


def encode(record: Record) -> str:
    """Return `record` as one line of JSON, its kind first."""
    fields = vars(record)
    return json.dumps({"record": type(record).__name__, **fields}, separators=(",", ":"))


def decode(line: str | bytes) -> Record:
    """Return the record that ``encode`` made a line of.

    Raises
    ------
    ValueError
        Where the line is anything else.
    """
    fields = _parse(line)
    record: Record = _KINDS[fields.pop("record")](**fields)
    return record


def decode_launch(content: Any) -> model.Launch:
    """Return the launch that ``dataclasses.asdict`` took apart."""
    import cattrs

    return cattrs.Converter(forbid_extra_keys=True).structure(content, model.Launch)


def _parse(line: str | bytes) -> dict[str, Any]:
    fields = json.loads(line)
    if not isinstance(fields, dict) or fields.get("record") not in _KINDS:
        raise ValueError("not a commbench record")
    if fields.keys() - {"record"} != _FIELDS[fields["record"]]:
        raise ValueError(f"not the fields of a {fields['record']}")
    return fields


class RunStore:
    """The writer of one run's directory, for as long as the run goes on.

    Raises
    ------
    ResultsError
        From every method, where the disk does not take what it is given; what was written
        before is kept and readable.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.run = run
        self._files: dict[str, IO[str]] = {}

    @classmethod
    def create(cls, output: Path, run: Run) -> RunStore:
        """Create ``output/run.id`` and write what is known before anything is measured."""
        path = output / run.id
        store = cls(path, run)
        try:
            path.mkdir(parents=True)
            _write_whole(path / "run.json", json.dumps(dataclasses.asdict(run), indent=1))
        except OSError as error:
            raise store._refused(path, error) from error
        return store

    @classmethod
    def reopen(cls, path: Path) -> RunStore:
        """Go on with a run that was interrupted."""
        return cls(path, read_run(path))

    def append(self, record: Record) -> None:
        """Write `record` and hand it to the operating system before returning."""
        name = _TABLES.get(type(record).__name__, "samples")
        path = self.path / f"{name}.jsonl"
        try:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _open_for_append(path)
            file.write(encode(record) + "\n")
            file.flush()
        except OSError as error:
            raise self._refused(path, error) from error

    def write_text(self, name: str, text: str) -> Path:
        """Write a report or figure next to the records and return its path."""
        path = self.path / name
        try:
            path.parent.mkdir(exist_ok=True)
            _write_whole(path, text)
        except OSError as error:
            raise self._refused(path, error) from error
        return path

    def write_figure(self, name: str, figure: Figure) -> None:
        """Write a matplotlib figure as ``figures/<name>.svg`` and ``.png``."""
        folder = self.path / "figures"
        try:
            folder.mkdir(exist_ok=True)
            for suffix in ("svg", "png"):
                figure.savefig(folder / f"{name}.{suffix}")
        except OSError as error:
            raise self._refused(folder, error) from error

    def finish(self) -> None:
        """Close the files and turn the tables of many records into Parquet."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        for kind, name in _TABLES.items():
            lines = self.path / f"{name}.jsonl"
            if lines.exists():
                table = _read_table(self.path, kind, [])
                temporary = self.path / f"{name}.parquet.part"
                try:
                    table.to_parquet(temporary, index=False)
                    temporary.replace(self.path / f"{name}.parquet")
                    lines.unlink()
                except OSError as error:
                    raise self._refused(temporary, error) from error

    def _refused(self, path: Path, error: OSError) -> ResultsError:
        return ResultsError(
            f"can't write {path}: {error.strerror or error}. What was measured before is kept in "
            f"{self.path}; make room or choose another --output, then go on with "
            f"--resume {self.path}"
        )


def _open_for_append(path: Path) -> IO[str]:
    file = path.open("a", encoding="utf-8")
    if file.tell():
        with path.open("rb") as written:
            written.seek(-1, os.SEEK_END)
            # A line that a crash cut short must not swallow the first one that follows it.
            if written.read() != b"\n":
                file.write("\n")
    return file


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def new_run_id(name: str, output: Path) -> str:
    """Return an id that no run in `output` has: the time in UTC and the suite's name."""
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    candidates = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(candidate for candidate in candidates if not (output / candidate).exists())


def read_run(path: Path) -> Run:
    """Return the ``Run`` that ``path/run.json`` describes.

    Raises
    ------
    ResultsError
        Where there is none, or it is damaged, foreign or of another schema version.
    """
    import cattrs

    file = path / "run.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(
            f"{path} holds no run: {file} is missing; give a directory that `commbench run` made"
        ) from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"can't read {file}: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != model.SCHEMA_VERSION:
        raise ResultsError(
            f"{file} has schema version {version!r}, this commbench reads "
            f"{model.SCHEMA_VERSION}; use the commbench that wrote it"
        )
    try:
        return cattrs.Converter(forbid_extra_keys=True).structure(content, Run)
    except cattrs.BaseValidationError as error:
        raise ResultsError(
            f"{file} is damaged: {'; '.join(cattrs.transform_error(error))}"
        ) from None


@dataclasses.dataclass(frozen=True)
class RunData:
    """A run's records as pandas frames, one row a record, with the case's names beside.

    Every frame has the fields of its record as columns, and ``workload`` and ``backend``.
    ``notes`` says what could not be read.
    """

    path: Path
    run: Run
    samples: pd.DataFrame
    transfers: pd.DataFrame
    wire: pd.DataFrame
    log_counts: pd.DataFrame
    tasks: pd.DataFrame
    transports: pd.DataFrame
    network: pd.DataFrame
    idle: pd.DataFrame
    failures: pd.DataFrame
    ends: pd.DataFrame
    notes: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> RunData:
        """Read everything that the directory holds, also of a run that was cut short."""
        run = read_run(path)
        notes: list[str] = []
        rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
        for fields in _read_lines(path / "samples.jsonl", notes):
            rows[fields.pop("record")].append(fields)
        frames = {
            kind: _read_table(path, kind, notes) if kind in _TABLES else _frame(rows[kind], kind)
            for kind in _KINDS
        }
        cases = {case.id: case for case in run.suite.cases}
        for frame in frames.values():
            for column in ("workload", "backend"):
                names = {case_id: getattr(case, column) for case_id, case in cases.items()}
                frame[column] = frame["case_id"].map(names).astype("str")
        return cls(
            path=path,
            run=run,
            samples=frames["Sample"],
            transfers=frames["TransferRecord"],
            wire=frames["WireBytes"],
            log_counts=frames["LogCount"],
            tasks=frames["TaskRecord"],
            transports=frames["TransportUsed"],
            network=frames["NetworkCounter"],
            idle=frames["IdleCost"],
            failures=frames["Failure"],
            ends=frames["LaunchEnd"],
            notes=tuple(notes),
        )


_DTYPES = {"int": "int64", "float": "float64", "bool": "bool", "str": "str"}


def _frame(rows: list[dict[str, Any]], kind: str) -> pd.DataFrame:
    import pandas as pd

    # An empty frame must have the types of a full one, or what is computed from it fails.
    dtypes = {field.name: _DTYPES[str(field.type)] for field in dataclasses.fields(_KINDS[kind])}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def _read_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(f"can't read {path}: {error}") from error
    lines = content.split(b"\n")
    unfinished = lines.pop()
    if unfinished:
        notes.append(f"{path.name} ends in a line that was cut short; it is left out")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            records.append(_parse(line))
        except ValueError as error:
            notes.append(f"{path.name} line {number} is left out: {error}")
    return records


def _read_table(path: Path, kind: str, notes: list[str]) -> pd.DataFrame:
    import pandas as pd

    name = _TABLES[kind]
    frames = []
    parquet = path / f"{name}.parquet"
    if parquet.exists():
        try:
            frames.append(pd.read_parquet(parquet))
        except (OSError, ValueError) as error:
            raise ResultsError(f"can't read {parquet}: {error}") from error
    rows = _read_lines(path / f"{name}.jsonl", notes)
    if rows or not frames:
        frames.append(_frame(rows, kind))
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
