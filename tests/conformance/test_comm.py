"""The conformance kit run on Dask's tcp, distributed-ucxx's ucx and our mpi.

That tcp passes shows that the kit asks for nothing extraordinary; that ucx fails some checks shows
that they can fail.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)
KIT = Path(__file__).with_name("comm.py")
sys.path.insert(0, str(KIT.parent))
from comm import CHECKS, variants  # noqa: E402

NEEDS = {"tcp": "distributed", "ucx": "distributed_ucxx", "mpi": "mpi4py"}
QUICK = tuple(name for name, (_, _, slow) in CHECKS.items() if not slow)
UCX_DEVIATES = {
    "order": "a write waits until the peer reads",
    "cancelled_read": "a cancelled read can leave the connection open",
    "addresses": "the connector's local_address is empty",
    "error_messages": "require_encryption is ignored",
}
"""Most of them hang until they are cut off."""


def base(check: str) -> str:
    """Return the check whose result has this name."""
    return check.removesuffix("-same-process").removesuffix("-other-process")


def together(protocol: str, name: str) -> tuple[str, ...]:
    """Return the checks that run in one process with this one."""
    if protocol != "ucx":
        return QUICK
    if name in UCX_DEVIATES:
        return (name,)
    return tuple(other for other in QUICK if other not in UCX_DEVIATES)


@functools.cache
def run_kit(protocol: str, names: tuple[str, ...]) -> dict[str, str | None]:
    """Return the error, if any, of every check."""
    done = subprocess.run(
        [sys.executable, str(KIT), protocol, *names],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "UCX_WARN_UNUSED_ENV_VARS": "n"},
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert results, done.stderr[-5000:]
    return {result["check"]: result["error"] for result in results}


def cases() -> list[pytest.param]:
    """Return each protocol with each result; tcp and ucx are controls of the kit."""
    return [
        pytest.param(
            protocol,
            check,
            marks=[pytest.mark.slow] if slow or protocol != "mpi" else [],
        )
        for protocol in NEEDS
        for check, slow in variants().items()
    ]


@pytest.mark.parametrize(("protocol", "check"), cases())
def test_comm(protocol: str, check: str) -> None:
    if importlib.util.find_spec(NEEDS[protocol]) is None:
        pytest.skip(f"{NEEDS[protocol]} is not installed")
    name = base(check)
    names = together(protocol, name) if name in QUICK else (name,)
    error = run_kit(protocol, names).get(check, "the process ended before this check")
    if error and protocol == "ucx" and name in UCX_DEVIATES:
        pytest.xfail(UCX_DEVIATES[name])
    assert error is None, error
