"""A pytest plugin that writes a JSON line per test: its outcome and its connections."""

import functools
import json
from collections import Counter
from pathlib import Path

import pytest

made: Counter[str] = Counter()
"""Connections that this process has made or accepted, by protocol."""


def read_lines(file: Path) -> list[dict]:
    """Return the records of `file`, which need not exist."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _count(comm: type, protocol: str) -> None:
    original = comm.__init__

    @functools.wraps(original)
    def counting(self, *args, **kwargs):
        original(self, *args, **kwargs)
        # A subclass may speak another protocol: TLS is one of TCP's.
        if getattr(self, "peer_address", protocol).startswith(protocol):
            made[protocol] += 1

    comm.__init__ = counting


def pytest_addoption(parser):
    """Add the options that ``distributed_suites.py`` gives."""
    parser.addoption("--lines", type=Path, help="the file to which records are appended")
    parser.addoption("--every", type=int, default=1, help="run the first of each N tests only")


def pytest_configure(config):
    """Count connections from here on."""
    # pytest-rerunfailures is not needed: what differs is run again by the caller.
    config.addinivalue_line("markers", "flaky: run again by pytest-rerunfailures, if installed")
    config.stash[_LINES] = config.getoption("--lines")
    from distributed.comm.tcp import TCP

    from commbench.mpi.comm import MPIComm

    _count(TCP, "tcp")
    _count(MPIComm, "mpi")


_LINES: pytest.StashKey[Path] = pytest.StashKey()


def pytest_collection_modifyitems(config, items):
    """Leave out what has a result already, and all but each n-th test."""
    done = {record["test"] for record in read_lines(config.stash[_LINES]) if "outcome" in record}
    chosen = items[:: config.getoption("--every")]
    items[:] = [item for item in chosen if item.nodeid not in done]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Write that a test begins, and how it ended."""
    record = {"test": item.nodeid}
    _append(item.config, record)
    item.stash[_RECORD] = record
    made.clear()
    result = yield
    _append(item.config, {"outcome": "passed", **record, "connections": dict(made)})
    return result


_RECORD: pytest.StashKey[dict] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Keep the first outcome of a test's three phases that is not a pass."""
    report = yield
    outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
    record = item.stash[_RECORD]
    if outcome != "passed" and "outcome" not in record:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else call.excinfo
        text = getattr(why, "exconly", lambda: why)() or ""
        record |= {"outcome": outcome, "why": text.partition("\n")[0][:200]}
    return report


def _append(config, record):
    with config.stash[_LINES].open("a") as file:
        file.write(json.dumps(record) + "\n")
