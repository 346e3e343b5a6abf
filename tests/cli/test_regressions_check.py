"""``commbench check`` compares a run with expected values."""

import tomllib
from xml.etree import ElementTree

import builders
import numpy as np
import pytest
from processes import invoke, report, usage_error

from commbench.analysis import references as references_of
from commbench.model import ClusterSpec, Placement

CASES = (
    builders.case("tcp", params={"rows": 1, "shuffle": "tasks"}),
    builders.case("ucx", params={"rows": 1, "shuffle": "tasks"}),
    builders.case("tcp", "pingpong", params={"sizes": [1, 8], "layers": ["comm"]}),
)
NODE1 = {"host": {"name": "node1"}}
REFERENCE = {
    "system": '"node1"', "workload": '"merge"', "backend": '"tcp"', "value": "2.0", "lower": "-0.1",
    "upper": "0.1", "unit": '"s"',
}  # fmt: skip


def check(run, *arguments):
    return invoke("check", run, *arguments, columns=160)


@pytest.fixture(scope="module", name="path")
def _path(tmp_path_factory):
    """Return a run: merges of 2 s (800 MB), a ping-pong of 1 and 8 ms; ucx never ended well."""
    records = builders.launches(CASES[0], [2.0] * 6)
    records += [builders.sample(CASES[1], 1.0), builders.end(CASES[1], ok=False)]
    records += builders.messages(CASES[2], {("comm", 1): 1e-3, ("comm", 8): 8e-3})
    output = tmp_path_factory.mktemp("results")
    return builders.written(output, CASES, records, environment=NODE1).path


def references(folder, *tables):
    """Write a file of references; what a table leaves out is as in ``REFERENCE``."""
    file = folder / "refs.toml"
    text = [
        "[[reference]]\n"
        + "\n".join(f"{key} = {value}" for key, value in (REFERENCE | table).items() if value)
        for table in tables
    ]
    file.write_text("\n\n".join(text))
    return file


@pytest.mark.parametrize(
    ("table", "status"),
    [
        ({}, 0),
        ({"value": "1.0"}, 3),
        ({"value": "1.0", "upper": ""}, 0),
        ({"value": "3.0"}, 3),
        ({"value": "3.0", "lower": ""}, 0),
        ({"value": "1.6", "upper": "0.25"}, 0),
        ({"value": "1.6", "upper": "0.24"}, 3),
        ({"value": "2", "lower": "0", "upper": "0"}, 0),
        ({"value": "2000", "unit": '"ms"'}, 0),
        ({"metric": '"throughput"', "value": "400", "unit": '"MB/s"'}, 0),
        ({"metric": '"throughput"', "value": "0.5", "unit": '"GB/s"'}, 3),
        ({"system": '"node*"', "params": "{ rows = 1 }", "cluster": "{ n_workers = 2 }"}, 0),
        ({"workload": '"pingpong"', "message_bytes": "8", "value": "8", "unit": '"ms"'}, 0),
        ({"backend": '"ucx"'}, 3),
    ],
)
def test_value_is_good_within_its_tolerances(table, status, path, tmp_path):
    result = check(path, "--reference", references(tmp_path, table))
    assert result.exit_code == status, result.output
    assert ("1 checked, 1 failed" if status else "1 checked, 0 failed") in result.stdout


@pytest.mark.parametrize(
    ("value", "unit", "shown", "status"),
    [
        (4.0, "s", "2.02 or 7.02 s", 3), (2.0, "s", "2.02 or 7.02 s", 3),
        (4, "GB/s", "0.396 or 0.114", 0),
    ],
)  # fmt: skip
def test_both_modes_must_be_within_the_limits(value, unit, shown, status, tmp_path):
    """No launch took the median, 4.5 s."""
    seconds = [2.0, 7.0, 2.02, 7.02, 2.04, 7.04]
    run = builders.written(
        tmp_path, CASES[:1], builders.launches(CASES[0], seconds), environment=NODE1
    ).path
    metric = "time" if unit == "s" else "throughput"
    upper, lower = ("0.5", "-0.5") if unit == "s" else ("0.5", "-0.99")
    table = {"value": str(float(value)), "unit": f'"{unit}"', "metric": f'"{metric}"'}
    result = check(
        run, "--reference", references(tmp_path, table | {"upper": upper, "lower": lower})
    )
    assert result.exit_code == status
    assert shown in result.stdout


