"""Large runs: generated, not measured, to see what reporting them costs.

``pytest -m slow -s tests/end_to_end/test_scale.py`` prints the table. The comparison with other engines needs
polars or duckdb, which commbench itself does not; ``make soak`` installs them.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from generated import N_WORKERS, generated

SIZES = [10**5, 10**6, 10**7]
MAX_PEAK_BYTES = 2e9
MAX_RATIO = 2.5
"""Of the time of a whole report to that of the fastest engine's bare query on the same file."""
# wait4's maximum would be this process's own, before the child replaced it: the kernel's high-water
# mark of the new memory image is what counts.
_MEASURED = """
import re, sys, time
def told(seconds):
    status = open("/proc/self/status").read()
    peak = 1024 * int(re.search(r"VmHWM:\\s*([0-9]+)", status)[1])
    print(f"\\n{{}} {{}}".format(seconds, peak), file=sys.stderr)
"""
REPORT = """
from commbench.cli.main import main
began = time.perf_counter()
try:
    main(["report", *sys.argv[1:]])
finally:
    told(time.perf_counter() - began)
"""
PAIRS = """
import numpy, pandas, pyarrow.parquet
from commbench import load, stats
began = time.perf_counter()
found = stats.pairs(load(__import__("pathlib").Path(sys.argv[1])))
told(time.perf_counter() - began)
"""
BARE = {
    "polars": """
import polars as pl
began = time.perf_counter()
speed = pl.col("nbytes") / (pl.col("stop_s") - pl.col("start_s"))
found = (
    pl.scan_parquet(sys.argv[1] + "/transfers/*.parquet").group_by("case_id", "src", "dst")
    .agg(speed.quantile(q, "linear").alias(str(q)) for q in (0.25, 0.5, 0.75)).collect()
)
told(time.perf_counter() - began)
""",
    "duckdb": """
import duckdb
began = time.perf_counter()
query = (
    "select case_id, src, dst, quantile_cont(nbytes / (stop_s - start_s), [0.25, 0.5, 0.75]) "
    "from read_parquet(?) group by all"
)
found = duckdb.sql(query, params=[sys.argv[1] + "/transfers/*.parquet"]).fetchnumpy()
told(time.perf_counter() - began)
""",
    "pandas": """
import pandas as pd
began = time.perf_counter()
log = pd.read_parquet(sys.argv[1] + "/transfers")
log["speed"] = log.nbytes / (log.stop_s - log.start_s)
found = log.groupby(["case_id", "src", "dst"]).speed.quantile([0.25, 0.5, 0.75]).unstack()
told(time.perf_counter() - began)
""",
}
WHOLE = {
    "polars": """
import polars as pl
began = time.perf_counter()
pair, seconds = ["case_id", "channel", "src", "dst"], pl.col("stop_s") - pl.col("start_s")
speed, timed = (pl.col("nbytes") / seconds).filter(seconds > 0), seconds.filter(seconds > 0)
until = pl.col("stop_s").cum_max().shift(1).over(*pair, "launch", order_by="start_s")
log = pl.scan_parquet(sys.argv[1] + "/transfers/*.parquet").filter(pl.col("iteration") >= 0)
found = (
    log.with_columns(new_s=(pl.col("stop_s") - pl.max_horizontal("start_s", until)).clip(0))
    .group_by(pair)
    .agg(
        pl.len(), pl.col("nbytes").sum(), timed.sum(), pl.col("new_s").sum(),
        *(speed.quantile(q, "linear").alias(str(q)) for q in (0.25, 0.5, 0.75)),
    )
    .sort(pair).collect(engine="streaming")
)
told(time.perf_counter() - began)
""",
    "duckdb": """
import duckdb
began = time.perf_counter()
found = duckdb.sql('''
    WITH spans AS (
      SELECT case_id, channel, src, dst, nbytes, stop_s - start_s AS seconds,
        greatest(0, stop_s - greatest(start_s, coalesce(max(stop_s) OVER (
          PARTITION BY case_id, channel, src, dst, launch ORDER BY start_s
          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_s))) AS new_s
      FROM read_parquet(?) WHERE iteration >= 0
    )
    SELECT case_id, channel, src, dst, count(*), sum(nbytes), sum(new_s),
      sum(seconds) FILTER (seconds > 0),
      quantile_cont(nbytes / seconds, [0.25, 0.5, 0.75]) FILTER (seconds > 0)
    FROM spans GROUP BY ALL ORDER BY ALL
''', params=[sys.argv[1] + "/transfers/*.parquet"]).fetchnumpy()
told(time.perf_counter() - began)
""",
}
"""All that a row of the pair table is made of, as a query: with the time in which it was busy."""
ENGINES = [name for name in BARE if importlib.util.find_spec(name)]


