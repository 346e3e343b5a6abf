"""``commbench compare`` compares two runs case by case, or says why they can't be compared."""

import json
import math
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import builders
import numpy as np
import pytest
from processes import invoke, usage_error

from commbench import load
from commbench.cli import regressions
from commbench.model import ClusterSpec, Stopping
from commbench.model.observed import Sample
from commbench.reports import verdicts

pytestmark = pytest.mark.usefixtures("no_rules")

STEADY = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]
MACHINE = {
    "host": {"name": "node1", "kernel": "Linux 6.1"},
    "cpu": {"model": "A", "usable_cores": 4},
    "memory": {"total_bytes": 16_000_000_000},
    "python": "CPython 3.11.7",
    "packages": {"commbench": "0.1", "dask": "2026.7.1", "ucxx": None},
    "gpus": [{"name": "H100", "driver": "550"}],
    "variables": {},
}
CASES = (builders.case("tcp", params={"rows": 1}), builders.case("ucx", params={"rows": 1}))


def compare(*arguments):
    return invoke("compare", *arguments, columns=160)


def compared(*arguments):
    """Return the status and the content of a comparison as JSON."""
    result = compare(*arguments, "--format", "json")
    return result.exit_code, json.loads(result.stdout)


def write(
    folder, name, factor=1.0, cases=CASES, records=(), day=1, hour=0, records_of=None, **change
):
    """Return a run in which every case takes `factor` times as long, with `records` before.

    If given, only the cases `records_of` do.
    """
    given = {"id": name, "started_at": f"2025-01-{day:02}T0{hour}:00:00+00:00"}
    medians = [factor * value for value in STEADY]
    timed = cases if records_of is None else records_of
    records = [*records, *builders.launches(timed, medians)]
    return builders.written(folder, cases, records, environment=MACHINE | change, **given).path


def again(run):
    """Return another run with the same records."""
    path = shutil.copytree(run, run.with_name(f"{run.name}-again"), dirs_exist_ok=True)
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(manifest | {"id": path.name}))
    return path


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return write(tmp_path_factory.mktemp("old"), "old")


def test_slower_cases_are_status_3(old, tmp_path):
    result = compare(old, write(tmp_path, "new", 1.3))
    assert result.exit_code == 3
    assert result.stdout.count("slower") >= 2
    assert "1.30×" in result.stdout
    assert result.stdout.startswith("Slower: 2 of 2 cases: merge tcp 1.30×, merge ucx 1.30×.\n")


def test_a_run_is_not_compared_with_itself(old, tmp_path):
    copy = shutil.copytree(old, tmp_path / "copy")
    for same in (old, copy):
        error = usage_error(compare(old, same, "--undecided", "fail", "--force"))
        assert "are the same run: old" in " ".join(error.split())


def test_a_control_cancels_a_change_of_the_whole_machine(old, tmp_path):
    new = write(tmp_path, "new", 1.3)
    status, content = compared(old, new, "--control", "tcp")
    assert status == 0
    (comparison,) = content["comparisons"]
    assert (content["control"], comparison["candidate"]) == ("tcp", "ucx")
    assert comparison["ratio"] == pytest.approx(1)
    assert (comparison["baseline_s"], comparison["candidate_s"]) == (None, None)
    assert comparison["verdict"] == "same"
    text = compare(old, new, "--control", "tcp").stdout
    assert "as multiples of tcp" in text
    assert "1.00×" in text


def test_a_backend_that_changed_more_than_the_control_is_slower(old, tmp_path):
    records = builders.launches(CASES[1], [1.3 * 1.2 * value for value in STEADY])
    new = write(tmp_path, "new", 1.3, records=records, records_of=CASES[:1])
    status, content = compared(old, new, "--control", "tcp")
    assert status == 3
    assert content["comparisons"][0]["ratio"] == pytest.approx(1.2)


def test_launches_are_compared_with_the_control_of_their_block(old, tmp_path):
    drifting = [value * (1 + number) for number, value in enumerate(STEADY)]
    records = builders.launches(CASES, drifting)
    new = write(tmp_path, "new", records=records, records_of=())
    _, content = compared(old, new, "--control", "tcp")
    assert content["comparisons"][0]["verdict"] == "same"


