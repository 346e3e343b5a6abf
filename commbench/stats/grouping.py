"""Operations on grouped rows as NumPy arrays, without a Python object per row or group.

Rows are sorted by the number of their group. DuckDB and polars take several times as long for the
statistics of ``commbench.stats.worker_pairs``; docs/scale.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def sort_order(group: Array) -> Array:
    """Return the stable order that sorts rows by group.

    Parameters
    ----------
    group
        The number of each row's group, from 0.

    Examples
    --------
    >>> sort_order(np.array([7, 0, 5, 7, 0]))
    array([1, 4, 2, 0, 3])
    """
    n_bits = len(group).bit_length()
    if len(group) and int(group.max()).bit_length() + n_bits > 63:
        group = np.unique(group, return_inverse=True)[1]
    # Sorting integers of group and row takes half as long as argsort.
    packed = np.left_shift(group, n_bits, dtype=np.int64)
    packed |= np.arange(len(group))
    packed.sort()
    packed &= (1 << n_bits) - 1
    return packed


def sorted_within(values: Array, group: Array) -> Array:
    """Return `values` sorted within each group; nan becomes infinite, and comes last.

    Parameters
    ----------
    group
        The number of each row's group, in ascending order.

    Examples
    --------
    >>> sorted_within(np.array([3.0, 1.0, np.nan, 0.0]), np.array([4, 4, 9, 9]))
    array([ 1.,  3.,  0., inf])
    """
    # Complex numbers are sorted by their real part first. Because rows are already in the order of
    # their groups, the stable sort takes a tenth of the time of two argsorts.
    both = np.empty(len(values), dtype=complex)
    both.real = group
    both.imag = values
    both.imag[np.isnan(both.imag)] = np.inf
    both.sort(kind="stable")
    # A view would keep twice the memory.
    return both.imag.copy()


def starts(group: Array) -> Array:
    """Return the first row of each group; rows of a group must be contiguous.

    Examples
    --------
    >>> starts(np.array([0, 0, 7]))
    array([0, 2])
    """
    return np.flatnonzero(np.diff(group, prepend=-1))


def quantiles(values: Array, group: Array, q: Sequence[float]) -> Array:
    """Return quantiles of each group's values, ignoring nan.

    They are definition 7 of R. J. Hyndman and Y. Fan, Sample quantiles in statistical packages,
    The American Statistician 50 (1996) 361, which NumPy and pandas use by default. The quantiles
    of a group of nothing but nan are nan.

    Parameters
    ----------
    values
        Shape (n,).
    group
        The number of each row's group; rows of a group must be contiguous.
    q
        The quantiles, from 0 to 1.

    Returns
    -------
    ndarray
        Shape (len(q), n_groups).

    Examples
    --------
    >>> values = np.array([4.0, 1.0, np.nan, 2.0, 9.0])
    >>> quantiles(values, np.array([0, 0, 0, 0, 1]), [0.5, 0.75])
    array([[2., 9.],
           [3., 9.]])
    """
    first = starts(group)
    ordered = sorted_within(values, group)
    last = np.maximum(0, np.add.reduceat(~np.isnan(values), first, dtype=int) - 1)
    result = np.empty((len(q), len(first)))
    for number, share in enumerate(q):
        rank = share * last
        below = np.floor(rank).astype(np.int64)
        low, high = ordered[first + below], ordered[first + np.minimum(below + 1, last)]
        # Both are infinite in a group of nothing but nan, and the quantile is nan.
        with np.errstate(invalid="ignore"):
            result[number] = low + (high - low) * (rank - below)
    return result


def are_within(q: Sequence[float], n: Array | int) -> Array:
    """Return a mask of the quantiles of `n` values beyond which a value is expected on either side.

    With fewer values, others than the median would only be a version of the extremes.

    Parameters
    ----------
    q
        The quantiles, from 0 to 1.
    n
        The numbers of values, shape (n_groups,) or ().

    Returns
    -------
    ndarray
        Shape (len(q), n_groups) or (len(q),).

    Examples
    --------
    >>> are_within([0.25, 0.5, 0.95], 4), are_within([0.25, 0.5, 0.95], 2)
    (array([ True,  True, False]), array([False,  True, False]))
    """
    shares = np.array(q)
    beyond = np.multiply.outer(np.where(shares == 0.5, 1, np.minimum(shares, 1 - shares)), n)
    return beyond > 1 - 1e-9


def union_lengths(start: Array, stop: Array, group: Array) -> Array:
    """Return the length of the union of each group's intervals.

    Parameters
    ----------
    start, stop
        Shape (n,); an interval that stops before it starts is empty.
    group
        The number of each row's group; rows of a group must be contiguous.

    Examples
    --------
    >>> start, stop = np.array([1.0, 0.0, 1.0]), np.array([3.0, 2.0, 3.0])
    >>> union_lengths(start, stop, np.array([0, 0, 1]))
    array([3., 2.])
    """
    # There is a gap after the k-th stop if it precedes start k + 1; so each is sorted separately.
    stop = sorted_within(np.maximum(start, stop), group)
    start = sorted_within(start, group)
    first = starts(group)
    last = np.append(first[1:], len(start))[: len(first)] - 1
    gaps = np.zeros(len(start))
    gaps[1:] = np.maximum(0.0, start[1:] - stop[:-1])
    gaps[first] = 0.0
    return np.asarray(stop[last] - start[first] - np.add.reduceat(gaps, first))
