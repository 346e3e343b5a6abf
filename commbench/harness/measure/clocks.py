"""How far the clocks of other hosts are off this one's."""

from __future__ import annotations

import time

from commbench.launchers.base import SCHEDULER, RunningCluster

_N_QUESTIONS = 10


def ahead(cluster: RunningCluster) -> dict[str, float]:
    """Return by how many seconds the clock of each worker elsewhere is ahead of this process's.

    By Cristian's method: of some questions for the time the one that was answered soonest, taken
    to have been answered half-way. It is off by half of that round trip at the most.
    """
    found = {}
    for address in cluster.elsewhere - {SCHEDULER}:
        answers = []
        for _ in range(_N_QUESTIONS):
            asked = time.time()
            theirs = cluster.client.run(time.time, workers=[address])[address]
            answered = time.time()
            answers.append((answered - asked, theirs - (asked + answered) / 2))
        found[address] = min(answers)[1]
    return found
