"""Types of command-line options: text that commbench's own parsers understand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commbench.errors import UsageError
from commbench.model import units

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any, Any]
else:
    # Before click 8.5 it does not take two types.
    _ParamType = click.ParamType


class Parsed(_ParamType):
    """Text that one of commbench's own parsers understands."""

    def __init__(self, name: str, parse: Any) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (UsageError, ValueError) as error:
            self.fail(str(error), param, ctx)


def listed(parse: Any) -> Any:
    """Return a parser of a list with commas between what `parse` understands."""

    def parse_list(text: str) -> tuple[Any, ...]:
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items:
            raise UsageError(f"{text!r} names nothing; leave the option out for its default")
        return tuple(parse(item) for item in items)

    return parse_list


def key_and_value(text: str) -> tuple[str, str]:
    """Return the two sides of the first ``=``.

    Examples
    --------
    >>> key_and_value("connect=port=2222")
    ('connect', 'port=2222')
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"{text!r} is no KEY=VALUE; write for example queue=short")
    return key, value


def _share(text: str) -> float:
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise UsageError(f"{text!r} is not a share; write for example 0.02 or 2%") from None


SHARE = Parsed("share", _share)
BYTES = Parsed("size", units.parse_bytes)
SECONDS = Parsed("duration", units.parse_seconds)
