"""Stretches of time: their union, and what of them falls into a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def newly_busy(
    window: np.ndarray[Any, Any], start_s: np.ndarray[Any, Any], stop_s: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return for each interval the seconds that no earlier interval of its window covers.

    Summed over a window this is the length of the union of its intervals.

    Parameters
    ----------
    window
        Shape (n,), integer: which window each interval belongs to.
    start_s, stop_s
        Shape (n,).

    Examples
    --------
    >>> import numpy as np
    >>> newly_busy(np.array([0, 0, 1]), np.array([0., 1., 1.]), np.array([2., 3., 3.]))
    array([2., 1., 2.])
    """
    import numpy as np

    if len(window) == 0:
        return np.zeros(0)
    order = np.lexsort((start_s, window))
    origin = start_s.min()
    # Windows are laid end to end, so that one running maximum serves all of them.
    offset = window[order] * (stop_s.max() - origin + 1.0)
    start, stop = start_s[order] - origin + offset, stop_s[order] - origin + offset
    covered = np.empty_like(stop)
    covered[0] = -np.inf
    np.maximum.accumulate(stop[:-1], out=covered[1:])
    new = np.maximum(0.0, stop - np.maximum(start, covered))
    result = np.empty(len(new))
    result[order] = new
    return result


def spans_in(table: pd.DataFrame | None, window: tuple[float, float]) -> np.ndarray[Any, Any]:
    """Return the spans in `table`, cut to `window`, as an array of shape (n, 2)."""
    import numpy as np

    if table is None:
        return np.zeros((0, 2))
    spans = np.clip(table[["start_s", "stop_s"]].to_numpy(dtype=float), *window)
    return np.asarray(spans)


def union_length(spans: np.ndarray[Any, Any]) -> float:
    """Return the seconds that at least one of the `spans`, shape (n, 2), covers."""
    import numpy as np

    return float(newly_busy(np.zeros(len(spans), dtype=int), spans[:, 0], spans[:, 1]).sum())
