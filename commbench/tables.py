"""Records in large numbers: as Arrow tables, in Parquet files and as pandas frames.

Transfers, tasks and what is known of each pair of workers may be many millions. They stay columns
all the way, and texts of pairs, which repeat, are kept once each: some 60 bytes a transfer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench import records
from commbench.columns import Columns
from commbench.errors import ResultsError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    _Part = tuple[int, Iterator[pa.RecordBatch]]

_DTYPES = {"int": "int64", "float": "float64", "bool": "bool", "str": "str"}
"""The types of a frame's columns, by the types of the records' fields."""
_LINES = b"commbench.lines"
"""The key of a Parquet file's metadata for the lines that it was made of."""
_BATCH_ROWS = 1 << 17
"""Decoded at a time: few enough that the next ones take the same memory, still in the cache."""
_N_THREADS = 2
"""Each holds a batch; more read no faster."""


def frames(path: Path, notes: list[str]) -> dict[str, pd.DataFrame]:
    """Return the records of every kind in the run at `path`, each kind as a frame.

    Parameters
    ----------
    notes
        Takes a sentence about each line that is left out.

    Raises
    ------
    ResultsError
        Where a file exists but can't be read.
    """
    more: list[str] = []
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in records.KINDS}
    for fields in records.read(path / "samples.jsonl", records.IN_SAMPLES, notes):
        rows[fields.pop("record")].append(fields)
    # Arrow reads the many records while Python imports pandas.
    with ThreadPoolExecutor(1) as reader:
        many = reader.map(
            lambda kind: _columns(path / records.FILES[kind], kind, rows[kind], more),
            records.FILES,
        )
        found = {
            kind: frame_of_rows(few, kind)
            for kind, few in rows.items()
            if kind not in records.FILES
        }
        found |= {kind: next(many).frame() for kind in records.FILES}
    notes += more
    return found


def _columns(stem: Path, kind: str, rows: list[dict[str, Any]], notes: list[str]) -> Columns:
    """Return what ``read`` does, after `rows`, which earlier versions kept in ``samples.jsonl``."""
    import pyarrow as pa

    parts = _parts(stem, kind, notes)
    if rows:
        earlier = pa.Table.from_pylist(rows, schema=records.schema(kind))
        parts.insert(0, (len(rows), iter(earlier.to_batches())))
    sizes, batches = zip(*parts, strict=True)
    edges = [0, *accumulate(sizes)]
    with _damage_told(stem), ThreadPoolExecutor(_N_THREADS) as pool:
        columns = Columns(kind, edges[-1])
        list(pool.map(columns.fill, edges[:-1], edges[1:], batches))
    # What reading took beyond the result is kept otherwise.
    pa.default_memory_pool().release_unused()
    return columns


def _parts(stem: Path, kind: str, notes: list[str]) -> list[_Part]:
    """Return what ``read`` does in parts, which threads may share: how many rows, and the rows."""
    parquet = stem.with_suffix(".parquet")
    groups: list[_Part] = []
    done = None
    if parquet.exists():
        with _damage_told(stem):
            groups, done = _row_groups(parquet, records.schema(kind))
    beyond = records.read_table(stem.with_suffix(".jsonl"), kind, notes, done)
    return [*groups, (len(beyond), iter(beyond.to_batches()))]


def _row_groups(parquet: Path, schema: pa.Schema) -> tuple[list[_Part], Any]:
    """Return how many rows each row group has, and the rows; and what they were made of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(parquet) as file:
        metadata, found = file.metadata, file.schema_arrow
    _checked(pa.Table.from_batches([], found), schema)
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    for group in groups:
        # Arrow reads as many rows as are told, and is content where a column has more.
        columns = map(group.column, range(group.num_columns))
        told = {column.num_values for column in columns if column.path_in_schema in schema.names}
        if told != {group.num_rows}:
            raise ValueError("its columns have not as many rows as it says")
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]

    def batches(place: int) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(parquet, metadata=metadata, read_dictionary=texts) as file:
            for batch in file.iter_batches(_BATCH_ROWS, [place], schema.names, use_threads=False):
                yield _checked(batch, schema)

    return [(group.num_rows, batches(place)) for place, group in enumerate(groups)], _made_of(found)


def read(stem: Path, kind: str, notes: list[str]) -> pa.Table:
    """Return the records in ``stem.parquet``, and those that ``stem.jsonl`` has beyond them.

    Parameters
    ----------
    notes
        Takes a sentence about each line that is left out.

    Raises
    ------
    ResultsError
        Where a file exists but can't be read.
    """
    import pyarrow as pa

    parts = _parts(stem, kind, notes)
    with _damage_told(stem):
        found = [batch for _, batches in parts for batch in batches]
    return pa.Table.from_batches(found, records.schema(kind)).unify_dictionaries()


@contextmanager
def _damage_told(stem: Path) -> Iterator[None]:
    import pyarrow as pa

    parquet = stem.with_suffix(".parquet")
    path = parquet if parquet.exists() else stem.with_suffix(".jsonl")
    damage = (OSError, ValueError, TypeError, KeyError, RecursionError, MemoryError)
    try:
        yield
    except (*damage, pa.ArrowException) as error:
        raise ResultsError(f"can't read {path}: {error}") from error


def _made_of(schema: pa.Schema) -> Any:
    """Return the ``records.mark`` of the lines that a Parquet file replaces, or None."""
    mark = json.loads((schema.metadata or {}).get(_LINES, b"null"))
    if mark and not (isinstance(mark, dict) and type(mark.get("n_bytes")) is int):
        raise ValueError(f"it was made of {str(mark)[:40]}, which are no lines")
    return mark


def _checked(found: Any, schema: pa.Schema) -> Any:
    """Return rows from a file, a table or a batch of one, with the columns of `schema`."""
    found.validate(full=True)
    rows = found.select(schema.names).cast(schema)
    if any(column.null_count for column in rows.columns):
        raise ValueError("it has rows that lack a value")
    return rows


def write(table: pa.Table, path: Path, *, made_of: Mapping[str, Any]) -> None:
    """Write a Parquet file; `made_of` is the ``records.mark`` of the lines that it replaces."""
    import pyarrow.parquet as pq

    pq.write_table(table.replace_schema_metadata({_LINES: json.dumps(made_of)}), path)


def frame_of_rows(rows: list[dict[str, Any]], kind: str) -> pd.DataFrame:
    """Return records of one kind, as their fields, as a frame."""
    import pandas as pd

    # An empty frame must have the types of a full one, or what is computed from it fails.
    dtypes = {name: _DTYPES[wanted] for name, wanted in records.FIELDS[kind].items()}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def renamed(texts: pd.Series[Any], names: Mapping[str, str]) -> Any:
    """Return what `names` has for each of `texts`; categories stay categories, fewer maybe."""
    import pandas as pd

    if not isinstance(texts.dtype, pd.CategoricalDtype):
        return texts.map(names).astype("str")
    renamed = texts.cat.categories.map(names)
    if renamed.is_unique and not renamed.hasnans:
        return texts.cat.rename_categories(renamed)
    codes, distinct = pd.factorize(renamed)
    return pd.Categorical.from_codes(codes[texts.cat.codes], distinct)
