"""Settings that a run compares, as it compares backends: ``--vary 'SETTING=A|B'``.

A setting is an environment variable, a key of Dask's configuration, or an option of ``run`` for
clusters. Each combination of values is a cluster, on which each backend is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from typing import Any, get_type_hints

from commbench.backends import parse
from commbench.errors import UnknownNameError, UsageError
from commbench.model import ClusterSpec, registry, units

_TYPES = get_type_hints(ClusterSpec)
OPTIONS = {
    how.key: name
    for name, how in ClusterSpec.settings("size", "launcher", "gpu").items()
    if how.is_measured and not how.shown_by and not how.launcher_specific
}
"""The fields of ``ClusterSpec`` that can be varied, by the name of their option."""


@dataclass(frozen=True)
class Setting:
    """A setting and the values that it is to have."""

    name: str
    texts: tuple[str, ...]

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """The values, of the type that the setting takes."""
        if self.name in OPTIONS:
            kind = _TYPES[OPTIONS[self.name]]
            return tuple(units.parse_count(text) if kind is int else text for text in self.texts)
        if "." not in self.name:
            return self.texts
        from dask.config import interpret_value

        return tuple(map(interpret_value, self.texts))

    def applied(self, spec: ClusterSpec, value: Any) -> ClusterSpec:
        """Return `spec` with a value of the setting."""
        if self.name in OPTIONS:
            return replace(spec, **{OPTIONS[self.name]: value})
        if "." in self.name:
            return replace(spec, dask_config={**spec.dask_config, self.name: value})
        return replace(spec, env={**spec.env, self.name: value})


def setting(name: str, text: str) -> Setting:
    """Return the setting of this name, which must be known, with one value."""
    return Setting(_known(name), (text,))


def settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Return the settings in texts such as ``workers=2|4``.

    Raises
    ------
    UsageError
        If a setting is unknown, or has fewer than two values.

    Examples
    --------
    >>> [setting] = settings(["distributed.comm.compression=null|lz4|true|2|0.5|30s"])
    >>> setting.values
    (None, 'lz4', True, 2, 0.5, '30s')
    """
    result = tuple(map(_setting, texts))
    # Dask reads both spellings as one key.
    names = [setting.name.replace("_", "-") for setting in result]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{twice[0]} is varied twice; give all of its values at once, as A|B|C")
    return result


def combinations(
    spec: ClusterSpec, varied: Sequence[Setting], backends: Sequence[str]
) -> Iterator[tuple[str, ClusterSpec]]:
    """Yield each backend with the cluster of each combination of values.

    A variable that the libraries of one backend read is left out of the clusters of others.

    Raises
    ------
    UsageError
        If a backend sets a setting itself, or a variable is one of other backends only.
    """
    readers = {setting.name: _readers(setting.name, backends, spec.device) for setting in varied}
    for backend in backends:
        applicable = [setting for setting in varied if backend in readers[setting.name]]
        for values in product(*(setting.values for setting in applicable)):
            changed = spec
            for setting, value in zip(applicable, values, strict=True):
                changed = setting.applied(changed, value)
            yield backend, changed


def _setting(text: str) -> Setting:
    name, equals, rest = text.partition("=")
    name, values = name.strip(), tuple(value.strip() for value in rest.split("|"))
    if not (name and equals):
        raise UsageError(f"{text!r} is no SETTING=A|B; write for example workers=2|4")
    name = _known(name)
    if name in OPTIONS and _TYPES[OPTIONS[name]] is int:
        values = tuple(chain(*map(_doubled, values)))
    if "" in values:
        raise UsageError(
            f"{text!r} has an empty value; write for example {name}=A|B"
            + ", and null for none" * ("." in name)
        )
    if len(set(values)) < len(values):
        raise UsageError(f"{text!r} has a value twice; a twin of a backend is a control: tcp,tcp@2")
    if len(values) == 1:
        raise UsageError(
            f"{text!r} has one value, so there is nothing to compare; separate values by |, as in "
            f"'{name}={values[0]}|…'"
        )
    return Setting(name, values)


def _doubled(text: str) -> Iterator[str]:
    """Yield A, 2 A, 4 A, … up to B of a range ``A..B``, or the text of anything else.

    Examples
    --------
    >>> [*_doubled("1..6")], [*_doubled("4")]
    (['1', '2', '4', '6'], ['4'])
    """
    first, dots, last = text.partition("..")
    if not dots:
        yield text
        return
    count, most = units.parse_count(first, least=1), units.parse_count(last, least=1)
    if count >= most:
        raise UsageError(f"the range {text} has to rise, as 1..8, which is 1, 2, 4 and 8")
    while count < most:
        yield str(count)
        count *= 2
    yield str(most)


def _known(name: str) -> str:
    """Return the name under which a setting is known."""
    if (key := name.removeprefix("--").replace("-", "_")) in OPTIONS:
        return key
    if "." in name:
        validate_key(name)
    elif not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or name.startswith(("DASK_", "COMMBENCH_")):
        raise UnknownNameError(
            "setting", name,
            [*OPTIONS, "environment variables (UCX_TLS)",
             "keys of Dask's configuration (distributed.comm.compression)"],
        )  # fmt: skip
    return name


def validate_key(name: str) -> None:
    """Raise a UsageError if a key of Dask's configuration would have no effect.

    Those of packages for Dask that it does not import are accepted, such as distributed-ucxx.
    """
    import dask
    import distributed  # noqa: F401 - it fills in the configuration

    if name.startswith("distributed.nanny."):
        raise UsageError(
            f"{name} can't be set: the workers have no nanny, and commbench sets the variables "
            "of one. Set the environment variable itself, such as OMP_NUM_THREADS"
        )
    if name != name.lower():
        raise UsageError(
            f"{name} can't be set: commbench sets keys by variables, and Dask reads these as "
            f"{name.lower()}"
        )
    missing = object()
    # A mapping that is empty by default, such as a worker's resources, may have any key.
    above = dask.config.get(name.rpartition(".")[0], missing) if "." in name else missing
    if dask.config.get(name, missing) is not missing or above == {}:
        return
    section = name.partition(".")[0].replace("-", "_")
    package = "dask_jobqueue" if section == "jobqueue" else section
    if package.startswith(("dask_", "distributed_")) and find_spec(package):
        return
    keys = sorted(_keys(dask.config.config))
    raise UnknownNameError(
        "key of Dask's configuration", name,
        [key for key in keys if key.startswith(name.rpartition(".")[0])]
        or {f"{key.partition('.')[0]}.…" for key in keys},
    )  # fmt: skip


def _keys(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _readers(name: str, backends: Sequence[str], device: str) -> list[str]:
    parsed = [parse(backend) for backend in backends]
    for backend in parsed:
        given: Mapping[str, Any] = {}
        if "." not in name:
            given = backend.environment("cpu", Path())
        elif backend.unavailable(device) is None:
            given = backend.dask_config()
        # To Dask, hyphens and underscores are the same.
        if name.replace("-", "_") in [key.replace("-", "_") for key in given]:
            raise UsageError(
                f"{backend.name} sets {name} itself, and would be another backend with other "
                "values; vary it without this backend"
            )
    if name in OPTIONS or "." in name:
        return [*backends]
    known = registry.loadable("backend")
    owners = [each for each in known if name.startswith(tuple(known[each].variables))]
    readers = [b.name for b in parsed if not owners or b.head in owners]
    if not readers:
        raise UsageError(
            f"{name} has an effect on {' and '.join(owners)} only, and "
            f"{', '.join(backends)} is measured; add --backends {owners[0]}"
        )
    return readers
