"""docs/measurements.md defines all that reports print."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields

import pages
import pytest
from click.testing import CliRunner

from commbench import load
from commbench.cli.main import main
from commbench.model.published import Value
from commbench.reports import sections
from commbench.reports.sections import Table
from commbench.stats import PublishedComparison

TEXT = (pages.ROOT / "docs/measurements.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split()).lower()
NAMES = {"size", "backend", "backends", "block", "src → dst", "src→dst", "process", "case", "what",
         "value", "launch", "message", "tcp", "ucx"}  # fmt: skip
"""Columns that name what the row, or the backend whose numbers the column holds, is."""
_EMPTY = ("warnings", "slow_pairs", "published")
"""Sections of JSON that are empty for a run without troubles, or of no published figure."""


def _keys(section):
    rows = section if isinstance(section, list) else [section]
    return {key for row in rows if isinstance(row, dict) for key in row}


@pytest.fixture(scope="module")
def said(made_up_run):
    """Return what a run's report says."""
    return load(made_up_run)


def test_every_key_of_json_is_defined(said):
    """Consumers of the JSON report find every key in the document."""
    report = json.loads(importlib.import_module("commbench.reports.json").render(said))
    sections = {name: _keys(section) for name, section in report.items()}
    assert all(sections[name] for name in sections if name not in _EMPTY)
    sections["slow_pairs"] = set(said.slow_pairs.columns)
    sections["published"] = {
        field.name for kind in (PublishedComparison, Value) for field in fields(kind)
    }
    undefined = {
        name: sorted(key for key in keys if f"`{key}`" not in TEXT)
        for name, keys in sections.items()
    }
    assert {name: keys for name, keys in undefined.items() if keys} == {}


def test_every_key_of_the_model_is_defined(made_up_run):
    """So do those of ``commbench model --format json``."""
    words = ["model", str(made_up_run), "--format", "json", "--predict", "8MiB"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    model = json.loads(done.stdout)
    keys = {*model, *_keys(model["models"])}
    assert [key for key in sorted(keys) if f"`{key}`" not in TEXT] == []


def _titles(shown: Table):
    plain = [column.replace("-\n", "").replace("\n", " ") for column in shown.columns]
    first = {plain[0]} if plain[0] == "size" else set()
    return set(plain) - NAMES - first


def test_every_column_is_defined(said):
    """Whoever wonders about the title of a column finds it in the document."""
    seen = {title for shown in sections.tables(said) for title in _titles(shown)}
    assert {"median", "CPU s per GB", "coverage", "idle cores", "busy GB/s"} <= seen
    undefined = []
    for title in sorted(seen):
        words = [word for word in title.lower().split() if word not in ("tcp", "ucx", "gb/s")]
        # The interval's title begins with its level.
        words = [word for word in words if not word.endswith("%") or word == "%"]
        if " ".join(words) not in WORDS:
            undefined.append(title)
    assert undefined == []
