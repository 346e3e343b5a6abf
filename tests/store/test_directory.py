"""A run on disk: complete up to its end or its crash, and never overwritten."""

import contextlib
import dataclasses
import json
import os
import random
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import builders
import pandas as pd
import pyarrow.parquet
import pytest

from commbench import Run, load, model
from commbench.errors import ResultsError, UnwritableError, UsageError
from commbench.model.observed import Record
from commbench.store import files, parts, records
from commbench.store.directory import RunStore, new_run_id
from commbench.store.records import TABLES

CASE = builders.case()


def append(store, *new):
    builders.store_all(store, new)
    store.close()


def seconds(run):
    return run.samples["seconds"].tolist()


def rows(run):
    """Return the fields of all records, by kind, those with a time in its order."""
    return {
        kind: sorted(
            getattr(run, name).drop(columns=["workload", "backend"]).to_dict(orient="records"),
            key=lambda row: row.get("start_s", 0),
        )
        for name, kind in TABLES.items()
    }


def test_every_kind_of_record_has_a_frame():
    # Type checkers know a frame by its annotation.
    assert {*TABLES} <= {*Run.__annotations__}
    for kind in Record.kinds.values():
        assert kind.__doc__ == vars(Run)[kind.table].__doc__


def test_a_record_that_is_defined_is_a_kind(monkeypatch):
    monkeypatch.setattr(Record, "kinds", {})

    class Pigeon(Record, table="pigeons", in_parts=True): ...

    class _Base(Record): ...

    assert Record.kinds == {"Pigeon": Pigeon}
    assert (Pigeon.table, Pigeon.in_parts) == ("pigeons", True)


def test_a_path_that_libraries_do_not_take_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(UsageError, match=r"a path with a colon, .*10:30.*--output"):
        new_run_id("merge", tmp_path / "10:30")
    latin_1 = os.fsdecode("résultats".encode("latin-1"))
    with pytest.raises(UsageError, match=r"a path that is not UTF-8, .*--output"):
        new_run_id("merge", tmp_path / latin_1)
    assert not [*tmp_path.iterdir()]
    path = builders.written(tmp_path, [CASE]).path
    with pytest.raises(UsageError, match="a path with a colon"):
        RunStore.reopen(path.rename(tmp_path / "10:30"))


@pytest.mark.parametrize("finished", [True, False])
def test_every_kind_of_record_is_read(finished, tmp_path):
    store = builders.unfinished(tmp_path, [CASE], builders.every_kind(CASE))
    if finished:
        store.finish()
    run = load(store.path)
    assert run.notes == ()
    assert rows(run) == {type(r).__name__: [vars(r)] for r in builders.every_kind(CASE)}
    for name in TABLES:
        frame = getattr(run, name)
        assert (frame["workload"].tolist(), frame["backend"].tolist()) == (["merge"], ["tcp"])


def test_frames_without_records_have_the_same_types(tmp_path):
    empty = load(builders.unfinished(tmp_path / "empty", [CASE]).path)
    full = load(builders.unfinished(tmp_path / "full", [CASE], builders.every_kind(CASE)).path)
    for name in TABLES:
        # The categories are the names in the records, so they differ.
        types = [getattr(run, name).dtypes.astype(str).to_dict() for run in (empty, full)]
        assert types[0] == types[1]
        assert len(getattr(empty, name)) == 0


def test_records_of_other_cases_are_left_out(tmp_path):
    foreign = builders.case("ucx")
    both = builders.every_kind(CASE) + builders.every_kind(foreign)
    run = load(builders.written(tmp_path, [CASE], both).path)
    assert all(len(getattr(run, name)) == 1 for name in TABLES)
    assert len(run.notes) == len(TABLES)
    assert "1 Samples of cases that are not the run's are left out" in run.notes


class KilledError(BaseException):
    """The process is killed."""


