"""What was measured is on disk at once, is read whatever became of the rest, and counts once."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import builders
import pandas as pd
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench import load, model
from commbench.errors import ResultsError
from commbench.store import parts, records
from commbench.store.directory import RunStore, decode, encode, new_run_id, read_manifest

CASE = builders.case()
FRAMES = {
    "Sample": "samples", "Region": "regions", "TransferRecord": "transfers", "WireBytes": "wire",
    "LogCount": "log_counts", "TaskRecord": "tasks", "TransportUsed": "transports",
    "WorkerAddress": "addresses", "WorkerPlace": "places",
    "NetworkCounter": "network", "IdleCost": "idle", "Load": "loads", "CoreUse": "core_use",
    "Spill": "spills", "Setting": "settings", "ThreadTime": "threads",
    "Activity": "activities", "Failure": "failures", "LaunchEnd": "ends",
}  # fmt: skip
KINDS = [getattr(model, name) for name in FRAMES]
VALUES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"])),
}


def store_of(tmp_path, found=None, **given):
    store = RunStore.create(tmp_path, builders.run([CASE], **given))
    append(store, *(found or []))
    return store


def append(store, *found):
    builders.store_all(store, found)
    store.close()


def seconds(run):
    return run.samples["seconds"].tolist()


def rows(run):
    return {
        kind: getattr(run, name).drop(columns=["workload", "backend"]).to_dict(orient="records")
        for kind, name in FRAMES.items()
    }


def any_record(kind):
    fields = {name: VALUES[wanted] for name, wanted in records.FIELDS[kind.__name__].items()}
    return st.builds(kind, **fields)


# --- what goes in comes out ------------------------------------------------------------------


@given(st.one_of([any_record(kind) for kind in KINDS]))
def test_a_record_is_the_same_after_its_line(record):
    line = encode(record)
    assert "\n" not in line
    assert decode(line) == record
    assert decode(line.encode()) == record


@pytest.mark.parametrize("finished", [True, False])
def test_every_kind_of_record_is_read_back(finished, tmp_path):
    found = builders.every_kind(CASE)
    store = store_of(tmp_path, found)
    if finished:
        store.finish()
    run = load(store.path)
    assert run.notes == ()
    assert rows(run) == {type(record).__name__: [vars(record)] for record in found}
    for name in FRAMES.values():
        frame = getattr(run, name)
        assert (frame["workload"].tolist(), frame["backend"].tolist()) == (["merge"], ["tcp"])


def test_every_kind_of_record_has_a_frame():
    assert set(records.KINDS) == set(FRAMES) == {kind.__name__ for kind in model.Record.__args__}


def test_an_empty_run_has_typed_frames(tmp_path):
    (tmp_path / "full").mkdir()
    empty = load(store_of(tmp_path).path)
    full = load(store_of(tmp_path / "full", builders.every_kind(CASE)).path)
    for name in FRAMES.values():
        # Categories differ, being the names that were seen.
        types = (getattr(run, name).dtypes.astype(str).to_dict() for run in (empty, full))
        assert len({str(found) for found in types}) == 1
        assert len(getattr(empty, name)) == 0


def test_a_record_is_on_disk_when_append_returns(tmp_path):
    store = store_of(tmp_path)
    for count in range(1, 4):
        store.append(builders.sample(CASE, float(count)))
        assert seconds(load(store.path)) == [float(number) for number in range(1, count + 1)]
    store.close()


def test_the_run_is_described_before_anything_is_measured(tmp_path):
    run = builders.run([CASE], environment={"cpu": {"model": "x"}}, seed=7, command="commbench …")
    RunStore.create(tmp_path, run)
    again = read_manifest(tmp_path / run.id)
    assert [case.id for case in again.suite.cases] == [CASE.id]
    assert (again.environment, again.seed, again.command) == (run.environment, 7, "commbench …")


# --- what a crash leaves ---------------------------------------------------------------------


def test_a_file_cut_anywhere_keeps_every_earlier_record(tmp_path):
    written = [builders.sample(CASE, float(number)) for number in range(3)]
    lines = [encode(record).encode() + b"\n" for record in written]
    path, content = tmp_path / "some.jsonl", b"".join(lines)
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        whole = sum(size >= len(b"".join(lines[:n])) for n in range(1, len(lines) + 1))
        notes = []
        found = records.read(path, notes)
        assert found == [json.loads(line) for line in lines[:whole]]
        is_cut = size != len(b"".join(lines[:whole]))
        assert notes == ["some.jsonl ends in a line that was cut short; it is left out"] * is_cut


def test_a_run_goes_on_after_a_cut_line(tmp_path):
    store = store_of(tmp_path, builders.every_kind(CASE))
    path = store.path / "samples.jsonl"
    path.write_bytes(path.read_bytes() + b'{"record":"Sam')
    append(RunStore.reopen(store.path), *builders.every_kind(CASE))
    RunStore.reopen(store.path).finish()
    run = load(store.path)
    assert {kind: len(found) for kind, found in rows(run).items()} == dict.fromkeys(FRAMES, 2)
    assert len(run.notes) == 1
    assert "samples.jsonl line" in run.notes[0]


class Killed(BaseException):
    """The process is gone at this point, whatever the code would like to do next."""


@pytest.mark.parametrize("step", ["write_table", "replace", "unlink"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_no_record_is_lost_or_counted_twice_by_a_crash_at_the_end(
    step, when, tmp_path, monkeypatch
):
    store = store_of(tmp_path, builders.every_kind(CASE))
    append(store, *builders.every_kind(CASE))
    owner = pyarrow.parquet.ParquetWriter if step == "write_table" else Path
    real = getattr(owner, step)

    def kill(*args, **kwargs):
        if when == "after":
            real(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, kill)
        with pytest.raises(Killed):
            store.finish()
    expected = {type(record).__name__: [vars(record)] * 2 for record in builders.every_kind(CASE)}
    assert rows(load(store.path)) == expected

    resumed = RunStore.reopen(store.path)
    more = [builders.transfer(CASE, 1, 2), builders.task(CASE, 1, 2)]
    append(resumed, *more)
    for kind, record in zip(("TransferRecord", "TaskRecord"), more, strict=True):
        expected[kind] = sorted([*expected[kind], vars(record)], key=lambda row: row["start_s"])
    for _ in range(2):
        found = rows(load(store.path))
        for kind in ("TransferRecord", "TaskRecord"):
            found[kind] = sorted(found[kind], key=lambda row: row["start_s"])
        assert found == expected
        resumed.finish()
    assert load(store.path).notes == ()
    for folder in records.BULK.values():
        assert len(list((store.path / folder).iterdir())) == 1


def test_a_resumed_run_adds_to_its_parts(tmp_path):
    store = store_of(tmp_path)
    for count in range(1, 4):
        append(store, builders.transfer(CASE, 0.0, float(count)))
        store.finish()
        assert sorted(load(store.path).transfers["stop_s"] - builders.EPOCH) == [
            *range(1, count + 1)
        ]
        store = RunStore.reopen(store.path)


def test_reading_leaves_arrows_memory_pool_as_it_was(tmp_path):
    import pyarrow as pa

    store = store_of(tmp_path, builders.every_kind(CASE))
    before = pa.default_memory_pool().backend_name
    assert before != "system"
    for _ in range(20):
        load(store.path)
    assert pa.default_memory_pool().backend_name == before


# --- what somebody else left -----------------------------------------------------------------


def changed(of, **changes):
    fields = {"record": type(of).__name__, **vars(of), **changes}
    return json.dumps({key: value for key, value in fields.items() if value is not ...}).encode()


SAMPLE = builders.sample(CASE, 2.0)
TRANSFER = builders.transfer(CASE, 0.0, 2.0)


def part_of(store):
    (path,) = parts.closed(store.path, "TransferRecord")
    return path


def bad_lines(good, number, other):
    def with_number(text):
        return changed(good, **{number: 12345.5}).replace(b"12345.5", text.encode())

    line = encode(good).encode()
    return {
        "garbage bytes": b"\xff\xfe\x00\x80garbage",
        "zeros": b"\0" * 64,
        "text": b"Traceback (most recent call last):",
        "half a record": line[:40],
        "two records on a line": line * 2,
        "two records and a comma": line + b"," + line,
        "a comment": line + b"// fine",
        "foreign JSON": b'{"a": 1}',
        "a list": b"[1, 2, 3]",
        "a list of a record": b"[" + line + b"]",
        "a number": b"17",
        "null": b"null",
        "nesting without end": b"[" * 200_000,
        "an unknown kind": changed(good, record="Simple"),
        "a kind that is a list": changed(good, record=["Sample"]),
        "a kind that is null": changed(good, record=None),
        "no kind": changed(good, record=...),
        "a missing field": changed(good, **{number: ...}),
        "an extra field": changed(good, more=1),
        "text for a float": with_number('"abc"'),
        "digits for a float": with_number('"2.0"'),
        "null for a float": with_number("null"),
        "a list for a float": with_number("[2.0]"),
        "a bool for a float": with_number("true"),
        "NaN for a float": with_number("NaN"),
        "infinity for a float": with_number("-Infinity"),
        "a number beyond floats": with_number("1e999"),
        "an integer beyond floats": with_number("9" * 400),
        "a number beyond words": with_number("9" * 5000),
        "a float for an index": changed(good, launch=1.5),
        "a whole float for an index": changed(good, launch=1.0),
        "a bool for an index": changed(good, launch=True),
        "text for an index": changed(good, launch="1"),
        "null for an index": changed(good, launch=None),
        "an index beyond 64 bits": changed(good, launch=2**63),
        "no UTF-8 within a text": line.replace(good.case_id.encode(), b"gath\xff"),
        "a number for text": changed(good, case_id=1),
        "null for text": changed(good, case_id=None),
        "a record that has a part": encode(other).encode(),
    }


BAD_SAMPLES = {
    **bad_lines(SAMPLE, "seconds", TRANSFER),
    "text for a bool": changed(SAMPLE, warmup="false"),
    "a number for a bool": changed(SAMPLE, verified=1),
}


@pytest.mark.parametrize("line", BAD_SAMPLES.values(), ids=BAD_SAMPLES.keys())
def test_a_bad_line_costs_itself_alone(line, tmp_path):
    store = store_of(tmp_path, [builders.sample(CASE, 1.0)])
    path = store.path / "samples.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    append(RunStore.reopen(store.path), builders.sample(CASE, 3.0))
    run = load(store.path)
    assert seconds(run) == [1.0, 3.0]
    assert len(run.transfers) == 0
    assert len(run.notes) == 1
    assert run.notes[0].startswith("samples.jsonl line 2 is left out: ")
    assert len(run.notes[0]) < 200


@pytest.mark.parametrize("line", BAD_SAMPLES.values(), ids=BAD_SAMPLES.keys())
def test_a_bad_line_from_a_launch_is_a_value_error(line):
    if line == encode(TRANSFER).encode():
        assert decode(line) == TRANSFER
        return
    with pytest.raises(ValueError, match=r"."):
        decode(line)


def test_a_bad_value_is_named(tmp_path):
    store = store_of(tmp_path)
    (store.path / "samples.jsonl").write_bytes(changed(SAMPLE, seconds="abc") + b"\n")
    assert load(store.path).notes == (
        "samples.jsonl line 1 is left out: seconds is 'abc', not a finite number",
    )


@given(st.binary(max_size=80).filter(lambda line: b"\n" not in line))
def test_any_bytes_in_between_are_survived(tmp_path_factory, line):
    good = json.loads(encode(SAMPLE))
    path = tmp_path_factory.mktemp("scratch") / "samples.jsonl"
    path.write_bytes(b"\n".join([encode(SAMPLE).encode(), line, encode(SAMPLE).encode(), b""]))
    notes = []
    assert records.read(path, notes) == [good, good]
    assert len(notes) == bool(line)


def test_a_thousand_bad_lines_are_a_few_notes(tmp_path):
    store = store_of(tmp_path, [SAMPLE])
    path = store.path / "samples.jsonl"
    path.write_bytes(path.read_bytes() + b"garbage\n" * 1000)
    run = load(store.path)
    assert seconds(run) == [2.0]
    assert len(run.notes) == 6
    assert run.notes[-1] == "samples.jsonl: 995 more lines are left out"


def test_records_of_foreign_cases_are_left_out(tmp_path):
    foreign = builders.case("ucx")
    store = store_of(tmp_path, builders.every_kind(CASE) + builders.every_kind(foreign))
    store.finish()
    run = load(store.path)
    assert all(len(getattr(run, name)) == 1 for name in FRAMES.values())
    assert len(run.notes) == len(FRAMES)
    assert "1 Samples of cases that are not the run's are left out" in run.notes


@pytest.mark.parametrize("text", ["\udc80 raw byte", "\x1b[31m", "日本語", "a\u2028b", "\0"])
def test_any_text_can_be_read_and_passed_on(text, tmp_path):
    store = store_of(tmp_path, [builders.failure(CASE, text)])
    (message,) = load(store.path).failures["message"]
    assert message == text.replace("\udc80", "?")
    assert message.encode()


# --- run.json --------------------------------------------------------------------------------


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
        (b'{"schema_version": 1}', "schema version 1"),
        (b'{"schema_version": 2}', "damaged"),
        (b'{"schema_version": 2, "id": "x", "suite": null}', "damaged"),
    ],
)
def test_a_directory_that_holds_no_run_of_ours_is_refused(content, reason, tmp_path):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    for read in (load, RunStore.reopen):
        with pytest.raises(ResultsError, match=reason) as caught:
            read(tmp_path)
        assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("path", ["absent", "file"])
def test_what_is_no_directory_is_refused(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=path):
        load(tmp_path / path)


def leaves(content, path=()):
    inner = content.items() if isinstance(content, dict) else enumerate(content)
    found = []
    for key, value in inner:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += leaves(value, (*path, key))
    return found


@pytest.mark.parametrize("value", [None, "x", -1, [], {}, [1], {"a": 1}, float("nan")])
def test_a_damaged_run_json_is_refused_or_read(value, tmp_path):
    case = builders.case(
        params={"rows": 1, "sizes": [1, 2]}, cluster=model.ClusterSpec(hosts=("a",))
    )
    store = RunStore.create(tmp_path, builders.run([case], environment={"cpu": {"model": "x"}}))
    file = store.path / "run.json"
    original = file.read_text()
    n_read, refusals = 0, []
    for path in leaves(json.loads(original)):
        content = json.loads(original)
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        file.write_text(json.dumps(content))
        try:
            run = load(store.path)
            n_read += len(run.frames) > 0
            assert run.summaries.empty
        except ResultsError as error:
            refusals.append(str(error))
    assert n_read
    assert refusals
    assert all(refusal.startswith(str(file)) for refusal in refusals)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PAR1" + b"\0" * 64 + b"PAR1"])
def test_a_damaged_parquet_is_named(content, tmp_path):
    store = store_of(tmp_path, [builders.transfer(CASE, 0, 1)])
    store.finish()
    part_of(store).write_bytes(content)
    with pytest.raises(ResultsError, match=r"can't read .*transfers/made-up"):
        _ = load(store.path).transfers


@pytest.mark.parametrize("change", ["drop", "retype", "foreign"])
def test_a_parquet_of_other_columns_is_named(change, tmp_path):
    store = store_of(tmp_path, [builders.transfer(CASE, 0, 1)])
    store.finish()
    path = part_of(store)
    table = pd.read_parquet(path)
    if change == "drop":
        table = table.drop(columns="start_s")
    elif change == "retype":
        table["start_s"] = "soon"
    else:
        table = pd.DataFrame({"a": [1]})
    table.to_parquet(path)
    with pytest.raises(ResultsError, match=r"can't read .*transfers/made-up"):
        _ = load(store.path).transfers


# --- the disk --------------------------------------------------------------------------------

FILL = """
import random, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import builders
from commbench import load
from commbench.errors import ResultsError
from commbench.store.directory import RunStore

