"""What measuring costs: the harness against the same exchange written by hand."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from commbench import backends, stats
from commbench.harness import runner, suite
from commbench.model import ClusterSpec, Sample

_BARE = Path(__file__).parents[1] / "bare" / "pingpong.py"
_ROUNDS = 15


def _harness(backend: str, size: int, count: int, logs: Path) -> list[float]:
    cases = suite.cases_for(
        "pingpong",
        [backend],
        {"sizes": [size], "seconds_per_size": 60.0},
        ClusterSpec(),
        launches=1,
        iterations=count if size <= 8192 else count * 10,
        warmups=count // 10 if size <= 8192 else count,
    )
    records = runner.run_plan(suite.plan(suite.make_suite("overhead", cases), 0), logs)
    return [r.seconds for r in records if isinstance(r, Sample) and not r.warmup]


def _by_hand(protocol: str, size: int, count: int) -> list[float]:
    command = [sys.executable, str(_BARE), protocol, str(size), str(count)]
    return json.loads(subprocess.check_output(command, timeout=120))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "count"), [(1, 3000), (65536, 2000), (8 << 20, 150)])
def test_the_harness_adds_less_than_five_percent_to_a_message(size, count, tmp_path):
    """Comm-layer medians are within 5 % of a bare script's, interleaved in one run."""
    ratios = []
    for number in range(_ROUNDS):
        pair = [
            lambda: statistics.median(_harness("tcp", size, count, tmp_path / "logs")),
            lambda: statistics.median(_by_hand("tcp", size, count)),
        ]
        # Whoever goes first meets another machine than whoever goes second.
        order = (0, 1) if number % 2 == 0 else (1, 0)
        medians = {which: pair[which]() for which in order}
        ratios.append(medians[0] / medians[1])
    ratio = statistics.median(ratios)
    print(f"{size} B: harness / by hand = {ratio:.3f} ({min(ratios):.3f} … {max(ratios):.3f})")
    assert 0.95 <= ratio <= 1.05


_BARE_MERGE = Path(__file__).parents[1] / "bare" / "merge.py"
_CLUSTERS = 31
"""How many, because iterations scatter: half the interval of 11 clusters was 5 %."""


def _merge(backend: str, scratch: Path) -> float:
    """Return the ratio of the medians with and without the profile, in one fresh cluster."""
    command = [sys.executable, str(_BARE_MERGE), backend, str(scratch)]
    found = json.loads(subprocess.check_output(command, timeout=400))
    return statistics.median(found["with"]) / statistics.median(found["without"])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("backend", ["tcp", "ucx"])
def test_the_profile_costs_less_than_two_percent_of_a_merge(backend, tmp_path):
    """Iterations with and without the profile take the same time, in turn in the same clusters."""
    if problem := backends.parse(backend).unavailable("cpu"):
        pytest.skip(problem.reason)
    ratios = sorted(_merge(backend, tmp_path / str(number)) for number in range(_CLUSTERS))
    ratio, (k, level) = statistics.median(ratios), stats.median_interval(len(ratios))
    low, high = ratios[k - 1], ratios[-k]
    print(f"{backend}: with / without = {ratio:.3f} ({level:.1%} interval {low:.3f} … {high:.3f})")
    assert ratio <= 1.02
