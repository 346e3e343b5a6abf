"""The runs in results/reference/ are sound, told apart, and small."""

from __future__ import annotations

import re
from pathlib import Path

import namespaces
import pytest
import slow_link_run

import commbench
from commbench import stats
from commbench.analysis.run import Run

_FOLDER = Path(__file__).parents[2] / "results" / "reference"
_RUNS = sorted(path for path in _FOLDER.iterdir() if path.is_dir())
_MACHINES_OWN = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|var|opt|mnt|srv|Users)/")


@pytest.fixture(scope="module", params=_RUNS, ids=lambda path: path.name)
def run(request: pytest.FixtureRequest) -> Run:
    """Return one of the reference runs."""
    return commbench.load(request.param)


def test_the_readme_lists_every_run_and_no_other() -> None:
    """Each directory has its row in the folder's README."""
    page = (_FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == [path.name for path in _RUNS]


def test_every_case_was_measured_and_nothing_failed(run: Run) -> None:
    """All launches that were asked for ended well, and every record could be read."""
    assert run.notes == ()
    assert run.failures.empty
    asked = {case.id: case.launches for case in run.suite.cases}
    assert run.ends[run.ends.ok].groupby("case_id")["launch"].nunique().to_dict() == asked


def test_a_run_tells_where_it_comes_from(run: Run) -> None:
    """The command, the commit, the machine and the software are there."""
    assert run.manifest.command.startswith("commbench run ")
    known = run.manifest.environment
    assert known["git"]["commbench"]["commit"]
    assert known["host"]["name"]
    assert known["cpu"]["usable_cores"] >= 1
    assert known["packages"]["distributed"]


def test_a_run_carries_no_path_of_the_machine(run: Run) -> None:
    """Neither its files of text nor its tables name a folder of whoever made it."""
    for path in run.path.rglob("*"):
        if path.suffix in {".json", ".jsonl", ".md", ".html", ".svg", ".csv"}:
            found = _MACHINES_OWN.search(path.read_text(encoding="utf-8"))
            assert not found, f"{path}: {found}"
    for frame in (run.transfers, run.tasks, run.wire, run.transports):
        for column in frame.select_dtypes(["str", "category"]):
            for text in frame[column].unique():
                assert not _MACHINES_OWN.search(text), text


def test_a_run_is_small(run: Run) -> None:
    """It takes less than 4 MB, pictures included."""
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000, run.path


def test_the_slow_link_is_named_and_no_other() -> None:
    """Of the run whose slow link is known, both its directions are slow, and have its rate."""
    (path,) = _FOLDER.glob("*-slow-link")
    run = commbench.load(path)
    ((one, other),) = slow_link_run.RATES_BPS
    slow = {(str(one), str(other)), (str(other), str(one))}
    found = stats.slow_pairs(stats.pairs(run), run)
    found = found[found.channel == "alone"]
    assert set(zip(found.src, found.dst, strict=True)) == slow
    rate_Bps = slow_link_run.RATES_BPS[one, other] * namespaces.PAYLOAD_SHARE  # noqa: N806
    for model in stats.link_models(run):
        if model.channel == "alone" and (model.src, model.dst) in slow:
            assert model.beta_Bps == pytest.approx(rate_Bps, rel=0.15)
