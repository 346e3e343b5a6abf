"""What a file or a command line says, as the frozen dataclass that it stands for, or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from commbench.errors import SuiteError, UnknownNameError

if TYPE_CHECKING:
    import cattrs


def structure(content: Mapping[str, Any], kind: type[Any], where: str) -> Any:
    """Return `content` as an instance of the dataclass `kind`, taking nothing for granted.

    Raises
    ------
    SuiteError
        For an unknown key or a value of another type, naming `where`, the key and what is known.
    """
    import cattrs

    try:
        return _converter().structure(content, kind)
    except cattrs.BaseValidationError as error:
        problems = cattrs.transform_error(error, path=where, format_exception=_explain)
        raise SuiteError("; ".join(problems)) from None


@cache
def _converter() -> cattrs.Converter:
    import cattrs
    from cattrs.gen import make_dict_structure_fn

    def items(value: Any, kind: Any) -> tuple[Any, ...]:
        return tuple(converter.structure(value, GenericAlias(list, get_args(kind)[:1])))  # type: ignore[arg-type]

    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (int, float, str, bool):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook_func(lambda kind: _origin(kind) is Literal, _one_of)
    # Without it a string would pass for a sequence of characters.
    converter.register_structure_hook_func(
        lambda kind: _origin(kind) is tuple, _only_from((list, tuple), "a list", items)
    )
    converter.register_structure_hook_factory(
        is_dataclass,
        lambda kind: _only_from(Mapping, "a table", make_dict_structure_fn(kind, converter)),
    )
    return converter


def _origin(kind: Any) -> Any:
    return get_origin(kind)


def _exactly(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    return kind(value)


def _one_of(value: Any, kind: Any) -> Any:
    if value not in get_args(kind):
        raise ValueError(f"expected one of {', '.join(map(repr, get_args(kind)))}, got {value!r}")
    return value


def _only_from(shape: Any, name: str, structure: Any) -> Any:
    def hook(value: Any, kind: Any) -> Any:
        if not isinstance(value, shape):
            raise TypeError(f"expected {name}, got {value!r}")
        return structure(value, kind)

    return hook


def _explain(error: BaseException, kind: type[Any] | None) -> str:
    import cattrs

    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [f.name for f in fields(error.cl)]
        return "; ".join(
            str(UnknownNameError("key", key, known)) for key in sorted(error.extra_fields)
        )
    if isinstance(error, KeyError):
        return f"the key {error.args[0]!r} is missing"
    if isinstance(error, TypeError | ValueError) and error.args:
        return str(error)
    return cattrs.v.format_exception(error, kind)
