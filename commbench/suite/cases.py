"""Cases, their parameters complete and checked, and the suite that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from commbench import gpu, registry
from commbench.errors import SuiteError, UnknownNameError
from commbench.model import Case, ClusterSpec, Suite
from commbench.suite.strict import structure

if TYPE_CHECKING:
    from commbench.workloads.base import PairWorkload, Workload


def cases_for(
    workload: str,
    backends: Iterable[str],
    params: Mapping[str, Any],
    cluster: ClusterSpec,
    **replication: Any,
) -> list[Case]:
    """Return one case per backend, its parameters complete and checked.

    Raises
    ------
    UsageError
        Where a name is unknown, or a number makes no sense.
    """
    from commbench.backends import parse
    from commbench.workloads.base import Context, PairWorkload

    kind = registry.load("workload", workload)
    filled = structure(dict(params), kind.Params, f"{workload}: params")
    given = {**kind.defaults, **replication}
    for key, least in (("launches", 1), ("iterations", 1), ("warmups", 0), ("seed", 0)):
        if given.get(key, least) < least:
            raise SuiteError(f"{key} is {given[key]}; it must be at least {least}")
    names = tuple(backends)
    if not names:
        raise SuiteError("backends is empty; name at least one, for example tcp")
    if given.get("timeout_s", 1) <= 0:
        raise SuiteError(f"timeout is {given['timeout_s']} s; it must be above 0")
    if cluster.start_timeout_s <= 0:
        raise SuiteError(f"start_timeout is {cluster.start_timeout_s} s; it must be above 0")
    timeout_s = given.get("timeout_s", Case.timeout_s)
    if ClusterSpec.start_timeout_s < cluster.start_timeout_s >= timeout_s:
        raise SuiteError(
            f"the workers may take {cluster.start_timeout_s:g} s to start (--start-timeout), and "
            f"the whole launch {timeout_s:g} s (--timeout); raise the latter above the former"
        )
    if cluster.n_workers < 1 or cluster.threads_per_worker < 1:
        raise SuiteError("a cluster has at least one worker with at least one thread")
    if cluster.device not in ("cpu", "gpu"):
        raise UnknownNameError("device", cluster.device, ("auto", "cpu", "gpu"))
    for key, value in cluster.dask_config.items():
        if not isinstance(value, str | int | float | list):
            raise SuiteError(
                f"dask_config: {key} is {value!r}; it must be a text, a number, true, false or a "
                "list of these"
            )
    launcher = registry.load("launcher", cluster.launcher)()
    parsed = [parse(name) for name in names]
    for backend in parsed:
        gpu.check(cluster, backend.name)
    if issubclass(kind, PairWorkload):
        if cluster.launcher != ClusterSpec.launcher:
            raise SuiteError(
                f"{workload} runs between two processes of this host, which it starts itself; the "
                f"launcher {cluster.launcher} is for workloads on a cluster, such as all-to-all"
            )
        if cluster.placement:
            raise SuiteError(
                f"{workload} has no cluster to place: its two processes are bound to nothing; "
                "all-to-all measures each pair of workers that are"
            )
    else:
        for backend in parsed:
            launcher.check(cluster, backend)
    context = Context(n_workers=cluster.n_workers, device=cluster.device, seed=given.get("seed", 0))
    made = kind(filled, context)
    if isinstance(made, PairWorkload):
        _check_mode(made, asdict(filled))
    return [
        Case(
            workload=workload,
            backend=backend.name,
            params=asdict(filled),
            cluster=cluster,
            **given,
        )
        for backend in parsed
    ]


def workload_of(case: Case) -> Workload:
    """Return the workload of a case, with its parameters."""
    from commbench.workloads.base import Context

    kind = registry.load("workload", case.workload)
    params = structure(dict(case.params), kind.Params, case.workload)
    context = Context(n_workers=case.cluster.n_workers, device=case.cluster.device, seed=case.seed)
    workload: Workload = kind(params, context)
    return workload


def _check_mode(workload: PairWorkload, params: Mapping[str, Any]) -> None:
    """Refuse a workload whose numbers would have a wrong name in reports."""
    from commbench.workloads.base import MODES

    if workload.mode not in MODES:
        raise UnknownNameError("mode", workload.mode, tuple(MODES))
    wanted = {"mode": workload.mode} if workload.mode != "latency" else {}
    for name in (*wanted, *MODES[workload.mode]):
        if params.get(name, "") in ("", None) or params[name] != wanted.get(name, params[name]):
            raise SuiteError(
                f"{workload.name} has the mode {workload.mode}, and its params have no {name} that "
                "says so to reports: add that as a parameter"
            )


def suite_of(name: str, cases: Iterable[Case]) -> Suite:
    """Return the suite of `cases`, none of which may ask for the same thing twice."""
    unique: dict[str, Case] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for case in cases:
        if case.id in unique:
            raise SuiteError(
                f"{case.workload} over {case.backend} with the same parameters is asked for twice"
            )
        unique[case.id] = case
        _check_running(case.cluster, sizes)
    if not unique:
        raise SuiteError(f"the suite {name!r} has no case; add a [[case]] table")
    return Suite(name=name, cases=tuple(unique.values()))


def _check_running(cluster: ClusterSpec, sizes: dict[str, tuple[int, int]]) -> None:
    """Refuse a running cluster that is to be of another size than in the cases before."""
    size = (cluster.n_workers, cluster.threads_per_worker)
    if cluster.scheduler and (other := sizes.setdefault(cluster.scheduler, size)) != size:
        raise SuiteError(
            f"the running cluster of {cluster.scheduler} has one size, and the cases ask for "
            f"{other[0]} workers of {other[1]} threads and for {size[0]} of {size[1]}; measure "
            "them with a launcher that starts clusters, or make a suite of each size"
        )
