"""Fixtures that several folders of tests share; its place puts ``tests`` on the import path."""

import functools
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builders
import processes
import pytest
from hypothesis import HealthCheck, settings
from simulated import QUIET

from commbench import load
from commbench.analysis.run import Run
from commbench.machine import process
from commbench.model import Case, registry
from commbench.model.observed import Record

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

_LONGEST = (
    "test_profile.py", "test_profile_command.py", "test_faults.py", "test_dead_peers.py",
    "test_pairing_faults.py", "test_computations.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: with several processes one of them would be alone at the end.

    The order of all others stays.
    """
    rank = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    """Spare garbage collections what lives to the end: it is a fifth of the time of a report."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that adds plug-ins of a kind, or leaves no others.

    Loading one that is an error raises it.
    """

    def install(kind: str, plugins: Mapping[str, Any], *, alone: bool = False) -> None:
        names, load = registry.names, registry.load

        def listed(asked: str) -> list[str]:
            if asked != kind:
                return names(asked)
            return [*plugins] if alone else [*names(kind), *plugins]

        def loaded(asked: str, name: str) -> Any:
            if asked != kind or name not in plugins:
                return load(asked, name)
            if isinstance(plugins[name], Exception):
                raise plugins[name]
            return plugins[name]

        monkeypatch.setattr(registry, "names", listed)
        monkeypatch.setattr(registry, "load", loaded)

    return install


@pytest.fixture
def tag(monkeypatch: pytest.MonkeyPatch) -> Iterator[processes.Tag]:
    """Return the tag of whatever the test starts, all of which it ends."""
    tag = processes.Tag()
    tag.set(monkeypatch)
    yield tag
    tag.end()


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the deaths that are reported from here on."""
    monkeypatch.setattr(process, "_watched", {})
    monkeypatch.setattr(process, "_on_death", None)
    monkeypatch.setattr(process, "_reported", False)
    messages: list[str] = []
    process.on_death(messages.append)
    return messages


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Any]:
    """Return a cluster of two worker processes, the same for all tests of workloads."""
    import dask
    from distributed import LocalCluster, Nanny

    # Dask gives a worker 5 s to end, and a busy machine may not.
    patient = functools.partialmethod(Nanny.close, timeout=60)
    with (
        pytest.MonkeyPatch.context() as patch,
        dask.config.set(QUIET),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            # Even without a dashboard the scheduler binds its port, and warns where it is taken.
            dashboard_address=":0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
    ):
        patch.setattr(Nanny, "close", patient)
        yield cluster


@pytest.fixture(scope="module")
def client(two_workers: Any) -> Iterator[Any]:
    """Return the client of a module; as the default one it would serve later modules, too."""
    from distributed import Client

    with Client(two_workers) as client:
        yield client


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
    with pytest.MonkeyPatch.context() as patch:
        processes.only(patch, "plot")
        yield


@pytest.fixture(scope="module")
def no_rules() -> Iterator[None]:
    """Save the time of rules in reports."""
    with pytest.MonkeyPatch.context() as patch:
        processes.only(patch, "rule")
        yield


@pytest.fixture(scope="module")
def simulated() -> Iterator[None]:
    """Simulate launches of the backend fake in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commbench.harness.runner.run_plan", builders.simulate_plan)
        patch.setattr("commbench_fake.time", SimpleNamespace(sleep=lambda _: None))
        yield
