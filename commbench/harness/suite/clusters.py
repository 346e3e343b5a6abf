"""The cluster of a case: what the levels of a file say of it, and what the command line says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, make_dataclass, replace
from typing import Any, get_type_hints

from commbench.errors import SuiteError
from commbench.model import ClusterSpec, registry

_TYPES = get_type_hints(ClusterSpec) | {
    "placement": str, "env": dict[str, str], "launcher_options": dict[str, str],
    "dask_config": dict[str, Any],
}  # fmt: skip
ClusterOverrides: Any = make_dataclass(
    "ClusterOverrides",
    [(f.name, _TYPES[f.name] | None, None) for f in fields(ClusterSpec)],
    frozen=True,
    kw_only=True,
)
"""The ``cluster`` table; what is None is taken from the level above."""


def merged(*levels: ClusterOverrides) -> ClusterSpec:
    """Return the cluster of these levels, of which a later one wins, still to be placed."""
    settings = {
        f.name: value
        for level in levels
        for f in fields(level)
        if f.name != "placement" and (value := getattr(level, f.name)) is not None
    }
    return ClusterSpec(**settings)


class GivenCluster:
    """What the command line says of all clusters of a suite.

    Parameters
    ----------
    given
        Values for fields of ``ClusterSpec``. Those about GPUs are for cases that work on one, and
        the others for cases that have a cluster.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._unused = set(given)

    def win_over(self, spec: ClusterSpec, workload: str) -> ClusterSpec:
        """Return `spec`, of a case of `workload`, with what was given in place of its own.

        Another launcher than its own has no use for the hosts, the options and the scheduler of
        that; options of the same launcher win one by one.
        """
        from commbench.workloads.base import PairWorkload

        pair = issubclass(registry.load("workload", workload), PairWorkload)
        for_gpus = ClusterSpec.settings("gpu")
        chosen = {
            name: value
            for name, value in self._given.items()
            if (spec.device == "gpu" if name in for_gpus else not pair)
        }
        self._unused -= set(chosen)
        if chosen.get("launcher", spec.launcher) != spec.launcher:
            default, settings = ClusterSpec(), ClusterSpec.settings()
            own = {name: getattr(default, name) for name in settings
                   if settings[name].of_one_launcher}  # fmt: skip
            spec = replace(spec, **own)
        if "launcher_options" in chosen:
            chosen["launcher_options"] = {**spec.launcher_options, **chosen["launcher_options"]}
        return replace(spec, **chosen)

    def check_used(self, suite: str) -> None:
        """Refuse what was of no use to any case.

        Raises
        ------
        SuiteError
            With the options, and what they are for.
        """
        for of, lacking in (
            ("launcher", "has a cluster: each runs between two processes of this host, which it "
                           "starts itself"),
            ("gpu", "works on a GPU: their device is cpu, or auto where there is none"),
        ):  # fmt: skip
            settings = ClusterSpec.settings(of)
            if unused := [settings[name].option for name in settings if name in self._unused]:
                raise SuiteError(
                    f"{', '.join(unused)}: no case of the suite {suite!r} {lacking}; leave it out"
                )
