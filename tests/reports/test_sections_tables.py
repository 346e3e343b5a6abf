import itertools
import json

import builders
import pytest
from builders import failure, graph, launches, line_time, message, sample, task, transfer, transport
from shown import titled, titles

from commbench.model import USER_CODE, ClusterSpec, Effect, registry
from commbench.reports import notebook_html
from commbench.reports.opening import verdicts
from commbench.reports.sections import tables
from commbench.reports.sections.iteration_tables import PROFILE

CASE = builders.case()
BIMODAL = (0.88, 7.84, 1.10, 7.90, 1.25, 7.91)


@pytest.mark.parametrize(
    "form", ["terminal", "tables", "markdown", "html", "json", "junit", "jupyter"]
)
def test_findings_have_their_evidence_and_doubt_in_all_formats_with_texts(form):
    run = builders.in_memory([CASE], launches(CASE, [1.0]))
    found = builders.finding(
        CASE, rule="luck", statement="bad luck", evidence="dice", doubt="fate",
        effect=Effect(share=0.4, low=0.4, high=0.4),
    )  # fmt: skip
    vars(run)["findings"] = (found,)
    shown = notebook_html.render(run) if form == "jupyter" else registry.load("report", form)(run)
    assert "bad luck" in shown
    has_reasons = form not in ("junit", "terminal")
    assert [text in shown for text in ("dice", "fate")] == [has_reasons] * 2
    if form == "json":
        effect = {"share": 0.4, "low": None, "high": None, "is_measured": False}
        assert json.loads(shown)["findings"][0]["effect"] == effect
    else:
        assert "40% (no interval, estimated)" in " ".join(shown.split())


def test_cases_with_different_parameters_have_separate_tables(recorded):
    cases = [
        builders.case(name, params={"shuffle": shuffle})
        for shuffle in ("tasks", "p2p")
        for name in ("tcp", "ucx")
    ]
    seconds = (1.0, 2.0, 10.0, 50.0)
    records = builders.launches_by_case(cases, ([each] * 6 for each in seconds))
    shown = [table for table in tables(recorded(cases, records)) if "time per" in table.title]
    assert ["shuffle=tasks" in table.title for table in shown] == [True, False]
    assert [[row[0] for row in table.rows] for table in shown] == [["tcp", "ucx"]] * 2
    assert [[row[1] for row in table.rows] for table in shown] == [
        ["1.00 s", "2.00 s"], ["10.0 s", "50.0 s"],
    ]  # fmt: skip
    assert [[row[3] for row in table.rows] for table in shown] == [
        ["1", "2.00×, slower"], ["1", "5.00×, slower"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"memory_limit": "1GB"}, "memory_limit=1GB"),
        ({"dask_config": {"distributed.comm.retry.count": 3}}, "distributed.comm.retry.count=3"),
        ({"env": {"UCX_TLS": "tcp"}}, "UCX_TLS=tcp"),
    ],
)
def test_titles_have_the_settings_of_the_cluster(recorded, setting, words):
    cases = [builders.case(), builders.case(cluster=ClusterSpec(**setting))]
    run = recorded(cases, launches(cases, [1.0] * 6))
    titles = [table.title for table in tables(run) if "time per" in table.title]
    assert [words in title for title in titles] == [False, True]


def test_times_are_compared_with_the_first_backend_that_has_a_good_launch(recorded):
    ucx, tcp, mpi = (builders.case(name) for name in ("ucx", "tcp", "mpi"))
    records = [builders.sample(ucx, 1.0), builders.failure(ucx), builders.end(ucx, ok=False)]
    records += [*launches(tcp, [1.0] * 6), *launches(mpi, [2.0] * 6)]
    run = recorded([ucx, tcp, mpi], records)
    (table,) = (table for table in tables(run) if "time per" in table.title)
    assert "time vs\ntcp" in table.columns
    assert [row[table.columns.index("time vs\ntcp")] for row in table.rows] == [
        "—", "1", "2.00×, slower",
    ]  # fmt: skip


