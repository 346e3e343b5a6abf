"""Parse and format durations, sizes and bandwidths.

Prefixes are decimal (1 MB = 10^6 B, as in OSU and networking); binary ones are spelled out
(1 MiB = 2^20 B).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction

from commbench.errors import UsageError

_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_PREFIXES = {**_COUNT_UNITS, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SECOND_UNITS: dict[str, int | Fraction] = {
    "": 1, "s": 1, "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9), "m": 60, "min": 60, "h": 3600,
}  # fmt: skip
_LEAST_MEMORY = 10**6
"""The smallest number of bytes that is taken without a unit."""
_QUANTITY = re.compile(
    r"\s*([0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?)\s*([a-zA-Zµ]*)\s*"
)


def _parse(text: str, units: Mapping[str, int | Fraction], what: str, example: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    scale = units.get(match[2].lower()) if match else None
    if match is None or scale is None:
        known = ", ".join(unit for unit in units if unit)
        raise UsageError(f"{text!r} is not {what}; write for example {example} (units: {known})")
    # Floats are not exact: 0.067 GB would not be a whole number of bytes, and 2^53 + 1 B 2^53 B.
    return Fraction(match[1]) * scale


def parse_count(text: str, least: int | None = None) -> int:
    """Return the whole number in `text`, which must not be below `least`.

    Examples
    --------
    >>> parse_count("6"), parse_count("1e6"), parse_count("1.5M"), parse_count("250k")
    (6, 1000000, 1500000, 250000)
    """
    try:
        number = int(text)
    except ValueError:
        exact = _parse(text, _COUNT_UNITS, "a number", "6, 1e6 or 250k")
        if exact.denominator != 1:
            raise UsageError(f"{text!r} is not a whole number") from None
        number = int(exact)
    if least is not None and number < least:
        raise UsageError(f"{text} is too small; it must be at least {least}")
    return number


def parse_bytes(text: str) -> int:
    """Return the number of bytes in `text`, which must be whole.

    Examples
    --------
    >>> parse_bytes("8MiB"), parse_bytes("1 MB"), parse_bytes("1e3")
    (8388608, 1000000, 1000)
    """
    number = _parse(text, _BYTE_UNITS, "a number of bytes", "1048576, 8MiB or 1MB")
    if number.denominator != 1:
        raise UsageError(f"{text!r} is not a whole number of bytes")
    return int(number)


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second in `text`, which may be bits per second.

    Raises
    ------
    UsageError
        If the unit is neither B/s nor b/s (bit/s), or the number is not above 0.

    Examples
    --------
    >>> parse_bandwidth("100Gb/s"), parse_bandwidth("40 MB/s"), parse_bandwidth("1Gbit/s")
    (12500000000.0, 40000000.0, 125000000.0)
    """
    # The case tells bits from bytes.
    match = re.fullmatch(r"(.*?)(bit|b|B)/s\s*", text)
    what, example = "a bandwidth above 0", "100Gb/s (bits) or 12.5GB/s (bytes)"
    if match is None or not (number := _parse(match[1], _PREFIXES, what, example)):
        raise UsageError(f"{text!r} is not {what}; write for example {example}")
    return float(number) / (1 if match[2] == "B" else 8)


def parse_share(text: str) -> float:
    """Return the share in `text`.

    Examples
    --------
    >>> parse_share("0.02"), parse_share("2%")
    (0.02, 0.02)
    """
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise UsageError(f"{text!r} is not a share; write for example 0.02 or 2%") from None


def parse_memory(text: str, what: str, option: str) -> int | float:
    """Return the bytes in `text`, or a share of a memory if it is a number up to 1.

    Parameters
    ----------
    what, option
        The kind of memory and the option, for the error.

    Examples
    --------
    >>> parse_memory("10GB", "a pool", "--pool"), parse_memory("0.5", "a pool", "--pool")
    (10000000000, 0.5)
    """
    has_unit = True
    with suppress(ValueError):
        if 0 < (share := float(text)) <= 1:
            return share
        has_unit = False
    with suppress(UsageError):
        # Who writes 8 means 8 GB.
        if (nbytes := parse_bytes(text)) >= (1 if has_unit else _LEAST_MEMORY):
            return nbytes
    raise UsageError(
        f"{what} of {text!r} makes no sense; give bytes, for example 10GB, or a share of the "
        f"memory that there is, for example 0.5 ({option})"
    )


