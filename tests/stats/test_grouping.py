import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.stats import grouping

SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]
spans = st.lists(
    st.tuples(st.integers(-40, 40), st.integers(-5, 20)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=12,
)
# Of all sizes, around powers of two above all.
sizes = st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 200]), min_size=1, max_size=8)


@given(st.lists(st.integers(0, 9), max_size=40), st.sampled_from([0, 2**40, 2**62]))
def test_sort_order_is_stable_and_starts_are_of_the_groups(rows, more):
    group = np.array(rows, dtype=np.int64) + more
    order = np.argsort(group, kind="stable")
    assert grouping.sort_order(group).tolist() == order.tolist()
    assert (
        grouping.starts(group[order]).tolist()
        == np.unique(group[order], return_index=True)[1].tolist()
    )


@given(sizes, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0]))
def test_quantiles_of_each_group_are_those_of_numpy_without_nan(n_each, seed, unknown):
    random = np.random.default_rng(seed)
    groups = [random.lognormal(0, 3, n) for n in n_each]
    for group in groups:
        group[random.random(len(group)) < unknown] = np.nan
    number = np.repeat(np.arange(len(n_each)) * 3, n_each)
    result = grouping.quantiles(np.concatenate(groups), number, SHARES)
    assert result.shape == (len(SHARES), len(groups))
    for group, column in zip(groups, result.T, strict=True):
        known = group[~np.isnan(group)]
        expected = np.quantile(known, SHARES) if len(known) else np.full(len(SHARES), np.nan)
        assert column == pytest.approx(expected, rel=1e-12, nan_ok=True)


@given(st.lists(spans, min_size=1, max_size=5))
def test_union_lengths_agree_with_counting_seconds(groups):
    every = np.array([span for group in groups for span in group], dtype=float)
    number = np.repeat(np.arange(len(groups)), [*map(len, groups)])
    result = grouping.union_lengths(every[:, 0], every[:, 1], number)
    assert result.tolist() == [
        len({second for start, stop in group for second in range(start, stop)}) for group in groups
    ]


def test_no_groups():
    none, number = np.zeros(0), np.zeros(0, dtype=np.int64)
    assert len(grouping.sort_order(number)) == 0
    assert len(grouping.starts(number)) == 0
    assert grouping.quantiles(none, number, SHARES).shape == (len(SHARES), 0)
    assert len(grouping.union_lengths(none, none, number)) == 0
