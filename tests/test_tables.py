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
from commbench.errors import ResultsError
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
    texts = "category" if kind in records.OF_PAIRS else TEXT
    expected = {"int": "int64", "float": "float64", "str": texts}
    for name, kept in records.FIELDS[kind].items():
        assert str(found[name].dtype) == (TEXT if name == "evidence" else expected[kept])


def test_rows_that_were_not_filled_are_never_shown() -> None:
    """What the memory held before must not become a result."""
    columns = Columns("TransferRecord", 6)
    columns.fill(0, 3, table_of(transfers(range(3))).to_batches())
    with pytest.raises(ValueError, match="rows are missing"):
        columns.frame()


def test_a_file_that_tells_of_fewer_rows_than_it_has_is_damaged(tmp_path: Path) -> None:
    """Arrow would read as many as are told, and leave the others out without a word."""
    path = written(tmp_path, transfers(range(100)))
    file = path / "transfers.parquet"
    footer = file.read_bytes()
    n_rows = b"\xc8\x01"  # 100, as Thrift writes it.
    places = [at for at in range(len(footer)) if footer.startswith(n_rows, at)]
    refused = 0
    for place in places:
        file.write_bytes(footer[:place] + b"\xb4\x01" + footer[place + 2 :])
        try:
            assert len(load(path).transfers) == 100
        except ResultsError as error:
            refused += "not as many rows" in str(error)
    assert refused


@pytest.mark.parametrize("column", ["start_s", "a"])
def test_a_file_without_rows_must_have_the_columns_all_the_same(
    column: str, tmp_path: Path
) -> None:
    """Another program's empty table is not a run without transfers."""
    path = written(tmp_path, [])
    assert load(path).transfers.empty
    pd.DataFrame({column: []}).to_parquet(path / "transfers.parquet")
    with pytest.raises(ResultsError, match=r"can't read .*transfers"):
        load(path)


@pytest.mark.parametrize("mark", ["[1]", '{"a": 1}', '{"n_bytes": "5"}', "[" * 100_000, "what"])
def test_a_mark_of_lines_that_makes_no_sense_is_damage(mark: str, tmp_path: Path) -> None:
    """It decides which lines count: a traceback helps nobody."""
    path = written(tmp_path, [])
    table = table_of(transfers(range(3))).replace_schema_metadata({"commbench.lines": mark})
    pq.write_table(table, path / "transfers.parquet")
    (path / "transfers.jsonl").write_text("")
    with pytest.raises(ResultsError, match=r"can't read .*transfers\.parquet"):
        load(path)
