"""How often a slow pair is detected, and a pair accused that is as fast as the others.

In simulated clusters whose pairs' bandwidths are log-normal, and so are the 18 transfers of each
pair (those of a default run) around it, with the same noise.
"""

import itertools

import builders
import numpy as np
import pandas as pd
import pytest

from commbench import stats

N_TRANSFERS = 18
COLUMNS = ["case_id", "workload", "backend", "channel", "src", "dst", "q50_Bps", "link"]
LINK = [("0", "1"), ("1", "0")]


def clusters(n_workers, n_clusters, recorded):
    return recorded(
        [builders.case(n_workers=n_workers, params={"rows": i}) for i in range(n_clusters)]
    )


def judged(run, noise, slowdown):
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
    slow = stats.slow_pairs(pd.DataFrame(rows, columns=COLUMNS), run)
    ends = zip(slow["src"], slow["dst"], strict=True)
    linked = np.array([pair in LINK and slowdown > 1 for pair in ends], dtype=bool)
    accused = slow["case_id"][~linked].nunique()
    both = (slow["case_id"][linked].value_counts() == len(LINK)).sum()
    return accused / n_clusters, both / n_clusters


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.15, 0.2, 0.25])
@pytest.mark.parametrize(("n_workers", "n_clusters"), [(3, 400), (4, 400), (8, 200), (16, 200)])
def test_false_and_missed_slow_pairs(n_workers, n_clusters, noise, recorded):
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
def test_false_slow_pairs_of_wide_noise(n_workers, noise, recorded):
    accused, _ = judged(clusters(n_workers, 400, recorded), noise, 1.0)
    print(f"{n_workers * (n_workers - 1)} equal pairs, noise {noise:.0%}: {accused:.1%} accused")
    assert accused <= 0.2


def test_false_and_missed_slow_pairs_of_three_noisy_workers(recorded):
    run = clusters(3, 400, recorded)
    accused, both = judged(run, 0.2, 5.0)
    assert accused <= 0.05
    assert both >= 0.95
    accused, _ = judged(run, 0.2, 1.0)
    assert accused <= 0.05