def test_operations_have_their_rate_and_tasks_of_a_duration_their_efficiency(recorded):
    cases = [
        builders.case(backend, "patterns", params={"task_s": task_s}, n_workers=2)
        for task_s in (0.001, 0.004)
        for backend in ("tcp", "mpi")
    ]
    # Of 2 threads, with 100 tasks: efficiencies of 25, 10, 75 and 40 %.
    seconds = (0.2, 0.5, 0.8 / 3, 0.5)
    counted = {"n_operations": 100, "operations": "tasks"}
    records = [sample(case, s, **counted) for case, s in zip(cases, seconds, strict=True)]
    records.append(sample(tiny := builders.case(workload="tiny-tasks"), 1.0, **counted))
    records.append(sample(other := builders.case(), 1.0))
    run = recorded([*cases, tiny, other], builders.ended(records))
    (rates,) = (each for each in tables(run) if each.title.endswith("tasks per second"))
    assert rates.rows == (("tcp", "10.0 ms", "100", "none"),)
    assert titled(run, "patterns: efficiency by the duration of tasks").rows == (
        ("1.00 ms", "25.0%", "10.0%"), ("4.00 ms", "75.0%", "40.0%"),
        ("METG(50 %)", "2.00 ms", "> 4.00 ms"),
    )  # fmt: skip


def test_a_payload_has_a_bandwidth(recorded):
    case = builders.case(workload="scatter")
    counted = {"n_operations": 10**9, "operations": "bytes"}
    records = launches(case, [0.5] * 6, **counted)
    (table,) = (each for each in tables(recorded([case], records)) if "payload per" in
                " ".join(each.columns))  # fmt: skip
    assert table.rows == (("tcp", "2.00 GB/s", "2.00 GB/s…2.00 GB/s"),)


@pytest.mark.parametrize(("payloads", "is_shown"), [((2, 2), True), ((2, 6), False)])
def test_a_payload_that_rows_do_not_share_is_not_said_of_all(recorded, payloads, is_shown):
    cases = [builders.case(n_workers=n, varied=("backend", "workers")) for n in (2, 4)]
    records = [
        record
        for case, payload in zip(cases, payloads, strict=True)
        for record in launches(case, [1.0] * 6, payload_bytes=payload)
    ]
    note = titled(recorded(cases, records), "time per iteration").note
    assert ("Payload: " in note) == is_shown


def test_rates_sentences_and_scaling_have_both_modes_or_none(recorded):
    varied = {"varied": ("workers",), "workload": "tiny-tasks"}
    cases = [builders.case(n_workers=n, **varied) for n in (1, 2)]
    patterns = [builders.case(workload="patterns", params={"task_s": s}) for s in (1e-3, 4e-3)]
    cases += patterns
    run = recorded(cases, launches(cases, BIMODAL, n_operations=100, operations="tasks"))
    assert titled(run, "tasks per second").rows[0][1:3] == ("11.0 or 79.0 ms", "90.9 or 12.7")
    assert titled(run, "Scaling of").rows[0][1] == "1.10 or 7.90 s"
    assert [row[1] for row in titled(run, "efficiency by").rows] == ["—"] * 3
    assert (
        "patterns (task_s=0.001): tcp takes 1.10 or 7.90 s for 100 tasks, 11.0 or 79.0 ms for each."
    ) in verdicts(run)


def test_messages_per_second_have_both_modes(recorded):
    params = {"mode": "message-rate", "window": 64}
    case = builders.case(workload="pingpong", params=params)
    records = [message(case, s / 1000, 1, launch=n) for n, s in enumerate(BIMODAL)]
    run = recorded([case], builders.ended(records))
    assert titled(run, "messages per second").rows == (("1 B", "909 or 127"),)


def test_tasks_of_a_users_code_are_in_a_row_per_name(recorded):
    case = builders.case(workload="train", cluster=ClusterSpec(launcher=USER_CODE))
    records = [task(case, 0, seconds, name="fit") for seconds in (1, 2, 6)]
    records += [task(case, 0, 1, name="load"), task(case, 0, 9, name="fit", action="transfer")]
    assert titled(recorded([case], records), "Tasks by name").rows == (
        ("train", "fit", "3", "9.00 s", "2.00 s", "90.0%"),
        ("train", "load", "1", "1.00 s", "1.00 s", "10.0%"),
    )


