"""One launch of a merge with or without the profile: ``merge.py BACKEND with|without SCRATCH``.

Prints the seconds of its samples as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commbench import backends, suite
from commbench.launch import run_launch
from commbench.measure import cluster
from commbench.model import ClusterSpec, Launch, Sample


class NoProfiler:
    """Reads nothing."""

    def __init__(self, running: Any) -> None:
        pass

    def begin(self) -> None:
        """Do nothing."""

    end = close = begin

    def records(self, launch: Launch, iteration: int) -> Iterator[Any]:
        """Yield nothing."""
        return iter(())


def main(backend: str, profile: str, scratch: Path) -> None:
    """Run the launch in this process."""
    scratch.mkdir()
    os.environ.update(backends.parse(backend).environment("cpu", scratch))
    if profile == "without":
        cluster.Profiler = NoProfiler  # type: ignore[misc, assignment]
    (case,) = suite.cases_for("merge", [backend], {}, ClusterSpec(), iterations=15, warmups=3)
    records: list[Any] = []
    run_launch(Launch(case=case, index=0, block=0, position=0), scratch, records.append)
    print(json.dumps([r.seconds for r in records if isinstance(r, Sample) and not r.warmup]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
