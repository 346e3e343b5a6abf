"""Records in large numbers: as Arrow tables, in Parquet files and as pandas frames.

Transfers, tasks and what is known of each pair of workers may be many millions. They stay columns
all the way, and texts of pairs, which repeat, are kept once each: some 60 bytes a transfer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench import records
from commbench.errors import ResultsError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_DTYPES = {"int": "int64", "float": "float64", "bool": "bool", "str": "str"}
_LINES = b"commbench.lines"
"""The key of a Parquet file's metadata for the lines that it was made of."""


@contextmanager
def _plain_memory() -> Iterator[None]:
    # Arrow's own allocator takes huge pages, which the kernel clears first: of a gigabyte that
    # takes longer than to read it.
    import pyarrow as pa

    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)


@_plain_memory()
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
    # Arrow reads the many records while Python reads the few, and imports pandas.
    with ThreadPoolExecutor(1) as reader:
        many = reader.map(lambda kind: read(path / records.FILES[kind], kind, more), records.FILES)
        for fields in records.read(path / "samples.jsonl", records.IN_SAMPLES, notes):
            rows[fields.pop("record")].append(fields)
        found = {
            kind: frame_of_rows(few, kind)
            for kind, few in rows.items()
            if kind not in records.FILES
        }
        found |= {kind: frame(_with(next(many), rows[kind]), kind) for kind in records.FILES}
    notes += more
    return found


def _with(table: pa.Table, rows: list[dict[str, Any]]) -> pa.Table:
    """Return `table` and the `rows` of its kind that earlier versions kept in ``samples.jsonl``."""
    import pyarrow as pa

    if not rows:
        return table
    added = pa.Table.from_pylist(rows, schema=table.schema)
    return pa.concat_tables([added, table]).unify_dictionaries()


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
    import pyarrow.parquet as pq

    schema = records.schema(kind)
    parquet, stored, done = stem.with_suffix(".parquet"), schema.empty_table(), None
    if parquet.exists():
        texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        try:
            found = pq.read_table(parquet, read_dictionary=texts, partitioning=None)
            found.validate(full=True)
            stored = found.select(schema.names).cast(schema)
            done = json.loads((found.schema.metadata or {}).get(_LINES, b"null"))
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise ResultsError(f"can't read {parquet}: {error}") from error
        if any(column.null_count for column in stored.columns):
            raise ResultsError(f"can't read {parquet}: it has rows that lack a value")
    added = records.read_table(stem.with_suffix(".jsonl"), kind, notes, done)
    return pa.concat_tables([stored, added]).unify_dictionaries()


def write(table: pa.Table, path: Path, *, made_of: Mapping[str, Any]) -> None:
    """Write a Parquet file; `made_of` is the ``records.mark`` of the lines that it replaces."""
    import pyarrow.parquet as pq

    pq.write_table(table.replace_schema_metadata({_LINES: json.dumps(made_of)}), path)


def frame(table: pa.Table, kind: str) -> pd.DataFrame:
    """Return the records in `table` as a frame, which takes over its memory."""
    import pyarrow as pa

    found = table.to_pandas(split_blocks=True, self_destruct=True)
    # What reading took beyond the result is as much again, and is kept otherwise.
    pa.default_memory_pool().release_unused()
    if kind in records.OF_PAIRS:
        # Of the same categories, so that they can be compared with each other.
        workers = found["src"].cat.categories.union(found["dst"].cat.categories)
        for column in ("src", "dst"):
            if not found[column].cat.categories.equals(workers):
                found[column] = found[column].cat.set_categories(workers)
    return found


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
