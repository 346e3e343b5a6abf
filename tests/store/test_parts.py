"""Records in large numbers are written in parts, of which only the closed ones are read."""

from __future__ import annotations

import math
import re

import builders
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_directory import any_record

from commbench.errors import ResultsError
from commbench.model import TransferRecord, WireBytes
from commbench.store import parts
from commbench.store.parts import Batch, Parts, all_records, closed, merge
from commbench.store.records import BULK, DEFAULTS, KINDS

CASE = builders.case()
TRANSFER = builders.transfer(CASE, 0.0, 1.0)


def batch(*numbers):
    return Batch.from_columns(TransferRecord, **{**vars(TRANSFER), "nbytes": list(numbers)})


def numbers(run):
    return [record.nbytes for record in all_records(run) if isinstance(record, TransferRecord)]


def names(run):
    found = sorted(path.name for path in (run / "transfers").iterdir())
    return [re.sub(r"-\d{9,}", "", name) for name in found]


@given(st.one_of([any_record(KINDS[kind]) for kind in BULK]))
def test_a_batch_gives_every_record_back(record):
    kind = type(record)
    as_lists = {name: [value] * 2 for name, value in vars(record).items()}
    one, *others = vars(record)
    constant = {**vars(record), one: [vars(record)[one]] * 2}
    assert list(Batch.from_columns(kind, **as_lists).records()) == [record] * 2
    assert list(Batch.from_columns(kind, **constant).records()) == [record] * 2
    assert others


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("start_s", [0.0, math.nan]), ("start_s", [0.0, math.inf]), ("start_s", ["soon", "later"]),
        ("launch", [0, 2**63]), ("launch", [0, None]), ("launch", [0, "1"]), ("launch", [0, 1.5]),
        ("src", ["0", None]), ("src", ["0", 1]), ("src", ["0", "1", "2"]), ("src", ["0"]),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(column, value):
    """What a worker sends must not make a part that can't be read."""
    columns = {**vars(TRANSFER), "nbytes": [1, 2], column: value}
    with pytest.raises((ValueError, AttributeError)):
        Batch.from_columns(TransferRecord, **columns).table()


def test_any_text_becomes_unicode():
    """Half of a surrogate pair, which a name may have, is no text to other programs."""
    (record,) = Batch.from_columns(
        WireBytes, **{**vars(builders.wire(CASE, 1)), "dst": ["\udc80"]}
    ).records()
    assert record.dst == "?"


def test_only_closed_parts_are_read(tmp_path):
    being_written, wrong, right = (Parts(tmp_path, name) for name in ("open", "wrong", "right"))
    for number, each in enumerate((being_written, wrong, right)):
        each.add(batch(number))
        each.flush()
    assert numbers(tmp_path) == []
    wrong.fail()
    right.close()
    assert numbers(tmp_path) == [2]
    assert names(tmp_path) == ["open.open.parquet", "right.parquet", "wrong.failed.parquet"]


def test_a_part_is_written_when_rows_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "FLUSH_ROWS", 3)
    region = Parts(tmp_path, "a")
    for number in range(5):
        region.add(batch(number, number))
    assert names(tmp_path) == ["a.open.parquet"] * 2
    region.close()
    assert sorted(numbers(tmp_path)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(names(tmp_path)) == 3


def test_a_part_is_written_when_the_last_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "FLUSH_SECONDS", -1.0)
    Parts(tmp_path, "a").add(batch(1))
    assert names(tmp_path) == ["a.open.parquet"]


def test_parts_never_replace_each_other(tmp_path):
    for number in range(4):
        region = Parts(tmp_path, "a")
        region.add(batch(number))
        region.close()
        merge(tmp_path, "TransferRecord")
        killed = Parts(tmp_path, "a")
        killed.add(batch(-1))
        killed.flush()
        assert sorted(numbers(tmp_path)) == [*range(number + 1)]


def test_merging_keeps_what_is_not_closed(tmp_path):
    for number, end in enumerate(("close", "fail", "flush", "close", "close")):
        region = Parts(tmp_path, f"p{number}")
        region.add(batch(number))
        getattr(region, end)()
    merge(tmp_path, "TransferRecord")
    assert numbers(tmp_path) == [0, 3, 4]
    assert names(tmp_path) == ["merged-1.parquet", "p1.failed.parquet", "p2.open.parquet"]
    merge(tmp_path, "TransferRecord")
    assert len(closed(tmp_path, "TransferRecord")) == 1


def test_merging_leaves_a_damaged_part_to_be_named(tmp_path):
    for name in "ab":
        region = Parts(tmp_path, name)
        region.add(batch(1))
        region.close()
    (damaged,) = (tmp_path / "transfers").glob("b-*")
    damaged.write_bytes(b"PAR1 of old")
    merge(tmp_path, "TransferRecord")
    assert {"a.parquet", "b.parquet"} <= set(names(tmp_path))
    assert len(closed(tmp_path, "TransferRecord")) == 2
    assert len(names(tmp_path)) == 2


def test_a_column_added_later_has_its_default(tmp_path, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "TransferRecord", {"channel": "gather"})
    with_it, without = (Parts(tmp_path, name) for name in ("a", "b"))
    for each in (with_it, without):
        each.add(batch(1, 2))
        each.close()
    older, path = pq.read_table(closed(tmp_path, "TransferRecord")[1]), tmp_path / "transfers"
    (part,) = path.glob("b*.parquet")
    pq.write_table(older.drop_columns("channel"), part)
    assert [record.channel for record in all_records(tmp_path)] == ["gather"] * 4
    merge(tmp_path, "TransferRecord")
    assert [record.channel for record in all_records(tmp_path)] == ["gather"] * 4
    pq.write_table(older.drop_columns("src"), path / "c.parquet")
    with pytest.raises(ResultsError, match="src"):
        list(all_records(tmp_path))