def parse_seconds(text: str) -> float:
    """Return the number of seconds in `text`.

    Examples
    --------
    >>> parse_seconds("90"), parse_seconds("1.5 min"), parse_seconds("5m"), parse_seconds("20 ms")
    (90.0, 90.0, 300.0, 0.02)
    """
    return float(_parse(text, _SECOND_UNITS, "a duration", "90, 90s or 1.5min"))


PARSERS: Mapping[str, Callable[[str], int | float]] = {
    "bytes": parse_bytes, "seconds": parse_seconds, "share": parse_share, "count": parse_count,
}  # fmt: skip
"""The parsers of the units of parameters, on the command line and in suite files."""


def _scaled(value: float, unit: str, prefixes: str) -> str:
    # Choose the prefix after rounding, so that 999.9 becomes 1.00 k and not 1000.
    magnitude = 0
    while magnitude < len(prefixes) - 1 and abs(float(f"{value:.3g}")) >= 1000:
        value /= 1000
        magnitude += 1
    number = float(f"{value:.3g}")
    digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2
    return f"{number:.{digits}f} {prefixes[magnitude].strip()}{unit}"


def format_bytes(nbytes: float) -> str:
    """Return `nbytes` with a decimal prefix.

    Examples
    --------
    >>> format_bytes(1), format_bytes(999_950), format_bytes(819_200_000), format_bytes(math.nan)
    ('1 B', '1.00 MB', '819 MB', '—')
    """
    if math.isnan(nbytes):
        return "—"
    if abs(nbytes) < 1000 and nbytes == int(nbytes):
        return f"{int(nbytes)} B"
    return _scaled(nbytes, "B", " kMGTP")


def format_message_size(nbytes: int) -> str:
    """Return a message size exactly: with a binary or decimal prefix, or in bytes.

    A decimal prefix takes three digits or less. Multiples of a million have it rather than a binary
    one.

    Examples
    --------
    >>> [format_message_size(nbytes) for nbytes in (1, 8191, 8192, 64_000_000)]
    ['1 B', '8,191 B', '8 KiB', '64.0 MB']
    """
    has_three_digits = len(str(nbytes).rstrip("0")) <= 3
    is_round = nbytes % 10**6 == 0 and has_three_digits
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 2**exponent and nbytes % 2**exponent == 0 and not is_round:
            return f"{nbytes >> exponent} {unit}"
    return format_bytes(nbytes) if has_three_digits else f"{nbytes:,} B"


def format_bandwidth(bytes_per_second: float) -> str:
    """Return a bandwidth with a decimal prefix.

    Examples
    --------
    >>> format_bandwidth(1.26e9), format_bandwidth(float("nan"))
    ('1.26 GB/s', '—')
    """
    return "—" if math.isnan(bytes_per_second) else _scaled(bytes_per_second, "B/s", " kMGTP")


def format_duration(seconds: float) -> str:
    """Return a duration to wait for, in whole seconds, minutes or hours.

    Examples
    --------
    >>> format_duration(42.3), format_duration(300), format_duration(5400), format_duration(4e5)
    ('42 s', '5 min', '1.5 h', '111 h')
    >>> format_duration(1e30)
    '10,000 h or more'
    """
    if seconds >= 1e4 * 3600:
        return "10,000 h or more"
    for least, scale, unit in ((5400, 3600, "h"), (90, 60, "min")):
        if seconds >= least:
            number = seconds / scale
            return f"{number:.0f} {unit}" if number >= 99.5 else f"{number:.2g} {unit}"
    return f"{seconds:.0f} s"


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit with a number between 1 and 1000.

    Examples
    --------
    >>> format_seconds(58e-6), format_seconds(1.6), format_seconds(0), format_seconds(999.96e-6)
    ('58.0 µs', '1.60 s', '0 s', '1.00 ms')
    """
    if math.isnan(seconds):
        return "—"
    if seconds == 0:
        return "0 s"
    if abs(float(f"{seconds:.3g}")) >= 1:
        return f"{seconds:.0f} s" if abs(seconds) >= 1000 else _scaled(seconds, "s", " ")
    return _scaled(seconds * 1e9, "s", "nµm")
