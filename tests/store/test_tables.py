"""Records in Parquet files become frames."""

from __future__ import annotations

from pathlib import Path

import builders
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commbench import load
from commbench.errors import ResultsError
from commbench.model import TransferRecord
from commbench.store import parts, records, tables

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
    return pa.Table.from_pylist([vars(row) for row in rows], schema=parts.schema("TransferRecord"))


def written(path: Path, rows: list[TransferRecord], *, group_rows: int = 10**6) -> Path:
    """Write a run whose transfers are in a part with row groups of that many rows."""
    store = builders.written(path, [CASE], [])
    part_of(store.path).parent.mkdir()
    pq.write_table(table_of(rows), part_of(store.path), row_group_size=group_rows)
    return store.path


def part_of(run: Path) -> Path:
    """Return the path of the part."""
    return run / "transfers" / "a-0.parquet"


@pytest.mark.parametrize("group_rows", [1, 7, 100])
def test_row_groups_come_together_in_their_order(group_rows: int, tmp_path: Path) -> None:
    """Each has another dictionary; the rows of one part come before those of the next."""
    stored, beyond = transfers(range(40)), transfers(range(40, 50))
    path = written(tmp_path, stored, group_rows=group_rows)
    pq.write_table(table_of(beyond), part_of(path).with_name("b-0.parquet"))
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
    frame.to_parquet(part_of(path))
    found = load(path).transfers
    assert found["nbytes"].dtype == "int64"
    assert found[["src", "nbytes", "start_s"]].to_numpy().tolist() == [
        [row.src, row.nbytes, row.start_s] for row in rows
    ]


@pytest.mark.parametrize("kind", records.BULK)
def test_without_records_columns_have_their_types(kind: str, tmp_path: Path) -> None:
    """What is computed from an empty frame must not fail for its types."""
    found = tables.frame_from_parts(tmp_path, kind)
    assert list(found) == list(records.FIELDS[kind])
    texts = "category" if "dst" in records.FIELDS[kind] else TEXT
    expected = {"int": "int64", "float": "float64", "str": texts}
    for name, kept in records.FIELDS[kind].items():
        assert str(found[name].dtype) == (TEXT if name == "evidence" else expected[kept])


def test_a_file_that_tells_of_fewer_rows_than_it_has_is_damaged(tmp_path: Path) -> None:
    """Arrow would read as many as are told, and leave the others out without a word."""
    path = written(tmp_path, transfers(range(100)))
    file = part_of(path)
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
    pd.DataFrame({column: []}).to_parquet(part_of(path))
    with pytest.raises(ResultsError, match=r"can't read .*transfers"):
        _ = load(path).transfers


@pytest.mark.parametrize("names", ["1", '{"a": 1}', '["merged-1.parquet"]', "[" * 100_000, "what"])
def test_names_of_replaced_parts_that_make_no_sense_are_damage(names: str, tmp_path: Path) -> None:
    """They decide which parts count: a traceback helps nobody."""
    path = written(tmp_path, [])
    table = table_of(transfers(range(3))).replace_schema_metadata({"commbench.replaces": names})
    pq.write_table(table, path / "transfers" / "merged-1.parquet")
    with pytest.raises(ResultsError, match=r"can't read .*transfers/merged-1\.parquet"):
        _ = load(path).transfers
