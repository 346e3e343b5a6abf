"""Records as lines of JSON: what is written is read, and a bad line spoils no other."""

import json

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench import load
from commbench.store import parts, records
from commbench.store.directory import RunStore
from commbench.store.records import BULK, KINDS, decode, encode

CASE = builders.case()
SAMPLE = builders.sample(CASE, 2.0)
TRANSFER = builders.transfer(CASE, 0.0, 2.0)
VALUES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"])),
}


def any_record(kinds):
    return st.one_of(
        st.builds(
            KINDS[kind], **{name: VALUES[type_] for name, type_ in records.FIELDS[kind].items()}
        )
        for kind in kinds
    )


@given(any_record(KINDS))
def test_record_survives_encoding_as_a_line(record):
    line = encode(record)
    assert "\n" not in line
    assert decode(line) == record
    assert decode(line.encode()) == record


@given(any_record(BULK))
def test_record_survives_a_table(record):
    as_lists = {name: [value] * 2 for name, value in vars(record).items()}
    first = next(iter(as_lists))
    constants = {**vars(record), first: as_lists[first]}
    for columns in (as_lists, constants):
        assert [*parts.to_records(parts.table(type(record), **columns))] == [record] * 2


def test_file_cut_at_any_byte_keeps_earlier_records(tmp_path):
    lines = [encode(builders.sample(CASE, float(n))).encode() + b"\n" for n in range(2)]
    path, content = tmp_path / "some.jsonl", b"".join(lines)
    ends = [len(b"".join(lines[:n])) for n in range(len(lines) + 1)]
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        n_whole = sum(size >= end for end in ends[1:])
        notes = []
        assert records.read(path, notes) == [json.loads(line) for line in lines[:n_whole]]
        is_cut = size not in ends
        assert notes == ["some.jsonl ends in a line that was cut short; it is left out"] * is_cut


def changed(**changes):
    """Return the line of a sample with other values, ``...`` for a field that is missing."""
    fields = {"record": "Sample", **vars(SAMPLE), **changes}
    return json.dumps({key: value for key, value in fields.items() if value is not ...}).encode()


def with_seconds(text):
    return changed(seconds=12345.5).replace(b"12345.5", text.encode())


LINE = encode(SAMPLE).encode()
OF_ANOTHER_TYPE = {
    "seconds": ["abc", "2.0", None, [2.0], True], "launch": [1.5, 1.0, True, "1", None, 2**63],
    "case_id": [1, None], "warmup": ["false"], "verified": [1],
}  # fmt: skip
BAD = {
    "garbage bytes": b"\xff\xfe\x00\x80garbage",
    "zeros": b"\0" * 64,
    "text": b"Traceback (most recent call last):",
    "half a record": LINE[:40],
    "two records on a line": LINE * 2,
    "two records and a comma": LINE + b"," + LINE,
    "a comment": LINE + b"// fine",
    "foreign JSON": b'{"a": 1}',
    "a list": b"[1, 2, 3]",
    "a list of a record": b"[" + LINE + b"]",
    "a number": b"17",
    "null": b"null",
    "nesting without end": b"[" * 200_000,
    "an unknown kind": changed(record="Simple"),
    "a kind that is a list": changed(record=["Sample"]),
    "a kind that is null": changed(record=None),
    "no kind": changed(record=...),
    "a missing field": changed(seconds=...),
    "a missing field with a default": changed(operations=...),
    "an extra field": changed(more=1),
    "NaN for a float": with_seconds("NaN"),
    "infinity for a float": with_seconds("-Infinity"),
    "a number beyond floats": with_seconds("1e999"),
    "an integer beyond floats": with_seconds("9" * 400),
    "a number beyond words": with_seconds("9" * 5000),
    "no UTF-8 within a text": LINE.replace(CASE.id.encode(), b"gath\xff"),
} | {
    f"{name}={value!r}": changed(**{name: value})
    for name, values in OF_ANOTHER_TYPE.items()
    for value in values
}


@pytest.mark.parametrize(
    "line",
    [*BAD.values(), encode(TRANSFER).encode()],
    ids=[*BAD, "a record of the kinds in parts"],
)
def test_bad_line_is_a_value_error_and_left_out_alone(line, tmp_path):
    if line in BAD.values():
        # The runner, which reads what a launch writes, catches nothing else.
        with pytest.raises(ValueError, match=r"."):
            decode(line)
    store = builders.unfinished(tmp_path, [CASE])
    (store.path / "samples.jsonl").write_bytes(b"\n".join([LINE, line, LINE, b""]))
    run = load(store.path)
    assert run.samples["seconds"].tolist() == [2.0, 2.0]
    assert len(run.transfers) == 0
    (note,) = run.notes
    assert note.startswith("samples.jsonl line 2 is left out: ")
    assert len(note) < 200


@given(st.binary(max_size=80).filter(lambda line: b"\n" not in line))
def test_any_line_between_records_is_left_out_alone(tmp_path_factory, line):
    path = tmp_path_factory.mktemp("scratch") / "samples.jsonl"
    path.write_bytes(b"\n".join([LINE, line, LINE, b""]))
    notes = []
    assert records.read(path, notes) == [json.loads(LINE)] * 2
    assert len(notes) == bool(line)


def test_a_thousand_bad_lines_are_six_notes_that_name_field_and_value(tmp_path):
    path, notes = tmp_path / "samples.jsonl", []
    path.write_bytes(LINE + b"\n" + changed(seconds="abc") + b"\n" + b"garbage\n" * 999)
    assert records.read(path, notes) == [json.loads(LINE)]
    assert len(notes) == 6
    assert notes[0] == "samples.jsonl line 2 is left out: seconds is 'abc', not a finite number"
    assert notes[-1] == "samples.jsonl: 995 more lines are left out"


@pytest.mark.parametrize("text", ["\udc80 raw byte", "\x1b[31m", "日本語", "a\u2028b", "\0"])
def test_any_text_becomes_unicode(text, tmp_path):
    store = builders.unfinished(tmp_path, [CASE], [builders.failure(CASE, text)])
    (message,) = load(store.path).failures["message"]
    assert message == text.replace("\udc80", "?")
    assert message.encode()


def test_run_goes_on_after_a_cut_line(tmp_path):
    """The half line of a crash must not be joined with the next record."""
    store = builders.unfinished(tmp_path, [CASE], [SAMPLE])
    path = store.path / "samples.jsonl"
    path.write_bytes(path.read_bytes() + b'{"record":"Sam')
    resumed = RunStore.reopen(store.path)
    resumed.append(SAMPLE)
    resumed.close()
    run = load(store.path)
    assert run.samples["seconds"].tolist() == [2.0, 2.0]
    (note,) = run.notes
    assert "samples.jsonl line 2" in note
