"""Large runs: generated, not measured, to see what reporting them costs."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from commbench import store, suite
from commbench.model import ClusterSpec, Run

_SECONDS, _PEAK_BYTES = 10.0, 1_000_000_000
# wait4's maximum would be this process's own, before the child replaced it: the kernel's high-water
# mark of the new memory image is what counts.
_REPORT = """
import re, sys
from commbench.cli import main
try:
    main(["report", sys.argv[1], "--format", "json"])
finally:
    status = open("/proc/self/status").read()
    sys.stderr.write(str(1024 * int(re.search(r"VmHWM:\\s*([0-9]+)", status)[1])))
"""


def _generate(output, n_records: int, n_workers: int, *, ended: bool):
    cases = suite.cases_for("merge", ["tcp"], {}, ClusterSpec(n_workers=n_workers), launches=1)
    run = Run(
        id="scale",
        suite=suite.suite_of("scale", cases),
        environment={},
        seed=0,
        started_at="2026-01-01T00:00:00+00:00",
    )
    results = store.RunStore.create(output, run)
    random = np.random.default_rng(0)
    src = random.integers(0, n_workers, n_records)
    start = 1.8e9 + random.uniform(0, 1000, n_records)
    nbytes = random.integers(1_000_000, 50_000_000, n_records)
    table = pd.DataFrame(
        {
            "case_id": cases[0].id,
            "launch": 0,
            "iteration": random.integers(0, 3, n_records),
            "src": src.astype(str),
            "dst": ((src + random.integers(1, n_workers, n_records)) % n_workers).astype(str),
            "nbytes": nbytes,
            "start_s": start,
            "stop_s": start + nbytes / random.uniform(1e8, 1e10, n_records),
            "n_keys": 1,
            "channel": "gather",
        }
    )
    if ended:
        table.to_parquet(results.path / "transfers.parquet", index=False)
    else:
        table.insert(0, "record", "TransferRecord")
        table.to_json(results.path / "transfers.jsonl", orient="records", lines=True)
    return results.path


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False], ids=["parquet", "lines"])
def test_a_million_transfers_are_reported_in_ten_seconds_and_a_gigabyte(tmp_path, ended):
    """1,000,000 records over 256 workers become the pair report in under 10 s and 1 GB."""
    path = _generate(tmp_path, 1_000_000, 256, ended=ended)
    with (tmp_path / "report.json").open("wb") as output:
        began = time.perf_counter()
        process = subprocess.run(
            [sys.executable, "-c", _REPORT, str(path)], stdout=output, stderr=subprocess.PIPE,
            check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    peak = int(process.stderr.split()[-1])
    print(f"{seconds:.1f} s, {peak / 1e6:.0f} MB")
    assert process.returncode == 0
    assert (tmp_path / "report.json").read_text().count('"q50_Bps"') > 60_000
    assert seconds < _SECONDS
    assert peak < _PEAK_BYTES
