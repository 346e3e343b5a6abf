"""Rows in groups, without a Python object per row or group: time and memory linear in the rows.

Rows are sorted by group once. What is computed of each group is then computed of many groups of
like size at a time, as the rows of a matrix. Portions of the rows are worked on at once: NumPy
sorts and copies without Python's lock, and what one took is soon free for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np

_Result = TypeVar("_Result")
_BLOCK_CELLS = 1 << 17
"""Cells of a matrix: few enough to stay in a processor's cache."""
_PORTION_ROWS = 1 << 20
_N_THREADS = 4
"""Each has its portion: beyond a few, memory is the limit."""


def sort(group: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the order that sorts rows by group and leaves those of a group in theirs, and groups.

    Parameters
    ----------
    group
        Shape (n,), integers of at least 0.

    Returns
    -------
    order, ordered : ndarray
        Shape (n,) each; ``ordered`` is ``group[order]``.

    Examples
    --------
    >>> import numpy as np
    >>> order, ordered = sort(np.array([7, 0, 7, 0]))
    >>> order, ordered
    (array([1, 3, 0, 2]), array([0, 0, 7, 7]))
    """
    import numpy as np

    n_bits = len(group).bit_length()
    if len(group) == 0 or int(group.max()).bit_length() + n_bits > 63:
        order = np.argsort(group, kind="stable")
        return order, group[order]
    # Group and place in one integer: sorting these takes half as long as argsort.
    packed = group.astype(np.int64)
    packed <<= n_bits
    packed |= np.arange(len(group))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(np.ndarray.sort, np.array_split(packed, 2)))
    # Of two sorted halves the stable sort makes one by a single merge.
    packed.sort(kind="stable")
    ordered = packed >> n_bits
    packed &= (1 << n_bits) - 1
    return packed, ordered


def in_portions(
    work: Callable[[slice], _Result], group: np.ndarray[Any, Any], n_beside: int = 1
) -> list[_Result]:
    """Return what `work` makes of slices of rows, which are of a million rows and whole groups.

    Several calls are under way at once. Of no rows there is one, empty slice.

    Parameters
    ----------
    group
        The sorted groups of the rows.
    n_beside
        So many groups stay together, from each multiple of it on.

    Examples
    --------
    >>> import numpy as np
    >>> in_portions(lambda rows: rows, np.array([0, 0, 7]))
    [slice(0, 3, None)]
    """
    import numpy as np

    first = group[::_PORTION_ROWS] // n_beside * n_beside
    edges = [*np.unique([0, *np.searchsorted(group, first)]), len(group)]
    with ThreadPoolExecutor(_N_THREADS) as pool:
        return list(pool.map(work, (slice(int(one), int(end)) for one, end in pairwise(edges))))


def begins_of(group: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return where each group begins, where the rows of a group lie side by side.

    Examples
    --------
    >>> import numpy as np
    >>> begins_of(np.array([0, 0, 7]))
    array([0, 2])
    """
    import numpy as np

    first = np.ones(len(group), dtype=bool)
    np.not_equal(group[1:], group[:-1], out=first[1:])
    return np.flatnonzero(first)


def quantiles(
    values: np.ndarray[Any, Any], begins: np.ndarray[Any, Any], q: Sequence[float]
) -> np.ndarray[Any, Any]:
    """Return quantiles of each group's values, without those that are nan; nan where all are.

    They are definition 7 of R. J. Hyndman and Y. Fan, Sample quantiles in statistical packages,
    The American Statistician 50 (1996) 361, which NumPy and pandas use by default.

    Parameters
    ----------
    values
        Shape (n,), group after group.
    begins
        Where each group begins; shape (n_groups,).
    q
        The quantiles, from 0 to 1.

    Returns
    -------
    ndarray
        Shape (len(q), n_groups).

    Examples
    --------
    >>> import numpy as np
    >>> quantiles(np.array([4.0, 1.0, np.nan, 2.0, 9.0]), np.array([0, 4]), [0.5, 0.75])
    array([[2., 9.],
           [3., 9.]])
    """
    import numpy as np

    found = np.empty((len(q), len(begins)))
    sizes = np.diff(begins, append=len(values))

    def fill(groups: np.ndarray[Any, Any], block: np.ndarray[Any, Any]) -> None:
        beyond = np.arange(block.shape[1]) >= sizes[groups, np.newaxis]
        np.copyto(block, np.nan, where=beyond)
        block.sort(axis=1)
        last = np.maximum(0, block.shape[1] - np.isnan(block).sum(axis=1) - 1)
        row = np.arange(len(block))
        for number, share in enumerate(q):
            place = share * last
            below = np.floor(place).astype(np.int64)
            low, high = block[row, below], block[row, np.minimum(below + 1, last)]
            found[number, groups] = low + (high - low) * (place - below)

    _in_blocks(fill, begins, values)
    return found


def union_lengths(
    start: np.ndarray[Any, Any], stop: np.ndarray[Any, Any], begins: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return for each group the length of the union of its intervals.

    Parameters
    ----------
    start, stop
        Shape (n,), group after group; an interval that stops before it starts is none.
    begins
        Where each group begins; shape (n_groups,).

    Examples
    --------
    >>> import numpy as np
    >>> union_lengths(np.array([1., 0., 1.]), np.array([3., 2., 3.]), np.array([0, 2]))
    array([3., 2.])
    """
    import numpy as np

    found = np.empty(len(begins))

    def fill(
        groups: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], stops: np.ndarray[Any, Any]
    ) -> None:
        np.maximum(starts, stops, out=stops)
        # None is under way where as many have stopped as have started: each is sorted by itself.
        starts.sort(axis=1)
        stops.sort(axis=1)
        gaps = np.maximum(0.0, starts[:, 1:] - stops[:, :-1]).sum(axis=1)
        found[groups] = stops[:, -1] - starts[:, 0] - gaps

    _in_blocks(fill, begins, start, stop)
    return found


def _in_blocks(
    work: Callable[..., None], begins: np.ndarray[Any, Any], *columns: np.ndarray[Any, Any]
) -> None:
    """Call `work` with numbers of groups, and of each column a matrix with a row for each of them.

    In rows that are shorter than the longest, by half at the most, the last value is repeated.
    """
    import numpy as np

    sizes = np.diff(begins, append=len(columns[0]))

    for groups, width in _alike(sizes):
        last = begins[groups] + sizes[groups] - 1
        rows = np.minimum(begins[groups, np.newaxis] + np.arange(width), last[:, np.newaxis])
        work(groups, *(values[rows] for values in columns))


def _alike(sizes: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    """Yield numbers of groups of like size, and what the largest of them may have."""
    import numpy as np

    width = 1
    while width < 2 * sizes.max(initial=0):
        alike = np.flatnonzero((sizes > width // 2) & (sizes <= width))
        n_groups = max(1, _BLOCK_CELLS // width)
        for first in range(0, len(alike), n_groups):
            yield alike[first : first + n_groups], width
        width *= 2
