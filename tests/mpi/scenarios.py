"""Tests that run in fresh processes: one that has ended MPI can't start it again.

``python scenarios.py MODULE TEST ARGUMENTS`` runs the body of one, in this process.
"""

import asyncio
import functools
import importlib
import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

BUSY = 4
"""How many times as long as on a machine with nothing else to do a scenario may take."""
PRIVATE_SHM = (
    "unshare", "--mount", "--ipc", "sh", "-c",
    'mount -t tmpfs -o size=256m none /dev/shm && exec "$@"', "sh",
)  # fmt: skip
"""The namespaces of a scenario with shared memory of its process's descendants only."""


def scenario(
    bound_s: float, namespaces: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run the decorated test in a fresh process, where every warning is an error.

    Parameters
    ----------
    bound_s
        How long it may take on a machine with nothing else to do.
    namespaces
        The command that starts the process in new namespaces. Where that is impossible, the test
        is skipped.
    """

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @pytest.mark.skipif(
            importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"
        )
        @pytest.mark.timeout(BUSY * bound_s + 60)
        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            if namespaces and (
                shutil.which(namespaces[0]) is None
                or subprocess.run([*namespaces, "true"], check=False).returncode
            ):
                pytest.skip("new namespaces take root and unshare")
            script = [__file__, test.__module__, test.__name__, json.dumps(arguments, default=str)]
            done = subprocess.run(
                [*namespaces, sys.executable, "-W", "error", *script],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                timeout=BUSY * bound_s, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            print(done.stdout)
            assert done.returncode == 0, done.stdout[-5000:]

        return run

    return decorate


def in_event_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run the decorated coroutine as a test in this process."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


def or_slow(quick: Any, *complete: Any) -> list[Any]:
    """Return parameters for a test: `quick` by default, `complete` among the slow tests."""
    several = [value if isinstance(value, tuple) else (value,) for value in complete]
    return [quick, *(pytest.param(*values, marks=pytest.mark.slow) for values in several)]


if __name__ == "__main__":
    module, name, arguments = sys.argv[1:]
    test = getattr(importlib.import_module(module), name).__wrapped__
    outcome = test(**json.loads(arguments))
    if inspect.iscoroutine(outcome):
        asyncio.run(outcome)
