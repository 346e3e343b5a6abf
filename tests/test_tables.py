"""Records in Parquet files, read from several threads into frames."""

from __future__ import annotations

from pathlib import Path

import builders
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench import load, records, tables
from commbench.columns import Columns
from commbench.model import TransferRecord

CASE = builders.case()
TEXT = str(pd.Series(["a"], dtype="str").dtype)
"""``object`` before pandas 3."""


def transfers(numbers: range) -> list[TransferRecord]:
    """Return transfers that all differ, many of them between workers of their own."""
    return [
        builders.transfer(CASE, float(n), n + 0.5, src=f"w{n % 7}", dst=f"v{n // 3}", nbytes=n)
        for n in numbers
    ]


def table_of(rows: list[TransferRecord]) -> pa.Table:
    """Return the rows as they are in a file."""
    return pa.Table.from_pylist(
        [vars(row) for row in rows], schema=records.schema("TransferRecord")
    )


def written(path: Path, rows: list[TransferRecord], *, group_rows: int = 10**6) -> Path:
    """Write a run whose transfers are in a Parquet file with row groups of so many rows."""
    store = builders.written(path, [CASE], [])
    pq.write_table(table_of(rows), store.path / "transfers.parquet", row_group_size=group_rows)
    return store.path


@pytest.mark.parametrize(("group_rows", "batch_rows"), [(1, 1), (4, 3), (7, 100), (100, 9)])
def test_row_groups_come_together_in_their_order(
    group_rows: int, batch_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a dictionary of its own, before the lines that no table has yet."""
    monkeypatch.setattr(tables, "_BATCH_ROWS", batch_rows)
    stored, beyond = transfers(range(40)), transfers(range(40, 50))
    path = written(tmp_path, stored, group_rows=group_rows)
    lines = [records.encode(row) + "\n" for row in beyond]
    (path / "transfers.jsonl").write_text("".join(lines))
    found = load(path).transfers
    expected = pd.DataFrame(map(vars, [*stored, *beyond]))
    for name in records.FIELDS["TransferRecord"]:
        assert found[name].tolist() == expected[name].tolist()
    assert found["src"].cat.categories.equals(found["dst"].cat.categories)
    assert found["src"].cat.categories.is_monotonic_increasing


def test_a_file_by_another_program_is_read(tmp_path: Path) -> None:
    """Its texts may be plain, its numbers shorter, its columns in another order and more."""
    rows = transfers(range(5))
    path = written(tmp_path, rows)
    frame = pd.DataFrame(map(vars, rows)).iloc[:, ::-1].assign(remark="none")
    frame = frame.astype({"launch": "int8", "nbytes": "uint16", "n_keys": "int32"})
    frame.to_parquet(path / "transfers.parquet")
    found = load(path).transfers
    assert found["nbytes"].dtype == "int64"
    assert found[["src", "nbytes", "start_s"]].to_numpy().tolist() == [
        [row.src, row.nbytes, row.start_s] for row in rows
    ]


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 3))
def test_rows_must_be_as_many_as_there_is_room_for(room: int, n_rows: int, at_once: int) -> None:
    """One too few would leave what the memory held before, one too many another part's rows."""
    columns = Columns("TransferRecord", 3 + room + 3)
    batches = table_of(transfers(range(n_rows))).to_batches(at_once)
    columns.fill(0, 3, table_of(transfers(range(100, 103))).to_batches())
    columns.fill(3 + room, 6 + room, table_of(transfers(range(200, 203))).to_batches())
    if n_rows != room:
        with pytest.raises(ValueError, match="not as many rows"):
            columns.fill(3, 3 + room, batches)
        batches = table_of(transfers(range(room))).to_batches(at_once)
    columns.fill(3, 3 + room, batches)
    assert columns.frame()["nbytes"].tolist() == [100, 101, 102, *range(room), 200, 201, 202]


@pytest.mark.parametrize("kind", records.FILES)
def test_without_records_columns_have_their_types(kind: str) -> None:
    """What is computed from an empty frame must not fail for its types."""
    columns = Columns(kind, 0)
    columns.fill(0, 0, [])
    found = columns.frame()
    assert list(found) == list(records.FIELDS[kind])
    expected = {"int": "int64", "float": "float64"}
    for name, kept in records.FIELDS[kind].items():
        assert str(found[name].dtype) in (expected.get(kept, TEXT), "category")
