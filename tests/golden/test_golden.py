"""What users see of known runs stays as it was written down, whatever the code that computes it.

``python tests/golden/test_golden.py`` writes down what the present code makes of the runs.
"""

import csv
import functools
import hashlib
import io
import json
import math
import re
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.runs import GENERATED

from commbench import load
from commbench.errors import CommbenchError
from commbench.model import registry
from commbench.reports.figures import style

_EXPECTED = Path(__file__).with_name("expected")
_REFERENCE = Path(__file__).parents[2] / "results" / "reference"
_RUNS = [*GENERATED, *sorted(path.name for path in _REFERENCE.iterdir() if path.is_dir())]
_PUBLISHED = "report.md"
_READ = ("json", "terminal", "markdown")
"""The formats of every run."""
_FORMATS = (*_READ, "csv", "pyperf", "html", "osu", "junit")
_IN_ALL_FORMATS = (
    *GENERATED, "20261122-all-to-all", "20261122-pingpong-layers", "20261125-make-run",
)  # fmt: skip
"""Runs with all that a format can show, which the others would only repeat."""
_MAX_BYTES = 1_000_000
"""What is larger is written down as a hash, as pages are: their numbers are those of the tables."""
_DIGITS = 6
"""Of numbers that are hashed; the others must agree to ``_RELATIVE``."""
_RELATIVE = 1e-9
_ROUNDED = 12
"""The most characters of numbers that are rounded for readers."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_NO_VALUES = re.compile(
    r"data:image/[\w+]+;base64,[\w+/=]+|<(style|script)\b.*?</\1>|<meta[^>]*>", re.DOTALL
)
"""Pictures, and what a page looks like."""


def _formats(name):
    return _FORMATS if name in _IN_ALL_FORMATS else _READ


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Return a function that returns the reports of a run, by format."""
    with pytest.MonkeyPatch.context() as patch:
        # Pictures are not compared, and to save them takes most of the time.
        patch.setattr(style, "encoded", lambda *_: b"svg")
        yield functools.cache(lambda name: _reports(name, tmp_path_factory.mktemp("run")))


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name in _RUNS for form in _formats(name)]
)
def test_values_of_a_report(reports, name, form):
    texts = reports(name)
    expected = _path(name, form)
    if expected.name == _PUBLISHED:
        assert texts[form] == expected.read_text(encoding="utf-8")
        return
    if not expected.exists():
        written = expected.with_name(f"{expected.name}.sha256").read_text(encoding="utf-8")
        assert _digest(texts[form], form) == written.strip()
        return
    wanted = list(_values(expected.read_text(encoding="utf-8"), form))
    values = list(_values(texts[form], form))
    for (where, value), (wanted_where, wanted_value) in zip(values, wanted, strict=False):
        assert where == wanted_where
        if isinstance(value, float) and isinstance(wanted_value, float):
            assert math.isclose(value, wanted_value, rel_tol=_RELATIVE), where
        else:
            assert value == wanted_value, where
    assert len(values) == len(wanted)


def _path(name, form):
    """Return the file of a report; the Markdown of the reference runs is published."""
    if form == "markdown" and name not in GENERATED:
        return _REFERENCE / name / _PUBLISHED
    return _EXPECTED / f"{name}.{form}"


def _reports(name, folder):
    path = GENERATED[name](folder) if name in GENERATED else _REFERENCE / name
    built = load(path)
    texts = {}
    for form in _formats(name):
        try:
            text = registry.load("report", form)(built)
        except CommbenchError as error:
            text = str(error)
        # Markdown escapes underscores.
        for name in (str(path), str(path).replace("_", r"\_")):
            text = text.replace(name, "RUN")
        texts[form] = _NO_VALUES.sub("", text)
    return texts


def _values(text, form):
    if form in ("json", "pyperf"):
        yield from _leaves(json.loads(text))
    elif form == "csv":
        for number, row in enumerate(csv.DictReader(io.StringIO(text))):
            yield from ((f"{number}.{name}", _parsed(cell)) for name, cell in row.items())
    else:
        for i, number in enumerate(_NUMBER.findall(text)):
            # Processors differ in the last digits.
            yield f"number {i}", float(number) if len(number) > _ROUNDED else number


def _leaves(value, where=""):
    if value in ({}, []):
        yield where, repr(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{where}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{where}[{number}]")
    else:
        yield where, value


def _parsed(cell):
    try:
        return float(cell)
    except ValueError:
        return cell


def _digest(text, form):
    digest = hashlib.sha256()
    for where, value in _values(text, form):
        shown = f"{value:.{_DIGITS}g}" if isinstance(value, float) else value
        digest.update(f"{where}={shown}\n".encode())
    return digest.hexdigest()


def _write():
    for old in _EXPECTED.glob("*"):
        old.unlink()
    for name in _RUNS:
        with tempfile.TemporaryDirectory() as folder:
            for form, text in _reports(name, Path(folder)).items():
                path = _path(name, form)
                if form == "html" or len(text.encode()) > _MAX_BYTES:
                    path, text = Path(f"{path}.sha256"), _digest(text, form) + "\n"
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
