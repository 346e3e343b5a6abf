"""The contract of backends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from commbench import backends
from commbench.backends.backend import Backend, Unavailability
from commbench.conformance.assertions import assert_one_line, assert_raises, loaded
from commbench.errors import UnavailableError, UsageError
from commbench.harness import runner
from commbench.harness.cases import cases_for, make_suite, plan, unmet
from commbench.model import ClusterSpec
from commbench.model.observed import Failure, LaunchEnd, Phase, Sample, TransportUsed
from commbench.store import parts
from commbench.workloads.workload import MODES

_STACKS = ("ucxx", "ucp", "mpi4py", "cupy", "cudf")
"""Libraries that can't share a process, or that initialize a GPU."""
_SIZES = (1, 100_000)
_TIMEOUT_S = 120.0


def check_backend(name: str, device: str = "cpu") -> set[str]:
    """Test the attributes and methods of the backend `name`, and measure one launch over it.

    The launch is a small ping-pong at every available layer of the backend: two processes with one
    connection, and a cluster of two workers. Every message is verified, except for those of
    external programs. This takes some seconds.

    Returns
    -------
    set of str
        The transports of the messages, as reported by the backend's ``transport``. Compare them
        with those that you expect: a contradiction is only a warning in reports.

    Raises
    ------
    AssertionError
        If the backend violates its contract.
    UnavailableError
        If this machine can't run the backend; all but its ``dask_config`` has been tested by then.
    """
    loaded("backend", name.partition(":")[0])
    backend = backends.parse(name)
    _check_names(backend)
    with tempfile.TemporaryDirectory(prefix="commbench-") as scratch:
        _check_settings(backend, device, Path(scratch))
        _check_unavailable_imports(name, device)
        lacking = backend.unavailable(device)
        if lacking is not None:
            assert all((lacking.reason, lacking.remedy)), (
                f"unavailable() says no more than {lacking}; it takes a reason and a remedy"
            )
            raise UnavailableError(f"backend {name}", lacking.reason, lacking.remedy)
        assert isinstance(backend.dask_config(), Mapping), "dask_config() is no mapping"
        return _exchange_messages(backend, device, Path(scratch))


def _check_names(backend: Backend) -> None:
    again = backends.parse(backend.name).name
    assert again == backend.name, f"its name {backend.name!r} leads to another: {again!r}"
    assert backend.protocol, "protocol is empty; give the scheme of Dask's addresses"
    with assert_raises(UsageError, "an unknown option"):
        type(backend)(("no-such-option",))
    for device in ("cpu", "gpu"):
        assert_one_line("settings()", backend.settings(device))
    assert isinstance(backend.contradiction("no-such-transport"), str), (
        "contradiction() returns no text; return '' where nothing is wrong"
    )


def _check_settings(backend: Backend, device: str, scratch: Path) -> None:
    given = backend.environment(device, scratch)
    assert all(isinstance(text, str) for pair in given.items() for text in pair), (
        f"environment() is {given!r}; names and values of variables are text"
    )


def _check_unavailable_imports(name: str, device: str) -> None:
    code = (
        "import itertools, sys\n"
        "from commbench import backends\n"
        "backend = backends.parse(sys.argv[1])\n"
        "found = backend.unavailable(sys.argv[2])\n"
        "if found is None:\n"
        f"    for layer, mode in itertools.product(('raw', 'coroutine'), {tuple(MODES)}):\n"
        "        why = backend.unavailable_layer(layer, mode)\n"
        "        assert not why or why.reason and why.remedy\n"
        f"print(type(found).__name__, *({set(_STACKS)} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name, device], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        f"unavailable() or unavailable_layer() failed in a fresh process: {done.stderr}"
    )
    kind, *loaded = done.stdout.split()
    assert kind in ("NoneType", Unavailability.__name__), (
        f"unavailable() returns a {kind}; return None or an Unavailability"
    )
    assert not loaded, (
        f"unavailable() or unavailable_layer() imports {', '.join(loaded)}; "
        "look for it, don't load it"
    )


def _exchange_messages(backend: Backend, device: str, scratch: Path) -> set[str]:
    name = backend.name
    below = [
        layer for layer in ("raw", "coroutine") if not backend.unavailable_layer(layer, "latency")
    ]
    layers = [*below, "comm", "worker"]
    params = {"sizes": list(_SIZES), "layers": layers, "seconds_per_size": 0.5}
    cases = cases_for(
        "pingpong", [name], params, ClusterSpec(device=device),
        launches=1, iterations=20, warmups=2, timeout_s=_TIMEOUT_S,
    )  # fmt: skip
    if lacking := unmet(cases[0]):
        what = lacking.what or f"backend {name}"
        raise UnavailableError(what, lacking.reason, lacking.remedy)
    launches = plan(make_suite("conformance", cases), seed=0)
    emitted = runner.run_plan(launches, scratch)
    records = [each for each in emitted if each is not None and not isinstance(each, Phase)]
    failures = [record.message for record in records if isinstance(record, Failure)]
    assert not failures, f"a launch over {name} failed: {'; '.join(failures)}"
    assert any(isinstance(record, LaunchEnd) for record in records), "no launch ended"
    samples = (record for record in records if isinstance(record, Sample))
    seen = {(r.layer, r.payload_bytes) for r in samples if r.verified or r.tool}
    wanted = {(layer, size) for layer in layers for size in _SIZES}
    assert seen >= wanted, f"no verified message of {sorted(wanted - seen)}"
    kind = TransportUsed.__name__
    tables = [parts.read(path, kind) for path in parts.closed(scratch, kind)]
    used = {(row["transport"], row["evidence"]) for each in tables for row in each.to_pylist()}
    assert used, "no transport was recorded: transport() has to return that of a connection"
    for transport, evidence in used:
        # The harness adds the layer before the evidence of the backend.
        assert all((transport, evidence.partition(": ")[2])), (
            f"transport() says {transport!r} by the evidence {evidence!r}; it takes both"
        )
    return {transport for transport, _ in used}
