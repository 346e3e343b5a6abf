"""Many records as lines: what is taken as a whole is what would be taken line by line."""

from __future__ import annotations

import json
import time

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_store import BAD_TRANSFERS, any_record

from commbench import lines, load, model
from commbench.lines import Lines
from commbench.records import FILES, decode, encode
from commbench.store import RunStore

CASE = builders.case()
TRANSFER = builders.transfer(CASE, 0.0, 2.0)
MANY = [getattr(model, name) for name in FILES]
RECORDS = st.one_of(*(any_record(kind) for kind in (*MANY, model.Sample)))


def block(*found):
    """Return records as whole lines."""
    return "".join(encode(record) + "\n" for record in found).encode()


def one_by_one(parts):
    """Return the records in what ``split`` yields."""
    return [
        record
        for part in parts
        for record in (part.records() if isinstance(part, Lines) else [decode(part)])
    ]


@given(st.lists(RECORDS, max_size=5))
def test_records_are_the_same_as_lines(found):
    """Whatever values they have and however kinds alternate, all come in order and unchanged."""
    parts = list(lines.split(block(*found)))
    assert one_by_one(parts) == found
    assert all(part.kind in FILES for part in parts if isinstance(part, Lines))


def test_lines_of_one_kind_come_together():
    """Usual records of a kind are one piece, and another kind between them parts them."""
    found = [TRANSFER] * 300
    parts = list(lines.split(block(*found, builders.sample(CASE, 1.0), *found)))
    assert [part.kind if isinstance(part, Lines) else "" for part in parts] == [
        "TransferRecord", "", "TransferRecord"
    ]  # fmt: skip
    assert one_by_one(parts) == [*found, builders.sample(CASE, 1.0), *found]


def test_texts_that_are_no_ascii_are_among_them():
    """An arrow between two addresses parts nothing; half of a surrogate pair is looked at alone."""
    found = [builders.transport(CASE, evidence=f"a ↔ b{number}") for number in range(3)]
    (whole,) = lines.split(block(*found))
    assert isinstance(whole, Lines)
    assert list(whole.records()) == found
    (alone,) = lines.split(block(builders.transport(CASE, evidence="\ud834")))
    assert isinstance(alone, bytes)


@pytest.mark.parametrize("line", BAD_TRANSFERS.values(), ids=BAD_TRANSFERS.keys())
def test_a_bad_line_is_never_among_them(line):
    """A line that is no record comes alone, as it is, between the good ones."""
    before, bad, after = lines.split(block(TRANSFER) + line + b"\n" + block(TRANSFER))
    assert one_by_one([before, after]) == [TRANSFER] * 2
    assert bad == line


@given(st.binary(max_size=60), st.integers(0, 400))
def test_whatever_is_taken_as_a_whole_would_be_taken_alone(rubbish, place):
    """Bytes put into a good line don't make the whole take what ``decode`` refuses."""
    good = block(TRANSFER)
    place %= len(good)
    for part in lines.split(good[:place] + rubbish + good[place:] + b"\n"):
        if isinstance(part, Lines):
            assert all(decode(line) for line in part.text.splitlines())


def test_columns_become_the_lines_of_their_records():
    """What many records have in common is said once, and the lines are those of ``encode``."""
    found = [
        builders.transfer(CASE, 0.1 * number, 0.5, number, src=src)
        for number, src in enumerate(["0", "a 100 % \"odd\" näme\n", "2"])
    ]  # fmt: skip
    columns = {
        name: [getattr(record, name) for record in found]
        for name in ("src", "nbytes", "start_s", "stop_s")
    }
    fields = {name: getattr(found[0], name) for name in vars(found[0])} | columns
    made = lines.of(model.TransferRecord, **fields)
    assert made.text.encode() == block(*found)
    assert list(made.records()) == found


def test_a_column_that_is_too_short_is_an_error():
    """No record is left out without a word."""
    fields = {**vars(builders.wire(CASE, 1)), "dst": ["1", "2"], "nbytes": [1]}
    with pytest.raises(ValueError, match="shorter"):
        lines.of(model.WireBytes, **fields)


def test_nothing_is_no_lines():
    """Columns without an item make no line."""
    fields = {**vars(builders.wire(CASE, 1)), "dst": []}
    assert lines.of(model.WireBytes, **fields).text == ""
    assert list(lines.split(b"")) == []


def test_lines_are_stored_where_their_records_would_be(tmp_path):
    """They are on disk when ``append`` returns, and are read back like any others."""
    store = RunStore.create(tmp_path, builders.run([CASE]))
    found = [builders.transfer(CASE, 0.0, 1.0 + number) for number in range(3)]
    for part in lines.split(block(*found, builders.wire(CASE, 7))):
        store.append(part)
    read = load(store.path)
    store.close()
    assert read.transfers["stop_s"].tolist() == [record.stop_s for record in found]
    assert read.wire["nbytes"].tolist() == [7]
    assert (tmp_path / read.run.id / "transfers.jsonl").read_bytes() == block(*found)


def test_a_line_that_almost_fits_takes_no_time():
    """Megabytes of good lines before a bad one, or of digits, are no trap for the pattern."""
    good = block(*[TRANSFER] * 20_000)
    digits = json.dumps({"record": "TransferRecord", "case_id": "c", "launch": 1})[:-1].encode()
    began = time.process_time()
    assert len(list(lines.split(good + good))) == 1
    usual_s = time.process_time() - began
    began = time.process_time()
    parts = list(lines.split(good + digits + b"1" * 1_000_000 + b"\n" + good + b"[\n"))
    assert time.process_time() - began < 50 * usual_s
    assert [type(part) for part in parts] == [Lines, bytes, Lines, bytes]
