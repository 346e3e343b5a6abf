"""The records of a run as pandas frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.store import parts, records

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"int": "int64", "float": "float64", "bool": "bool", "str": "str"}
"""The type of a column, by the type of the field."""
_WORKERS = ("src", "dst")


def rows(run: Path, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the fields of the records in ``samples.jsonl``, by kind, as `records.read` does."""
    rows_by_kind: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in records.KINDS if kind not in records.BULK
    }
    for fields in records.read(run / records.FILE, notes):
        rows_by_kind[fields.pop("record")].append(fields)
    return rows_by_kind


def frame_from_parts(run: Path, kind: str) -> pd.DataFrame:
    """Return the records in the closed parts of a kind; repeated texts are categoricals."""
    import pandas as pd
    import pyarrow as pa

    wanted = parts.schema(kind)
    tables = [wanted.empty_table(), *(parts.read(path, kind) for path in parts.closed(run, kind))]
    table = pa.concat_tables(tables).unify_dictionaries()
    del tables
    columns = {}
    for name in wanted.names:
        # Arrow keeps the memory that was only needed for reading or converting.
        pa.default_memory_pool().release_unused()
        column, table = table.column(name), table.drop_columns([name])
        columns[name] = column.to_pandas()
        del column
    frame = pd.DataFrame(columns, copy=False)
    del columns
    texts = parts.texts(wanted)
    # Senders and receivers need the same categories to be compared.
    workers = {
        name for column in _WORKERS if column in texts for name in frame[column].cat.categories
    }
    for name in texts:
        words = sorted(workers if name in _WORKERS else frame[name].cat.categories)
        frame[name] = frame[name].cat.set_categories(pd.Index(words, dtype="str"))
    pa.default_memory_pool().release_unused()
    return frame


def frame_from_rows(rows: list[dict[str, Any]], kind: str) -> pd.DataFrame:
    """Return a frame of the records of one kind with these fields."""
    import numpy as np
    import pandas as pd

    # Computations need the right types in an empty frame, too.
    columns: dict[str, Any] = {}
    for name, wanted in records.FIELDS[kind].items():
        values, dtype = [row[name] for row in rows], _DTYPES[wanted]
        # A column of pandas takes ten times as long, and a run has two hundred.
        is_text = wanted == "str"
        columns[name] = pd.Series(values, dtype=dtype).array if is_text else np.array(values, dtype)
    return pd.DataFrame(columns, copy=False)


def renamed(texts: pd.Series[Any], names: Mapping[str, str]) -> Any:
    """Return `texts` mapped by `names`; categoricals stay categoricals."""
    import pandas as pd

    if not isinstance(texts.dtype, pd.CategoricalDtype):
        codes, distinct = pd.factorize(texts)
        return pd.Series([names[text] for text in distinct], dtype="str").array.take(codes)
    renamed = texts.cat.categories.map(names)
    if renamed.is_unique and not renamed.hasnans:
        return texts.cat.rename_categories(renamed)
    codes, distinct = pd.factorize(renamed)
    return pd.Categorical.from_codes(codes[texts.cat.codes], distinct)
