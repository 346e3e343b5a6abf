import functools
import random
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import processes
import pytest

from commbench import backends, load, stats
from commbench.cli import progress
from commbench.harness import runner
from commbench.model import Stopping
from commbench.model.observed import LaunchEnd
from commbench.store.records import BULK

SECONDS = 15.0
"""The duration of a simulated launch."""


def simulate(noise, between, failing):
    """Return a runner of launches of the backend fake with log-normal times.

    Those of the workloads in `failing` fail.
    """

    def run_plan(plan, run):
        rng = random.Random(1)
        for launch in plan:
            level, ok = rng.lognormvariate(0, between), launch.case.workload not in failing
            for record in (ok and backends.parse("fake").simulate(launch)) or ():
                if type(record).__name__ == "Sample":
                    seconds = level * rng.lognormvariate(0, noise)
                    yield replace(record, seconds=seconds, started_at_s=float(record.iteration))
                elif type(record).__name__ not in BULK:
                    yield record
            yield LaunchEnd(
                case_id=launch.case.id, launch=launch.index, block=launch.block,
                position=launch.position, ok=ok, seconds=SECONDS + launch.case.iterations,
            )  # fmt: skip

    return run_plan


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a function that runs two simulated cases, those with the same arguments once."""

    @functools.cache
    def run_two(*arguments, noise, between, failing):
        folder = tmp_path_factory.mktemp("measured")
        file = folder / "two.toml"
        file.write_text(
            'backends = ["fake"]\niterations = 2\nwarmups = 0\n'
            '[[case]]\nworkload = "merge"\n[[case]]\nworkload = "svd"\n'
        )
        results = folder / "results"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "run_plan", simulate(noise, between, failing))
            result = processes.invoke(
                "run", file, "--output", results, *arguments, figures=(), rules=()
            )
        return result, next(results.iterdir(), None) if results.exists() else None

    return run_two


@pytest.fixture
def run(tmp_path, monkeypatch, measured):
    """Return a function that returns the result of a run, and a copy of its directory to resume."""

    def copied(*arguments, noise=0.0, between=0.0, failing=""):
        result, path = measured(*arguments, noise=noise, between=between, failing=failing)
        monkeypatch.setattr(runner, "run_plan", simulate(noise, between, failing))
        return result, path and Path(shutil.copytree(path, tmp_path / path.name))

    return copied


def ends(path):
    return processes.records(path, "LaunchEnd")


def test_a_run_ends_at_the_first_look_at_which_all_is_decided(run):
    result, path = run("--budget", 2000, noise=0.001)
    assert result.exit_code == 0, result.output
    report = processes.report(path)["run"]
    assert report["ended_by"] == "decided"
    assert report["stopping"] == {
        "budget_s": 2000.0,
        "detect": 0.05,
        "fixed_iterations": False,
        "quick": False,
    }
    spent = sum(end["seconds"] for end in ends(path))
    assert 400 <= spent < 800
    assert "look 1 of 5" in result.stderr
    assert "all is decided" in result.stderr


def test_blocks_are_complete_and_launches_numbered_on(run):
    _, path = run("--budget", 300, noise=0.3, between=0.3)
    n_blocks = len(ends(path)) // 2
    assert n_blocks > 2
    assert Counter(end["block"] for end in ends(path)) == dict.fromkeys(range(n_blocks), 2)
    launches: dict[str, list[int]] = {}
    for end in ends(path):
        launches.setdefault(end["case_id"], []).append(end["launch"])
    assert list(launches.values()) == [list(range(n_blocks))] * 2


def test_a_noisy_run_spends_its_budget_and_says_what_is_undecided(run):
    result, path = run("--budget", 300, "--detect", "1%", noise=0.3, between=0.3)
    spent = sum(end["seconds"] for end in ends(path))
    assert 200 < spent <= 300
    assert "at the latest" in result.stderr
    text = " ".join(result.stdout.split())
    assert "the budget of 300 s ended before the median of" in text
    assert "was known within ±1%" in text
    assert load(path).ended_by == "time"


def test_iterations_are_chosen_after_the_first_launch(run):
    _, path = run("--budget", 1000, noise=0.1)
    counts = load(path).samples.groupby(["case_id", "launch"]).size()
    assert set(counts.groupby("launch").nunique()) == {1}
    assert counts.xs(0, level="launch").tolist() == [2, 2]
    assert counts.xs(1, level="launch").iloc[0] > 2


def test_given_iterations_are_not_changed(run):
    _, path = run("--budget", 300, "--iterations", 4, noise=0.1)
    assert set(load(path).samples.groupby(["case_id", "launch"]).size()) == {4}


@pytest.mark.parametrize("budget_s", [1, 40])
def test_no_block_begins_that_exceeds_the_budget(budget_s, run):
    result, path = run("--budget", budget_s, noise=0.1)
    assert result.exit_code == 0, result.output
    assert len(ends(path)) == 2
    assert load(path).ended_by == "time"
    assert "launches were run" not in result.stdout
    assert "--resume" not in result.stdout
    processes.invoke("run", "--resume", path, figures=(), rules=())
    assert len(ends(path)) == 2


def test_more_budget_is_used_by_a_run_that_is_resumed(run):
    _, path = run("--launches", 3, noise=0.3, between=0.3)
    result = processes.invoke("run", "--resume", path, "--budget", "5m", figures=(), rules=())
    assert result.exit_code == 0, result.output
    assert len(ends(path)) > 6
    assert load(path).manifest.stopping == Stopping(budget_s=300.0)
    n_ends = len(ends(path))
    processes.invoke("run", "--resume", path, "--budget", "10m", figures=(), rules=())
    assert len(ends(path)) > n_ends


def test_a_resumed_run_repeats_a_case_that_always_fails_in_its_last_block_only(run):
    _, path = run("--budget", 300, noise=0.3, between=0.3, failing="svd")
    n_blocks = len(ends(path)) // 2
    result = processes.invoke("run", "--resume", path, "--budget", "10m", figures=(), rules=())
    assert result.exit_code == 1, result.output
    blocks = Counter(end["block"] for end in ends(path))
    assert blocks.pop(n_blocks - 1) == 3
    assert len(blocks) >= n_blocks
    assert {*blocks.values()} == {2}
    assert not any("launches were run" in text for text in load(path).warnings)


def test_a_run_ends_when_six_launches_of_each_case_have_failed(run):
    _, path = run("--budget", 300, failing="merge, svd")
    assert [end["ok"] for end in ends(path)] == [False] * 12
    assert load(path).ended_by == ""


@pytest.mark.parametrize("n_blocks", [3, 4])
def test_a_resumed_run_judges_a_look_again_on_the_same_launches_only(n_blocks, run):
    _, path = run("--budget", 300, noise=0.3, between=0.3)
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    ended = f'"launch":{n_blocks - 1},'
    last = max(n for n, line in enumerate(lines) if '"LaunchEnd"' in line and ended in line)
    (path / "samples.jsonl").write_text("".join(lines[: last + 1]))
    data = load(path)
    before, now = (
        stats.look(data.replace(ends=data.ends[data.ends["block"] < n]))
        for n in (n_blocks - 1, n_blocks)
    )
    result = processes.invoke("run", "--resume", path, figures=(), rules=())
    assert result.exit_code == 0, result.output
    first = int(re.search(r"look (\d) of 5", result.stderr)[1])
    assert first == (now if now > before else now + 1)


def test_a_resumed_run_first_completes_its_interrupted_block(run, monkeypatch):
    _, path = run("--budget", 300, noise=0.3, between=0.3)
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if '"LaunchEnd"' in line and '"launch":3' in line)
    (path / "samples.jsonl").write_text("".join(lines[:last]))
    assert sorted(Counter(end["case_id"] for end in ends(path)).values()) == [3, 4]
    ends_before = load(path).ends
    judged = stats.look(load(path).replace(ends=ends_before[ends_before["block"] < 3]))
    assert judged > 0
    (begun_with,) = load(path).samples.query("launch == 3").groupby("case_id").size().head(1)
    design = stats.next_block
    monkeypatch.setattr(
        stats, "next_block", lambda run: replace(design(run), iterations=begun_with + 3)
    )
    spent, display = [], progress.display

    def displayed(*args, **given):
        spent.append(given["spent_s"])
        return display(*args, **given)

    monkeypatch.setattr(progress, "display", displayed)
    result = processes.invoke("run", "--resume", path, figures=(), rules=())
    assert spent == [pytest.approx(ends_before["seconds"].sum())]
    assert result.exit_code == 0, result.output
    # Another look at more launches would be another chance of a false verdict.
    assert min(map(int, re.findall(r"look (\d) of 5", result.stderr))) > judged
    assert len(set(Counter(end["case_id"] for end in ends(path)).values())) == 1
    blocks = Counter(end["block"] for end in ends(path))
    assert blocks == dict.fromkeys(range(len(blocks)), 2)
    data = load(path)
    n = data.samples.groupby(["case_id", "launch"]).size()
    block = data.ends[data.ends["block"] == 3]
    assert {n[key] for key in zip(block["case_id"], block["launch"], strict=True)} == {begun_with}
    assert load(path).ended_by == "time"


@pytest.mark.parametrize("failing", ["", "merge svd"])
@pytest.mark.parametrize("n_ends", [0, 1])
def test_a_run_that_was_interrupted_in_its_first_launches_is_resumed(n_ends, failing, run):
    _, path = run("--budget", 300)
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    stop = [n for n, line in enumerate(lines) if '"LaunchEnd"' in line][n_ends]
    assert '"Sample"' in "".join(lines[:stop])
    cut = "".join(lines[:stop])
    if failing:
        cut = cut.replace('"ok":true', '"ok":false')
    (path / "samples.jsonl").write_text(cut)
    result = processes.invoke("run", "--resume", path, figures=(), rules=())
    assert result.exit_code == 0, result.output
    assert min(Counter(end["case_id"] for end in ends(path)).values()) >= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "0"), "--budget is 0 s; it must be above 0"),
        (("--budget", "soon"), "soon"),
        (("--detect", "0"), "--detect is 0; it must be above 0"),
        (("--detect", "150%"), "--detect is 1.5"),
        (("--detect", "nan"), "--detect is nan"),
        (("--budget", "nan"), "nan"),
        (("--detect", "small"), "'small' is not a share; write for example 0.02"),
        (("--budget", "5m", "--launches", "6"), "chooses the number of launches"),
        (("--rigorous", "--launches", "6"), "chooses the number of launches"),
    ],
)
def test_invalid_limits_are_refused_before_anything_starts(arguments, message, run):
    result, path = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert path is None
