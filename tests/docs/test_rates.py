"""Pages of outcomes: no rate leaves out trials that were wrong, or counts what can't be wrong."""

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from repositories import Repository

TESTS = Path(__file__).parents[1]
COMMON = {"seconds": 1.0, "at": "2026-11-28", "machine": "two cores", "commit": "now"}


@pytest.fixture
def pages(monkeypatch):
    """Return a function that imports the module of ``make faults`` or ``make truth``."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, TESTS / name / "__main__.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_a_trial_that_raised_is_rated_among_all_trials(pages):
    truth = pages("truth")
    rows = [
        COMMON
        | {"trial": "cpu-time", "seed": seed}
        | dataclasses.asdict(
            truth._failed("cpu-time", seed)
            if seed == 3
            else truth.Outcome(question="CPU time", right=True, error=0.01)
        )
        for seed in range(10)
    ]
    text = truth.page(rows)
    assert re.search(
        r"cpu-time runs to its end \| 9 of 10 \(.*\) \| 95% \| open \|  \|  \|\n", text
    )
    # Nothing can be named falsely, so no rate says that it was not.
    assert "| CPU time | 9 of 9 (66% to 100%) | 95% | open |  | +1.0%" in text


def test_right_answers_that_also_name_something_false_do_not_meet_a_goal(pages):
    truth = pages("truth")
    right = truth.Outcome(question="slow link", right=True, false=False)
    rows = [
        COMMON
        | {"trial": "slow-link", "seed": seed}
        | dataclasses.asdict(dataclasses.replace(right, false=seed < 20))
        for seed in range(200)
    ]
    text = truth.page(rows)
    assert re.search(r"\| slow link \| 200 of 200 \(.*\) \| 95% \| missed \| 20 of 200 ", text)


def test_misses_of_earlier_versions_of_a_rule_are_published(pages, monkeypatch):
    faults = pages("faults")
    monkeypatch.setattr(faults, "_is_present", lambda _, commit: commit == "now")
    outcome = faults.Outcome(
        rule="gil", right=True, amount=1.0, job="frame", for_validation=True, found=["gil"],
        false=[],
    )  # fmt: skip
    trials = [
        (outcome, "now"), (dataclasses.replace(outcome, right=False, found=[]), "before"),
        (faults._failed("gil", 40), "now"), (faults._failed("gil", 0), "now"),
    ]  # fmt: skip
    rows = [
        COMMON | {"trial": "gil", "seed": seed} | dataclasses.asdict(each) | {"commit": commit}
        for seed, (each, commit) in enumerate(trials, 20)
    ]
    # An earlier trial of these seeds was called one of validation.
    rows.append(rows[1] | {"seed": 3})
    rows.append(rows[1] | {"trial": "limit-gil", "effect": 0.06})
    rows.append(
        COMMON
        | {"trial": "healthy", "seed": 0}
        | dataclasses.asdict(dataclasses.replace(outcome, rule="", found=[]))
    )
    assert "**1 of 3 injected faults were detected** in validation" in faults.summary(rows)
    assert "(1 as the largest finding), 0 of 1 near the limits;" in faults.summary(rows)
    text = faults.tables(rows)
    assert "1 of 2 (1% to 99%) of the rules as they are now, 1 of 3 " in text
    assert "Near the rules' limits: 0 of 1 (0% to 98%)" in text
    assert "| 0 of 1 (0% to 98%), effects of 6% to 6% |" in text


def test_a_prediction_is_of_the_rule_that_made_it(pages, monkeypatch):
    faults = pages("faults")
    monkeypatch.setattr(faults, "_is_present", lambda rule, _commit: rule == "transport")
    proof = faults.Outcome(
        rule="transport", right=True, amount=2.0, job="svd", for_validation=False, found=[],
        false=[], effect=0.3, effect_low=0.2, effect_high=0.4, gain_low=0.2, gain_high=0.5,
        predicted_by="polling",
    )  # fmt: skip
    text = faults.tables([COMMON | {"trial": "prove-transport", "seed": 0} | vars(proof)])
    assert "interval of the measured gain: not tried, " in text
    assert "earlier estimates: 1 of 1 " in text
    assert "30%: 20% to 50%" not in text


def test_proofs_of_useless_remedies_count_if_they_raised(pages, monkeypatch):
    faults = pages("faults")
    monkeypatch.setattr(faults, "_is_present", lambda *_: True)
    decided = faults.Outcome(
        rule="", right=True, amount=0.0, job="graph", for_validation=True, found=["useless"],
        false=["useless"], statement="None of these remedies helps here", proof_runs=1,
    )  # fmt: skip
    trials = [
        decided, dataclasses.replace(decided, statement="Undecided: A=1", proof_runs=2),
        faults._failed("prove-healthy", 2), dataclasses.replace(decided, proof_runs=0),
        # Without words, and without a remedy.
        dataclasses.replace(decided, statement="", proof_runs=0),
        dataclasses.replace(decided, statement="", proof_runs=0, found=[]),
    ]  # fmt: skip
    rows = [
        COMMON | {"trial": "prove-healthy", "seed": seed} | dataclasses.asdict(each)
        for seed, each in enumerate(trials)
    ]
    text = faults.tables(rows)
    assert "did not confirm: 4 of 5 " in text
    assert re.search(
        r"less than 5 % in 1 of 3 \(.*\) \(1 measured twice\), and in 1 of 1 \(.*\) before", text
    )


RECORDS = """
LEAST = 1
class CaseRecords:
    def __init__(self): self.limit(LEAST)
    def limit(self): return 1
    def waits(self): return self.queue
    @property
    def queue(self): return 1
    def links(self): return 1
    def polled(self): return 1