output, make, dice = Path(sys.argv[1]), getattr(builders, sys.argv[2]), random.Random(0)
case = builders.case()
store = RunStore.create(output, builders.run([case]))
count = 0
try:
    while True:
        if make is builders.transfer:
            # Parts grow: one is larger than a file may be.
            made = [make(case, dice.random(), dice.random()) for _ in range(500 + count)]
        else:
            made = [make(case, float(count))]
        builders.store_all(store, made)
        count += len(made)
except ResultsError as error:
    message = str(error)
read = load(store.path)
frame = read.transfers if make is builders.transfer else read.samples
assert count > 100, count
assert len(frame) == count, (len(frame), count)
assert str(store.path) in message and "--resume" in message, message
try:
    store.finish()
except ResultsError as error:
    assert str(store.path) in str(error), error
read = load(store.path)
assert len(read.transfers if make is builders.transfer else read.samples) == count
print(message)
"""


def in_small_room(room, tmp_path, make):
    code = FILL.format(tests=str(Path(__file__).parents[1]))
    command = [sys.executable, "-c", code, str(tmp_path), make]
    if room == "a file's limit":
        size = 300_000
        return subprocess.run(
            command, capture_output=True, text=True, timeout=240, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        )  # fmt: skip
    mount = f'mount -t tmpfs -o size=300k none {tmp_path} && exec "$@"'
    # A private namespace: the mount is gone with the process.
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *command],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def can_mount():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


NEEDS_MOUNT = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces")


@pytest.mark.parametrize("room", ["a file's limit", pytest.param("a full disk", marks=NEEDS_MOUNT)])
@pytest.mark.parametrize("make", ["sample", "transfer"])
def test_a_full_disk_is_told_and_costs_nothing_that_was_measured(room, make, tmp_path):
    done = in_small_room(room, tmp_path, make)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    reason = "No space left on device" if room == "a full disk" else "File too large"
    assert reason in done.stdout
    assert f"/{'samples.jsonl' if make == 'sample' else 'transfers'}" in done.stdout


def test_a_run_goes_on_when_there_is_room_again(tmp_path, monkeypatch):
    store = store_of(tmp_path, [builders.sample(CASE, 1.0)])
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (store.path / "samples.jsonl").stat().st_size + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        with pytest.raises(ResultsError, match=r"can't write .*samples\.jsonl: File too large"):
            store.append(builders.sample(CASE, 2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert seconds(load(store.path)) == [1.0]
    append(store, builders.sample(CASE, 3.0))
    assert seconds(load(store.path)) == [1.0, 3.0]


READ_ONLY = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import builders
from commbench.errors import ResultsError
from commbench.store.directory import RunStore, new_run_id

output = Path(sys.argv[1])
for make in (lambda: new_run_id("x", output),
             lambda: RunStore.create(output, builders.run([builders.case()]))):
    try:
        make()
    except ResultsError as error:
        print(error)
"""


