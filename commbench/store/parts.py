"""Bulk records in parts: Parquet files that a launch writes into its run's directory.

Each kind of these records has a folder. The suffix of a part is its state: ``.open.parquet`` until
the result of the measurement is verified, then ``.parquet``, or ``.failed.parquet`` if it was
wrong. Only closed parts are read; `merge` merges those of a kind.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import ResultsError, UnwritableError
from commbench.model.observed import Record
from commbench.store import files
from commbench.store.records import BULK, FIELDS, KINDS

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FLUSH_ROWS = 50_000
FLUSH_SECONDS = 10.0
"""The rows, and the seconds since the last flush, after which a part is written."""
_MERGED_ROWS = 1_000_000
"""The rows to have in memory when parts are merged."""
_OPEN, _CLOSED, _FAILED = ".open.parquet", ".parquet", ".failed.parquet"
_MERGED = "merged"
_KIND = b"commbench.kind"
"""The key in the metadata of a table for the kind of its records."""
_REPLACES = b"commbench.replaces"
"""The key in the metadata of a merged part for the names of the parts that it replaces."""


def schema(kind: str) -> pa.Schema:
    """Return the columns of a table of records of this `kind`, with it in the metadata.

    Texts in records of pairs of workers are dictionary-encoded, except for the evidence.
    """
    import pyarrow as pa

    fields = FIELDS[kind]
    text = pa.dictionary(pa.int32(), pa.string()) if "dst" in fields else pa.string()
    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": text}
    columns = {name: types[kept] for name, kept in fields.items()}
    columns |= {name: pa.string() for name in {"evidence"} & columns.keys()}
    return pa.schema(columns, {_KIND: kind})


def texts(columns: pa.Schema) -> list[str]:
    """Return the names of the dictionary-encoded columns."""
    import pyarrow as pa

    return [field.name for field in columns if pa.types.is_dictionary(field.type)]


def table(kind: type[Record], /, **columns: Any) -> pa.Table:
    """Return records of this kind as a table with its `schema`.

    Parameters
    ----------
    columns
        Per field, a constant or a list with one value per record. Fields that are left out have
        their default.

    Raises
    ------
    ValueError
        If a value does not fit, or the lists differ in length.

    Examples
    --------
    >>> from commbench.model.observed import WireBytes
    >>> wire = table(WireBytes, case_id="c", launch=0, iteration=1, src="a", dst=["b", "c"],
    ...              nbytes=[5, 6], n_messages=1)
    >>> [(record.dst, record.nbytes) for record in to_records(wire)]
    [('b', 5), ('c', 6)]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    defaults = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    columns = defaults | columns
    n_rows = max((len(v) for v in columns.values() if isinstance(v, list)), default=1)
    wanted = schema(kind.__name__)
    try:
        arrays = [_array(columns[field.name], n_rows, field.type) for field in wanted]
        rows = pa.Table.from_arrays(arrays, schema=wanted)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise ValueError(f"a {kind.__name__} has a value that does not fit: {error}") from error
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        is_float = pa.types.is_floating(column.type)
        if is_float and not pc.all(pc.is_finite(column), min_count=0).as_py():
            raise ValueError(f"a {kind.__name__} has a {name} that is not a finite number")
    return _checked(rows, wanted)


def table_kind(table: pa.Table) -> str:
    """Return the kind of the records in a table with its `schema`."""
    return str(table.schema.metadata[_KIND].decode())


def to_records(table: pa.Table) -> Iterator[Record]:
    """Yield the records in a table with the `schema` of their kind."""
    kind = KINDS[table_kind(table)]
    for row in table.to_pylist():
        yield kind(**row)


def _array(values: Any, n_rows: int, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        # Surrogates, which file names can contain, can't be encoded.
        several = isinstance(values, list)
        texts = list(dict.fromkeys(values)) if several else [values]
        numbers = dict(zip(texts, range(len(texts)), strict=True))
        codes = [numbers[text] for text in values] if several else [0] * n_rows
        sound = [text.encode(errors="replace").decode() for text in texts]
        array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(sound, "str"))
        return array.cast(kind)
    array = pa.array(values if isinstance(values, list) else [values] * n_rows)
    # Arrow would truncate floats to ints, and convert bools and digits.
    fits = array.type == kind or (pa.types.is_floating(kind) and pa.types.is_integer(array.type))
    if not fits and len(array):
        raise ValueError(f"{array.type} where {kind} should be")
    return array.cast(kind)


def _checked(table: Any, wanted: pa.Schema) -> Any:
    """Return `table` with the columns of `wanted`, after validating it."""
    table.validate(full=True)
    rows = table.select(wanted.names).cast(wanted)
    if any(column.null_count for column in rows.columns):
        raise ValueError("it has rows that lack a value")
    return rows