def test_table_has_values_limits_and_results(path, tmp_path):
    file = references(tmp_path, {}, {"value": "3"}, {"backend": '"ucx"'})
    text = check(path, "--reference", file).stdout
    results = [line.split()[-1] for line in text.splitlines() if line.startswith("time of")]
    assert results == ["ok", "FAILED", "MISSING"]
    assert "1.8…2.2" in text
    assert "3 checked, 2 failed" in text


def test_junit_has_a_test_case_per_reference(path, tmp_path):
    file, xml = references(tmp_path, {}, {"backend": '"ucx"'}), tmp_path / "junit.xml"
    assert check(path, "--reference", file, "--junit", xml).exit_code == 3
    suite = ElementTree.fromstring(xml.read_text())
    assert (suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuite", "2", "1")
    good, bad = suite.findall("testcase")
    assert good.get("name") == "time of merge over tcp"
    assert good.find("failure") is None
    assert bad.find("failure").get("message") == "none, allowed 1.8…2.2"


def test_references_for_another_system_are_not_checked(path, tmp_path):
    other = {"system": '"node2"', "value": "99"}
    result = check(path, "--reference", references(tmp_path, {}, other))
    assert result.exit_code == 0
    assert "1 checked" in result.stdout
    error = usage_error(check(path, "--reference", references(tmp_path, other)))
    assert "no reference is for the system 'node1'" in error
    assert "known: node2" in error


@pytest.mark.parametrize(("workload", "is_pinned"), [("jobs.py", True), ("jobs:merge", False)])
def test_a_reference_of_a_function_is_for_all_its_versions(tmp_path, workload, is_pinned):
    file = tmp_path / "refs.toml"
    case = builders.case("tcp", workload, params={"sha256": "a" * 64, "rows": 1})
    written = builders.written(tmp_path, [case], builders.launches(case, [1.0] * 6))
    assert check(written.path, "--write-reference", file).exit_code == 0
    assert ("sha256" in file.read_text()) == is_pinned


def test_run_passes_the_references_written_from_it(path, tmp_path):
    file = tmp_path / "refs.toml"
    result = check(path, "--write-reference", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}\n")
    assert file.read_text().count("[[reference]]") == 3
    result = check(path, "--reference", file)
    assert result.exit_code == 0, result.output
    assert "3 checked, 0 failed" in result.stdout
    assert "exists" in usage_error(check(path, "--write-reference", file))


def test_written_references_do_not_match_other_parameters(path, tmp_path):
    file = tmp_path / "refs.toml"
    check(path, "--write-reference", file)
    other = builders.case("tcp", params={"rows": 2, "shuffle": "tasks"})
    records = builders.launches(other, [2.0] * 6)
    run = builders.written(tmp_path, [other], records, environment=NODE1)
    assert "no case of" in usage_error(check(run.path, "--reference", file))


def test_references_select_cases_that_differ_in_any_setting_of_the_cluster(tmp_path):
    bound = (Placement(cpus="0"), Placement(cpus="1", nic="eth0"))
    settings = [
        {}, {"env": {"A": "1"}}, {"placement": bound}, {"hosts": ("a", "b")},
        {"dask_config": {"distributed.comm.compression": None, "distributed.comm.offload": "1MiB"}},
    ]  # fmt: skip
    cases = [builders.case(cluster=ClusterSpec(**each)) for each in settings]
    records = builders.launches_by_case(cases, [[n + 1.0] * 6 for n in range(len(cases))])
    path = builders.written(tmp_path, cases, records, environment=NODE1).path
    check(path, "--write-reference", tmp_path / "new.toml")
    result = check(path, "--reference", tmp_path / "new.toml")
    assert result.exit_code == 0, result.output
    assert "5 checked, 0 failed" in result.stdout


def test_references_select_cases_that_differ_in_sizes_and_layers(tmp_path):
    cases, records = [], []
    for layer, size in (("comm", 1), ("coroutine", 8192)):
        params = {"sizes": (size,), "layers": (layer,)}
        cases.append(builders.case(workload="pingpong", params=params))
        records += builders.messages(cases[-1], {(layer, size): 1e-3})
    path = builders.written(tmp_path, cases, records, environment=NODE1).path
    check(path, "--write-reference", tmp_path / "new.toml")
    result = check(path, "--reference", tmp_path / "new.toml")
    assert result.exit_code == 0, result.output
    assert "2 checked, 0 failed" in result.stdout


BAD = {
    "unit": ({"unit": '"MB/s"'}, "reference[0]: unknown unit of a time 'MB/s'", "known: ms, ns"),
    "unit of a throughput": (
        {"metric": '"throughput"'}, "unknown unit of a throughput 's'", "known: B/s, GB/s",
    ),
    "metric": ({"metric": '"latency"'}, "expected one of 'time', 'throughput', got 'latency'"),
    "no value": ({"value": ""}, "the key 'value' is missing"),
    "zero": ({"value": "0.0"}, "value is 0; it must be above 0"),
    "negative": ({"value": "-1.0"}, "value is -1; it must be above 0"),
    "lower above": ({"lower": "0.1"}, "lower is 0.1", "from -1 to 0"),
    "lower below": ({"lower": "-10"}, "lower is -10"),
    "upper": ({"upper": "-0.1"}, "upper is -0.1", "0 or more"),
    "spread alone": ({"spread": "0.1"}, "spread and launches belong together"),
    "negative spread": ({"spread": "-0.1", "launches": "6"}, "spread is -0.1; it must be 0"),
    "one launch": ({"spread": "0.1", "launches": "1"}, "launches is 1; a spread needs at least 2"),
    "unknown case": ({"backend": '"mpi"'}, "time of merge over mpi: no case", "merge over tcp"),
    "unknown parameter": ({"params": "{ row = 1 }"}, "unknown parameter 'row'", "'rows'?"),
    "other parameter": ({"params": "{ rows = 2 }"}, "no case of"),
    "unknown key of the cluster": ({"cluster": "{ workers = 1 }"}, "'workers'", "n_workers"),
    "several numbers": (
        {"workload": '"pingpong"'}, "2 numbers of", "params, cluster, layer or message_bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem", BAD.values(), ids=BAD)
def test_bad_reference_is_refused(problem, path, tmp_path):
    table, *messages = problem
    error = usage_error(check(path, "--reference", references(tmp_path, table)))
    for message in messages:
        assert message in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no [[reference]] table; remove it, and make it from a good run"),
        ("reference = []", "has no [[reference]] table"),
        ("references = []", "the key 'reference' is missing"),
        ("reference = 3", "expected a list"),
        ("[[reference]\n", "can't read the references"),
        (None, "refs.toml yet; make it from a good run: commbench check RUN --write-reference "),
    ],
)
def test_file_without_references_is_refused(content, message, path, tmp_path):
    file = tmp_path / "refs.toml"
    if content is not None:
        file.write_text(content)
    assert message in " ".join(usage_error(check(path, "--reference", file)).split())


