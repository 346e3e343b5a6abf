"""The conformance kit run on Dask's tcp, distributed-ucxx's ucx and our mpi.

That tcp passes shows that the kit asks for nothing extraordinary; that ucx fails some checks shows
that they can fail.
"""

from __future__ import annotations

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

UCX_DEVIATES = {
    "order-same-process": "a write waits until the peer reads",
    "order-other-process": "a write waits until the peer reads",
    "cancelled_read-same-process": "a cancelled read can leave the connection open",
    "cancelled_read-other-process": "a cancelled read can leave the connection open",
    "addresses": "the connector's local_address is empty",
    "error_messages": "require_encryption is ignored",
}
NEEDS = {"tcp": "distributed", "ucx": "distributed_ucxx", "mpi": "mpi4py"}


def run_kit(protocol: str, names: list[str], bound_s: float) -> dict[str, str | None]:
    """Return the error, if any, of every check."""
    if importlib.util.find_spec(NEEDS[protocol]) is None:
        pytest.skip(f"{NEEDS[protocol]} is not installed")
    done = subprocess.run(
        [sys.executable, str(KIT), protocol, *names],
        capture_output=True,
        text=True,
        timeout=bound_s,
        env={**os.environ, "UCX_WARN_UNUSED_ENV_VARS": "n"},
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert results, done.stderr[-5000:]
    return {result["check"]: result["error"] for result in results}


def base(check: str) -> str:
    """Return the check whose result has this name."""
    return check.removesuffix("-same-process").removesuffix("-other-process")


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, str | None]]:
    """The results of each protocol, once it has been asked for."""
    return {}


QUICK = [
    pytest.param(
        protocol,
        check,
        # Most of them hang until they are cut off.
        marks=[pytest.mark.slow] if protocol == "ucx" and check in UCX_DEVIATES else [],
    )
    for protocol in NEEDS
    for check, slow in variants().items()
    if not slow
]


@pytest.mark.parametrize(("protocol", "check"), QUICK)
def test_comm(protocol: str, check: str, results: dict[str, dict[str, str | None]]) -> None:
    """The backend does what the check's docstring says."""
    deviates = protocol == "ucx" and check in UCX_DEVIATES
    if deviates:
        found = run_kit(protocol, [base(check)], bound_s=900)
    elif protocol in results:
        found = results[protocol]
    else:
        left_out = {*map(base, UCX_DEVIATES)} if protocol == "ucx" else set()
        names = [n for n, (_, _, slow) in CHECKS.items() if not slow and n not in left_out]
        found = results[protocol] = run_kit(protocol, names, bound_s=900)
    error = found.get(check, "the process ended before this check")
    if deviates and error:
        pytest.xfail(UCX_DEVIATES[check])
    assert error is None, error


@pytest.mark.slow
@pytest.mark.parametrize("check", [name for name, slow in variants().items() if slow])
@pytest.mark.parametrize("protocol", list(NEEDS))
def test_large(protocol: str, check: str) -> None:
    """The backend carries messages beyond what a C int can count."""
    error = run_kit(protocol, [check], bound_s=900)[check]
    assert error is None, error
