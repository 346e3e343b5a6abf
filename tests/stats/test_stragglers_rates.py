"""How often slow links and workers are named, and pairs that are as fast as the others.

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
COLUMNS = ["case_id", "workload", "backend", "channel", "src", "dst", "q50_Bps", "link", "n",
           "n_untimed"]  # fmt: skip
PARTS = {
    "between workers 0 and 1": lambda src, dst: {src, dst} == {"0", "1"},
    "from worker 0": lambda *pair: pair[0] == "0",
    "from and to worker 0": lambda src, dst: "0" in (src, dst),
}
"""Which pairs are slow, by the name of the cause."""
LINK, *_ = PARTS


def clusters(n_workers, n_clusters, recorded):
    cases = [builders.case(n_workers=n_workers, params={"rows": i}) for i in range(n_clusters)]
    # Their pairs are replaced, and have no launch otherwise.
    return recorded(cases, [builders.transfer(cases[0], 0.0, 0.0)])


def judged(run, noise, slowdown, cause=LINK):
    """Return shares of clusters: a fast pair is named, a slow one for another cause, all of it."""
    cases = run.suite.cases
    n_clusters, n_workers = len(cases), cases[0].cluster.n_workers
    pairs = list(itertools.permutations(map(str, range(n_workers)), 2))
    dice = np.random.default_rng(n_workers)
    logs = np.log(1e9) + dice.normal(0, noise, (n_clusters, len(pairs)))
    logs += np.median(dice.normal(0, noise, (N_TRANSFERS, n_clusters, len(pairs))), axis=0)
    logs[:, [PARTS[cause](*pair) for pair in pairs]] -= np.log(slowdown)
    rows = [
        (case_id, "merge", "tcp", "gather", *pair, bandwidth, "same host", N_TRANSFERS, 0)
        for case_id, cluster in zip((case.id for case in cases), np.exp(logs), strict=True)
        for pair, bandwidth in zip(pairs, cluster, strict=True)
    ]
    run.pairs = pd.DataFrame(rows, columns=COLUMNS).assign(
        busy_Bps=lambda table: table["q50_Bps"], concurrency=1.0, bytes=N_TRANSFERS
    )
    slow = stats.slow_pairs(run)
    pairs = zip(slow["src"], slow["dst"], strict=True)
    is_slow = np.array([slowdown > 1 and PARTS[cause](*pair) for pair in pairs], dtype=bool)
    is_right = (slow["cause"] == cause).to_numpy()
    kinds = (~is_slow, is_slow & ~is_right, is_slow & is_right)
    return tuple(slow["case_id"][kind].nunique() / n_clusters for kind in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.15, 0.2, 0.25])
@pytest.mark.parametrize(("n_workers", "n_clusters"), [(3, 400), (4, 400), (8, 200), (16, 200)])
def test_false_and_missed_slow_pairs(n_workers, n_clusters, noise, recorded):
    run = clusters(n_workers, n_clusters, recorded)
    for slowdown in (1.0, 1.7, 2.6, 5.0, 10.0):
        accused, misnamed, both = judged(run, noise, slowdown)
        print(
            f"{n_workers * (n_workers - 1)} pairs, noise {noise:.0%}, {slowdown:g} times slower: "
            f"{accused:.1%} with a fast pair named, {both:.1%} with the slow link, "
            f"{misnamed:.1%} with a part of it as another cause"
        )
        # Two standard deviations of a share above and below.
        slack = 2 * np.sqrt(0.05 * 0.95 / n_clusters)
        assert accused <= 0.05 + slack
        if slowdown >= 5 and noise <= 0.2:
            assert both >= 0.95 - slack
            assert misnamed <= 0.05 + slack


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.35, 0.5, 1.0])
@pytest.mark.parametrize("n_workers", [3, 4])
def test_false_slow_pairs_of_wide_noise(n_workers, noise, recorded):
    accused, _, _ = judged(clusters(n_workers, 400, recorded), noise, 1.0)
    print(f"{n_workers * (n_workers - 1)} equal pairs, noise {noise:.0%}: {accused:.1%} accused")
    assert accused <= 0.2


@pytest.mark.parametrize(
    "n_workers", [2, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8))]
)
def test_no_pair_of_equally_fast_noisy_workers_is_named(n_workers, recorded):
    accused, _, _ = judged(clusters(n_workers, 400, recorded), 0.2, 1.0)
    assert accused <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("cause", [name for name in PARTS if name != LINK])
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.15, 0.2, 0.25])
@pytest.mark.parametrize(("n_workers", "n_clusters"), [(4, 400), (8, 200), (16, 100)])
def test_named_and_missed_slow_workers(n_workers, n_clusters, noise, cause, recorded):
    run = clusters(n_workers, n_clusters, recorded)
    for slowdown in (2.0, 3.0, 5.0, 10.0):
        accused, misnamed, named = judged(run, noise, slowdown, cause)
        print(
            f"{n_workers} workers, noise {noise:.0%}, {slowdown:g} times slower {cause}: "
            f"named in {named:.1%}, a fast pair in {accused:.1%}, another cause in {misnamed:.1%}"
        )
        if slowdown >= 5 and noise <= 0.15:
            assert named >= 0.95
            assert max(accused, misnamed) <= 0.05
