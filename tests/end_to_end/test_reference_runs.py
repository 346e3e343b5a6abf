import re
from pathlib import Path

import namespaces
import pytest
import slow_link_run

import commbench
from commbench import stats

_FOLDER = Path(__file__).parents[2] / "results" / "reference"
_RUNS = sorted(path for path in _FOLDER.iterdir() if path.is_dir())
_CUT_SHORT = {"20261126-merge-h200", "20261126-pingpong-h200"}
"""The runs that were ended before all of their launches."""
_LOCAL_PATH = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|var|opt|mnt|srv|Users)/")


@pytest.fixture(scope="module", params=_RUNS, ids=lambda path: path.name)
def run(request):
    return commbench.load(request.param)


def test_the_readme_lists_every_run_and_no_other():
    page = (_FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == [path.name for path in _RUNS]


def test_every_case_was_measured_and_nothing_failed(run):
    assert run.notes == ()
    assert run.failures.empty
    done = run.ends[run.ends.ok].groupby("case_id")["launch"].nunique().to_dict()
    if run.path.name in _CUT_SHORT:
        assert 0 < sum(done.values()) < sum(case.launches for case in run.suite.cases)
        return
    # A budget adds launches to each case.
    n_added = max(done.values()) - max(case.launches for case in run.suite.cases)
    assert n_added == 0 or run.manifest.stopping
    assert done == {case.id: case.launches + n_added for case in run.suite.cases}


def test_a_run_has_its_command_commit_machine_and_packages(run):
    assert run.manifest.command.startswith("commbench run ")
    environment = run.manifest.environment
    assert environment["git"]["commbench"]["commit"]
    assert environment["host"]["name"]
    assert environment["cpu"]["usable_cores"] >= 1
    assert environment["packages"]["distributed"]


def test_a_run_has_no_path_of_the_machine(run):
    for path in run.path.rglob("*"):
        if path.suffix in {".json", ".jsonl", ".md", ".html", ".svg", ".csv"}:
            match = _LOCAL_PATH.search(path.read_text(encoding="utf-8"))
            assert not match, f"{path}: {match}"
    for frame in (run.transfers, run.tasks, run.wire, run.transports):
        for column in frame.select_dtypes(["str", "category"]):
            for text in frame[column].unique():
                assert not _LOCAL_PATH.search(text), text


def test_a_run_takes_less_than_4_mb(run):
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000, run.path


def test_the_slow_link_is_named_with_its_rate_and_no_other():
    (path,) = _FOLDER.glob("*-slow-link")
    run = commbench.load(path)
    ((one, other),) = slow_link_run.RATES_BPS
    slow = {(str(one), str(other)), (str(other), str(one))}
    table = run.slow_pairs
    table = table[table.channel == "alone"]
    assert set(zip(table.src, table.dst, strict=True)) == slow
    rate_Bps = slow_link_run.RATES_BPS[one, other] * namespaces.PAYLOAD_SHARE  # noqa: N806
    for model in stats.link_models(run):
        if model.channel == "alone" and (model.src, model.dst) in slow:
            assert model.beta_Bps == pytest.approx(rate_Bps, rel=0.15)
            assert model.error_median <= 0.2
