"""From a suite to a plan of launches: randomised complete blocks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from commbench.model import Launch, Suite


def plan(suite: Suite, seed: int, *, done: Mapping[str, int] | None = None) -> list[Launch]:
    """Return the launches of `suite` in randomised complete blocks.

    Every block runs each case once, in an order of its own, so that a drift of the machine hits
    all cases alike. `done` counts by case id the launches to leave out.

    Examples
    --------
    >>> from commbench.model import Case
    >>> suite = Suite(name="s", cases=tuple(
    ...     Case(workload="merge", backend=name, launches=2) for name in ("tcp", "ucx")))
    >>> [(launch.block, launch.index) for launch in plan(suite, seed=1)]
    [(0, 0), (0, 0), (1, 1), (1, 1)]
    """
    order = random.Random(seed)
    remaining = {case.id: case.launches - (done or {}).get(case.id, 0) for case in suite.cases}
    launches: list[Launch] = []
    for block in range(max(0, *remaining.values(), 0)):
        cases = [case for case in suite.cases if block < remaining[case.id]]
        order.shuffle(cases)
        launches += [
            Launch(case=case, index=block, block=block, position=position)
            for position, case in enumerate(cases)
        ]
    return launches


def shift(launches: Iterable[Launch], used: Mapping[str, int]) -> list[Launch]:
    """Return `launches` with indices from ``used[case id]`` on, as a resumed run needs them."""
    n_blocks = max(used.values(), default=0)
    return [
        replace(
            launch,
            index=launch.index + used.get(launch.case.id, 0),
            block=launch.block + n_blocks,
        )
        for launch in launches
    ]