@pytest.mark.parametrize(
    ("arguments", "status", "kind"), [((), 0, "skipped"), (("--undecided", "fail"), 4, "failure")]
)
def test_cases_without_the_control_are_undecided(arguments, status, kind, tmp_path):
    """They may have become slower, which nothing here can tell."""
    alone = builders.case("ucx", "transpose-sum")
    old = write(tmp_path, "old", cases=(*CASES, alone))
    slower = builders.launches(alone, [3 * value for value in STEADY])
    new = write(tmp_path, "new", cases=(*CASES, alone), records=slower, records_of=CASES)
    given = ("--control", "tcp", *arguments)
    code, content = compared(old, new, *given)
    assert (code, content["outcome"]) == (status, "undecided")
    assert content["without_control"] == ["transpose-sum ucx"]
    text = " ".join(compare(old, new, *given).stdout.split())
    assert "Same: 1 of 2 cases: merge ucx." in text
    assert "Not compared: 1 of 2 cases: transpose-sum ucx. A run has no time of tcp" in text
    assert ("This passes, except with --undecided fail" in text) == (status == 0)
    suite = ElementTree.fromstring(compare(old, new, *given, "--format", "junit").stdout)
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds == {"merge ucx": ["system-out"], "transpose-sum ucx": [kind]}
    # Of messages, each layer and size has its own control.
    pings = [builders.case(backend, "pingpong") for backend in ("tcp", "ucx")]
    records = builders.messages(pings[0], {("comm", 1): 1.0}, STEADY)
    records += builders.messages(pings[1], {("comm", 1): 1.0, ("comm", 8192): 1.0}, STEADY)
    path = builders.written(tmp_path, pings, records, id="sizes").path
    code, content = compared(path, again(path), *given)
    assert (code, content["without_control"]) == (status, ["pingpong ucx comm 8 KiB"])


def test_a_control_that_is_no_backend_of_both_runs_is_refused(old, tmp_path):
    new = write(tmp_path, "new")
    result = compare(old, new, "--control", "mpi")
    assert result.exit_code == 2
    assert "no case can be compared with mpi" in result.stderr


@pytest.mark.parametrize(("factor", "verdict"), [(0.7, "faster"), (1.0, "same")])
def test_no_slower_case_is_status_0(factor, verdict, old, tmp_path):
    new = write(tmp_path, "new", factor)
    status, content = compared(old, new, "--min-effect", "10%")
    assert status == 0
    assert [c["verdict"] for c in content["comparisons"]] == [verdict] * 2
    assert [c["candidate"] for c in content["comparisons"]] == ["tcp", "ucx"]
    assert content["comparisons"][0]["min_effect"] == 0.1
    assert (content["differences"], content["alone"]) == ([], [])


def test_interval_of_a_run_compared_with_an_equal_one_has_a_width(old):
    """Both sides are resampled independently."""
    _, content = compared(old, again(old))
    assert all(c["ci_low"] < 1 < c["ci_high"] for c in content["comparisons"])


OTHER = {
    "host": {"name": "node2"},
    "cpu": {"model": "B", "usable_cores": 2, "turbo": True, "clock_source": "hpet"},
    "memory": {"total_bytes": 8_000_000_000, "transparent_huge_pages": "never"},
    "python": "CPython 3.12.1",
    "packages": {"commbench": "0.2", "dask": "2026.8.0", "ucxx": None},
    "gpus": [{"name": "H100", "driver": "560"}],
    "variables": {"UCX_TLS": "tcp"},
}
DIFFERENCES = {
    "host.name: node1 against node2",
    "host.kernel: Linux 6.1 against unknown",
    "cpu.model: A against B",
    "cpu.usable_cores: 4 against 2",
    "cpu.turbo: unknown against True",
    "cpu.clock_source: unknown against hpet",
    "memory.total_bytes: 16.0 GB against 8.00 GB",
    "memory.transparent_huge_pages: unknown against never",
    "python: CPython 3.11.7 against CPython 3.12.1",
    "packages.commbench: 0.1 against 0.2",
    "packages.dask: 2026.7.1 against 2026.8.0",
    "gpus: ['H100, driver 550'] against ['H100, driver 560']",
    "variables.UCX_TLS: unknown against tcp",
}


