"""``python tests/docs/test_readme.py`` updates the report in the README.

It shows the reference run that the README links to.
"""

import os
import re
import subprocess
import sys

import pages
import pytest

README = pages.ROOT / "README.md"
SHOWN = re.compile(r"(?<=```\n)\w+ · .*?(?=\n```)", re.DOTALL)


def report():
    """Return what ``commbench report`` prints of the README's run, down to the times."""
    run = re.search(r"results/reference/[\w-]+", README.read_text(encoding="utf-8"))[0]
    command = [sys.executable, "-m", "commbench.cli", "report", run]
    environment = {**os.environ, "COLUMNS": "80"}
    text = subprocess.check_output(command, env=environment, text=True, cwd=pages.ROOT)
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_the_readme_shows_the_report_of_its_reference_run():
    assert SHOWN.search(README.read_text(encoding="utf-8"))[0] == report()


@pytest.mark.parametrize(
    "page", [*pages.PAGES, *sorted((pages.ROOT / "notebooks").glob("*.ipynb"))], ids=pages.name
)
def test_every_link_within_the_project_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


if __name__ == "__main__":
    shown = report()
    text = README.read_text(encoding="utf-8")
    README.write_text(SHOWN.sub(lambda _: shown, text, count=1))
