"""``python tests/docs/test_readme.py`` updates the beginning of a report in the README.

It is that of the reference run which the README names.
"""

import contextlib
import re
import runpy
import sys
from pathlib import Path

import pages
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import processes

README = pages.ROOT / "README.md"
SHOWN = re.compile(r"(?<=```\n)\w+ · .*?(?=\n```)", re.DOTALL)


def report():
    """Return what ``commbench report`` prints of the README's run, down to the times."""
    run = re.search(r"results/reference/[\w-]+", README.read_text(encoding="utf-8"))[0]
    with contextlib.chdir(pages.ROOT):
        result = processes.invoke("report", run)
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.stdout.splitlines())


def test_the_readme_shows_the_beginning_of_the_report_of_its_reference_run():
    shown = SHOWN.search(README.read_text(encoding="utf-8"))[0]
    assert report().startswith(shown)
    assert "Why " in shown


def test_the_recording_is_what_its_script_makes(monkeypatch):
    monkeypatch.chdir(pages.ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    script = runpy.run_path("docs/figures/record.py")
    assert script["SVG"].read_text(encoding="utf-8") == script["recording"]()


@pytest.mark.parametrize(
    "page", [*pages.PAGES, *sorted((pages.ROOT / "notebooks").glob("*.ipynb"))], ids=pages.name
)
def test_every_link_within_the_project_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    n_lines = SHOWN.search(text)[0].count("\n") + 1
    shown = "\n".join(report().splitlines()[:n_lines])
    README.write_text(SHOWN.sub(lambda _: shown, text, count=1))
