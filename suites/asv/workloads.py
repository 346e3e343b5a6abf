"""What ``asv run`` measures: the cases of ``suite.toml``, in one run of commbench's.

``COMMBENCH_ASV_OPTIONS`` is added to the command line of ``commbench run``, as in ``--launches 1``,
but can't change settings that are parameters here, such as ``--iterations``: ``suite.toml`` can.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from commbench import load
from commbench.harness.suite import read_suite
from commbench.studies import asv

_ROOT = Path(__file__).parents[2]
_FILE = Path(__file__).with_name("suite.toml")
_CASES = read_suite(_FILE).cases

# asv reads these of every benchmark here.
param_names = list(asv.PARAM_NAMES)
unit = asv.UNIT
version = asv.VERSION


def setup_cache() -> dict[str, Any]:
    """Run the suite once and return what it measured and what it attempted."""
    command = [sys.executable, "-m", "commbench.cli", "run", str(_FILE), "--skip-unavailable"]
    options = shlex.split(os.environ.get("COMMBENCH_ASV_OPTIONS", ""))
    output = ["--output", str(_ROOT / "results")]
    done = subprocess.run(
        [*command, *output, *options], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"commbench run ended with status {done.returncode}, without a run")
    run = load(done.stdout.splitlines()[-1])
    cases = run.suite.cases
    return {
        "run": str(run.path),
        "medians": asv.medians(run),
        "attempted": {
            (asv.benchmark(case.workload), case.backend, asv.describe_settings(case))
            for case in cases
        },
    }


setup_cache.timeout = 3600


def _params(workload: str) -> list[list[Any]]:
    cases = [case for case in _CASES if case.workload == workload]
    return [
        list(dict.fromkeys(values))
        for values in (
            [case.backend for case in cases],
            [layer for case in cases for layer in case.params.get("layers", ["workload"])],
            [size for case in cases for size in case.params.get("sizes", [None])],
            [asv.describe_settings(case) for case in cases],
        )
    ]


def _found(measured: dict[str, Any], workload: str, *params: Any) -> Any:
    """Return the medians of the launches; nan, which asv shows as n/a, for an absent backend."""
    name = asv.benchmark(workload)
    samples = measured["medians"].get(name, {}).get(params)
    if samples:
        # asv takes its value and statistics from samples, as it does for its own timings.
        return {"samples": samples, "number": 1}
    backend, *_, wanted = params
    attempted = {each[2] for each in measured["attempted"] if each[:2] == (name, backend)}
    if wanted in attempted:
        raise RuntimeError(f"no launch ended well; see {measured['run']}/report.md")
    if attempted:
        raise RuntimeError(
            f"COMMBENCH_ASV_OPTIONS changes the settings of {_FILE.name}, {wanted}, to "
            f"{' or '.join(sorted(attempted))}; change them there"
        )
    return math.nan


def track_pingpong(measured: dict[str, Any], *params: Any) -> Any:
    """Half a round trip of one message."""
    return _found(measured, "pingpong", *params)


def track_merge(measured: dict[str, Any], *params: Any) -> Any:
    """One merge of two frames."""
    return _found(measured, "merge", *params)


def track_transpose_sum(measured: dict[str, Any], *params: Any) -> Any:
    """One x + x.T."""
    return _found(measured, "transpose-sum", *params)


track_pingpong.params = _params("pingpong")
track_merge.params = _params("merge")
track_transpose_sum.params = _params("transpose-sum")
