"""Stretches of time: what of them falls into a window, and how they divide it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from commbench.stats import grouping

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


class Spans:
    """The spans of many processes and iterations, found again by their key.

    Parameters
    ----------
    table
        A row per span, with ``start_s`` and ``stop_s``.
    key
        The columns that tell the groups apart.
    """

    def __init__(self, table: pd.DataFrame, key: list[str]) -> None:
        group = table.groupby(key, observed=True, sort=False).ngroup().to_numpy()
        order = grouping.sort_order(group)
        self._spans = table[["start_s", "stop_s"]].to_numpy(dtype=float)[order]
        first = grouping.starts(group[order])
        names = table[key].iloc[order[first]].itertuples(index=False, name=None)
        self._at = dict(zip(names, pairwise([*first.tolist(), len(table)]), strict=True))

    def within(
        self, place: tuple[Any, ...], began_s: float, seconds: float
    ) -> np.ndarray[Any, Any]:
        """Return what of the spans of `place` lies in a window, in seconds from its begin.

        Returns
        -------
        ndarray
            Shape (n, 2): spans of positive length within [0, `seconds`].
        """
        import numpy as np

        begin, end = self._at.get(place, (0, 0))
        spans = np.clip(self._spans[begin:end] - began_s, 0.0, seconds)
        return np.asarray(spans[spans[:, 1] > spans[:, 0]])


def divide(
    seconds: float, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]
) -> tuple[float, float, float, float]:
    """Return the time in `first` only, in both, in `second` only and in neither.

    Parameters
    ----------
    seconds
        The length of the window: what the four parts add up to, none of them negative.
    first, second
        Spans of positive length within [0, `seconds`], shape (n, 2).

    Examples
    --------
    >>> import numpy as np
    >>> divide(10.0, np.array([[0.0, 4.0], [2.0, 5.0]]), np.array([[3.0, 9.0]]))
    (3.0, 2.0, 4.0, 1.0)
    """
    import numpy as np

    edges = np.unique(np.concatenate([[0.0, seconds], first.ravel(), second.ravel()]))
    lengths, begins = np.diff(edges), edges[:-1]

    def covers(spans: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        begun = np.searchsorted(np.sort(spans[:, 0]), begins, side="right")
        ended = np.searchsorted(np.sort(spans[:, 1]), begins, side="right")
        return np.asarray(begun > ended)

    one, two = covers(first), covers(second)
    parts = (one & ~two, one & two, ~one & two, ~one & ~two)
    return tuple(float(lengths[part].sum()) for part in parts)  # type: ignore[return-value]


def shared(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    """Return the length of every span in `second`, summed, as far as spans in `first` cover it.

    Parameters
    ----------
    first, second
        Spans of positive length, shape (n, 2); those of `second` count each for itself.

    Examples
    --------
    >>> import numpy as np
    >>> shared(np.array([[0.0, 4.0], [2.0, 5.0]]), np.array([[3.0, 9.0], [4.0, 6.0]]))
    3.0
    """
    import numpy as np

    if len(first) == 0 or len(second) == 0:
        return 0.0
    edges = np.unique(first.ravel())
    begun = np.searchsorted(np.sort(first[:, 0]), edges[:-1], side="right")
    ended = np.searchsorted(np.sort(first[:, 1]), edges[:-1], side="right")
    covered = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (begun > ended))])
    until = np.interp(second, edges, covered)
    return float((until[:, 1] - until[:, 0]).sum())
