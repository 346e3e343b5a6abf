"""The cluster of a case: what the levels of a file say of it, and what the command line says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from commbench import registry
from commbench.errors import SuiteError
from commbench.model import ClusterSpec

_OF_A_LAUNCHER: Mapping[str, Any] = {"hosts": (), "launcher_options": {}, "scheduler": ""}
_OF_GPUS = {
    "workers_per_gpu": "--workers-per-gpu", "rmm_pool": "--rmm-pool", "rmm_async": "--rmm-async",
    "rmm_managed": "--rmm-managed",
}  # fmt: skip
_OF_CLUSTERS = {
    "launcher": "--launcher", "hosts": "--hosts", "launcher_options": "--launcher-option",
    "scheduler": "--scheduler-address or --scheduler-file", "start_timeout_s": "--start-timeout",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClusterOverrides:
    """The ``cluster`` table; what is None is taken from the level above."""

    n_workers: int | None = None
    threads_per_worker: int | None = None
    device: str | None = None
    launcher: str | None = None
    hosts: tuple[str, ...] | None = None
    env: dict[str, str] | None = None
    launcher_options: dict[str, str] | None = None
    scheduler: str | None = None
    start_timeout_s: float | None = None
    placement: str | None = None
    workers_per_gpu: int | None = None
    rmm_pool: str | None = None
    rmm_async: bool | None = None
    rmm_managed: bool | None = None


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
        chosen = {
            name: value
            for name, value in self._given.items()
            if (spec.device == "gpu" if name in _OF_GPUS else not pair)
        }
        self._unused -= set(chosen)
        if chosen.get("launcher", spec.launcher) != spec.launcher:
            spec = replace(spec, **_OF_A_LAUNCHER)
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
        for options, lacking in (
            (_OF_CLUSTERS, "has a cluster: each runs between two processes of this host, which it "
                           "starts itself"),
            (_OF_GPUS, "works on a GPU: their device is cpu, or auto where there is none"),
        ):  # fmt: skip
            if unused := [option for name, option in options.items() if name in self._unused]:
                raise SuiteError(
                    f"{', '.join(unused)}: no case of the suite {suite!r} {lacking}; leave it out"
                )