def test_statements_have_the_bytes_of_large_graphs(recorded):
    case = builders.case(workload="train", cluster=ClusterSpec(launcher=USER_CODE))
    records = [task(case, 0, 1, graph=0), graph(case, 0, 0.0, "fit.py:1 fit()", nbytes=9_999_999)]
    titles = ["region", "statement", "times", "time", "tasks", "most of it"]
    shown = titled(recorded([case], records), "Where your code")
    assert list(shown.columns) == titles
    records += [task(case, 1, 2, graph=1), graph(case, 1, 1.0, "fit.py:2 x()", nbytes=10_000_000)]
    shown = titled(recorded([case], records), "Where your code")
    assert shown.note.endswith("sent: the pickled graphs, with the data in them.")
    sent = list(shown.columns).index("sent")
    assert [row[sent] for row in shown.rows] == ["10.0 MB", "10.0 MB"]


def test_lines_have_their_share_of_the_tasks_or_of_the_region(recorded):
    case = builders.case(workload="train", cluster=ClusterSpec(launcher=USER_CODE))
    records = [
        line_time(case, 6.0, "fit.py:3 fit()", name="fit"),
        line_time(case, 2.0, "", name="sum"),
        line_time(case, 1.0, "fit.py:9 load()", role="script", name=""),
        line_time(case, 3.0, "fit.py:9 x.compute()", role="wait", name=""),
        line_time(case, 1.0, "fit.py:3 fit()", name="fit", iteration=1),
        builders.region(case, 4.0),
    ]  # fmt: skip
    run = recorded([case], records)
    assert titled(run, "Which lines take").rows == (
        ("train", "fit.py:3 fit()", "fit", "7.00 s", "77.8%"),
        ("train", "fit.py:9 x.compute()", "its waits", "3.00 s", "75.0%"),
        ("train", "Dask, or compiled code that it calls", "sum", "2.00 s", "22.2%"),
        ("train", "fit.py:9 load()", "the script", "1.00 s", "25.0%"),
    )
    (shown,) = PROFILE.opening(run)
    assert [row[0] for row in shown.rows] == [
        "fit.py:3 fit()", "Dask, or compiled code that it calls", "fit.py:9 load()"
    ]  # fmt: skip


def test_devices_have_separate_tables(recorded):
    cases = [
        builders.case("ucx", "pingpong", cluster=ClusterSpec(device=device))
        for device in ("cpu", "gpu")
    ]
    records = [message(case, 1.0 + i, 1) for i, case in enumerate(cases)]
    shown = [table for table in tables(recorded(cases, records)) if "latency" in table.title]
    assert [(table.title, table.rows) for table in shown] == [
        ("pingpong (device=cpu), comm layer: latency", (("1 B", "1.00 s"),)),
        ("pingpong (device=gpu), comm layer: latency", (("1 B", "2.00 s"),)),
    ]


def test_a_size_that_a_backend_lacks_is_a_dash(recorded):
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx")]
    records = [message(cases[0], 1e-6, 1), message(cases[0], 1e-6, 2), message(cases[1], 1e-6, 2)]
    table = next(tables(recorded(cases, records)))
    assert table.rows == (("1 B", "1.00 µs", "—"), ("2 B", "1.00 µs", "1.00 µs"))


def test_differences_of_every_pair_of_backends(recorded):
    times = [1 + n / 1000 for n in range(6)]
    twice = [2 * seconds for seconds in times]
    run = recorded(*builders.rivals({"tcp": times, "ucx": twice, "mpi": twice}))
    table = titled(run, "differences")
    assert [row[:2] for row in table.rows] == [
        ("ucx vs tcp", "2.00×"), ("mpi vs tcp", "2.00×"), ("mpi vs ucx", "1.00×"),
    ]  # fmt: skip
    assert [row[-1] for row in table.rows] == ["slower", "slower", "same"]
    assert table.rows[0][5] == "2.00…2.00"
    assert "Mann-Whitney test of the launches' medians, adjusted for 3 pairs" in table.note


