"""Rows in groups, without a Python object per row or group: time and memory linear in the rows.

Rows are sorted by group once. What is computed of each group is then computed of many groups of
like size at a time, as the rows of a matrix. Portions of the rows are worked on at once: NumPy
sorts and copies without Python's lock, and what one took is soon free for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np

_Result = TypeVar("_Result")
_BLOCK_CELLS = 1 << 17
"""Cells of a matrix: few enough to stay in a processor's cache."""
_PORTION_ROWS = 1 << 18
_N_THREADS = 2
"""Each has its portion: beyond two, memory is the limit."""


class Groups:
    """Rows sorted by group; those of a group stay in their order.

    Group and row are packed into one integer: sorting these takes half as long as argsort. They
    are sorted in parts, one for each thread, and merged a portion at a time, so that beside them
    nothing is as long as the rows, unless numbers are so large that they must be numbered first.

    Parameters
    ----------
    numbers
        Returns the numbers of the groups of a slice of the rows, integers from 0 to before
        `n_groups`; called from several threads.
    keep
        Which of the rows are in a group; shape (n,).

    Examples
    --------
    >>> import numpy as np
    >>> group = np.array([7, 0, 5, 7, 0])
    >>> groups = Groups(group.__getitem__, 8, keep=group != 5)
    >>> groups.in_portions(lambda begin, rows, group: (begin, rows, group))
    [(0, array([1, 4, 0, 3]), array([0, 0, 7, 7]))]
    """

    def __init__(
        self,
        numbers: Callable[[slice], np.ndarray[Any, Any]],
        n_groups: int,
        keep: np.ndarray[Any, Any],
    ) -> None:
        import numpy as np

        self._n_bits = len(keep).bit_length()
        self._names: np.ndarray[Any, Any] | None = None
        if n_groups.bit_length() + self._n_bits > 63:
            self._names, places = np.unique(numbers(slice(0, len(keep))), return_inverse=True)
            numbers = places.__getitem__

        def part(begin: int, end: int) -> np.ndarray[Any, Any]:
            packed = np.empty(np.count_nonzero(keep[begin:end]), dtype=np.int64)
            filled = 0
            for first in range(begin, end, _PORTION_ROWS):
                rows = slice(first, min(first + _PORTION_ROWS, end))
                both = np.left_shift(numbers(rows), self._n_bits, dtype=np.int64)
                both |= np.arange(rows.start, rows.stop)
                kept = both[keep[rows]]
                packed[filled : filled + len(kept)] = kept
                filled += len(kept)
            packed.sort()
            return packed

        edges = [len(keep) * place // _N_THREADS for place in range(_N_THREADS + 1)]
        with ThreadPoolExecutor(_N_THREADS) as pool:
            self._parts = list(pool.map(part, edges[:-1], edges[1:]))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def in_portions(
        self,
        work: Callable[[int, np.ndarray[Any, Any], np.ndarray[Any, Any]], _Result],
        n_beside: int = 1,
    ) -> list[_Result]:
        """Return what `work` makes of portions of the rows, each of whole groups, in order.

        Parameters
        ----------
        work
            Takes how many rows come before the portion, its rows, and the group of each of them.
            Several calls are under way at once. Of no rows there is one portion, without any.
        n_beside
            So many groups stay together, from each multiple of it on.
        """
        import numpy as np

        step = max(1, _PORTION_ROWS // len(self._parts))
        first = self._group(np.concatenate([part[::step] for part in self._parts]))
        first = np.unique(first // n_beside * n_beside)[1:]
        if self._names is not None:
            first = np.searchsorted(self._names, first)
        cuts = [
            [0, *np.searchsorted(part, first << self._n_bits).tolist(), len(part)]
            for part in self._parts
        ]

        def portion(number: int) -> _Result:
            packed = np.concatenate(
                [
                    part[at[number] : at[number + 1]]
                    for part, at in zip(self._parts, cuts, strict=True)
                ]
            )
            packed.sort(kind="stable")
            begin = sum(at[number] for at in cuts)
            return work(begin, packed & ((1 << self._n_bits) - 1), self._group(packed))

        with ThreadPoolExecutor(_N_THREADS) as pool:
            return list(pool.map(portion, range(len(first) + 1)))

    def _group(self, packed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        places = packed >> self._n_bits
        return places if self._names is None else self._names[places]


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
