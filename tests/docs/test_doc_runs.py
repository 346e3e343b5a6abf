"""Every command in the README and the other pages does what the page says.

The slow tests run each page in one shell, in the fixture ``folder``, where ``commbench`` measures
as little as it can, and ``pip`` installs into a folder of the test (``shims.py``).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pages
import processes
import pytest
import shims

WORKED_EXAMPLE = "extending.md"


def python_of(page):
    return "".join(
        block.text
        for block in pages.blocks(page)
        if block.language == "python" and not block.file and not block.reason
    )


@pytest.mark.parametrize("page", [page for page in pages.PAGES if python_of(page)], ids=pages.name)
def test_the_python_blocks_of_a_page_run(page, prepare, folder, tag):
    prepare(page)
    done = subprocess.run(
        [sys.executable, "-c", python_of(page)],
        cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not tag.launched()


def reading_commands():
    """Return the distinct commands of all pages that measure nothing, each with its page."""
    commands = {}
    for block in (block for page in pages.PAGES for block in pages.blocks(page)):
        if block.language in pages.SHELL and not block.reason and block.page.name != WORKED_EXAMPLE:
            for words in pages.commands(block.script):
                if words[0] == "commbench" and not {"run", "ab", "doctor"} & set(words[1:2]):
                    commands[" ".join(words)] = (words, block.page)
    return [commands[line] for line in commands if not re.search(r"[*$]", line)]


@pytest.mark.parametrize(
    ("words", "page"),
    reading_commands(),
    ids=lambda value: None if isinstance(value, Path) else " ".join(value),
)
def test_a_command_that_reads_a_run_succeeds(words, page, folder, prepare):
    prepare(page)
    if "--write-reference" in words:
        (folder / "refs.toml").unlink()
    result = processes.invoke(*words[1:])
    assert result.exit_code == 0, result.output
    assert result.stdout


@pytest.fixture
def run_page(folder, site, monkeypatch, tag):
    """Return a function that runs the commands of a page in one shell, and returns its output."""

    def run(page):
        script = pages.script(page)
        if "--write-reference refs.toml" in script:
            (folder / "refs.toml").unlink()
        done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        assert not tag.launched()
        return done.stdout

    programs = folder / "bin"
    for name in ("commbench", "pip", "python"):
        shim = f'exec "{sys.executable}" "{shims.__file__}" {name} "$@"'
        processes.program(programs / name, shim)
    monkeypatch.setenv("SHIMS_SITE", str(site))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    return run


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_all_commands_of_a_page_run_in_one_shell(page, run_page, folder):
    output = run_page(page)
    if page.name == WORKED_EXAMPLE:
        assert "bands over ws" in output
        (run,) = (folder / "bands").iterdir()
        assert (run / "figures" / "transfer-sizes.png").exists()