def test_latencies_are_compared_with_the_first_backend_by_size(recorded):
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx", "mpi")]
    records = [
        message(case, (1 + n / 1000) * (1 + i), size, launch=n)
        for i, case in enumerate(cases)
        for size in (1, 1024)
        for n in range(6)
        if (i, size) != (2, 1)
    ]
    table = titled(recorded(cases, builders.ended(records)), "multiple")
    assert table.columns == ("size", "ucx", "mpi")
    assert table.rows == (
        ("1 B", "2.00×, slower", "—"), ("1 KiB", "2.00×, slower", "3.00×, slower"),
    )  # fmt: skip


@pytest.mark.parametrize(("n_workers", "n_rows"), [(5, 20), (6, 24)])
def test_the_24_slowest_pairs_are_shown(n_workers, n_rows, recorded):
    case = builders.case(n_workers=n_workers)
    records = [
        transfer(case, 0, 1, (1 + src + dst) * 10**7, src=str(src), dst=str(dst))
        for src, dst in itertools.permutations(range(n_workers), 2)
    ]
    table = titled(recorded([case], records), "per pair")
    assert len(table.rows) == n_rows
    assert ("The 24 slowest of 30 pairs. The format json has all." in table.note) == (
        n_workers == 6
    )
    if n_workers == 6:
        assert {row[1] for row in table.rows}.isdisjoint({"4 → 5", "5 → 4", "3 → 5", "5 → 3"})
        medians = [float(row[5]) for row in table.rows]
        assert medians == sorted(medians)


def test_one_launch_has_no_interval_no_verdict_and_no_costs(recorded):
    cases = [builders.case(name, launches=1) for name in ("tcp", "ucx")]
    records = [sample(case, 1.0 + i) for i, case in enumerate(cases)]
    table = next(tables(recorded(cases, builders.ended(records))))
    assert [row[2] for row in table.rows] == ["none", "none"]
    assert [row[3] for row in table.rows] == ["1", "2.00×, inconclusive"]
    assert [row[4:] for row in table.rows] == [("—", "2", "—"), ("—", "4", "—")]
    cut_short = next(tables(recorded(cases, records)))
    assert [row[3] for row in cut_short.rows] == ["1", "—"]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1.0, 1.5, "1.00…1.50 s"), (0.9, 1.5, "900 ms…1.50 s"), (0.0009, 0.02, "900 µs…20.0 ms")],
)
def test_an_interval_has_one_unit_where_both_ends_share_it(low, high, text, recorded):
    middle = (low + high) / 2
    table = next(tables(recorded([CASE], launches(CASE, [low, *[middle] * 4, high]))))
    assert table.rows[0][2] == text


def test_every_failure_is_listed(recorded):
    records = [failure(CASE, f"reason {number}\nmore", launch=number) for number in range(9)]
    table = titled(recorded([CASE], records), "Failures")
    assert [row[1] for row in table.rows] == [str(number) for number in range(9)]
    assert [row[3] for row in table.rows] == [f"reason {number}\nmore" for number in range(9)]


def test_every_transport_of_a_case_is_listed(recorded):
    records = [
        transport(CASE, "tcp/lo"), transport(CASE, "tcp/lo", src="1", dst="0"),
        transport(CASE, "", src="0", dst="2"),
    ]  # fmt: skip
    (table,) = (t for t in tables(recorded([CASE], records)) if t.title.startswith("Transport"))
    assert [row[1:3] for row in table.rows] == [("tcp/lo", "0→1, 1→0"), ("unknown", "0→2")]


@pytest.mark.parametrize("records", [[], [failure(CASE)]])
def test_a_run_without_samples_has_failures_and_provenance(records, recorded):
    content = recorded([CASE, builders.case("ucx", "pingpong")], records)
    assert len(content.costs) == len(content.pairs) == len(content.comparisons) == 0
    assert titles(content) == ["Failures"] * len(records) + ["Provenance"]
