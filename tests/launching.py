"""One launch of a ping-pong in a test, and its records."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import builders
import pytest

from commbench import backends
from commbench.harness import cases
from commbench.model import Case, Launch
from commbench.model.observed import Failure, IdleCost, Record

R = TypeVar("R")


def select(records: Iterable[Any], kind: type[R], iteration: int | None = None) -> list[R]:
    """Return the records of one kind and, if given, of one iteration."""
    return [
        record
        for record in records
        if isinstance(record, kind) and iteration in (None, getattr(record, "iteration", None))
    ]


def require(backend: str) -> None:
    """Skip the test where the backend can't run."""
    if problem := backends.parse(backend).unavailable("cpu"):
        pytest.skip(f"{backend}: {problem.reason}")


def make_launch(case: Case, index: int = 0) -> Launch:
    """Return a launch of a case."""
    return Launch(case=case, index=index, block=0, position=0)


def no_idle_cost(launch: Launch, cpu_seconds: Callable[[], float], n_processes: int) -> IdleCost:
    """Pretend to have measured the idle processes, which takes seconds."""
    return IdleCost(
        case_id=launch.case.id, launch=0, seconds=1, cpu_seconds=0, n_processes=n_processes
    )


def ping_pong(
    backend: str, folder: Path, *, iterations: int = 50, warmups: int = 10, **params: Any
) -> list[Record]:
    """Return the records of a launch, which must succeed; skip the test where it can't run."""
    require(backend)
    case = Case(
        workload="pingpong", backend=backend, params=params, iterations=iterations,
        warmups=warmups, timeout_s=240.0,
    )  # fmt: skip
    if problem := cases.unmet(case):
        pytest.skip(f"{backend}: {problem.reason}")
    records = builders.measured([make_launch(case)], folder)
    assert not select(records, Failure), records
    return records
