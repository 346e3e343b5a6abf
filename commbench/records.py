"""Records as lines of JSON, on their way through a pipe or in a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from commbench import model
from commbench.errors import ResultsError
from commbench.model import Record

if TYPE_CHECKING:
    import pyarrow as pa

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        model.Sample,
        model.TransferRecord,
        model.WireBytes,
        model.LogCount,
        model.TaskRecord,
        model.TransportUsed,
        model.WorkerAddress,
        model.WorkerPlace,
        model.NetworkCounter,
        model.IdleCost,
        model.Load,
        model.CoreUse,
        model.Spill,
        model.Setting,
        model.ThreadTime,
        model.Activity,
        model.Failure,
        model.LaunchEnd,
    )
}
FIELDS = {
    name: {f.name: str(f.type) for f in dataclasses.fields(kind)} for name, kind in KINDS.items()
}
"""The types of the fields of each kind: ``"int"``, ``"float"``, ``"bool"`` or ``"str"``."""
FILES = {
    "TransferRecord": "transfers", "TaskRecord": "tasks", "WireBytes": "wire",
    "TransportUsed": "transports",
}  # fmt: skip
"""The kinds of which there may be millions, and the name of the file that each has to itself."""
IN_SAMPLES = KINDS.keys() - {"TransferRecord", "TaskRecord"}
"""The kinds that ``samples.jsonl`` may have: that of earlier versions has more than the rest."""
OF_PAIRS = ("TransferRecord", "WireBytes", "TransportUsed")
"""The kinds that tell of a worker and its peer: but for the evidence, few texts in many records."""
_LATER = {"Sample": {"tool": ""}}
"""Fields that records of earlier versions lack, and what they would have said."""

_JSON = json.JSONEncoder(separators=(",", ":"))
_MAX_NOTES = 5
_BLOCK_BYTES = 1 << 24
"""How much of a file is in memory at a time, but for what it holds."""
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "float": lambda value: math.isfinite(value) if type(value) is float else _FITS["int"](value),
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
}
_NOUNS = {"int": "an int", "float": "a finite number", "bool": "a bool", "str": "a str"}


def encode(record: Record) -> str:
    """Return `record` as one line of JSON, its kind first."""
    return _JSON.encode({"record": type(record).__name__, **vars(record)})


def decode(line: str | bytes) -> Record:
    """Return the record that ``encode`` made a line of.

    Raises
    ------
    ValueError
        Where the line is anything else.
    """
    fields = parse(line)
    record: Record = KINDS[fields.pop("record")](**fields)
    return record


def decode_launch(content: Any) -> model.Launch:
    """Return the launch that ``dataclasses.asdict`` took apart."""
    import cattrs

    return cattrs.Converter(forbid_extra_keys=True).structure(content, model.Launch)


def parse(line: str | bytes) -> dict[str, Any]:
    """Return the fields of the record in `line`, and its kind under ``"record"``.

    Raises
    ------
    ValueError
        Where the line is anything else, or a value is not of its field's type.
    """
    try:
        fields: Any = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    kind = fields.get("record") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError("not a commbench record")
    fields = _LATER.get(kind, {}) | fields
    if fields.keys() - {"record"} != FIELDS[kind].keys():
        raise ValueError(f"not the fields of a {kind}")
    for name, wanted in FIELDS[kind].items():
        value = fields[name]
        if not _FITS[wanted](value):
            raise ValueError(f"{name} is {_short(value)}, not {_NOUNS[wanted]}")
        if wanted == "str" and not value.isascii():
            # Half of a surrogate pair, as a file name can have it, is no text to anybody else.
            fields[name] = value.encode(errors="replace").decode()
    return dict(fields)


def read(
    path: Path, kinds: Collection[str], notes: list[str], done: Any = None
) -> list[dict[str, Any]]:
    """Return the fields of the records of these `kinds` in the file `path`, as ``parse`` does.

    Parameters
    ----------
    notes
        Takes a sentence about each line that is left out.
    done
        A ``mark`` of the lines from the file's begin that were read before, and don't count.

    Raises
    ------
    ResultsError
        Where the file exists but can't be read.
    """
    found: list[dict[str, Any]] = []
    bad = _BadLines(path.name)
    for block, first_line in _blocks(path, done):
        found += _sound(block, first_line, kinds, bad)
    notes += bad.notes()
    return found


def read_table(path: Path, kind: str, notes: list[str], done: Any = None) -> pa.Table:
    """Return what ``read`` does, of one `kind`, as a table of that kind's ``schema``.

    Many times faster and leaner: blocks without a bad line are never Python objects.
    """
    import pyarrow as pa

    tables = [pa.Table.from_batches([], schema(kind))]
    bad = _BadLines(path.name)
    for block, first_line in _blocks(path, done):
        table = _columns(block, kind)
        if table is None:
            rows = _sound(block, first_line, [kind], bad)
            table = pa.Table.from_pylist(rows, schema=schema(kind))
        tables.append(table)
    notes += bad.notes()
    return pa.concat_tables(tables).unify_dictionaries()


def schema(kind: str) -> pa.Schema:
    """Return the names and types of the columns of a table of records of this `kind`.

    The texts of those ``OF_PAIRS`` are kept once each, but for the evidence.
    """
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string()) if kind in OF_PAIRS else pa.string()
    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": text}
    columns = {name: types[kept] for name, kept in FIELDS[kind].items()}
    return pa.schema(columns | {name: pa.string() for name in {"evidence"} & columns.keys()})


def _columns(block: bytes, kind: str) -> pa.Table | None:
    """Return the records in `block`, or None unless each of its lines is a sound one."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json as pa_json

    plain = pa.schema({"record": pa.string()})
    for column in schema(kind):
        is_text = FIELDS[kind][column.name] == "str"
        plain = plain.append(pa.field(column.name, pa.string()) if is_text else column)
    if not block.endswith(b"\n"):
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(block),
            # One thread: many would hold many blocks at once, and are no faster on few cores.
            pa_json.ReadOptions(use_threads=False),
            pa_json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="error"),
        )
        # Bytes that are no UTF-8 are read without a word.
        table.validate(full=True)
    except (pa.ArrowException, ValueError):
        return None
    numbers = [name for name, kept in FIELDS[kind].items() if kept == "float"]
    sound = (
        # It would take two records on one line, which only a mishap can have put there.
        table.num_rows == block.count(b"\n")
        and all(column.null_count == 0 for column in table.columns)
        and pc.all(pc.equal(table["record"], kind)).as_py()
        and all(pc.all(pc.is_finite(table[name])).as_py() for name in numbers)
    )
    return table.drop_columns(["record"]).cast(schema(kind)) if sound else None


