import csv as reader
import io
import json
import math

import builders
from builders import launches, message, sample

from commbench.reports import csv


def test_numbers_are_exact_and_unknown_ones_empty(recorded):
    cases = [builders.case("tcp"), builders.case("ucx", launches=1)]
    records = [*launches(cases[0], [1 / 3 + n / 7 for n in range(6)]), sample(cases[1], math.pi)]
    content = recorded(cases, records)
    rows = list(reader.DictReader(io.StringIO(csv.render(content))))
    for row, expected in zip(rows, content.costs.to_dict(orient="records"), strict=True):
        for name, value in expected.items():
            if isinstance(value, float) and math.isnan(value):
                assert row[name] == ""
            else:
                assert type(value)(row[name]) == value
    assert [row["ci_low_s"] == "" for row in rows] == [False, True]


def test_rows_have_parameters_and_cluster(recorded):
    cases = [
        builders.case(params={"text": 'a,"b"\nc', "rows": rows}, n_workers=rows) for rows in (2, 3)
    ]
    text = csv.render(recorded(cases, [sample(case, 1.0) for case in cases]))
    rows = list(reader.DictReader(io.StringIO(text)))
    assert [json.loads(row["params"]) for row in rows] == [dict(case.params) for case in cases]
    assert [row["n_workers"] for row in rows] == ["2", "3"]
    assert {row["device"] for row in rows} == {"cpu"}
    assert [row["case_id"] for row in rows] == [case.id for case in cases]


def test_messages_have_their_size(recorded):
    merge, pingpong = builders.case(), builders.case(workload="pingpong")
    fetches = builders.case(workload="all-to-all", n_workers=3)
    records = [
        sample(merge, 1.0), message(pingpong, 1.0, 8),
        sample(fetches, 1.0, layer="together", payload_bytes=6 * 1024),
    ]  # fmt: skip
    text = csv.render(recorded([merge, pingpong, fetches], builders.ended(records)))
    rows = {row["workload"]: row for row in reader.DictReader(io.StringIO(text))}
    sizes = {"merge": "", "pingpong": "8", "all-to-all": "1024"}
    assert {name: row["message_bytes"] for name, row in rows.items()} == sizes


def test_an_empty_run_has_a_header_only(recorded):
    case = builders.case()
    empty, full = (csv.render(recorded([case], records)) for records in ([], [sample(case, 1.0)]))
    assert empty.splitlines() == full.splitlines()[:1]
