"""Exact sums of the columns of data frames, by which workers verify what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from commbench.errors import VerificationError

MODULUS = 2**64


def column_sums(columns: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of rows, the sum of each column, and that of each column times the first.

    The products depend on what a row has in both columns. All sums are exact modulo 2**64, which is
    how int64 overflows.

    Parameters
    ----------
    columns
        Arrays of 8-byte numbers; those of floats are summed as the integers of the same bits.
    """
    (first, keys), *others = (
        (name, column if column.dtype.kind == "i" else column.view("int64"))
        for name, column in columns.items()
    )
    sums = {"rows": len(keys), first: int(keys.sum()) % MODULUS}
    for name, column in others:
        sums[name] = int(column.sum()) % MODULUS
        sums[f"{first} * {name}"] = int((keys * column).sum()) % MODULUS
    return sums


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of all parts together, modulo 2**64."""
    together: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            together[name] = (together.get(name, 0) + value) % MODULUS
    return together


def verify_frame(
    client: Any,
    what: str,
    futures: Sequence[Any],
    dtypes: Mapping[str, str],
    sums: Callable[[Any, int], Mapping[str, int]],
    expected: Mapping[str, int],
) -> None:
    """Compare the columns of a frame's partitions and the total of their `sums` with those due.

    Parameters
    ----------
    what
        The name of the frame, for the error.
    futures
        The partitions, in order.
    dtypes
        The name and the data type of each column.
    sums
        A function of a partition and its number, which workers call.
    expected
        The total of its return values.

    Raises
    ------
    VerificationError
        If they differ.
    """
    for actual_dtypes in client.gather(client.map(_dtypes, futures, pure=False)):
        if actual_dtypes != dtypes:
            raise VerificationError(f"{what}: expected {dtypes}, found {actual_dtypes}")
    numbers = range(len(futures))
    actual = total(client.gather(client.map(sums, futures, numbers, pure=False)))
    wrong = [
        f"{name}: expected {value}, found {actual[name]}"
        for name, value in expected.items()
        if actual[name] != value
    ]
    if wrong:
        raise VerificationError(f"{what}, sums modulo 2**64: {'; '.join(wrong)}")


def _dtypes(frame: Any) -> dict[str, str]:
    return {str(name): str(dtype) for name, dtype in frame.dtypes.items()}
