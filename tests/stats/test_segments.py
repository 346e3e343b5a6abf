"""What is computed of all groups at once is what is computed of each of them alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.stats import segments

SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]
spans = st.lists(
    st.tuples(st.integers(-40, 40), st.integers(-5, 20)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=12,
)
# Of all sizes, around powers of two above all.
sizes = st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 200]), min_size=1, max_size=8)


def sorted_rows(
    group: np.ndarray, keep: np.ndarray, n_groups: int, n_beside: int = 1
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return the portions, of very few rows each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_PORTION_ROWS", 4)
        groups = segments.Groups(group.__getitem__, n_groups, keep)
        assert len(groups) == keep.sum()
        return groups.in_portions(lambda *portion: portion, n_beside)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40),
    st.integers(1, 3),
    st.sampled_from([0, 2**40, 2**62]),
)
def test_rows_of_a_group_come_side_by_side_in_their_order(
    rows: list[tuple[int, bool]], n_beside: int, more: int
) -> None:
    """However large the numbers are: stable, no kept row lost, none twice, groups whole."""
    group = np.array([number for number, _ in rows], dtype=np.int64) + more
    keep = np.array([kept for _, kept in rows], dtype=bool)
    portions = sorted_rows(group, keep, more + 10, n_beside)
    order = np.argsort(group, kind="stable")
    order = order[keep[order]]
    assert [row for _, rows, _ in portions for row in rows] == order.tolist()
    assert [number for _, _, numbers in portions for number in numbers] == group[order].tolist()
    lengths = [len(rows) for _, rows, _ in portions]
    assert [begin for begin, _, _ in portions] == [0, *np.cumsum(lengths[:-1], dtype=int)]
    assert all(lengths) or lengths == [0]
    seen = [{number // n_beside for number in numbers} for _, _, numbers in portions]
    assert sum(map(len, seen)) == len(set().union(*seen))


@pytest.mark.parametrize("more", [0, 2**62])
def test_portions_are_of_few_rows_wherever_groups_are(more: int) -> None:
    """Also where the first half of the rows has other groups than the second, as cases do."""
    group = np.repeat(np.arange(20), 2) + more
    portions = sorted_rows(group, np.ones(40, dtype=bool), more + 20)
    assert max(len(rows) for _, rows, _ in portions) <= 6


@given(sizes, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0]))
def test_quantiles_are_numpys(n_each: list[int], seed: int, unknown: float) -> None:
    """Of every group, whatever its size and however many of its values are unknown."""
    random = np.random.default_rng(seed)
    groups = [random.lognormal(0, 3, n) for n in n_each]
    for group in groups:
        group[random.random(len(group)) < unknown] = np.nan
    begins = np.cumsum([0, *n_each[:-1]])
    found = segments.quantiles(np.concatenate(groups), begins, SHARES)
    assert found.shape == (len(SHARES), len(groups))
    for group, column in zip(groups, found.T, strict=True):
        known = group[~np.isnan(group)]
        expected = np.quantile(known, SHARES) if len(known) else np.full(len(SHARES), np.nan)
        assert column == pytest.approx(expected, rel=1e-12, nan_ok=True)


@given(st.lists(spans, min_size=1, max_size=5))
def test_unions_are_counted_second_by_second(groups: list[list[tuple[int, int]]]) -> None:
    """However spans overlap, stand still, run backwards or are sorted."""
    every = np.array([span for group in groups for span in group], dtype=float)
    begins = np.cumsum([0, *map(len, groups[:-1])])
    found = segments.union_lengths(every[:, 0], every[:, 1], begins)
    assert found.tolist() == [
        len({second for start, stop in group for second in range(start, stop)}) for group in groups
    ]


def test_many_groups_are_computed_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where groups fill more than a block none is forgotten, and one larger than it has its own."""
    monkeypatch.setattr(segments, "_BLOCK_CELLS", 8)
    sizes = [3, 1, 20, 4, 4, 2, 3, 1, 1]
    values = np.arange(sum(sizes), dtype=float)
    begins = np.cumsum([0, *sizes[:-1]])
    (found,) = segments.quantiles(values, begins, [0.5])
    assert found.tolist() == [
        begin + (size - 1) / 2 for begin, size in zip(begins, sizes, strict=True)
    ]


def test_without_groups_there_is_nothing() -> None:
    """No rows, no groups, no error."""
    none = np.zeros(0)
    begins = segments.begins_of(none)
    assert len(begins) == 0
    assert segments.quantiles(none, begins, SHARES).shape == (len(SHARES), 0)
    assert len(segments.union_lengths(none, none, begins)) == 0