def test_another_machine_or_version_is_refused(old, tmp_path):
    error = usage_error(compare(old, write(tmp_path, "new", **OTHER)))
    _, differences = error.split("can't be compared: ")
    differences, _ = differences.split(". To compare them all the same: --force")
    assert {*differences.split("; ")} == DIFFERENCES


def test_another_machine_is_compared_by_force(old, tmp_path):
    new = write(tmp_path, "new", cpu={"model": "B", "usable_cores": 4})
    status, content = compared(old, new, "--force")
    assert status == 0
    assert [difference["key"] for difference in content["differences"]] == ["cpu.model"]
    assert "not the same: cpu.model" in compare(old, new, "--force").stdout


def test_workers_on_other_hosts_are_a_warning(tmp_path):
    """The launchers for clusters elsewhere may have other nodes in each launch."""
    runs = []
    for number, hosts in enumerate([("a", "b"), ("a", "c")]):
        places = [builders.place(CASES[0], str(n), host=host) for n, host in enumerate(hosts)]
        runs.append(write(tmp_path / hosts[1], f"run{number}", records=places))
    texts = [compared(runs[0], run)[1]["warnings"] for run in (again(runs[0]), runs[1])]
    says = "workers were on a, b in the first run and on a, c in the second run: "
    assert [any(text.startswith(says) for text in each) for each in texts] == [False, True]
    assert not any("workers were on" in text for text in texts[0])


def test_memory_may_differ_by_a_few_pages(old, tmp_path):
    """What a kernel reserves differs between boots."""
    new = write(tmp_path, "new", memory={"total_bytes": 16_000_010_000})
    assert compare(old, new).exit_code == 0


CHANGED = {
    "merge over tcp: params.rows: 1 against 2": {"params": {"rows": 2}},
    "merge over tcp: cluster.n_workers: 2 against 3": {"cluster": ClusterSpec(n_workers=3)},
    "tcp: iterations: 3 against 9": {"iterations": 9},
    "tcp: warmups: 1 against 0": {"warmups": 0},
}


@pytest.mark.parametrize(("message", "change"), CHANGED.items(), ids=CHANGED)
def test_other_parameters_are_refused(message, change, tmp_path):
    old = write(tmp_path, "old", cases=CASES[:1])
    changed = builders.case("tcp", **{"params": {"rows": 1}} | change)
    new = write(tmp_path, "new", cases=(changed,))
    assert message in usage_error(compare(old, new))
    _, forced = compared(old, new, "--force")
    assert len(forced["comparisons"]) == 1


def test_computations_with_other_payloads_are_compared(tmp_path):
    old = write(tmp_path, "old", cases=CASES[:1])
    case = builders.case("tcp", params={"rows": 2})
    records = [
        replace(each, payload_bytes=1000) if isinstance(each, Sample) else each
        for each in builders.launches(case, [2 * value for value in STEADY])
    ]
    new = write(tmp_path, "new", cases=(case,), records_of=(), records=records)
    status, forced = compared(old, new, "--force")
    assert (status, [each["verdict"] for each in forced["comparisons"]]) == (3, ["slower"])
    assert "2.00×" in compare(old, new, "--force").stdout


def test_a_case_of_the_base_alone_is_lost_in_an_ab_only(tmp_path):
    old, new = (
        load(write(tmp_path, name, cases=CASES[:n])) for name, n in (("old", 2), ("new", 1))
    )
    lost = [
        regressions._compare_runs(old, new, 0.05, interleaved=turns).lost_names
        for turns in (False, True)
    ]
    assert lost == [[], ["merge over ucx"]]


def test_a_parameter_that_was_a_list_is_another_one(tmp_path):
    of_list = builders.case("tcp", params={"rows": [1, 2]})
    old = write(tmp_path, "old", cases=(of_list,))
    error = usage_error(compare(old, write(tmp_path, "new", cases=CASES[:1])))
    assert "params.rows: [1, 2] against 1" in error


def test_replication_may_differ(old, tmp_path):
    case = builders.case("tcp", params={"rows": 1}, launches=9, seed=7, timeout_s=9.0)
    assert compare(old, write(tmp_path, "new", cases=(case,))).exit_code == 0


