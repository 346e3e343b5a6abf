import itertools
import os
import shutil
from glob import glob
from pathlib import Path

import builders
import pages
import processes
import pytest
import shims

from commbench.model import ClusterSpec

LINKED = ("suites", "docs", "notebooks", "tests")


@pytest.fixture(scope="session")
def made_up_run(tmp_path_factory):
    """Return a run that every command that reads one finds something in."""
    merges = [builders.case(name) for name in ("tcp", "ucx")]
    sweep = {"mode": "latency", "window": 64, "layers": ["comm", "worker"]}
    pingpongs = [builders.case(name, "pingpong", params=sweep) for name in ("tcp", "ucx")]
    exchange = builders.case("tcp", "all-to-all", cluster=ClusterSpec(n_workers=4))
    records = []
    for number, case in enumerate(merges, start=1):
        records += builders.launches(case, [number * (1 + step / 100) for step in range(6)])
        records += builders.every_kind(case)[1:-2]
        records += [builders.failure(case, launch=6), builders.end(case, launch=6, ok=False)]
    for case, launch, size, layer in itertools.product(
        pingpongs, range(6), (1, 4096), ("comm", "worker")
    ):
        seconds = (1 + launch / 100) * (1e-4 + size / 1e9)
        records.append(builders.message(case, seconds, size, launch=launch, layer=layer))
    for launch, size, channel in itertools.product(
        range(6), (1024, 65536, 1 << 20), ("alone", "together")
    ):
        seconds = (1 + launch / 100) * (1e-4 + size / 1e9)
        moved = size * (12 if channel == "together" else 1)
        records.append(builders.message(exchange, seconds, moved, launch=launch, layer=channel))
        records += builders.exchanges(exchange, seconds, size, launch=launch, channel=channel)
    return builders.written(
        tmp_path_factory.mktemp("made-up"), [*merges, *pingpongs, exchange],
        builders.ended(records),
    ).path  # fmt: skip


@pytest.fixture(scope="session")
def expected(made_up_run, tmp_path_factory):
    """Return references that expect what the made-up run has."""
    file = tmp_path_factory.mktemp("references") / "refs.toml"
    result = processes.invoke("check", made_up_run, "--write-reference", file)
    assert result.exit_code == 0, result.output
    return file


@pytest.fixture
def folder(tmp_path, made_up_run, expected, monkeypatch):
    """Return a folder like that in which a reader types the commands, and go there."""
    for name in ("RUN", "RUN_A", "RUN_B"):
        (tmp_path / name).symlink_to(made_up_run)
    shutil.copy(expected, tmp_path / "refs.toml")
    for name in LINKED:
        (tmp_path / name).symlink_to(pages.ROOT / name)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/reference").symlink_to(pages.ROOT / "results/reference")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder of packages for this process and those that it starts."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
    return path


@pytest.fixture
def prepare(folder, site):
    """Return a function that writes the files of a page, and installs its package for this test."""

    def write(page):
        projects = []
        for block in pages.blocks(page):
            if block.file:
                file = folder / block.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
            for words in pages.commands(block.script) if block.language in pages.SHELL else ():
                if words[:2] == ["pip", "install"]:
                    paths = map(Path, itertools.chain.from_iterable(map(glob, words[2:])))
                    projects.extend(filter(Path.is_dir, paths))
        for project in projects:
            shims.install(project, site)

    return write
