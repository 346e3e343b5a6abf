from __future__ import annotations

import json
from collections import Counter

import builders
import processes
import pytest

from commbench import backends
from commbench.errors import UsageError
from commbench.harness import runner
from commbench.model import RIGOROUS_LAUNCHES, LaunchEnd, Stopping, Suite
from commbench.stats import ended_by
from commbench.store.records import BULK
from commbench.studies import adaptive

NOISY = [1.0, 1.5, 0.7, 1.2, 0.9, 1.1]
STEADY = [1.0, 1.001, 1.002, 1.001, 1.0, 1.002]


def ended(recorded, medians, **limits):
    """Return why a run with launches of these medians, 9 s each, would end."""
    case = builders.case(launches=6)
    rule = Stopping(**{"rel_ci": 0.02, "time_budget_s": 1e6, "max_launches": 20} | limits)
    return ended_by(recorded([case], builders.launches(case, medians), stopping=rule))


def test_narrow_intervals_of_the_medians_end_a_run(recorded):
    assert ended(recorded, STEADY) == "precision"
    assert ended(recorded, STEADY, rel_ci=1e-6) == ""


def test_a_run_does_not_end_before_the_launches_that_its_case_asks_for(recorded):
    assert ended(recorded, STEADY[:5], time_budget_s=1, max_launches=2) == ""


def test_limits_on_launches_and_time_end_an_imprecise_run(recorded):
    assert ended(recorded, NOISY) == ""
    assert ended(recorded, NOISY, max_launches=6) == "launches"
    assert ended(recorded, NOISY, time_budget_s=54) == "time"
    assert ended(recorded, NOISY, time_budget_s=55) == ""


def test_a_case_that_only_fails_does_not_prolong_a_run(recorded):
    good, bad = builders.case(launches=6), builders.case("ucx", launches=6)
    records = builders.launches(good, STEADY)
    records += [builders.end(bad, launch=launch, ok=False) for launch in range(6)]
    assert ended_by(recorded([good, bad], records, stopping=Stopping())) == "precision"


def test_a_run_without_a_stopping_rule_has_no_reason_to_end(recorded):
    case = builders.case(launches=6)
    assert ended_by(recorded([case], builders.launches(case, STEADY))) == ""


def simulate(plan, run):
    """Yield what launches of the backend fake yield, without their processes."""
    for launch in plan:
        for record in backends.parse("fake").simulate(launch) or ():
            if type(record).__name__ not in BULK:
                yield record
        yield LaunchEnd(
            case_id=launch.case.id, launch=launch.index, block=launch.block,
            position=launch.position, ok=True, seconds=1.0,
        )  # fmt: skip


def run(output, *arguments):
    """Run two simulated cases rigorously; return the result and the run's directory."""
    file = output / "two.toml"
    file.write_text(
        'backends = ["fake"]\niterations = 1\nwarmups = 0\n'
        '[[case]]\nworkload = "merge"\n[[case]]\nworkload = "svd"\n'
    )
    results = output / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_plan", simulate)
        result = processes.invoke(
            "run", file, "--rigorous", "--output", results, *arguments, figures=()
        )
    return result, next(results.iterdir())


def ends(path):
    return processes.records(path, "LaunchEnd")


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """Return a run that no noise is small enough for, ended by the number of its launches."""
    folder = tmp_path_factory.mktemp("limited")
    return run(folder, "--launches", 6, "--max-launches", 8, "--rel-ci", "0.0001%")


def test_further_blocks_run_every_case_with_launches_numbered_on(limited):
    result, path = limited
    assert result.exit_code == 0, result.output
    assert "[12/12 or more]" in result.stderr
    assert Counter(end["block"] for end in ends(path)) == dict.fromkeys(range(8), 2)
    launches: dict[str, list[int]] = {}
    for end in ends(path):
        launches.setdefault(end["case_id"], []).append(end["launch"])
    assert list(launches.values()) == [list(range(8))] * 2


def test_the_report_of_an_imprecise_run_has_the_limit_that_ended_it(limited):
    result, path = limited
    text = " ".join(result.stdout.split())
    assert "stopped by --max-launches before every median was known within ±1e-06" in text
    assert "--max-launches 8 is reached" in text
    manifest = json.loads(processes.invoke("report", path, "--format", "json").stdout)["run"]
    assert manifest["ended_by"] == "launches"
    assert manifest["stopping"] == {"rel_ci": 1e-6, "time_budget_s": 3600.0, "max_launches": 8}


def test_a_precise_run_ends_with_its_first_launches(tmp_path):
    result, path = run(tmp_path, "--launches", 6, "--rel-ci", 0.05)
    assert len(ends(path)) == 12
    assert "known within ±0.05 of itself" in " ".join(result.stdout.split())
    assert "stopped by" not in result.stdout


def test_a_resumed_run_first_completes_its_interrupted_block(limited, tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text((limited[1] / "run.json").read_text())
    lines = (limited[1] / "samples.jsonl").read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if '"launch":6' in line)
    assert '"LaunchEnd"' in lines[last]
    (tmp_path / "samples.jsonl").write_text("".join(lines[:last]))
    assert sorted(Counter(end["case_id"] for end in ends(tmp_path)).values()) == [6, 7]
    monkeypatch.setattr(runner, "run_plan", simulate)
    result = processes.invoke("run", "--resume", tmp_path, figures=())
    assert result.exit_code == 0, result.output
    assert set(Counter(end["case_id"] for end in ends(tmp_path)).values()) == {8}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rel-ci", "2%"), "--rel-ci is a limit of --rigorous; give both"),
        (("--time-budget", "1h"), "--time-budget is a limit of --rigorous"),
        (("--max-launches", "9"), "--max-launches is a limit of --rigorous"),
        (("--rigorous", "--rel-ci", "0"), "--rel-ci is 0; it must be above 0"),
        (("--rigorous", "--rel-ci", "150%"), "--rel-ci is 1.5"),
        (("--rigorous", "--rel-ci", "nan"), "--rel-ci is nan"),
        (("--rigorous", "--rel-ci", "small"), "'small' is not a share; write for example 0.02"),
        (("--rigorous", "--time-budget", "0"), "--time-budget is 0 s; it must be above 0"),
        (("--rigorous", "--launches", "5"), "fewer than 6 allow no 95 % interval"),
        (("--rigorous", "--max-launches", "9"), "the run begins with 10 launches"),
    ],
)
def test_invalid_limits_are_refused_before_anything_starts(arguments, message, tmp_path):
    output = tmp_path / "results"
    result = processes.invoke(
        "run", "merge", "--backends", "fake", "--output", output, *arguments, figures=()
    )
    assert result.exit_code == 2
    assert message in result.stderr
    assert not output.exists()


def test_the_default_limits_allow_the_default_number_of_launches():
    suite = Suite(name="s", cases=(builders.case(launches=RIGOROUS_LAUNCHES),))
    adaptive.validate_stopping(Stopping(), suite)
    with pytest.raises(UsageError, match="--max-launches is 9"):
        adaptive.validate_stopping(Stopping(max_launches=9), suite)
