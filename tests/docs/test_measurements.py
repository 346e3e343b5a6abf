"""``docs/measurements.md`` defines everything that reports print."""

import json
from dataclasses import fields

import pages
import processes
import pytest

from commbench import load
from commbench.model import Effect, Finding
from commbench.model.published import Value
from commbench.reports import sections
from commbench.stats import PublishedComparison

TEXT = (pages.ROOT / "docs/measurements.md").read_text(encoding="utf-8")
LOWER_CASE = " ".join(TEXT.split()).lower()
NAMES = {"size", "backend", "backends", "block", "src → dst", "src→dst", "process", "case", "what",
         "value", "launch", "message", "tcp", "ucx"}  # fmt: skip
"""Columns that name what the row, or the backend whose numbers the column contains, is."""
EMPTY = ("warnings", "verdicts", "findings", "shuffles", "slow_pairs", "scaling", "published")
"""Sections of JSON that are texts, or may be empty."""


def keys_of(section):
    rows = section if isinstance(section, list) else [section]
    return {key for row in rows if isinstance(row, dict) for key in row}


def undefined(keys):
    return sorted(key for key in keys if f"`{key}`" not in TEXT)


@pytest.fixture(scope="module")
def run(made_up_run):
    return load(made_up_run)


def test_every_key_of_the_json_report_is_defined(made_up_run, run):
    report = processes.report(made_up_run)
    keys = {name: keys_of(section) for name, section in report.items()}
    assert all(keys[name] for name in keys if name not in EMPTY)
    keys["slow_pairs"] = set(run.slow_pairs.columns)
    keys["scaling"] = set(run.scaling.columns)
    keys["findings"] = {field.name for kind in (Finding, Effect) for field in fields(kind)}
    keys["shuffles"] = set(run.shuffles.columns)
    keys["published"] = {
        field.name for kind in (PublishedComparison, Value) for field in fields(kind)
    }
    assert {name: undefined(keys[name]) for name in keys} == {name: [] for name in keys}


def test_every_key_of_the_json_model_is_defined(made_up_run):
    result = processes.invoke("model", made_up_run, "--format", "json", "--predict", "8MiB")
    assert result.exit_code == 0, result.output
    model = json.loads(result.stdout)
    assert undefined({*model, *keys_of(model["models"])}) == []


def titles(table):
    plain = [column.replace("-\n", "").replace("\n", " ") for column in table.columns]
    first = {plain[0]} if plain[0] == "size" else set()
    return set(plain) - NAMES - first


def test_every_column_is_defined(run):
    seen = {title for table in sections.tables(run) for title in titles(table)}
    assert {"median", "CPU s", "coverage", "CPUs if idle", "busy GB/s"} <= seen

    def is_defined(title):
        words = [word for word in title.lower().split() if word not in ("tcp", "ucx", "gb/s")]
        # The interval's title begins with its level.
        words = [word for word in words if not word.endswith("%") or word == "%"]
        return " ".join(words) in LOWER_CASE

    assert [title for title in sorted(seen) if not is_defined(title)] == []
