"""The packages that ``docs/extending.md`` shows, installed and run."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pages
import processes
import pytest
from click.testing import CliRunner

from commbench.cli.main import main
from commbench.conformance import check_backend, check_launcher, check_workload

FOLDERS = sorted(path.parent for path in (pages.ROOT / "tests/examples").glob("*/pyproject.toml"))
MAX_LINES = 80
PAGE = pages.ROOT / "docs/extending.md"


def project(folder: Path) -> tuple[str, str, str, str]:
    """Return group, name, module and object of a package's only entry point."""
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    ((group, names),) = points.items()
    ((name, target),) = names.items()
    return group.removeprefix("commbench."), name, *target.split(":")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install all of them, here and in processes that are started."""
    site = tmp_path / "site"
    for folder in FOLDERS:
        group, name, module, target = project(folder)
        source = (folder / f"{module}.py").read_text()
        processes.plug_in(site, module, source, **{group: {name: target}})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    return site


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_plug_in_is_one_short_file_and_one_line(folder: Path) -> None:
    """It has no other module, and the page names it."""
    _, _, module, _ = project(folder)
    (file,) = folder.glob("*.py")
    assert file.stem == module
    assert len(file.read_text().splitlines()) <= MAX_LINES
    assert f"`{folder.name}/{file.name}`" in PAGE.read_text()


def test_the_page_shows_the_files_as_they_are() -> None:
    """And most of them in full."""
    shown = {block.file: block.text for block in pages.blocks(PAGE) if block.file}
    files = {
        f"commbench-{project(folder)[1]}/{file.name}": file.read_text()
        for folder in FOLDERS
        for file in folder.iterdir()
        if file.is_file()
    }
    assert {name: files[name] for name in shown if name in files} == {
        name: text for name, text in shown.items() if name.startswith("commbench-")
    }
    assert len(shown) >= 6


def test_a_backend_keeps_its_promises_at_all_layers(installed: Path) -> None:
    """Messages go at raw and coroutine, too, which are its own."""
    assert check_backend("ws") == {"websocket", "tcp"}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("rechunk", {"size": 500, "bands": 3}),
        ("bytes", {"sizes": (1, 1000)}),
        ("strided", {"sizes": (1 << 12, 1 << 16)}),
    ],
)
def test_a_workload_keeps_its_promises(installed: Path, name: str, params: Any) -> None:
    """Of a cluster, of a pair and of fetches: wrong results are found."""
    check_workload(name, **params)


def test_a_launcher_keeps_its_promises(installed: Path, tmp_path: Path) -> None:
    """A workload runs on its cluster, all of whose processes are known."""
    check_launcher("nannies", tmp_path)


def test_all_of_them_together(installed: Path, tmp_path: Path) -> None:
    """Commands know them by name: a run, its report with the section, its figures and formats."""

    def commbench(*words: Any) -> str:
        done = CliRunner().invoke(main, list(map(str, words)))
        assert done.exit_code == 0, done.output
        return done.stdout

    least = ("--launches", 1, "--iterations", 1, "--warmups", 0)
    output = ("--output", tmp_path / "results")
    listed = commbench("list").replace(",", " ").split()
    assert {name for _, name, _, _ in map(project, FOLDERS)} <= set(listed)
    text = commbench(
        "run", "rechunk", "--size", 1500, "--backends", "tcp,ws", "--launcher", "nannies",
        *least, *output,
    )  # fmt: skip
    assert "Bytes that each worker fetched" in text
    run = Path(text.splitlines()[-1])
    assert (run / "figures/transfer-sizes.svg").exists()
    brief = commbench("report", run, "--format", "brief")
    assert "rechunk over tcp:" in brief
    assert "rechunk over ws:" in brief

    text = commbench("run", "bytes", "--backends", "ws", *least, *output)
    assert "bytes, comm layer: latency" in text
    run = Path(text.splitlines()[-1])
    cases = json.loads(commbench("report", run, "--format", "json"))["cases"]
    assert [case["message_bytes"] for case in cases] == [1, 1024, 1 << 20]

    text = commbench("run", "strided", "--sizes", "64KiB", "--backends", "tcp", *least, *output)
    assert "strided, one pair at a time" in text
    assert "strided, all pairs at once" in text
