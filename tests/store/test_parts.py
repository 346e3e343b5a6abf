"""Bulk records are written in parts, of which only the closed ones are read."""

import math
import os
import re
from pathlib import Path

import builders
import pyarrow.parquet as pq
import pytest

from commbench.errors import ResultsError
from commbench.model.observed import TaskRecord, TransferRecord, WireBytes
from commbench.store import parts
from commbench.store.parts import Parts, closed, merge

CASE = builders.case()
TRANSFER = builders.transfer(CASE, 0.0, 1.0)


def write(run, name, *sizes, end="close"):
    """Write transfers of these sizes as a part, and end it: ``close``, ``fail`` or ``flush``."""
    region = Parts(run, name)
    region.add(parts.table(TransferRecord, **{**vars(TRANSFER), "nbytes": list(sizes)}))
    getattr(region, end)()


def sizes(run):
    records = builders.all_records(run)
    return [record.nbytes for record in records if isinstance(record, TransferRecord)]


def names(run):
    """Return the names of all parts of the transfers, without their times."""
    return sorted(re.sub(r"-\d{9,}", "", path.name) for path in (run / "transfers").iterdir())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("start_s", [0.0, math.nan]), ("start_s", [0.0, math.inf]), ("start_s", ["soon", "later"]),
        ("launch", [0, 2**63]), ("launch", [0, None]), ("launch", [0, "1"]), ("launch", [0, 1.5]),
        ("src", ["0", None]), ("src", ["0", 1]), ("src", ["0", "1", "2"]), ("src", ["0"]),
    ],
)  # fmt: skip
def test_value_of_another_type_is_refused(column, value):
    """What a worker sends must not make a part that can't be read."""
    columns = {**vars(TRANSFER), "nbytes": [1, 2], column: value}
    with pytest.raises((ValueError, AttributeError)):
        parts.table(TransferRecord, **columns)


def test_surrogates_become_unicode():
    columns = {**vars(builders.wire(CASE, 1)), "dst": ["\udc80"]}
    (record,) = parts.to_records(parts.table(WireBytes, **columns))
    assert record.dst == "?"


def test_only_closed_parts_are_read(tmp_path):
    for size, end in enumerate(("flush", "fail", "close")):
        write(tmp_path, end, size, end=end)
    assert sizes(tmp_path) == [2]
    assert names(tmp_path) == ["close.parquet", "fail.failed.parquet", "flush.open.parquet"]


def test_part_is_written_when_it_has_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "FLUSH_ROWS", 3)
    region = Parts(tmp_path, "a")
    for size in range(5):
        columns = {**vars(TRANSFER), "nbytes": [size, size]}
        region.add(parts.table(TransferRecord, **columns))
    assert names(tmp_path) == ["a.open.parquet"] * 2
    region.close()
    assert sorted(sizes(tmp_path)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(names(tmp_path)) == 3


def test_part_is_written_when_the_last_one_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "FLUSH_SECONDS", -1.0)
    Parts(tmp_path, "a").add(parts.table(TransferRecord, **vars(TRANSFER) | {"nbytes": [1]}))
    assert names(tmp_path) == ["a.open.parquet"]


def test_parts_of_the_same_name_do_not_replace_each_other(tmp_path):
    """A resumed run may have a launch with the index of an earlier one."""
    for size in range(4):
        write(tmp_path, "a", size)
        merge(tmp_path, "TransferRecord")
        write(tmp_path, "a", -1, end="flush")
        assert sorted(sizes(tmp_path)) == [*range(size + 1)]


def test_merging_leaves_open_and_failed_parts(tmp_path):
    for size, end in enumerate(("close", "fail", "flush", "close", "close")):
        write(tmp_path, f"p{size}", size, end=end)
    for _ in range(2):
        merge(tmp_path, "TransferRecord")
        assert sizes(tmp_path) == [0, 3, 4]
        assert names(tmp_path) == ["merged-1.parquet", "p1.failed.parquet", "p2.open.parquet"]


def test_a_merged_part_is_on_disk_before_others_are_removed(tmp_path, monkeypatch):
    for name in "ab":
        write(tmp_path, name, 1)
    calls = []

    def watched(name, real):
        def call(first, *args, **options):
            path = Path(f"/proc/self/fd/{first}").readlink() if name == "fsync" else first
            calls.append((name, re.sub(r"-\d{9,}", "", path.name)))
            return real(first, *args, **options)

        return call

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))
    merge(tmp_path, "TransferRecord")
    part = "merged-1.part"
    expected = [("fsync", part), ("replace", part), ("unlink", part), ("fsync", "transfers")]
    assert calls[:4] == expected
    assert sorted(calls[4:]) == [("unlink", "a.parquet"), ("unlink", "b.parquet")]


def test_merging_leaves_parts_that_others_close_meanwhile(tmp_path, monkeypatch):
    real = Path.replace

    def replace(source, target):
        real(source, target)
        write(tmp_path, "c", 3)

    for name, size in (("a", 1), ("b", 2)):
        write(tmp_path, name, size)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        merge(tmp_path, "TransferRecord")
    assert sorted(sizes(tmp_path)) == [1, 2, 3]


def test_merging_leaves_all_parts_if_one_is_damaged(tmp_path):
    for name in "ab":
        write(tmp_path, name, 1)
    (damaged,) = (tmp_path / "transfers").glob("b-*")
    damaged.write_bytes(b"PAR1 of old")
    merge(tmp_path, "TransferRecord")
    assert names(tmp_path) == ["a.parquet", "b.parquet"]
    assert len(closed(tmp_path, "TransferRecord")) == 2


def test_table_without_a_column_has_the_default_of_its_field():
    columns = {"worker": "0", "thread": 1, "name": "add", "action": "compute"}
    keys = {"case_id": CASE.id, "launch": 0, "iteration": 0, "start_s": 0.0, "stop_s": 1.0}
    (task,) = parts.to_records(parts.table(TaskRecord, **keys, **columns))
    assert (task.key, task.nbytes) == ("", 0)


@pytest.mark.parametrize("column", ["src", "shuffle"])
def test_part_without_a_column_is_damaged_whether_or_not_the_field_has_a_default(tmp_path, column):
    write(tmp_path, "a", 1, 2)
    (part,) = (tmp_path / "transfers").iterdir()
    pq.write_table(pq.read_table(part).drop_columns(column), part)
    with pytest.raises(ResultsError, match=column):
        list(builders.all_records(tmp_path))
