import builders
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commbench import load
from commbench.errors import ResultsError
from commbench.store import parts, records

CASE = builders.case()


def transfers(numbers):
    return [
        builders.transfer(CASE, float(n), n + 0.5, src=f"w{n % 7}", dst=f"v{n // 3}", nbytes=n)
        for n in numbers
    ]


def table_of(rows):
    return pa.Table.from_pylist([vars(row) for row in rows], schema=parts.schema("TransferRecord"))


def written(path, rows, *, group_rows=10**6):
    store = builders.written(path, [CASE], [])
    part_of(store.path).parent.mkdir()
    pq.write_table(table_of(rows), part_of(store.path), row_group_size=group_rows)
    return store.path


def part_of(run):
    return run / "transfers" / "a-0.parquet"


@pytest.mark.parametrize("group_rows", [1, 7, 100])
def test_row_groups_of_all_parts_are_joined_in_order(group_rows, tmp_path):
    stored, beyond = transfers(range(40)), transfers(range(40, 50))
    path = written(tmp_path, stored, group_rows=group_rows)
    pq.write_table(table_of(beyond), part_of(path).with_name("b-0.parquet"))
    table = load(path).transfers
    expected = pd.DataFrame(map(vars, [*stored, *beyond]))
    for name in records.FIELDS["TransferRecord"]:
        assert table[name].tolist() == expected[name].tolist()
    assert table["src"].cat.categories.equals(table["dst"].cat.categories)
    assert table["src"].cat.categories.is_monotonic_increasing


def test_a_file_of_another_program_is_read(tmp_path):
    rows = transfers(range(5))
    path = written(tmp_path, rows)
    frame = pd.DataFrame(map(vars, rows)).iloc[:, ::-1].assign(remark="none")
    frame = frame.astype({"launch": "int8", "nbytes": "uint16", "n_keys": "int32"})
    frame.to_parquet(part_of(path))
    table = load(path).transfers
    assert table["nbytes"].dtype == "int64"
    assert table[["src", "nbytes", "start_s"]].to_numpy().tolist() == [
        [row.src, row.nbytes, row.start_s] for row in rows
    ]


# Arrow would read fewer rows without a word.
def test_a_wrong_number_of_rows_in_the_footer_is_damage(tmp_path):
    path = written(tmp_path, transfers(range(100)))
    file = part_of(path)
    footer = file.read_bytes()
    n_rows = b"\xc8\x01"  # 100, as Thrift writes it.
    offsets = [at for at in range(len(footer)) if footer.startswith(n_rows, at)]
    refused = 0
    for at in offsets:
        file.write_bytes(footer[:at] + b"\xb4\x01" + footer[at + 2 :])
        try:
            assert len(load(path).transfers) == 100
        except ResultsError as error:
            refused += "not as many rows" in str(error)
    assert refused


@pytest.mark.parametrize("column", ["start_s", "a"])
def test_an_empty_file_of_other_columns_is_damage(column, tmp_path):
    path = written(tmp_path, [])
    assert load(path).transfers.empty
    pd.DataFrame({column: []}).to_parquet(part_of(path))
    with pytest.raises(ResultsError, match=r"can't read .*transfers"):
        _ = load(path).transfers


@pytest.mark.parametrize("names", ["1", '{"a": 1}', '["merged-1.parquet"]', "[" * 100_000, "what"])
def test_invalid_names_of_replaced_parts_are_damage(names, tmp_path):
    path = written(tmp_path, [])
    table = table_of(transfers(range(3))).replace_schema_metadata({"commbench.replaces": names})
    pq.write_table(table, path / "transfers" / "merged-1.parquet")
    with pytest.raises(ResultsError, match=r"can't read .*transfers/merged-1\.parquet"):
        _ = load(path).transfers
