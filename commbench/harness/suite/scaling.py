"""How one number makes a suite smaller: a rule for each parameter says what it does to it.

============  ====================================================================================
rule          a parameter p at scale s
============  ====================================================================================
``linear``    p · s
``root``      p · √s: the side of an array that is to have s times the bytes
``largest``   of a list of sizes those up to s times the largest
============  ====================================================================================

Parameters of the same rule keep their proportions: the smallest is rounded, and the others follow
it, so that an array has as many chunks at every scale. Nothing becomes less than 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from commbench.errors import SuiteError, UnknownNameError

_EXPONENTS = {"linear": 1.0, "root": 0.5}
_RULES = (*_EXPONENTS, "largest")


def check(scale: float) -> None:
    """Refuse what is no scale.

    Raises
    ------
    SuiteError
        Where it is not above 0 and at most 1.
    """
    if not 0 < scale <= 1:
        raise SuiteError(
            f"scale is {scale:g}; it must be above 0 and at most 1, which is the full size"
        )


def scaled(params: Mapping[str, Any], rules: Mapping[str, str], scale: float) -> dict[str, Any]:
    """Return `params` at this scale; those without a rule stay as they are.

    Raises
    ------
    SuiteError
        Where a rule is unknown, or is for something that is not there or no number.

    Examples
    --------
    >>> scaled({"size": 16000, "chunk": 4000}, {"size": "root", "chunk": "root"}, 0.05)
    {'size': 3576, 'chunk': 894}
    >>> scaled({"sizes": [1, 64, 4096]}, {"sizes": "largest"}, 0.1)
    {'sizes': [1, 64]}
    """
    for name, rule in rules.items():
        if rule not in _RULES:
            raise UnknownNameError(f"rule of scaling for {name}", rule, _RULES)
        if name not in params:
            raise UnknownNameError("parameter in scaling", name, params)
        if not _numbers(params[name]):
            raise SuiteError(
                f"scaling: {name} is {params[name]!r}; whole numbers from 1 up can be scaled, and "
                "lists of them"
            )
    found = dict(params)
    for rule, exponent in _EXPONENTS.items():
        chosen = {name: params[name] for name in params if rules.get(name) == rule}
        found |= _in_proportion(chosen, scale**exponent)
    for name in params:
        if rules.get(name) == "largest":
            sizes = _numbers(params[name])
            found[name] = [size for size in sizes if size <= max(min(sizes), scale * max(sizes))]
    return found


def _in_proportion(params: Mapping[str, Any], factor: float) -> dict[str, Any]:
    if not params:
        return {}
    smallest = min(number for value in params.values() for number in _numbers(value))
    kept = Fraction(max(1, round(smallest * factor)), smallest)
    return {
        name: [round(number * kept) for number in value]
        if isinstance(value, list)
        else round(value * kept)
        for name, value in params.items()
    }


def _numbers(value: Any) -> list[int]:
    """Return the numbers that can be scaled; none where anything can't be."""
    numbers = value if isinstance(value, list) else [value]
    return numbers if all(type(number) is int and number > 0 for number in numbers) else []