@NEEDS_MOUNT
def test_a_read_only_directory_is_told_before_anything_is_measured(tmp_path):
    code = READ_ONLY.format(tests=str(Path(__file__).parents[1]))
    mount = f'mount -t tmpfs -o ro none {tmp_path} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", code, tmp_path],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"can't make {tmp_path}/")
        assert "Read-only file system; choose another --output" in line


def test_an_output_that_is_a_file_is_told(tmp_path):
    output = tmp_path / "file"
    output.write_text("")
    for make in (lambda: new_run_id("x", output), lambda: store_of(output)):
        with pytest.raises(ResultsError, match=r"can't make .*file/.*Not a directory.*--output"):
            make()


def test_a_report_that_cannot_be_written_is_told(tmp_path):
    store = store_of(tmp_path)
    (store.path / "report.md").mkdir()
    with pytest.raises(ResultsError, match=r"can't write .*report\.md: Is a directory"):
        store.write_text("report.md", "x")


def test_a_run_is_never_written_over(tmp_path):
    store = store_of(tmp_path, [SAMPLE])
    with pytest.raises(ResultsError, match=r"holds a run already.*--resume"):
        store_of(tmp_path, seed=99)
    assert seconds(load(store.path)) == [2.0]
    assert load(store.path).manifest.seed == 0