def test_iterations_that_a_budget_chose_may_differ(old, tmp_path):
    case = builders.case("tcp", params={"rows": 1}, iterations=9)
    records = builders.launches(case, STEADY)
    given = {"id": "new", "environment": MACHINE, "stopping": Stopping()}
    assert compare(old, builders.written(tmp_path, [case], records, **given).path).exit_code == 0


def test_case_of_one_run_alone_is_named(old, tmp_path):
    result = compare(old, write(tmp_path, "new", cases=CASES[:1]))
    assert result.exit_code == 0
    assert "merge over ucx is in old alone" in result.stdout


def test_cases_of_which_a_run_has_several_are_not_paired_with_other_ones(tmp_path):
    runs = [
        write(tmp_path, name, cases=[builders.case(params={"rows": n}) for n in (1, other)])
        for name, other in (("old", 2), ("new", 3))
    ]
    result = compare("--force", *runs)
    for name in ("old", "new"):
        assert f"merge over tcp is in {name} alone" in result.stdout
    assert "rows=2" not in result.stdout


def test_runs_without_a_common_case_are_refused(tmp_path):
    old = write(tmp_path, "old", cases=CASES[:1])
    new = write(tmp_path, "new", cases=CASES[1:], python="3.99")
    error = usage_error(compare(old, new))
    assert "have no case in common: " in error
    assert "--force" not in error
    assert "merge over tcp is in old alone; merge over ucx is in new alone" in error


@pytest.fixture
def broken(tmp_path):
    """Return a run of which all launches failed."""
    failed = [builders.failure(case) for case in CASES]
    failed += [builders.end(case, ok=False) for case in CASES]
    return write(tmp_path, "broken", records=failed, records_of=())


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_runs_without_a_good_launch_are_refused(force, broken):
    error = usage_error(compare(broken, again(broken), *force))
    assert "no launch of a case ended well in both" in error


@pytest.mark.parametrize("form", ["terminal", "markdown", "junit", "json"])
def test_a_run_that_lost_all_cases_is_status_1(form, old, broken):
    result = compare(old, broken, "--format", form)
    assert result.exit_code == 1
    if form == "junit":
        lost = ElementTree.fromstring(result.stdout).findall("testcase[error]")
        assert [case.get("name") for case in lost] == ["merge tcp", "merge ucx"]
        assert {case.get("classname") for case in lost} == {"commbench.merge"}
    elif form == "json":
        content = json.loads(result.stdout)
        assert content["outcome"] == "undecided"
        assert content["lost"] == ["merge over tcp", "merge over ucx"]
    else:
        assert (
            "Lost: merge over tcp, merge over ucx: no good launch in the second run."
            in result.stdout
        )


def test_a_case_that_is_lost_has_no_multiple_of_the_control(old, tmp_path):
    new = write(tmp_path, "new", records_of=CASES[:1])
    result = compare(old, new, "--control", "tcp")
    assert result.exit_code == 1
    assert result.stdout.startswith("Lost: merge over ucx: no good launch in the second run.")


def test_a_case_of_which_all_launches_failed_in_one_run_fails(old, tmp_path):
    good, bad = CASES
    records = [
        record
        for launch in range(6)
        for record in (
            builders.sample(good, 1.0 + launch / 100, launch=launch),
            builders.end(good, launch=launch),
            builders.failure(bad, launch=launch), builders.end(bad, launch=launch, ok=False),
        )
    ]  # fmt: skip
    new = write(tmp_path, "new", records=records, records_of=())
    result = compare(old, new)
    assert result.exit_code == 1
    assert "Lost: merge over ucx: no good launch in the second run." in result.stdout
    assert "the second run: 6 of 12 launches failed" in " ".join(result.stdout.split())


def test_a_case_that_has_no_launch_in_the_second_run_fails(tmp_path):
    cases = (CASES[0], builders.case("tcp", "my code"))
    old = write(tmp_path, "old", cases=cases)
    result = compare(old, write(tmp_path, "new", cases=cases, records_of=cases[:1]))
    assert result.exit_code == 1
    assert "Lost: my code over tcp: no good launch in the second run." in result.stdout


