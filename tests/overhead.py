"""How much longer things take with commbench than without."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from commbench.harness import runner
from commbench.harness.cases import cases_for, make_suite, plan
from commbench.launchers.local import nanny_environment
from commbench.model import ClusterSpec, Sample

BARE = Path(__file__).parent / "bare"


def harness_seconds(backend, size, count, logs):
    cases = cases_for(
        "pingpong",
        [backend],
        {"sizes": [size], "seconds_per_size": 60.0},
        ClusterSpec(),
        launches=1,
        iterations=count if size <= 8192 else count * 10,
        warmups=count // 10 if size <= 8192 else count,
    )
    records = runner.run_plan(plan(make_suite("overhead", cases), 0), logs)
    return [r.seconds for r in records if isinstance(r, Sample) and not r.warmup]


def bare_seconds(protocol, size, count):
    command = [sys.executable, str(BARE / "pingpong.py"), protocol, str(size), str(count)]
    # With MALLOC_TRIM_THRESHOLD_, as nannies set it for workers, a message takes 20 % longer.
    environ = {**nanny_environment(), **os.environ}
    return json.loads(subprocess.check_output(command, timeout=120, env=environ))


def message_ratios(size, count, rounds, logs):
    """Return the ratios of the medians in the harness and by hand, a pair per round."""
    ratios = []
    for number in range(rounds):
        pair = [
            lambda: statistics.median(harness_seconds("tcp", size, count, logs)),
            lambda: statistics.median(bare_seconds("tcp", size, count)),
        ]
        # The first of two runs meets another state of the machine than the second.
        order = (0, 1) if number % 2 == 0 else (1, 0)
        medians = {which: pair[which]() for which in order}
        ratios.append(medians[0] / medians[1])
    return ratios


def profile_ratio(backend, scratch):
    """Return the ratio of the medians with and without the profile, in one fresh cluster."""
    command = [sys.executable, str(BARE / "merge.py"), backend, str(scratch)]
    seconds = json.loads(subprocess.check_output(command, timeout=400))
    return statistics.median(seconds["with"]) / statistics.median(seconds["without"])