def test_size_that_was_not_measured_fails(path, tmp_path):
    table = {"workload": '"pingpong"', "message_bytes": "16", "value": "8", "unit": '"ms"'}
    result = check(path, "--reference", references(tmp_path, table))
    assert result.exit_code == 3
    assert "MISSING: no such layer or size, or no launch ended well" in " ".join(
        result.stdout.split()
    )


def test_a_workload_that_counts_no_bytes_has_no_throughput(tmp_path):
    case = builders.case(workload="tiny-tasks")
    records = [builders.sample(case, 1.0, launch=n, payload_bytes=0) for n in range(6)]
    run = builders.written(tmp_path, [case], builders.ended(records), environment=NODE1).path
    table = {"workload": '"tiny-tasks"', "metric": '"throughput"', "unit": '"MB/s"'}
    error = usage_error(check(run, "--reference", references(tmp_path, table)))
    assert "tiny-tasks counts no bytes, and has no throughput; use metric" in error


def test_the_size_of_all_pairs_at_once_is_that_of_a_block_as_in_json(tmp_path):
    case = builders.case(workload="all-to-all", n_workers=4)
    block = 16 * 2**20
    records = builders.messages(case, {("together", 12 * block): 0.5})
    run = builders.written(tmp_path, [case], records, environment=NODE1).path
    (row,) = report(run)["cases"]
    table = {"workload": '"all-to-all"', "message_bytes": row["message_bytes"], "value": "0.5"}
    result = check(run, "--reference", references(tmp_path, table))
    assert result.exit_code == 0, result.output
    check(run, "--write-reference", tmp_path / "new.toml")
    (reference,) = tomllib.loads((tmp_path / "new.toml").read_text())["reference"]
    assert reference["message_bytes"] == row["message_bytes"] == block
    assert check(run, "--reference", tmp_path / "new.toml").exit_code == 0


