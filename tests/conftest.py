"""Fixtures that several folders of tests share; its place puts ``tests`` on the import path."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import builders
import processes
import pytest
from hypothesis import HealthCheck, settings

from commbench import backends, load
from commbench.analysis.run import Run
from commbench.launchers.local import LocalLauncher
from commbench.model import Case, ClusterSpec, Record, registry

# How long an example takes is the machine's affair.
settings.register_profile("commbench", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("commbench")

# The backend fake, here and in processes that tests start.
PLUGGED = str(Path(__file__).parent / "plugged")
sys.path.append(PLUGGED)
os.environ["PYTHONPATH"] = os.pathsep.join([PLUGGED, *filter(None, [os.environ.get("PYTHONPATH")])])

collect_ignore = ["gpu/fakes", "cli/scripts"]
"""Packages with names of real ones, for processes that import them; scripts of a user."""
collect_ignore_glob = ["*/conftest.py"]
"""They have one name, so that of several only one can be searched for doctests."""


@pytest.fixture
def only_rule(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Return a function that makes a rule of diagnosis the only one."""
    names, load = registry.names, registry.load

    def install(name: str, rule: Any) -> None:
        monkeypatch.setattr(
            registry, "names", lambda kind: [name] if kind == "rule" else names(kind)
        )
        monkeypatch.setattr(
            registry, "load", lambda kind, each: rule if kind == "rule" else load(kind, each)
        )

    return install


@pytest.fixture
def tag(monkeypatch: pytest.MonkeyPatch) -> Iterator[processes.Tag]:
    """Return the tag of whatever the test starts, all of which it ends."""
    tag = processes.Tag()
    for name, value in tag.environ.items():
        monkeypatch.setenv(name, value)
    yield tag
    tag.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, request):
    """Return two workers of one thread, 0 and 1, over what COMMBENCH_TEST_BACKEND says."""
    scratch = tmp_path_factory.mktemp("cluster")
    backend = backends.parse(processes.BACKEND)
    if problem := backend.unavailable("cpu"):
        pytest.skip(f"{processes.BACKEND}: {problem.reason}")
    environ = backend.environment("cpu", scratch)
    environ["DASK_TEMPORARY_DIRECTORY"] = str(scratch)
    # The workers import the functions of the test's module.
    folders = [str(request.path.parent), str(Path(__file__).parent)]
    environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        with LocalLauncher().start(ClusterSpec(n_workers=2), backend.protocol, scratch) as running:
            running.backend = backend
            running.addresses = {name: address for address, name in running.names.items()}
            yield running


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Return a function that stores records in a directory of its own and reads them back."""
    output, number = tmp_path_factory.mktemp("results"), itertools.count()

    def build(cases: Iterable[Case], records: Iterable[Record] = (), **given: Any) -> Run:
        given.setdefault("id", f"run-{next(number)}")
        return load(builders.written(output, cases, records, **given).path)

    return build


@pytest.fixture(scope="session")
def recorded_and_ended(recorded: Callable[..., Run]) -> Callable[..., Run]:
    """Return what stores records, with a good end for each launch that has none."""
    return lambda cases, records=(): recorded(cases, builders.ended(records))


@pytest.fixture(scope="module")
def no_figures() -> Iterator[None]:
    """Save the time of drawing in reports."""
    names = registry.names
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "names", lambda kind: [] if kind == "plot" else names(kind))
        yield