class Cost(NamedTuple):
    """Of a process: from its start to its end, in its own eyes without imports, and its memory."""

    whole_s: float
    inner_s: float
    peak_bytes: int


def cost(code: str, *arguments: str | Path, output: Path) -> Cost:
    """Run `code` in a process of its own."""
    command = [sys.executable, "-c", _MEASURED + code, *map(str, arguments)]
    began = time.perf_counter()
    with output.open("wb") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, check=False)
    whole_s = time.perf_counter() - began
    assert done.returncode == 0, done.stderr.decode()
    seconds, peak = done.stderr.split()[-2:]
    return Cost(whole_s, float(seconds), int(peak))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return runs by how many transfers they have."""
    output = tmp_path_factory.mktemp("scale")
    return {size: generated(output, size) for size in (1000, *SIZES)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_million_transfers_are_reported_in_linear_time_and_bounded_memory(runs, tmp_path):
    """10^5, 10^6 and 10^7 records over 1,000 workers: time per record levels off, 2 GB suffice."""
    seconds = {}
    start = cost(REPORT, runs[1000], output=tmp_path / "report")
    print(f"\nstart and imports (1,000 records): {start.whole_s:.2f} s")
    for size in SIZES:
        told = [f"{size:>10,}"]
        for form in ("terminal", "json"):
            found = cost(REPORT, runs[size], "--format", form, output=tmp_path / form)
            assert found.peak_bytes < MAX_PEAK_BYTES
            seconds[size, form] = found.whole_s - start.whole_s
            told.append(f"{form} {found.whole_s:6.2f} s {found.peak_bytes / 1e6:6.0f} MB")
        print(", ".join(told))
    n_pairs = (tmp_path / "json").read_bytes().count(b'"q50_Bps"')
    assert n_pairs > 0.99 * N_WORKERS * (N_WORKERS - 1)
    assert len((tmp_path / "terminal").read_text().splitlines()) < 150
    assert seconds[10**7, "terminal"] < 15 * seconds[10**6, "terminal"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not {*ENGINES} - {"pandas"}, reason="needs polars or duckdb to compare with")
def test_a_report_takes_little_longer_than_the_bare_query(runs, tmp_path):
    """A whole report of 10^7 records against the quantiles alone by the fastest engine."""
    output = tmp_path / "report"
    for size in SIZES[1:]:
        for name in {*WHOLE} & {*ENGINES}:
            whole = cost(WHOLE[name], runs[size], output=output)
            print(f"\n{size:>10,} all of a pair's row by {name}: {whole.inner_s:.1f} s, "
                  f"{whole.peak_bytes / 1e9:.1f} GB", end="")  # fmt: skip
    for size in SIZES:
        path, found = runs[size], {name: [] for name in ("report", "pairs", *ENGINES)}
        # One after the other, so that whatever disturbs the machine disturbs all of them.
        for _ in range(9 if size == SIZES[-1] else 3):
            found["report"].append(cost(REPORT, path, output=output).whole_s)
            found["pairs"].append(cost(PAIRS, path, output=output).inner_s)
            for name in ENGINES:
                found[name].append(cost(BARE[name], path, output=output).inner_s)
        medians = {name: statistics.median(values) for name, values in found.items()}
        print(f"\n{size:>10,}", ", ".join(f"{k} {v:.2f} s" for k, v in medians.items()), end="")
    fastest = min(medians[name] for name in ENGINES)
    print(f"\nof the fastest engine's time: report {medians['report'] / fastest:.2f}, "
          f"load and pairs {medians['pairs'] / fastest:.2f}")  # fmt: skip
    assert medians["report"] < MAX_RATIO * fastest
