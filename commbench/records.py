"""Records as lines of JSON, on their way through a pipe or in a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        model.NetworkCounter,
        model.IdleCost,
        model.Failure,
        model.LaunchEnd,
    )
}
FIELDS = {
    name: {f.name: str(f.type) for f in dataclasses.fields(kind)} for name, kind in KINDS.items()
}
"""The types of the fields of each kind: ``"int"``, ``"float"``, ``"bool"`` or ``"str"``."""
_LATER = {"Sample": {"tool": ""}}
"""Fields that records of earlier versions lack, and what they would have said."""

_MAX_NOTES = 5
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "float": lambda value: math.isfinite(value) if type(value) is float else _FITS["int"](value),
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
}
_NOUNS = {"int": "an int", "float": "a finite number", "bool": "a bool", "str": "a str"}


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
    content, first_line = _content(path, done)
    *lines, unfinished = content.split(b"\n")
    found, bad = [], []
    for number, line in enumerate(lines, start=first_line):
        if not line:
            continue
        try:
            fields = parse(line)
            if fields["record"] not in kinds:
                raise ValueError(f"a {fields['record']} has no place here")
            found.append(fields)
        except ValueError as error:
            bad.append(f"{path.name} line {number} is left out: {error}")
    notes += bad[:_MAX_NOTES]
    if len(bad) > _MAX_NOTES:
        notes.append(f"{path.name}: {len(bad) - _MAX_NOTES} more lines are left out")
    if unfinished:
        notes.append(f"{path.name} ends in a line that was cut short; it is left out")
    return found


def read_columns(path: Path, kind: str, done: Any = None) -> pa.Table | None:
    """Return what ``read`` does as a table, where every line is a sound record of this `kind`.

    Many times faster and leaner than ``read``, which alone can tell what is wrong otherwise.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json as pa_json

    content, _ = _content(path, done)
    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
    fields = {"record": "str", **FIELDS[kind]}
    if not content.endswith(b"\n"):
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(content),
            # One thread: many would hold many blocks at once, and are no faster on few cores.
            pa_json.ReadOptions(use_threads=False),
            pa_json.ParseOptions(
                explicit_schema=pa.schema({name: types[kept] for name, kept in fields.items()}),
                unexpected_field_behavior="error",
            ),
        )
    except (pa.ArrowException, ValueError):
        return None
    numbers = [name for name, kept in fields.items() if kept == "float"]
    sound = (
        # It would take two records on one line, which only a mishap can have put there.
        table.num_rows == content.count(b"\n")
        and all(column.null_count == 0 for column in table.columns)
        and pc.all(pc.equal(table["record"], kind)).as_py()
        and all(pc.all(pc.is_finite(table[name])).as_py() for name in numbers)
    )
    return table.drop_columns(["record"]).combine_chunks() if sound else None


def _content(path: Path, done: Any) -> tuple[bytes, int]:
    """Return what stands in the file behind the lines `done`, and its first line's number."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b"", 1
    except OSError as error:
        raise ResultsError(f"can't read {path}: {error}") from error
    begin = done["n_bytes"] if done else 0
    if done and mark(content[:begin]) != done:
        begin = 0
    return content[begin:], content.count(b"\n", 0, begin) + 1


def mark(lines: bytes) -> dict[str, Any]:
    """Return what `lines` are known by again."""
    return {"n_bytes": len(lines), "sha256": hashlib.sha256(lines).hexdigest()}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
