"""Rows in groups, without a Python object per row or group: time and memory linear in the rows.

Rows are sorted by group once. What is computed of each group is then computed of many groups of
like size at a time, as the rows of a matrix, and of several matrices at once: NumPy sorts and
copies without Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_BLOCK_CELLS = 1 << 20
"""Cells of a matrix: few enough to stay in a processor's cache."""
_N_THREADS = 4
"""Each has its matrices: beyond a few, memory is the limit."""


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


def taken(
    rows: np.ndarray[Any, Any], columns: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Return the values of each column in these `rows`."""
    with ThreadPoolExecutor(_N_THREADS) as pool:
        return list(pool.map(lambda column: column[rows], columns))


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

    def fill(groups: np.ndarray[Any, Any], block: np.ndarray[Any, Any]) -> None:
        block.sort(axis=1)
        last = np.maximum(0, block.shape[1] - np.isnan(block).sum(axis=1) - 1)
        row = np.arange(len(block))
        for number, share in enumerate(q):
            place = share * last
            below = np.floor(place).astype(np.int64)
            low, high = block[row, below], block[row, np.minimum(below + 1, last)]
            found[number, groups] = low + (high - low) * (place - below)

    _in_blocks(fill, begins, (values, np.nan))
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
        order = starts.argsort(axis=1)
        starts, stops = (np.take_along_axis(block, order, axis=1) for block in (starts, stops))
        covered = np.full_like(stops, -np.inf)
        np.maximum.accumulate(stops[:, :-1], axis=1, out=covered[:, 1:])
        found[groups] = np.maximum(0.0, stops - np.maximum(starts, covered)).sum(axis=1)

    _in_blocks(fill, begins, (start, np.inf), (stop, -np.inf))
    return found


def _in_blocks(
    work: Callable[..., None],
    begins: np.ndarray[Any, Any],
    *columns: tuple[np.ndarray[Any, Any], float],
) -> None:
    """Call `work` with numbers of groups, and of each column a matrix with a row for each of them.

    Rows that are shorter than the longest, by half at the most, end in the value that each column
    comes with. Several calls are under way at once, each with groups of its own.
    """
    import numpy as np

    n_rows = len(columns[0][0])
    sizes = np.diff(begins, append=n_rows)

    def one(groups: np.ndarray[Any, Any], width: int) -> None:
        place = np.arange(width)
        beyond = place >= sizes[groups, np.newaxis]
        rows = np.minimum(begins[groups, np.newaxis] + place, n_rows - 1)
        work(groups, *(np.where(beyond, fill, values[rows]) for values, fill in columns))

    with ThreadPoolExecutor(_N_THREADS) as pool:
        for done in [pool.submit(one, *block) for block in _alike(sizes)]:
            done.result()


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