class Parts:
    """A writer of the bulk records of one region of a launch.

    Parameters
    ----------
    run
        The run's directory.
    name
        The prefix of the names of parts.

    Raises
    ------
    UnwritableError
        From every method, if a part can't be written.
    """

    def __init__(self, run: Path, name: str) -> None:
        self._run, self._name = run, name
        self._tables: dict[str, list[pa.Table]] = {}
        self._n_rows = 0
        self._flushed_at = time.monotonic()
        self._written: list[Path] = []

    def add(self, table: pa.Table) -> None:
        """Add records, and flush if there are many, or the last flush was long ago."""
        self._tables.setdefault(table_kind(table), []).append(table)
        self._n_rows += len(table)
        late = time.monotonic() - self._flushed_at > FLUSH_SECONDS
        if self._n_rows >= FLUSH_ROWS or late:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records as open parts."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffered, self._tables = self._tables, {}
        for kind, tables in buffered.items():
            folder = self._run / BULK[kind]
            # Names must be unique, because merged parts refer to those that they replace.
            path = folder / f"{self._name}-{time.time_ns()}{_OPEN}"
            with writing(self._run, folder):
                folder.mkdir(parents=True, exist_ok=True)
                try:
                    table = pa.concat_tables(tables).unify_dictionaries()
                    pq.write_table(table.replace_schema_metadata(), path)
                except OSError:
                    path.unlink(missing_ok=True)
                    raise
            self._written.append(path)
        self._n_rows = 0
        self._flushed_at = time.monotonic()

    def close(self) -> None:
        """Write the buffered records, and close all parts as verified."""
        self.flush()
        self._end(_CLOSED)

    def fail(self) -> None:
        """Write the buffered records, and mark all parts as failed; ignore failures to write."""
        with suppress(UnwritableError):
            self.flush()
            self._end(_FAILED)

    def _end(self, state: str) -> None:
        for path in self._written:
            with writing(self._run, path):
                path.rename(path.with_name(path.name.removesuffix(_OPEN) + state))
        self._written.clear()


def writing(run: Path, path: Path) -> AbstractContextManager[None]:
    """Raise UnwritableError if writing `path`, a file of the run in `run`, fails."""
    return files.writing(path, f". What was measured before is kept in {run}")


def closed(run: Path, kind: str) -> list[Path]:
    """Return the closed parts of a kind, without those that a merged part replaces.

    Raises
    ------
    ResultsError
        If a merged part can't be read.
    """
    parts = _on_disk(run, kind)
    merged = [path for path in parts if path.name.startswith(_MERGED)]
    replaced = {name for path in merged for name in _replaces(path)}
    return [path for path in parts if path.name not in replaced]


def _on_disk(run: Path, kind: str) -> list[Path]:
    paths = sorted((run / BULK[kind]).glob(f"*{_CLOSED}"))
    return [path for path in paths if not path.name.endswith((_OPEN, _FAILED))]


def _replaces(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    with damage_reported(path):
        replaced = json.loads((pq.read_schema(path).metadata or {}).get(_REPLACES, b"[]"))
        if not isinstance(replaced, list) or path.name in replaced:
            raise ValueError(f"it replaces {str(replaced)[:40]}, which are no other parts")
        return replaced


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Raise ResultsError for any exception that a damaged file may cause."""
    import pyarrow as pa

    damage = (OSError, ValueError, TypeError, KeyError, RecursionError, MemoryError)
    try:
        yield
    except (*damage, pa.ArrowException) as error:
        raise ResultsError(f"can't read {path}: {error}") from error


def read(path: Path, kind: str) -> pa.Table:
    """Return the records in one part; one that can't be read is a ResultsError."""
    wanted = schema(kind)
    with damage_reported(path), _opened(path, wanted) as file:
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            columns = map(group.column, range(group.num_columns))
            # Arrow reads as many rows as the metadata say, and ignores the rest.
            if {each.num_values for each in columns if each.path_in_schema in wanted.names} != {
                group.num_rows
            }:
                raise ValueError("its columns have not as many rows as it says")
        return _checked(file.read(wanted.names), wanted)


def _opened(path: Path, wanted: pa.Schema) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    repeated = [name for name in texts(wanted) if name in metadata.schema.names]
    return pq.ParquetFile(path, metadata=metadata, read_dictionary=repeated)


def merge(run: Path, kind: str) -> None:
    """Merge the closed parts of a kind, unless one of them is damaged.

    Raises
    ------
    UnwritableError
        If the merged part can't be written.
    """
    # Parts that another process closes meanwhile are not in the merged one.
    listed = _on_disk(run, kind)
    try:
        paths = closed(run, kind)
        merged = [_write_merged(run, kind, paths)] if len(paths) > 1 else paths
    except UnwritableError:
        raise
    except ResultsError:
        return
    if removed := {*listed} - {*merged}:
        # Not all file systems can sync a folder.
        with suppress(OSError):
            _sync(run / BULK[kind])
    # After a crash in this loop, records still count once: `closed` excludes what a merged part
    # replaces. An older one goes after what it has replaced.
    for path in sorted(removed, key=_age):
        with writing(run, path):
            path.unlink()


def _age(path: Path) -> tuple[bool, int, str]:
    return path.name.startswith(_MERGED), len(path.name), path.name


def _write_merged(run: Path, kind: str, paths: list[Path]) -> Path:
    """Merge the parts at `paths` and return the path of the merged part."""
    import pyarrow.parquet as pq

    merged = [path.stem for path in paths if path.name.startswith(_MERGED)]
    last = max((int(stem.removeprefix(f"{_MERGED}-")) for stem in merged), default=0)
    path: Path = run / BULK[kind] / f"{_MERGED}-{last + 1}{_CLOSED}"
    temporary = path.with_suffix(".part")
    wanted = schema(kind).with_metadata({_REPLACES: json.dumps([part.name for part in paths])})
    with writing(run, temporary):
        try:
            with pq.ParquetWriter(temporary, wanted) as file:
                for table in _rebatch(read(part, kind) for part in paths):
                    file.write_table(table.cast(wanted))
            _sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def _sync(path: Path) -> None:
    """Write a file's data, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rebatch(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of `tables` in tables of at least ``_MERGED_ROWS``, except for the last."""
    import pyarrow as pa

    some: list[pa.Table] = []
    for table in tables:
        some.append(table)
        if sum(map(len, some)) >= _MERGED_ROWS:
            yield pa.concat_tables(some).unify_dictionaries()
            some = []
    if some:
        yield pa.concat_tables(some).unify_dictionaries()