def test_too_few_launches_for_a_verdict_are_named(tmp_path):
    """Holm's correction for many cases may leave no room for any verdict."""
    case = builders.case("tcp", "pingpong")
    records = builders.messages(case, {("comm", 1 + n): 1.0 for n in range(40)}, range(1, 7))
    path = builders.written(tmp_path, (case,), records).path
    result = compare(path, again(path))
    assert result.exit_code == 4
    first, *_ = result.stdout.splitlines()
    assert first.startswith("Undecided: 40 of 40 cases. 6 launches can't decide 40 cases")
    assert first.endswith("however much their times differ; 7 can.")
    assert compare(path, again(path), "--undecided", "pass").exit_code == 0


NOISY = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [((), 0), (("--undecided", "pass"), 0), (("--undecided", "fail"), 4)],
)
def test_undecided_cases_are_status_4_if_they_are_to_fail(arguments, status, tmp_path):
    records = builders.launches(CASES, NOISY)
    path = write(tmp_path, "noisy", records=records, records_of=())
    result = compare(path, again(path), *arguments)
    assert result.exit_code == status
    pattern = r"Undecided: 2 of 2 cases. Slowdowns below [\d.]+× can be missed. More --launches can"
    assert re.match(pattern, result.stdout)


@pytest.mark.parametrize(
    ("placement", "why"),
    [("pinned", ""), ("dask", " Dask may have placed the tasks differently, as it does")],
)
def test_cases_that_moved_other_bytes_have_no_verdict(placement, why, tmp_path):
    case = builders.case("tcp", cluster=ClusterSpec(task_placement=placement))
    records = [[builders.wire(case, n, launch=k) for k in range(6)] for n in (300_000, 900_000)]
    old = write(tmp_path, "old", 1.0, (case,), records[0])
    new = write(tmp_path, "new", 3.0, (case,), records[1])
    result = compare(old, new)
    assert result.exit_code == 4
    words = (
        "Not comparable: 1 of 1 case: merge tcp. Times of other work have no verdict; this fails "
        "unless it is faster, or not slower with --undecided pass. Bytes between workers in an "
        "iteration differ: merge tcp 300 kB instead of 100 kB."
    )
    assert " ".join(result.stdout.split()).startswith(f"{words}{why}")
    assert compared(old, new)[1]["comparisons"][0]["verdict"] == "unequal"
    suite = ElementTree.fromstring(compare(old, new, "--format", "junit").stdout)
    assert [child.tag for case in suite for child in case] == ["failure"]
    result = compare(old, again(old))
    assert result.exit_code == 0
    assert "Bytes" not in result.stdout


@pytest.mark.parametrize(
    ("seconds", "arguments", "status"),
    [(0.3, (), 0), (0.3, ("--undecided", "fail"), 0), (1.0, (), 4),
     (1.0, ("--undecided", "pass"), 0), (1.02, ("--undecided", "pass"), 0),
     (3.0, ("--undecided", "pass"), 4)],
)  # fmt: skip
def test_other_bytes_hide_no_slowdown_and_fail_no_improvement(seconds, arguments, status, tmp_path):
    (case,) = CASES[:1]
    old, new = (
        write(tmp_path, name, factor, (case,),
              [builders.wire(case, nbytes, launch=k) for k in range(6)])
        for name, factor, nbytes in (("old", 1.0, 300_000), ("new", seconds, 900_000))
    )  # fmt: skip
    assert compare(old, new, *arguments).exit_code == status


def test_a_case_is_compared_whatever_else_its_run_varied(tmp_path):
    case = CASES[0]
    old = write(tmp_path, "old", 1.0, (case,))
    new = write(tmp_path, "new", 3.0, (replace(case, varied=("workers",)),))
    assert compare(old, new).exit_code == 3


@pytest.mark.parametrize("moves_more", ["ucx", "tcp"])
def test_a_case_and_its_control_have_to_move_the_same_bytes(moves_more, tmp_path):
    other = builders.case("ucx", params={"rows": 1})
    runs = [
        write(tmp_path, f"with-{n}", cases=(CASES[0], other), records=[
            builders.wire(each, 100_000 * (n if each.backend == moves_more else 1), launch=k)
            for k in range(6) for each in (CASES[0], other)
        ])
        for n in (1, 2)
    ]  # fmt: skip
    (comparison,) = compared(*runs, "--control", "tcp")[1]["comparisons"]
    assert comparison["verdict"] == "unequal"


