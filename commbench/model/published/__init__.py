"""Published measurements of communication in Dask, with their sources.

The numbers are in ``figures.toml``. A suite names the figure that it reproduces, and reports and
plots of its runs compare measured with published values.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from commbench.errors import UnknownNameError
from commbench.model.units import format_bandwidth, format_seconds

UNITS = {
    "time": "s",
    "throughput": "B/s",
    "communication time": "s",
    "transfer throughput": "B/s",
    "transfer time": "s",
    "pair bandwidth": "B/s",
    "latency": "s",
    "bandwidth": "B/s",
}
"""The unit of every quantity; ``docs/suites.md`` defines them."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A publication."""

    name: str
    title: str
    by: str
    year: int


@dataclass(frozen=True, kw_only=True)
class Value:
    """One published number, or a range from ``low`` to ``high``.

    It is in the unit of its ``quantity``. If ``over`` is given, it is a ratio, how many times
    better ``backend`` is: over / backend for times, backend / over for bandwidths, the mean over
    all ``workers`` or over the range ``message_bytes``. Empty ``workers``, ``workload`` and
    ``layer`` match all. ``limit`` is that of the hardware. ``detail`` describes the measurement,
    and ``note`` the reason why it can't be reproduced exactly.
    """

    quantity: str
    backend: str
    low: float
    high: float
    device: str
    over: str = ""
    limit: float | None = None
    workload: str = ""
    layer: str = ""
    workers: tuple[int, ...] = ()
    message_bytes: tuple[int, int] | None = None
    detail: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The formatted number or range."""
        return show_range(self.low, self.high, self.unit)

    @property
    def unit(self) -> str:
        """``s``, ``B/s``, or ``ratio``."""
        return "ratio" if self.over else UNITS[self.quantity]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure or a passage of a publication, and its numbers.

    ``location`` is its number or section in the source, ``across_hosts`` whether the workers were
    on several hosts, and ``notes`` are reasons why it can't be reproduced exactly.
    """

    name: str
    source: Source
    location: str
    title: str
    hardware: str
    values: tuple[Value, ...]
    across_hosts: bool = False
    notes: tuple[str, ...] = ()

    @property
    def setting(self) -> str:
        """The hardware, and the year of the publication."""
        return f"{self.hardware}, {self.source.year}"

    @property
    def citation(self) -> str:
        """The source and the location in it."""
        source = self.source
        return f"“{source.title}” ({source.by}, {source.year}), {self.location}"


def names() -> list[str]:
    """Return the names of all figures.

    Examples
    --------
    >>> "mpi4dask.transpose_ri2" in names()
    True
    """
    return list(_figures())


def published_figure(name: str) -> Figure:
    """Return the figure with this name.

    Raises
    ------
    UnknownNameError
        If there is none, with the known names.

    Examples
    --------
    >>> published_figure("rapids_blog.message_1GB").values[0].text
    '46.5 GB/s'
    """
    if name not in _figures():
        raise UnknownNameError("published figure", name, names())
    return _figures()[name]


def show(number: float, unit: str) -> str:
    """Return a formatted number in the unit of a ``Value``, or a dash for nan.

    Examples
    --------
    >>> show(3.468, "ratio"), show(1234.5, "ratio"), show(0.02, "s"), show(float("nan"), "B/s")
    ('3.47 ×', '1234 ×', '20.0 ms', '—')
    """
    if unit == "s":
        return format_seconds(number)
    if unit == "B/s":
        return format_bandwidth(number)
    if math.isnan(number):
        return "—"
    return f"{number:.3g} ×" if number < 999.5 else f"{number:.0f} ×"


def show_range(low: float, high: float, unit: str) -> str:
    """Return two formatted numbers as a range, or as one number if they look equal.

    Examples
    --------
    >>> show_range(5e9, 10e9, "B/s"), show_range(2.0, 3.0, "ratio"), show_range(1.0, 1.0, "s")
    ('5.00…10.0 GB/s', '2…3 ×', '1.00 s')
    """
    first, last = show(low, unit), show(high, unit)
    if first == last:
        return last
    shared = first.split()[-1] == last.split()[-1]
    return f"{first.split()[0] if shared else first}…{last}"


@cache
def _figures() -> Mapping[str, Figure]:
    text = files(__name__).joinpath("figures.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    sources = {table["name"]: Source(**table) for table in content["source"]}
    figures = {}
    for table in content["figure"]:
        device, values = table.pop("device"), table.pop("values")
        figures[table["name"]] = Figure(
            source=sources[table["name"].partition(".")[0]],
            values=tuple(_value({"device": device, **value}) for value in values),
            **_hashable(table),
        )
    return figures


def _value(table: dict[str, Any]) -> Value:
    if "value" in table:
        table["low"] = table["high"] = table.pop("value")
    return Value(**_hashable(table))


def _hashable(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with tuples instead of lists."""
    return {k: tuple(value) if isinstance(value, list) else value for k, value in table.items()}
