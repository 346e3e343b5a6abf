"""Every command in the README and the other pages does what the page says.

By default the commands that only read a run are carried out, and so are the Python blocks and all
of ``extending.md``. The slow tests run each page from top to bottom in one shell, in a folder of
its own in which

- ``RUN``, ``RUN_A`` and ``RUN_B`` are the same made-up run of a merge, a ping-pong and an
  all-to-all, ``refs.toml`` is what ``commbench check --write-reference`` writes of it, and
  ``results/reference``, ``suites``, ``docs``, ``notebooks`` and ``tests`` are the project's;
- ``commbench`` measures as little as it can, and ``pip`` installs into a folder of the test's own
  (``shims.py``).

What can't run there carries its reason in a comment of the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pages
import pytest
import shims
from click.testing import CliRunner

from commbench.cli.main import main

_WHOLE = "extending.md"
"""The page that runs from top to bottom by default: its worked example is a test."""


def _python(page):
    return "".join(
        block.text
        for block in pages.blocks(page)
        if block.language == "python" and not block.file and not block.reason
    )


@pytest.mark.parametrize("page", [page for page in pages.PAGES if _python(page)], ids=pages.name)
def test_the_python_of_a_page_runs(page, prepare, folder, tag):
    """What a page shows in Python works, block after block, where the project's runs are."""
    prepare(page)
    done = subprocess.run(
        [sys.executable, "-c", _python(page)],
        cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not tag.launched()


def _reading():
    """Return the distinct commands of all pages that measure nothing, each with its page."""
    found = {}
    for block in (block for page in pages.PAGES for block in pages.blocks(page)):
        if block.language in pages.SHELL and not block.reason and block.page.name != _WHOLE:
            for words in pages.commands(block.script):
                if words[0] == "commbench" and not {"run", "ab", "doctor"} & set(words[1:2]):
                    found[" ".join(words)] = (words, block.page)
    return [found[line] for line in found if not re.search(r"[*$]", line)]


@pytest.mark.parametrize(
    ("words", "page"),
    _reading(),
    ids=lambda given: None if isinstance(given, Path) else " ".join(given),
)
def test_a_command_that_reads_a_run_works(words, page, folder, prepare):
    """Reports, models, comparisons and checks come out, of the run that the page names."""
    prepare(page)
    if "--write-reference" in words:
        (folder / "refs.toml").unlink()
    done = CliRunner().invoke(main, words[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout


@pytest.fixture
def run_page(folder, monkeypatch, tag):
    """Return a function that runs what a page says, in one shell."""

    def run(page, *, thorough):
        text = pages.script(page)
        if "--write-reference refs.toml" in text:
            (folder / "refs.toml").unlink()
        if thorough:
            monkeypatch.setenv("SHIMS_THOROUGH", "yes")
        done = subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        assert not tag.launched()
        return done.stdout

    site, programs = folder / "site", folder / "bin"
    site.mkdir()
    programs.mkdir()
    for name in ("commbench", "pip", "python"):
        shim = programs / name
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{shims.__file__}" {name} "$@"\n')
        shim.chmod(0o755)
    monkeypatch.setenv("SHIMS_SITE", str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_worked_example_runs(run_page, folder):
    """What the page installs, it runs: a backend, a workload, a section, a figure, a format."""
    assert "rechunk over ws" in run_page(pages.ROOT / "docs" / _WHOLE, thorough=False)
    (run,) = (folder / "rechunk").iterdir()
    assert (run / "figures" / "transfer-sizes.png").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_command_runs(run_page, page):
    """A page's commands work in their order, in small, and leave no process."""
    run_page(page, thorough=True)