"""


@pytest.mark.parametrize(
    ("changed", "old", "new", "rules"),
    [
        ("gil", "0.05", "0.03", {"gil"}),
        ("rule", "0.05", "0.03", {"gil", "skew"}),
        ("__init__", "0.05", "0.03", {"gil", "skew"}),
        ("__init__", "def untested(): 1", "def untested(): 2", set()),
        ("case_records", "LEAST = 1", "LEAST = 2", {"gil", "skew"}),
        ("case_records", "class", "LIMIT = 2\nclass", set()),
        ("case_records", "limit(self): return 1", "limit(self): return 2", {"gil", "skew"}),
        ("polling", "0.05", "0.03", {"gil"}),
        ("case_records", "polled(self): return 1", "polled(self): return 2", {"gil"}),
        ("case_records", "queue(self): return 1", "queue(self): return 2", {"gil"}),
        ("case_records", "links(self): return 1", "links(self): return 2", {"skew"}),
        ("case_records", "def links", "# Comment.\n    def links", set()),
        ("case_records", "links(self): ", "links(self):\n        '''Docs.'''\n        ", set()),
    ],
)
def test_a_rule_has_changed_where_what_it_reaches_has(
    changed, old, new, rules, pages, monkeypatch, tmp_path
):
    faults, repository = pages("faults"), Repository(tmp_path)
    folder = repository.path / "commbench" / "analysis" / "findings"
    folder.mkdir(parents=True)
    texts = {
        "gil": "from commbench.analysis.findings import polling\ncase.waits()\nLIMIT = 0.05",
        "polling": "LIMIT = 0.05\ncase.polled()", "skew": "LIMIT = 0.05\ncase.links()",
        "rule": "LIMIT = 0.05", "case_records": RECORDS,
        "__init__": "LIMIT = 0.05\ndef find(): LIMIT\ndef untested(): 1",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    repository.commit()
    monkeypatch.setattr(faults, "ROOT", repository.path)
    assert all(faults._is_present(rule, "HEAD") for rule in ("gil", "skew"))
    # A commit with changes is none.
    assert not faults._is_present("gil", "HEAD+")
    assert old in texts[changed]
    (folder / f"{changed}.py").write_text(texts[changed].replace(old, new))
    for cached in (faults._is_present, faults._code, faults._source):
        cached.cache_clear()
    assert {rule for rule in ("gil", "skew") if not faults._is_present(rule, "HEAD")} == rules
