"""Columns of many records, filled from several threads, in memory that is taken once.

Of ten million transfers a second copy takes longer than reading them: the kernel clears its pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any

from commbench import records

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa


class Columns:
    """The columns of `n_rows` records of one `kind`; texts that repeat are kept once each."""

    def __init__(self, kind: str, n_rows: int) -> None:
        import numpy as np
        import pyarrow as pa

        schema = records.schema(kind)
        self._n_rows, self._names = n_rows, schema.names
        self._numbers = {
            field.name: np.empty(n_rows, field.type.to_pandas_dtype())
            for field in schema
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        }
        self._vocabularies = {
            field.name: _Vocabulary() for field in schema if pa.types.is_dictionary(field.type)
        }
        if "dst" in self._vocabularies:
            # Of the same categories, so that they can be compared with each other.
            self._vocabularies["dst"] = self._vocabularies["src"]
        self._codes = {name: np.empty(n_rows, np.int32) for name in self._vocabularies}
        coded = self._numbers.keys() | self._codes.keys()
        self._others = pa.schema([field for field in schema if field.name not in coded])
        self._parts: dict[tuple[int, int], pa.Table] = {}

    def fill(self, begin: int, end: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Fill the rows from `begin` to before `end` with those in `batches`, one after the other.

        Other threads may fill other rows meanwhile.

        Raises
        ------
        ValueError
            Where there are more rows, or fewer.
        """
        import pyarrow as pa

        codings = {name: _Coding(words) for name, words in self._vocabularies.items()}
        place, others = begin, []
        for batch in batches:
            rows, place = slice(place, place + len(batch)), place + len(batch)
            if place > end:
                break
            for name, column in self._numbers.items():
                column[rows] = batch[name]
            for name, coding in codings.items():
                self._codes[name][rows] = coding.codes(batch[name])
            others.append(batch.select(self._others.names))
        if place != end:
            raise ValueError("it has not as many rows as it says")
        self._parts[begin, end] = pa.Table.from_batches(others, self._others)

    def frame(self) -> pd.DataFrame:
        """Return the columns as a frame, which takes over their memory.

        Raises
        ------
        ValueError
            Where rows were not filled.
        """
        import pandas as pd
        import pyarrow as pa

        begins, ends = zip(*sorted(self._parts), strict=True)
        if (*begins, self._n_rows) != (0, *ends):
            raise ValueError(f"rows are missing: of {self._n_rows} there are {sorted(self._parts)}")
        parts = [self._parts[edges] for edges in zip(begins, ends, strict=True)]
        columns = self._numbers | dict(pa.concat_tables(parts).to_pandas().items())
        for name, words in self._vocabularies.items():
            columns[name] = words.categorical(self._codes.pop(name))
        return pd.DataFrame({name: columns[name] for name in self._names}, copy=False)


class _Vocabulary:
    """Texts and their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lock = Lock()

    def numbers(self, texts: list[str]) -> np.ndarray[Any, Any]:
        """Return the numbers of `texts`."""
        import numpy as np

        with self._lock:
            found = [self._numbers.setdefault(text, len(self._numbers)) for text in texts]
        return np.array(found, dtype=np.int32)

    def categorical(self, numbers: np.ndarray[Any, Any]) -> pd.Categorical:
        """Return the texts with these numbers, of sorted categories."""
        import numpy as np
        import pandas as pd

        texts = sorted(self._numbers)
        codes = np.empty(len(texts), np.min_scalar_type(-len(texts)))
        codes[[self._numbers[text] for text in texts]] = np.arange(len(texts))
        dtype = pd.CategoricalDtype(pd.Index(texts, dtype="str"))
        return pd.Categorical.from_codes(codes[numbers], dtype=dtype, validate=False)


class _Coding:
    """Turns what a file has for texts, batch by batch, into the numbers of a vocabulary."""

    def __init__(self, vocabulary: _Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._dictionary: pa.Array | None = None

    def codes(self, column: pa.DictionaryArray) -> Any:
        """Return the numbers of the texts in `column`."""
        # All batches of a row group have the same dictionary, mostly.
        if self._dictionary is None or not column.dictionary.equals(self._dictionary):
            self._dictionary = column.dictionary
            self._numbers = self._vocabulary.numbers(column.dictionary.to_pylist())
        return self._numbers.take(column.indices)
