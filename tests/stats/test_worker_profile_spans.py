"""Divisions of time agree with going through every stretch of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.stats.worker_profile import Spans, divide

spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)


def ticks(some: list[tuple[int, int]]) -> set[int]:
    """Return every whole second that one of the spans covers."""
    return {second for start, stop in some for second in range(start, stop)}


def array(some: list[tuple[int, int]]) -> np.ndarray:
    """Return the spans in the shape (n, 2)."""
    return np.array(some, dtype=float).reshape(-1, 2)


@given(spans, spans, st.integers(1, 60))
def test_divide_agrees_with_counting_seconds(
    first: list[tuple[int, int]], second: list[tuple[int, int]], length: int
) -> None:
    """Every second of the window is in the first only, in both, in the second only or neither."""
    inside = [
        [(start, min(stop, length)) for start, stop in some if start < length]
        for some in (first, second)
    ]
    one, two = map(ticks, inside)
    expected = (len(one - two), len(one & two), len(two - one), length - len(one | two))
    assert divide(float(length), *map(array, inside)) == expected


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=9),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=9),
)
def test_parts_are_never_negative_and_add_up(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    """Whatever the digits, rounding makes no part negative and loses no time."""
    sorted_spans = [
        array([(min(pair), max(pair)) for pair in some if pair[0] != pair[1]])
        for some in (first, second)
    ]
    parts = divide(10.0, *sorted_spans)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(10.0, abs=1e-12)


def test_spans_are_cut_to_the_window_and_count_from_its_begin() -> None:
    """What lies outside is cut off, what lies outside altogether or is empty is left out."""
    table = pd.DataFrame(
        {
            "worker": ["0", "0", "1", "0", "0", "0", "0"],
            "start_s": [90.0, 101.0, 102.0, 108.0, 50.0, 104.0, 106.0],
            "stop_s": [101, 103, 109, 120, 60, 104, 105],
        }
    )
    spans = Spans(table, ["worker"])
    assert spans.within(("0",), 100.0, 10.0).tolist() == [[0, 1], [1, 3], [8, 10]]
    assert spans.within(("1",), 100.0, 10.0).tolist() == [[2, 9]]


@pytest.mark.parametrize("n_rows", [0, 1])
def test_who_has_no_spans_has_an_array_of_the_right_shape(n_rows: int) -> None:
    """A worker that did nothing is not in the table, which may be empty."""
    table = pd.DataFrame({"worker": ["0"], "start_s": [0.0], "stop_s": [1.0]})[:n_rows]
    assert Spans(table, ["worker"]).within(("7",), 0.0, 1.0).shape == (0, 2)
