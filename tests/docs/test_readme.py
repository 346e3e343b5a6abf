"""The README shows what commbench says, and points where something is.

``python tests/docs/test_readme.py`` writes the report of the reference run that the README links to into
it, after the run or the report has changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGES = [
    _ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").glob("*.md")),
    _ROOT / "notebooks/README.md", _ROOT / "results/reference/README.md",
]  # fmt: skip


_SHOWN = re.compile(r"(?<=```\n)\w+ · .*?(?=\n```)", re.DOTALL)


def _said() -> str:
    """Return what ``commbench report`` prints of the README's run, down to its coverage."""
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    run = re.search(r"results/reference/[\w-]+", readme)[0]
    command = [sys.executable, "-m", "commbench.cli", "report", str(_ROOT / run)]
    said = subprocess.check_output(command, env={**os.environ, "COLUMNS": "80"}, text=True)
    lines = [line.rstrip() for line in said.splitlines()]
    return "\n".join(lines).partition("\n\nTransport")[0]


def test_the_readme_shows_the_report_of_its_reference_run():
    """The report in the README is what ``commbench report`` prints at 80 columns today."""
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    assert _SHOWN.search(readme)[0] == _said()


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_link_within_the_project_leads_somewhere(page):
    """Files that a page links to or shows exist."""
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


if __name__ == "__main__":
    _readme = _ROOT / "README.md"
    _report = _said()
    _readme.write_text(_SHOWN.sub(lambda _: _report, _readme.read_text(encoding="utf-8"), count=1))