# --- names -----------------------------------------------------------------------------------


def test_run_ids_never_collide(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda _: new_run_id("smoke", tmp_path), range(50)))
    assert len(set(ids)) == 50
    assert {path.name for path in tmp_path.iterdir()} == set(ids)
    assert all("smoke" in name for name in ids)


@pytest.mark.parametrize(
    "name", ["../../up", "/etc/x", "a/b", "a b\nc", "\0", "", "." * 300, "日本"]
)
def test_a_suites_name_cannot_lead_out_of_the_output(name, tmp_path):
    output = tmp_path / "deep" / "results"
    found = new_run_id(name, output)
    assert (output / found).resolve().parent == output.resolve()
    assert list(tmp_path.iterdir()) == [tmp_path / "deep"]
    store = RunStore.create(output, dataclasses.replace(builders.run([CASE]), id=found))
    assert load(store.path).manifest.id == found


def test_two_cases_of_one_backend_are_kept_apart(tmp_path):
    cases = [builders.case(workload=name) for name in ("merge", "svd")]
    store = RunStore.create(tmp_path, builders.run(cases))
    for number, case in enumerate(cases):
        append(store, builders.sample(case, float(number)))
    samples = load(store.path).samples
    assert samples["workload"].tolist() == ["merge", "svd"]