def test_no_value_between_two_modes_is_a_reference(tmp_path):
    records = builders.launches_by_case(CASES[:2], ([2, 7] * 6, [1] * 12))
    run = builders.written(tmp_path, CASES[:2], records, environment=NODE1).path
    check(run, "--write-reference", tmp_path / "new.toml")
    text = (tmp_path / "new.toml").read_text()
    (reference,) = tomllib.loads(text)["reference"]
    assert reference["value"] == 1
    assert text.count("launches split into two modes") == 1
    assert check(run, "--reference", tmp_path / "new.toml").exit_code == 0


@pytest.mark.parametrize("records", [[], [builders.end(CASES[0], ok=False)]])
def test_run_without_a_good_launch_fails_and_gives_no_references(records, tmp_path):
    run = builders.written(tmp_path, CASES[:1], records, environment=NODE1).path
    result = check(run, "--reference", references(tmp_path, {}))
    assert result.exit_code == 3
    error = usage_error(check(run, "--write-reference", tmp_path / "new.toml"))
    assert "has no number to expect" in error
    assert not (tmp_path / "new.toml").exists()


def test_launches_whose_median_is_0_are_no_part_of_the_spread(tmp_path):
    case = builders.case()
    records = [builders.sample(case, s, launch=n) for n, s in enumerate((0.0, 1.0))]
    path = builders.written(tmp_path, [case], builders.ended(records)).path
    check(path, "--write-reference", tmp_path / "new.toml")
    (reference,) = tomllib.loads((tmp_path / "new.toml").read_text())["reference"]
    # One launch has no spread.
    assert (reference["lower"], reference["upper"]) == (-0.1, 0.1)


@pytest.mark.parametrize("arguments", [(), ("--reference", "a", "--write-reference", "b")])
def test_either_reading_or_writing_is_asked_for(arguments, path):
    error = usage_error(check(path, *arguments))
    assert "give either --reference FILE or --write-reference FILE" in error


@pytest.mark.parametrize("option", [("--junit", "j.xml"), ("--undecided", "pass")])
def test_options_of_checks_have_nothing_to_say_about_new_references(option, path, tmp_path):
    new = tmp_path / "new.toml"
    error = usage_error(check(path, "--write-reference", new, *option))
    assert f"{option[0]} is for --reference; leave it out" in error
    assert not new.exists()


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_equal_software_rarely_fails_however_much_its_launches_spread(spread):
    """One of six checks fails in one of twenty pairs of runs; ten percent would fail in most."""
    dice, n_failed = np.random.default_rng(0), 0
    for _ in range(300):
        launches = np.exp(dice.normal(0, spread, (2, 6, 6)))
        (*values,), (*news,) = np.median(launches, axis=2)
        spreads = np.log(launches[0]).std(axis=1, ddof=1)
        checks = [
            references_of.Reference(
                system="*", workload="merge", backend="tcp", unit="s",
                value=value, spread=known, launches=6,
            ).limits(6, 6)
            for value, known in zip(values, spreads, strict=True)
        ]  # fmt: skip
        good = [low <= new <= high for (low, high), new in zip(checks, news, strict=True)]
        n_failed += not all(good)
    assert n_failed / 300 < 0.07


def test_limits_are_those_of_all_values_that_are_checked():
    reference = references_of.Reference(
        system="*", workload="merge", backend="tcp", unit="s", value=2.0, spread=0.1, launches=6
    )
    # 0.975 alone, 0.99875 of twenty.
    for n_checks, quantile in ((1, 2.5706), (20, 5.6042)):
        factor = np.exp(quantile * np.sqrt(np.pi / 2) * 0.1 * np.sqrt(1 / 6 + 1 / 9))
        limits = reference.limits(9, n_checks)
        assert limits == pytest.approx((2.0 / factor, 2.0 * factor), rel=1e-4)


