"""A rigorous run adds whole blocks of launches until it is precise, or a limit is reached."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import builders
import processes
import pytest
from click.testing import CliRunner

from commbench.cli.main import main
from commbench.errors import UsageError
from commbench.model import RIGOROUS_LAUNCHES, Stopping, Suite, registry
from commbench.stats import ended_by
from commbench.studies import adaptive

NOISY = [1.0, 1.5, 0.7, 1.2, 0.9, 1.1]
STEADY = [1.0, 1.001, 1.002, 1.001, 1.0, 1.002]


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the time of drawing."""
    names = registry.names
    monkeypatch.setattr(registry, "names", lambda kind: [] if kind == "plot" else names(kind))


def commbench(*arguments: Any) -> Any:
    """Run the command line in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def reason(recorded: Any, medians: list[float], **given: Any) -> str:
    """Return why a run with launches of these medians, 9 s each, would end."""
    case = builders.case(launches=6)
    rule = Stopping(**{"rel_ci": 0.02, "time_budget_s": 1e6, "max_launches": 20} | given)
    return ended_by(recorded([case], builders.launches(case, medians), stopping=rule))


def test_precise_medians_end_a_run(recorded: Any) -> None:
    """Once every interval is within the share that was asked for, no launch is added."""
    assert reason(recorded, STEADY) == "precision"
    assert reason(recorded, STEADY, rel_ci=1e-6) == ""


def test_a_run_does_not_end_before_its_first_launches(recorded: Any) -> None:
    """However precise, spent or many: the launches that the case asks for come first."""
    assert reason(recorded, STEADY[:5], time_budget_s=1, max_launches=2) == ""


def test_limits_end_a_run(recorded: Any) -> None:
    """The most launches and the time they took end a run that is not precise."""
    assert reason(recorded, NOISY) == ""
    assert reason(recorded, NOISY, max_launches=6) == "launches"
    assert reason(recorded, NOISY, time_budget_s=54) == "time"
    assert reason(recorded, NOISY, time_budget_s=55) == ""


def test_a_case_that_only_fails_is_not_waited_for(recorded: Any) -> None:
    """What never ends well can't become precise; the others decide."""
    good, bad = builders.case(launches=6), builders.case("ucx", launches=6)
    records = builders.launches(good, STEADY)
    records += [builders.end(bad, launch=launch, ok=False) for launch in range(6)]
    assert ended_by(recorded([good, bad], records, stopping=Stopping())) == "precision"


def test_a_run_of_fixed_length_has_no_such_end(recorded: Any) -> None:
    """Without a rule there is nothing to say."""
    case = builders.case(launches=6)
    assert ended_by(recorded([case], builders.launches(case, STEADY))) == ""


def run(output: Path, *arguments: Any) -> tuple[Any, Path]:
    """Run two simulated cases rigorously; return how it ended, and the run's directory."""
    file = output / "two.toml"
    file.write_text(
        'backends = ["fake"]\niterations = 1\nwarmups = 0\n'
        '[[case]]\nworkload = "merge"\n[[case]]\nworkload = "svd"\n'
    )
    results = output / "results"
    result = commbench("run", file, "--rigorous", "--output", results, *arguments)
    return result, next(results.iterdir())


def ends(path: Path) -> list[dict[str, Any]]:
    """Return how the launches of a run ended."""
    return processes.records(path, "LaunchEnd")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return a run that no noise is small enough for, ended by the number of its launches."""
    return run(
        tmp_path_factory.mktemp("limited"), "--launches", 6, "--max-launches", 8,
        "--rel-ci", "0.0001%",
    )  # fmt: skip


def test_blocks_are_added_whole(limited: tuple[Any, Path]) -> None:
    """Each further block runs every case once, with launches numbered on."""
    result, path = limited
    assert result.exit_code == 0, result.output
    assert "[12/12 or more]" in result.stderr
    found = ends(path)
    assert Counter(end["block"] for end in found) == dict.fromkeys(range(8), 2)
    for case_id in {end["case_id"] for end in found}:
        assert [e["launch"] for e in found if e["case_id"] == case_id] == list(range(8))


def test_the_report_says_what_ended_the_run(limited: tuple[Any, Path]) -> None:
    """A limit is a warning with how far the worst median is off; json has the rule, too."""
    result, path = limited
    text = " ".join(result.stdout.split())
    assert "stopped by --max-launches before every median was known within ±1e-06" in text
    assert "--max-launches 8 is reached" in text
    told = json.loads(commbench("report", path, "--format", "json").stdout)["run"]
    assert told["ended_by"] == "launches"
    assert told["stopping"] == {"rel_ci": 1e-6, "time_budget_s": 3600.0, "max_launches": 8}


def test_a_precise_run_ends_with_its_first_launches(tmp_path: Path) -> None:
    """Where the first launches are enough, none is added, and the report says so."""
    result, path = run(tmp_path, "--launches", 6, "--rel-ci", 0.05)
    assert len(ends(path)) == 12
    assert "known within ±0.05 of itself" in " ".join(result.stdout.split())
    assert "stopped by" not in result.stdout


def test_an_interrupted_block_is_completed_first(limited: tuple[Any, Path], tmp_path: Path) -> None:
    """A run that lost the end of a block resumes with the rest of it, and ends as it would have."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.json").write_text((limited[1] / "run.json").read_text())
    lines = (limited[1] / "samples.jsonl").read_text().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if '"launch":6' in line)
    cut = [
        line for line in lines[: last + 1] if '"LaunchEnd"' not in line or line is not lines[last]
    ]
    (path / "samples.jsonl").write_text("".join(cut))
    before = Counter(end["case_id"] for end in ends(path))
    assert sorted(before.values()) == [6, 7]
    result = commbench("run", "--resume", path)
    assert result.exit_code == 0, result.output
    assert set(Counter(end["case_id"] for end in ends(path)).values()) == {8}


@pytest.mark.parametrize(
    ("arguments", "words"),
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
def test_limits_that_make_no_sense_are_told(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """What is wrong is said before anything starts."""
    output = tmp_path / "results"
    result = commbench("run", "merge", "--backends", "fake", "--output", output, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not output.exists()


def test_ten_launches_are_where_rigour_begins() -> None:
    """The default is enough for an interval and for many pairs of backends."""
    suite = Suite(name="s", cases=(builders.case(launches=RIGOROUS_LAUNCHES),))
    adaptive.validate_stopping(Stopping(), suite)
    with pytest.raises(UsageError, match="--max-launches is 9"):
        adaptive.validate_stopping(Stopping(max_launches=9), suite)