def _sound(
    block: bytes, first_line: int, kinds: Collection[str], bad: _BadLines
) -> list[dict[str, Any]]:
    *lines, unfinished = block.split(b"\n")
    found = []
    for number, line in enumerate(lines, start=first_line):
        if not line:
            continue
        try:
            fields = parse(line)
            if fields["record"] not in kinds:
                raise ValueError(f"a {fields['record']} has no place here")
            found.append(fields)
        except ValueError as error:
            bad.add(number, error)
    bad.ends_cut = bool(unfinished)
    return found


class _BadLines:
    """The lines of a file that are left out, of which the first few are described."""

    def __init__(self, name: str) -> None:
        self.ends_cut = False
        self._name = name
        self._described: list[str] = []
        self._n_more = 0

    def add(self, number: int, error: ValueError) -> None:
        if len(self._described) < _MAX_NOTES:
            self._described.append(f"{self._name} line {number} is left out: {error}")
        else:
            self._n_more += 1

    def notes(self) -> Iterator[str]:
        yield from self._described
        if self._n_more:
            yield f"{self._name}: {self._n_more} more lines are left out"
        if self.ends_cut:
            yield f"{self._name} ends in a line that was cut short; it is left out"


def _blocks(path: Path, done: Any) -> Iterator[tuple[bytes, int]]:
    """Yield what stands behind the lines `done`, and the number of each block's first line.

    Blocks end with a line; a line that was cut short comes last, by itself.
    """
    try:
        begin = done["n_bytes"] if done and mark(path, done["n_bytes"]) == done else 0
        with path.open("rb") as file:
            number = 1 + sum(part.count(b"\n") for part in _parts(file, begin))
            rest = b""
            while part := file.read(_BLOCK_BYTES):
                block, end, rest = (rest + part).rpartition(b"\n")
                if end:
                    yield block + end, number
                    number += block.count(b"\n") + 1
            if rest:
                yield rest, number
    except FileNotFoundError:
        return
    except OSError as error:
        raise ResultsError(f"can't read {path}: {error}") from error


def mark(path: Path, n_bytes: int | None = None) -> dict[str, Any]:
    """Return what the first `n_bytes` of the file, or all of it, are known by again."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        for part in _parts(file, n_bytes):
            digest.update(part)
            size += len(part)
    return {"n_bytes": size, "sha256": digest.hexdigest()}


def _parts(file: BinaryIO, n_bytes: int | None) -> Iterator[bytes]:
    left = math.inf if n_bytes is None else n_bytes
    while left > 0 and (part := file.read(int(min(left, _BLOCK_BYTES)))):
        left -= len(part)
        yield part


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