@pytest.mark.parametrize("step", ["write_table", "replace", "unlink"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_while_merging_parts_keeps_each_record_once(step, when, tmp_path, monkeypatch):
    store = builders.unfinished(tmp_path, [CASE], builders.every_kind(CASE))
    append(store, *builders.every_kind(CASE))
    patched = pyarrow.parquet.ParquetWriter if step == "write_table" else Path
    real = getattr(patched, step)

    def kill(*args, **kwargs):
        if when == "after":
            real(*args, **kwargs)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(patched, step, kill)
        with pytest.raises(KilledError):
            store.finish()
    expected = {type(record).__name__: [vars(record)] * 2 for record in builders.every_kind(CASE)}
    assert rows(load(store.path)) == expected

    resumed = RunStore.reopen(store.path)
    new = [builders.transfer(CASE, 1, 2), builders.task(CASE, 1, 2)]
    append(resumed, *new)
    for record in new:
        expected[type(record).__name__].append(vars(record))
    for _ in range(2):
        assert rows(load(store.path)) == expected
        resumed.finish()
    assert load(store.path).notes == ()
    for folder in records.BULK.values():
        assert len(list((store.path / folder).iterdir())) == 1


@pytest.mark.parametrize("n_removed", range(4))
def test_two_crashes_while_parts_are_removed_keep_each_record_once(
    n_removed, tmp_path, monkeypatch
):
    store = builders.unfinished(tmp_path, [CASE], builders.every_kind(CASE))
    append(store, *builders.every_kind(CASE))
    removes, left = Path.unlink, [0]

    def remove(path, **given):
        if path.suffix == ".parquet":
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
        removes(path, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", remove)
        with pytest.raises(KilledError):
            store.finish()
        resumed = RunStore.reopen(store.path)
        append(resumed, builders.transfer(CASE, 1, 2), builders.transfer(CASE, 3, 4))
        left[0] = n_removed
        with pytest.raises(KilledError):
            resumed.finish()
    for _ in range(2):
        assert len(load(store.path).transfers) == 4
        RunStore.reopen(store.path).finish()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "run.json is missing"),
        (b"", "can't read"),
        (b"{", "can't read"),
        (b"\xff\xfe", "can't read"),
        (b"[" * 200_000, "can't read"),
        (b"[]", "schema version None"),
        (b"{}", "schema version None"),
        (b'{"schema_version": 0}', "schema version 0"),
        (b'{"schema_version": 99, "new": 1}', "schema version 99"),
        (b'{"schema_version": 3}', "schema version 3"),
        (b'{"schema_version": %d}' % model.SCHEMA_VERSION, "damaged"),
        (b'{"schema_version": %d, "id": "x", "suite": null}' % model.SCHEMA_VERSION, "damaged"),
    ],
)
@pytest.mark.parametrize("read", [load, RunStore.reopen])
def test_folder_without_a_readable_manifest_is_refused(read, content, reason, tmp_path):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ResultsError, match=reason) as caught:
        read(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("path", ["absent", "file"])
def test_path_without_a_folder_is_refused(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=path):
        load(tmp_path / path)


def leaves(content, path=()):
    """Return the paths of everything inside of `content`."""
    inner = content.items() if isinstance(content, dict) else enumerate(content)
    paths = []
    for key, value in inner:
        paths.append((*path, key))
        if isinstance(value, dict | list):
            paths += leaves(value, (*path, key))
    return paths


@pytest.mark.parametrize(
    "value",
    [
        None, -1, {"a": 1},
        *(pytest.param(v, marks=pytest.mark.slow) for v in ("x", [], {}, [1], float("nan"))),
    ],
)  # fmt: skip
def test_manifest_with_any_value_replaced_is_refused_or_read(value, tmp_path):
    cluster = model.ClusterSpec(hosts=("a",))
    case = builders.case(params={"rows": 1, "sizes": [1, 2]}, cluster=cluster)
    store = builders.unfinished(tmp_path, [case], environment={"cpu": {"model": "x"}})
    file = store.path / "run.json"
    original = file.read_text()
    n_read, refusals = 0, []
    for *parents, last in leaves(json.loads(original)):
        content = json.loads(original)
        parent = content
        for key in parents:
            parent = parent[key]
        parent[last] = value
        file.write_text(json.dumps(content))
        try:
            assert load(store.path).summaries.empty
            n_read += 1
        except ResultsError as error:
            refusals.append(str(error))
    assert n_read
    assert refusals
    assert all(refusal.startswith(str(file)) for refusal in refusals)


DAMAGE = {
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(b"garbage"),
    "no metadata": lambda file: file.write_bytes(b"PAR1" + b"\0" * 64 + b"PAR1"),
    "a column missing": lambda file: pd.read_parquet(file).drop(columns="nbytes").to_parquet(file),
    "text": lambda file: pd.read_parquet(file).assign(start_s="soon").to_parquet(file),
    "a foreign table": lambda file: pd.DataFrame({"a": [1]}).to_parquet(file),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_parquet_is_named(damage, tmp_path):
    run = builders.written(tmp_path, [CASE], [builders.transfer(CASE, 0, 1)]).path
    (part,) = parts.closed(run, "TransferRecord")
    damage(part)
    with pytest.raises(ResultsError, match=r"can't read .*transfers/made-up"):
        _ = load(run).transfers


@pytest.fixture
def file_size_limit():
    """Return a function that limits the size of the files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda nbytes: resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes or -1, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["samples", "transfers"])
def test_file_that_cannot_grow_keeps_every_stored_record(kind, tmp_path, file_size_limit):
    store, count, dice = builders.unfinished(tmp_path, [CASE]), 0, random.Random(0)
    file_size_limit(40_000)
    with pytest.raises(ResultsError, match="File too large") as caught:  # noqa: PT012
        while True:
            if kind == "samples":
                new = [builders.sample(CASE, float(count))]
            else:
                # Each part is larger than the one before: at last one exceeds the limit.
                new = [builders.transfer(CASE, 0, dice.random()) for _ in range(500 + count)]
            builders.store_all(store, new)
            count += len(new)
    assert f"{store.path}/{kind}" in str(caught.value)
    assert f"kept in {store.path}" in str(caught.value)
    assert count > 100
    assert len(getattr(load(store.path), kind)) == count
    # Merging the parts needs more room than each of them.
    with contextlib.suppress(ResultsError):
        store.finish()
    assert len(getattr(load(store.path), kind)) == count


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path, file_size_limit):
    file, link = tmp_path / "references.toml", tmp_path / "link.toml"
    files.write(file, "old")
    link.symlink_to(file)
    file_size_limit(1000)
    with pytest.raises(UnwritableError, match="File too large"):
        files.write(link, 2000 * "x")
    assert file.read_text() == "old"
    file.chmod(0o640)
    files.write(link, "new")
    file_size_limit(0)
    assert file.stat().st_mode & 0o777 == 0o640
    assert (file.read_text(), link.is_symlink()) == ("new", True)
    assert {each.name for each in tmp_path.iterdir()} == {"references.toml", "link.toml"}


def test_the_first_launch_that_shows_a_transport_is_named_after_a_resume(tmp_path):
    store = builders.unfinished(tmp_path, [CASE])
    # Numbers of more digits come first by name.
    for launch in (2, 10):
        builders.store_all(store, [builders.transport(CASE, launch=launch)])
    (row,) = load(store.path).pair_transports.itertuples()
    assert row.launch == 2


def test_store_goes_on_when_there_is_room_again(tmp_path, file_size_limit):
    store = builders.unfinished(tmp_path, [CASE], [builders.sample(CASE, 1.0)])
    file_size_limit((store.path / "samples.jsonl").stat().st_size + 20)
    with pytest.raises(ResultsError, match=r"can't write .*samples\.jsonl: File too large"):
        store.append(builders.sample(CASE, 2.0))
    file_size_limit(None)
    assert seconds(load(store.path)) == [1.0]
    append(store, builders.sample(CASE, 3.0))
    assert seconds(load(store.path)) == [1.0, 3.0]


@pytest.mark.parametrize(
    "create",
    [
        lambda output: new_run_id("x", output),
        lambda output: RunStore.create(output, builders.run([CASE])),
    ],
    ids=["id", "run"],
)
def test_output_that_is_a_file_is_refused(create, tmp_path):
    output = tmp_path / "file"
    output.write_text("")
    with pytest.raises(ResultsError, match=r"can't make .*file/.*Not a directory.*--output"):
        create(output)


def test_output_that_is_a_link_to_nothing_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(UnwritableError, match=r"can't make .*link: File exists"):
        new_run_id("merge", tmp_path / "link")


def test_report_that_cannot_be_written_is_an_error(tmp_path):
    store = builders.unfinished(tmp_path, [CASE])
    (store.path / "report.md").mkdir()
    with pytest.raises(ResultsError, match=r"can't write .*report\.md: Is a directory"):
        store.write("report.md", "x")


def test_run_ids_never_collide(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda _: new_run_id("smoke", tmp_path), range(50)))
    assert len(set(ids)) == 50
    assert {path.name for path in tmp_path.iterdir()} == set(ids)
    assert all("smoke" in name for name in ids)


@pytest.mark.parametrize(
    "name", ["../../up", "/etc/x", "a/b", "a b\nc", "\0", "", "." * 300, "日本"]
)
def test_suite_name_cannot_lead_out_of_the_output(name, tmp_path):
    output = tmp_path / "deep" / "results"
    run_id = new_run_id(name, output)
    assert (output / run_id).resolve().parent == output.resolve()
    assert list(tmp_path.iterdir()) == [tmp_path / "deep"]
    store = RunStore.create(output, dataclasses.replace(builders.run([CASE]), id=run_id))
    assert load(store.path).manifest.id == run_id
