"""The options of ``commbench run`` that describe a cluster: a workload's, or those of a suite.

They are the fields of ``ClusterSpec``. A workload's options have its defaults. A suite's have none:
what is not given is as the file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_origin, get_type_hints

import click

from commbench.errors import UsageError
from commbench.harness.parsed import SECONDS, SHARE, Parsed, key_and_value, listed
from commbench.model import ClusterSpec
from commbench.workloads import device as devices
from commbench.workloads.base import PairWorkload, Workload

_BY_TYPE: Mapping[Any, Mapping[str, Any]] = {
    int: {"type": click.INT},
    float: {"type": SECONDS},
    bool: {"is_flag": True},
    tuple: {"type": Parsed("names", listed(str))},
    Mapping: {"type": Parsed("KEY=VALUE", key_and_value), "multiple": True},
}


def of_workload(workload: type[Workload]) -> list[click.Parameter]:
    """Return the options that describe the cluster of `workload`; a pair needs no size."""
    device = click.Option(
        ["--device"], type=click.Choice(["auto", "cpu", "gpu"]), default="auto",
        show_default=True, help=ClusterSpec.settings()["device"].help,
    )  # fmt: skip
    if issubclass(workload, PairWorkload):
        return [device, *_options("gpu")]
    return [*_options("size", "launcher"), _placement("none"), device, *_options("gpu")]


def of_suite() -> list[click.Parameter]:
    """Return the options that change the size and the clusters of a suite file's cases."""
    scale = click.Option(
        ["--scale"], type=SHARE,
        help="Share of the full size, as 0.01 or 1%; 1: the published size.  [default: the file's]",
    )  # fmt: skip
    clusters = [*_options("launcher"), *_options("gpu")]
    for option in clusters:
        option.default, option.show_default = None, False
        option.help = f"{option.help}  [default: the file's]"
    return [scale, *clusters, _placement("the file's")]


def _options(*of: str) -> list[click.Option]:
    """Return the options for the fields of these kinds."""
    spec, types = ClusterSpec(), get_type_hints(ClusterSpec)
    found = []
    for name, how in ClusterSpec.settings(*of).items():
        if name == "scheduler":
            found += [
                click.Option(["--scheduler-address"],
                             help="For external: such as tcp://10.0.0.1:8786."),
                click.Option(["--scheduler-file"], type=click.Path(resolve_path=True),
                             help="For external: what `dask scheduler --scheduler-file` wrote."),
            ]  # fmt: skip
            continue
        kind, default = types[name], getattr(spec, name)
        has_default = how.none or (default not in ((), {}) and kind is not bool)
        found.append(
            click.Option(
                [how.option], help=how.help, metavar=how.metavar,
                default=default if has_default else None,
                show_default=how.none or bool(has_default),
                **_BY_TYPE.get(get_origin(kind) or kind, {}),
            )
        )  # fmt: skip
    return found


def _placement(default: str) -> click.Option:
    return click.Option(
        ["--placement"], metavar="none|auto|FILE",
        help="CPUs, GPU and NIC of each worker: auto by the host's topology, or from a file.  "
             f"[default: {default}]",
    )  # fmt: skip


def cluster(given: dict[str, Any]) -> ClusterSpec:
    """Return the cluster that the options ask for."""
    from commbench.harness.suite.placement import place

    device = devices.detect() if given["device"] == "auto" else given["device"]
    asked = ClusterSpec(**overrides(given), device=device)
    choice, shared = given.get("placement") or "none", max(1, asked.workers_per_gpu)
    placement = place(choice, asked.n_workers, asked.device, workers_per_gpu=shared)
    return replace(asked, placement=placement)


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """Return what the user gave of a cluster, by the names in ``ClusterSpec``.

    Device and placement are not among it: those depend on the machine, and on the number of
    workers.
    """
    found: dict[str, Any] = {
        name: given.get(how.option.removeprefix("--").replace("-", "_"))
        for name, how in ClusterSpec.settings("size", "launcher", "gpu").items()
    }
    found["launcher_options"] = dict(found["launcher_options"] or ()) or None
    found["scheduler"] = _scheduler(given) or None
    return {name: value for name, value in found.items() if value is not None}


def _scheduler(given: dict[str, Any]) -> str:
    address, file = given.get("scheduler_address"), given.get("scheduler_file")
    if address and file:
        raise UsageError("--scheduler-address and --scheduler-file name one scheduler; give one")
    return address or file or ""
