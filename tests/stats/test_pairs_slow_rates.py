"""How often a slow pair is found, and a pair accused that is as fast as the others.

In simulated clusters whose pairs' bandwidths are log-normal, and so are the 18 transfers of each
pair (those of a default run) around it, with the same noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import builders
import numpy as np
import pandas as pd
import pytest

from commbench import stats
from commbench.analysis.run import Run

Recorded = Callable[..., Run]
N_TRANSFERS = 18
COLUMNS = ["case_id", "workload", "backend", "channel", "src", "dst", "q50_Bps", "link"]
LINK = [("0", "1"), ("1", "0")]


def clusters(n_workers: int, n_clusters: int, recorded: Recorded) -> Run:
    """Return a run with so many cases of so many workers."""
    return recorded(
        [builders.case(n_workers=n_workers, params={"rows": i}) for i in range(n_clusters)]
    )


def judged(run: Run, noise: float, slowdown: float) -> tuple[float, float]:
    """Return the shares of clusters with a pair accused falsely, and with both slow ones named.

    The slow ones are the two directions of one link.
    """
    cases = run.suite.cases
    n_clusters, n_workers = len(cases), cases[0].cluster.n_workers
    pairs = list(itertools.permutations(map(str, range(n_workers)), 2))
    dice = np.random.default_rng(n_workers)
    logs = np.log(1e9) + dice.normal(0, noise, (n_clusters, len(pairs)))
    logs += np.median(dice.normal(0, noise, (N_TRANSFERS, n_clusters, len(pairs))), axis=0)
    logs[:, [pairs.index(pair) for pair in LINK]] -= np.log(slowdown)
    rows = [
        (case_id, "merge", "tcp", "gather", *pair, bandwidth, "same host")
        for case_id, cluster in zip((case.id for case in cases), np.exp(logs), strict=True)
        for pair, bandwidth in zip(pairs, cluster, strict=True)
    ]
    found: Any = stats.slow_pairs(pd.DataFrame(rows, columns=COLUMNS), run)
    ends = zip(found["src"], found["dst"], strict=True)
    linked = np.array([pair in LINK and slowdown > 1 for pair in ends], dtype=bool)
    accused = found["case_id"][~linked].nunique()
    both = (found["case_id"][linked].value_counts() == len(LINK)).sum()
    return accused / n_clusters, both / n_clusters


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.15, 0.2, 0.25])
@pytest.mark.parametrize(("n_workers", "n_clusters"), [(3, 400), (4, 400), (8, 200), (16, 200)])
def test_few_are_accused_and_most_slow_links_found(
    n_workers: int, n_clusters: int, noise: float, recorded: Recorded
) -> None:
    """At most one cluster in 20 has a fast pair named; both ways of a 5 times slower link are."""
    run = clusters(n_workers, n_clusters, recorded)
    for slowdown in (1.0, 1.7, 2.6, 5.0, 10.0):
        accused, both = judged(run, noise, slowdown)
        print(
            f"{n_workers * (n_workers - 1)} pairs, noise {noise:.0%}, {slowdown:g} times slower: "
            f"{accused:.1%} with a fast pair named, {both:.1%} with both slow ones"
        )
        # Two standard deviations of a share above and below.
        slack = 2 * np.sqrt(0.05 * 0.95 / n_clusters)
        assert accused <= 0.05 + slack
        if slowdown >= 5 and noise <= 0.2:
            assert both >= 0.95 - slack


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.35, 0.5, 1.0])
@pytest.mark.parametrize("n_workers", [3, 4])
def test_wide_noise_accuses_more_often(n_workers: int, noise: float, recorded: Recorded) -> None:
    """Of 400 clusters whose few pairs differ by wide noise 20 % at most are wrong."""
    accused, _ = judged(clusters(n_workers, 400, recorded), noise, 1.0)
    print(f"{n_workers * (n_workers - 1)} equal pairs, noise {noise:.0%}: {accused:.1%} accused")
    assert accused <= 0.2


def test_a_slow_link_is_found_among_six_noisy_pairs(recorded: Recorded) -> None:
    """Of 400 clusters of three workers with noise of 20 %, 95 % name a 5 times slower link."""
    accused, both = judged(clusters(3, 400, recorded), 0.2, 5.0)
    assert accused <= 0.05
    assert both >= 0.95


def test_six_noisy_pairs_alike_are_rarely_accused(recorded: Recorded) -> None:
    """Of 400 clusters of three workers with noise of 20 %, 5 % at most have a pair named."""
    accused, _ = judged(clusters(3, 400, recorded), 0.2, 1.0)
    assert accused <= 0.05