@pytest.mark.parametrize("control", [(), ("--control", "tcp")])
def test_modes_are_shown_instead_of_a_median_between_them(control, old, tmp_path):
    records = builders.launches(CASES[1], [0.5 * n for n in (2.0, 15.8, 2.02, 15.9, 2.04, 16)])
    new = write(tmp_path, "new", records=records, records_of=CASES[:1])
    text = " ".join(compare(old, new, *control).stdout.split())
    expected = r"0\.99\d*× or 7\.\d+×" if control else r"1\.01 or 7\.95 s"
    assert re.search(rf"merge ucx \S+( s)? {expected}", text)
    assert "a or b: launches split into two modes" in text


def test_slower_case_outranks_undecided_ones(old, tmp_path):
    records = builders.launches(CASES[1], NOISY)
    new = write(tmp_path, "new", 1.3, records=records, records_of=CASES[:1])
    result = compare(old, new, "--undecided", "fail")
    assert result.exit_code == 3
    first, second, *_ = result.stdout.splitlines()
    assert first == "Slower: 1 of 2 cases: merge tcp 1.30×."
    assert second.startswith("Undecided: 1 of 2 cases: merge ucx.")


@pytest.mark.parametrize(
    ("arguments", "kind"), [((), "skipped"), (("--undecided", "fail"), "failure")]
)
def test_junit_has_slower_and_undecided_cases(arguments, kind, old, tmp_path):
    cases = [*CASES, builders.case("mpi", params={"rows": 1})]
    slower = builders.launches(CASES[0], [2 * value for value in STEADY])
    noisy = builders.launches(CASES[1], NOISY)
    one = write(tmp_path, "one", cases=cases)
    two = write(tmp_path, "two", cases=cases, records=[*slower, *noisy], records_of=cases[2:])
    result = compare(one, two, "--min-effect", "10%", "--format", "junit", *arguments)
    suite = ElementTree.fromstring(result.stdout)
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds == {
        "merge tcp": ["failure"], "merge ucx": [kind], "merge mpi": ["system-out"],
    }  # fmt: skip
    assert "slower: 2.00× as long" in suite.find("testcase/failure").get("message")


def test_markdown_begins_with_the_verdict_and_has_a_table(old, tmp_path):
    text = compare(old, write(tmp_path, "new", 1.3), "--format", "markdown").stdout
    assert text.startswith("# Slower: 2 of 2 cases: merge tcp 1.30×, merge ucx 1.30×.\n")
    assert "| merge tcp | 1.02 s | 1.33 s | 1.30× |" in text


def test_every_format_is_an_option():
    (option,) = (option for option in regressions.compare.params if option.name == "form")
    assert [*option.type.choices] == [*verdicts.COMPARISON_FORMATS]