def test_doubled_time_fails_unless_the_reference_is_too_uncertain(path, tmp_path):
    known = {"value": "1.0", "lower": "", "upper": "", "spread": "0.05", "launches": "6"}
    assert check(path, "--reference", references(tmp_path, known)).exit_code == 3
    unsure = known | {"launches": "2", "spread": "0.5"}
    result = check(path, "--reference", references(tmp_path, unsure))
    assert result.exit_code == 4
    assert "1 checked, 0 failed, 1 undecided" in result.stdout
    assert "1 of 1 value can't show a slowdown of 1.5×" in result.stdout
    assert "this passes: time of merge over tcp 10× and more" in result.stdout


@pytest.mark.parametrize(
    ("others", "options", "status", "kind"),
    [
        ([], [], 4, "failure"), ([], ["--undecided", "pass"], 0, "skipped"),
        ([{}], [], 0, "skipped"), ([{}], ["--undecided", "fail"], 4, "failure"),
        ([{"value": "1"}], ["--undecided", "fail"], 3, "failure"),
    ],
)  # fmt: skip
def test_checks_that_can_show_no_slowdown_fail_as_those_of_ab(
    others, options, status, kind, path, tmp_path
):
    unsure = {"lower": "", "upper": "", "spread": "0.3", "launches": "6"}
    file, xml = references(tmp_path, unsure, *others), tmp_path / "junit.xml"
    result = check(path, "--reference", file, "--junit", xml, *options)
    assert result.exit_code == status, result.output
    case, *_ = ElementTree.fromstring(xml.read_text()).findall("testcase")
    assert "can't show a slowdown of 1.5×" in case.find(kind).get("message")


def test_references_of_launches_that_differ_much_are_written_with_a_warning(tmp_path):
    times = (1.0, 1.5, 2.1, 1.2, 1.9, 1.4)
    records = builders.launches(CASES[0], times)
    run = builders.written(tmp_path, CASES[:1], records, environment=NODE1).path
    file = tmp_path / "new.toml"
    result = check(run, "--write-reference", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}\n")
    assert "warning: 1 of 1 value can't show a slowdown of 1.5×" in result.stderr
    assert "time of merge over tcp 1.68×" in result.stderr
    (said,) = references_of.repeated(references_of.read(file))
    assert said.slowdown == pytest.approx(1.68, abs=0.005)


def test_a_limit_of_the_file_outranks_the_spread(path, tmp_path):
    table = {"value": "1.9", "lower": "", "upper": "0.01", "spread": "0.5", "launches": "6"}
    assert check(path, "--reference", references(tmp_path, table)).exit_code == 3
    assert check(path, "--reference", references(tmp_path, table | {"upper": ""})).exit_code == 4


def test_launches_that_others_disturbed_are_left_out(path, tmp_path):
    disturbed = builders.disturbed(CASES[0])
    records = [*disturbed, *builders.launches(CASES[0], [2.0] * 6)]
    run = builders.written(tmp_path, CASES[:1], records, environment=NODE1).path
    written = check(run, "--write-reference", tmp_path / "new.toml")
    why = "others had over 10% or the hypervisor over 2% of the cores"
    names = "launches of merge over tcp 6, 7\n"
    assert written.stderr == f"left out, because {why}: {names}"
    few = [*disturbed, *builders.launches(CASES[0], [2.0] * 5)]
    few = builders.written(tmp_path, CASES[:1], few, environment=NODE1, id="few").path
    written = check(few, "--write-reference", tmp_path / "few.toml")
    assert f"counted, although {why}, because fewer than 6 would be left: {names}" in written.stderr
    (reference,) = tomllib.loads((tmp_path / "new.toml").read_text())["reference"]
    assert (reference["value"], reference["launches"], reference["spread"]) == (2.0, 6, 0.0)
    result = check(run, "--reference", references(tmp_path, {}))
    assert (result.exit_code, "6, 7" in result.stderr) == (0, True)
    assert check(path, "--reference", references(tmp_path, {})).stderr == ""
