"""Every command in the README and the other pages does what the page says.

The slow tests run each page in one shell, in the fixture ``folder``, where ``commbench`` measures
as little as it can, and ``pip`` installs into a folder of the test (``shims.py``).
"""

import os
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