def test_the_worst_of_many_slower_cases_is_named_first(tmp_path):
    cases = [builders.case("tcp", params={"rows": rows}) for rows in range(6)]
    runs = []
    for name, last in (("old", 1.0), ("new", 5.0)):
        records = []
        for case in cases:
            factor = last if case is cases[-1] else 1.0 + 0.2 * (last > 1)
            records += builders.launches(case, [factor * value for value in STEADY])
        runs.append(write(tmp_path, name, cases=cases, records=records, records_of=()))
    text = " ".join(compare(*runs).stdout.split())
    assert re.search(r"Slower: 6 of 6 cases: [^,]*rows=5[^,]* 5\.00×,", text), text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "nowhere"), "nowhere holds no run"),
        (("nowhere", "nowhere", "--min-effect", "much"), "'much' is not a share"),
        (("nowhere", "nowhere", "--min-effect", "-1"), "--min-effect is -1; it must be 0 or more"),
        (("nowhere",), "Missing argument 'RUN_B'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    assert message in usage_error(compare(*arguments))


def test_load_of_other_processes_is_a_warning(old, tmp_path):
    """It may be the reason for a difference."""
    loads = [builders.core_use(case, launch=n, others=0.4) for case in CASES for n in range(6)]
    new = write(tmp_path, "new", 1.3, records=loads)
    text = " ".join(compare(old, new).stdout.split())
    assert "the second run: other processes used the cores in" in text
    _, content = compared(old, new)
    processes = [w for w in content["warnings"] if "other processes used the cores in" in w]
    assert [warning.partition(":")[0] for warning in processes] == ["the second run"]


def test_warnings_are_coloured_on_a_terminal(old, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    runs = regressions._compare_runs(load(old), load(write(tmp_path, "new", python="3")), 0.05)
    assert "\x1b[33m⚠ not the same: python" in verdicts.COMPARISON_FORMATS["terminal"](runs)


def test_warnings_of_the_report_are_not_repeated(old, tmp_path):
    """A run's report warns of transfers without a duration; a comparison is of times."""
    transfers = [builders.transfer(case, 1.0, 1.0) for case in CASES]
    new = write(tmp_path, "new", records=transfers)
    assert any("they are in no bandwidth" in text for text in load(new).warnings)
    assert "they are in no bandwidth" not in compare(old, new).stdout


def test_what_other_days_differ_by_is_no_verdict(old, tmp_path):
    new = write(tmp_path, "new", 1.2, day=9)
    for day, factor in enumerate((0.5, 0.9, 1.0), start=1):
        write(tmp_path, f"run-{day}", factor, day=day)
    # The last run of a day with a case counts.
    write(tmp_path, "b-1", 1.1, day=1, hour=1)
    other = (builders.case("tcp", "svd"),)
    write(tmp_path, "c-1", 3.0, day=1, hour=2, cases=(*other, CASES[1]))
    assert compared(old, new)[0] == 3
    assert "two sessions of the same software may differ" in compare(old, new).stdout
    text = " ".join(compare(old, new, "--history", tmp_path).stdout.split())
    assert "two sessions of the same" not in text
    status, content = compared(old, new, "--history", tmp_path)
    assert (status, content["outcome"]) == (0, "undecided")
    tcp = content["comparisons"][0]["sessions_ratio"]
    # The 98.75 % quantile of Student's t for two degrees of freedom, for two cases.
    deviation = np.std(np.log([0.9, 1.0, 1.1]), ddof=1)
    assert tcp == pytest.approx(math.exp(6.20535 * 2**0.5 * deviation), rel=1e-4)
    assert "Days of the history differ by up to" in text
    assert "More --launches" not in text
    (tmp_path / "a" / "run.json").parent.mkdir()
    (tmp_path / "a" / "run.json").write_text('{"schema_version": 0}')
    result = compare(old, new, "--history", tmp_path, "--format", "json")
    assert json.loads(result.stdout) == content
    assert "Not in the history" in result.stderr
    assert "schema version 0" in result.stderr
    case = builders.case("tcp", params={"rows": 1})
    cut = write(tmp_path, "cut", 5.0, day=5, records=[builders.transfer(case, 0.0, 0.5)])
    (part,) = (cut / "transfers").iterdir()
    part.write_bytes(part.read_bytes()[:-9])
    result = compare(old, new, "--history", tmp_path, "--format", "json")
    assert json.loads(result.stdout) == content
    assert f"can't read {part}" in result.stderr
    alike = write(tmp_path, "alike", 1.01, day=9)
    assert compared(old, alike)[1]["comparisons"][0]["verdict"] == "same"
    status, content = compared(old, alike, "--history", tmp_path, "--undecided", "fail")
    assert (status, content["comparisons"][0]["verdict"]) == (4, "inconclusive")


def test_a_history_that_is_too_short_is_refused(old, tmp_path):
    new = write(tmp_path, "new", 1.2, day=9)
    for number, workload in enumerate(("merge", "svd", "svd", "svd")):
        others = (builders.case("tcp", workload, params={"rows": 2}),)
        write(tmp_path, f"other-{number}", cases=others)
    message = usage_error(compare(old, new, "--history", tmp_path))
    assert "has 0 of 4 runs that can be compared with old, of 0 days: a history takes 3" in message
    for number in range(3):
        write(tmp_path, f"same-day-{number}")
    message = usage_error(compare(old, new, "--history", tmp_path))
    assert "has 3 of 7 runs that can be compared with old, of 1 day: a history takes 3" in message


def test_a_failed_launch_is_status_1(old, tmp_path):
    cases = [replace(case, launches=7) for case in CASES]
    failed = [builders.failure(case, launch=9) for case in CASES]
    failed += [builders.end(case, launch=9, ok=False) for case in CASES]
    result = compare(old, write(tmp_path, "new", cases=cases, records=failed))
    assert result.exit_code == 1
    assert result.stdout.startswith("Same: 2 of 2 cases")
    result = compare(old, tmp_path / "new", "--format", "junit")
    (lost,) = ElementTree.fromstring(result.stdout).findall("testcase[error]")
    assert "the second run: 2 of 14 launches failed" in lost.find("error").get("message")
    slower = write(tmp_path, "slower", 1.3, cases=cases, records=failed)
    assert compare(old, slower).exit_code == 3
    # An interrupted run has no failed launch.
    assert compare(old, write(tmp_path, "interrupted", cases=cases)).exit_code == 0


@pytest.mark.parametrize(
    ("stopping", "block", "status"), [(None, 2, 0), (Stopping(), 2, 1), (Stopping(), 6, 0)]
)
def test_a_failed_launch_that_a_resumed_run_has_replaced_is_status_0(
    old, tmp_path, stopping, block, status
):
    """With a budget, its block has the replacement, which can only be the last."""
    ends = builders.launches(CASES, [*STEADY, 1.0])
    failed = [builders.end(case, launch=block, ok=False) for case in CASES]
    if block == 2:
        ends = [record for record in ends if record.launch != block]
    given = {"environment": MACHINE, "stopping": stopping}
    new = builders.written(tmp_path, CASES, [*failed, *ends], **given).path
    assert compare(old, new).exit_code == status


@pytest.mark.parametrize(("n", "warns"), [(6, False), (7, True)])
def test_other_numbers_of_iterations_are_a_warning(n, warns, old, tmp_path):
    more = [
        builders.sample(CASES[0], 1.0, launch=launch, iteration=number)
        for launch in range(len(STEADY)) for number in range(3, n)
    ]  # fmt: skip
    text = " ".join(compare(old, write(tmp_path, "new", records=more)).stdout.split())
    expected = f"merge over tcp: launches have 3 iterations in the first run and {n} in the second"
    assert (expected in text) == warns
    assert "merge over ucx: launches have" not in text


def test_disturbed_launches_are_left_out_and_named(old, tmp_path):
    disturbed = [record for case in CASES for record in builders.disturbed(case)]
    new = write(tmp_path, "new", records=disturbed)
    result = compare(old, new)
    assert result.exit_code == 0
    assert "the second run: left out, because others had over 10%" in result.stdout
    assert "failed" not in result.stdout
    assert "merge over tcp 6, 7" in result.stdout
    # Nothing is to be done about launches that don't count.
    assert "other processes used the cores" not in result.stdout
    (tcp, _) = compared(old, new)[1]["comparisons"]
    assert (tcp["n_launches"], tcp["ratio"]) == (6, pytest.approx(1))


def test_a_history_that_limits_no_case_is_refused(old, tmp_path):
    new = write(tmp_path, "new", 1.3, day=9)
    for day in (1, 2, 3):
        write(tmp_path, f"run-{day}", day=day, cases=CASES[1:])
    error = usage_error(compare(old, new, "--control", "tcp", "--history", tmp_path))
    assert "no case has 3 days in the history with launches of tcp in the same blocks" in error
    result = compare(old, new, "--history", tmp_path)
    assert "not limited by the history, which lacks days of it: merge over tcp" in result.stderr
    assert "merge over ucx" not in result.stderr


def test_another_run_of_the_same_day_is_no_other_day(old, tmp_path):
    new = write(tmp_path, "new", 1.3, day=9)
    for day in (1, 2, 3):
        write(tmp_path, f"run-{day}", day=day)
    write(tmp_path, "again", 1.3, day=9, hour=1)
    status, content = compared(old, new, "--history", tmp_path)
    assert (status, content["outcome"]) == (3, "slower")
    # Nor is it if RUN_A is of that day.
    before = write(tmp_path, "before", day=9)
    status, content = compared(before, new, "--history", tmp_path)
    assert (status, content["outcome"]) == (3, "slower")
