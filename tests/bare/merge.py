"""A launch of a merge of which every other iteration is profiled: ``merge.py BACKEND SCRATCH``.

Both kinds share one cluster, in pairs of random order, so that what sets launches apart is no part
of their difference. Prints the seconds of the measured iterations as JSON, by kind.
"""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commbench import backends
from commbench.harness.cases import cases_for
from commbench.harness.launch import run_launch
from commbench.harness.measure import cluster, plugins
from commbench.model import ClusterSpec, Launch
from commbench.model.observed import Sample
from commbench.store.emitter import InMemory

N_PAIRS = 12
N_WARMUPS = 4


class EveryOther(plugins.Profiler):
    """Profiles an iteration of each pair, and takes all that it does out of the other one."""

    profiled: list[bool] = []  # noqa: RUF012 - all there is, in the one process
    _on = True

    def begin(self) -> None:
        """Go on profiling, or stop it."""
        # The second of a pair is what the first one was not.
        second = len(self.profiled) % 2 == 1
        self._on = not self._on if second else random.random() < 0.5
        self.profiled.append(self._on)
        self._ask(plugins.start if self._on else plugins.stop)
        if self._on:
            super().begin()

    def end(self) -> None:
        """Read what was begun."""
        if self._on:
            super().end()

    def records(self, launch: Launch, iteration: int) -> Iterator[Any]:
        """Yield what was read."""
        return super().records(launch, iteration) if self._on else iter(())


def main(backend: str, scratch: Path) -> None:
    """Run the launch in this process."""
    scratch.mkdir()
    os.environ.update(backends.parse(backend).environment("cpu", scratch))
    cluster.Profiler = EveryOther  # type: ignore[misc]
    (case,) = cases_for(
        "merge", [backend], {"shuffle": "tasks"}, ClusterSpec(),
        iterations=2 * N_PAIRS, warmups=N_WARMUPS,
    )  # fmt: skip
    records = InMemory()
    run_launch(Launch(case=case, index=0, block=0, position=0), scratch, records)
    samples = [record for record in records if isinstance(record, Sample)]
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for sample, profiled in zip(samples, EveryOther.profiled, strict=True):
        if not sample.warmup:
            seconds["with" if profiled else "without"].append(sample.seconds)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
