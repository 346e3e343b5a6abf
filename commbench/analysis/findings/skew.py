"""Work or bytes that are not evenly divided between workers."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding

_LEAST = 0.15
"""The smallest effect: a few tasks can't be divided evenly between workers."""
_SLOWER = 1.3
"""How many times as long the tasks of a slow host take, at least."""
_IN_TASKS = ("compute_s", "queue_s", "blocked_s")


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if the worker with the most work or data has much more than the average.

    Evenly divided, all would take as long as the average.
    """
    if case.n_workers < 2 or case.profiles.empty:
        return
    for parts, what, remedy in (
        (_IN_TASKS, "in tasks", "divide the data evenly: repartition, or choose another key"),
        (
            ("data_s",),
            "awaiting data",
            "see which bytes it waits for: they converge on it, or come over a slow link",
        ),
    ):
        most, mean = case.share(*parts, how="max"), case.share(*parts)
        saved = case.effect(most - mean)
        if saved.share >= _LEAST:
            worker = _busiest(case, parts)
            if "compute_s" in parts and (name := _long_task(case, worker, saved.share)):
                remedy = f"divide the step {name}: one task of it takes most of that time"
                if name.startswith("finalize"):
                    remedy = (
                        "don't compute() the whole result, which one task joins: reduce it, write "
                        "it, or keep it on the workers by persist()"
                    )
            elif "compute_s" in parts and (times := _slowness(case, worker)) > _SLOWER:
                remedy = (
                    f"see what slows it down (clock, cores, other programs): its tasks take "
                    f"{times:.1f} times as long as others' of the same names; or divide the data "
                    "evenly, if its tasks read more"
                )
            elif "compute_s" in parts and _n_with_tasks(case) <= case.n_workers / 2:
                remedy = (
                    "see why only some workers have tasks: if each waits for the one before, "
                    "submit all first, unless they need each other; workers= and resources= may "
                    "keep them there, and so may data that they have (client.rebalance); or "
                    + remedy
                )
            elif "compute_s" in parts and _is_chain(case):
                remedy = (
                    "see whether tasks need each other: hardly more than one runs at once; submit "
                    "all before waiting for the first, make steps that are independent, or "
                    + remedy
                )
            who = f"worker {worker}" if worker else "one worker, another each time,"
            yield Finding(
                statement=f"{who} is {what} {most.median():.0%} of the time, and "
                f"the average of the workers {mean.median():.0%}",
                evidence="profile, by worker" + ": compute, no core, blocked" * (len(parts) > 1),
                effect=saved,
                remedy=remedy,
                doubt="Dask may have placed tasks unevenly by chance, or the program has "
                "(workers=, resources=)",
            )


def _long_task(case: CaseRecords, worker: str, share: float) -> str:
    """Return the name of the tasks of which a worker has one that makes the difference, or ""."""
    names = ["launch", "iteration", "name"]
    tasks = case.tasks.astype({"name": "str", "worker": "str"})
    is_its = tasks["worker"] == worker
    its, others = (rows.groupby(names)["seconds"].max() for rows in (tasks[is_its], tasks[~is_its]))
    more_s = its.sub(others.reindex(its.index, fill_value=0.0))
    more_s = more_s.groupby(level="name").median() / case.case.cluster.threads_per_worker
    most = more_s.max()
    return str(more_s.idxmax()) if most >= share * case.wall_s.median() else ""


def _slowness(case: CaseRecords, worker: str) -> float:
    """Return how many times as long a worker's tasks take as the same tasks of the others.

    It is 1 if the worker has other tasks, more of them than the others, or with larger results.
    """
    if case.tasks.empty:
        return 1.0
    tasks = case.tasks.astype({"name": "str", "worker": "str"})
    by_worker = (
        tasks.groupby(["name", "worker"])["seconds"].agg(["size", "median"]).unstack("worker")
    )
    if worker not in by_worker["size"]:
        return 1.0
    numbers, seconds = (by_worker[each].drop(columns=worker) for each in ("size", "median"))
    n, usual_n = by_worker["size"][worker].fillna(0), numbers.fillna(0).mean(axis=1)
    usual_s = seconds.median(axis=1)
    known = usual_s.notna() & (n > 0)
    nbytes = tasks.groupby(["name", "worker"])["nbytes"].median().unstack("worker")
    usual_bytes = (n * nbytes.drop(columns=worker).median(axis=1))[known].sum()
    has_more = (n * nbytes[worker])[known].sum() > _SLOWER * usual_bytes
    expected_s = (n * usual_s)[known].sum()
    spent_s = (n * by_worker["median"][worker])[known].sum()
    if n.sum() > 1.2 * usual_n.sum() or has_more or not expected_s > 0:
        return 1.0
    return float(spent_s / expected_s)


def _n_with_tasks(case: CaseRecords) -> float:
    """Return how many workers have tasks in an iteration that has enough of them for all."""
    workers = case.tasks.astype({"worker": "str"}).groupby(["launch", "iteration"])["worker"]
    return float(workers.nunique().where(workers.size() >= case.n_workers).median())


def _is_chain(case: CaseRecords) -> bool:
    """Return whether one task of the cluster runs at a time, nearly always."""
    if not case.n_tasks > case.n_workers:
        return False
    total_s = case.tasks.groupby(["launch", "iteration"])["seconds"].sum()
    return bool((total_s / case.busy_s(case.tasks, "launch", "iteration")).median() < 1.1)


def _busiest(case: CaseRecords, parts: tuple[str, ...]) -> str:
    """Return the worker that is the busiest in most iterations; "" if it is another each time."""
    rows = case.profiles[case.profiles["process"] == "workers"]
    busy = rows.assign(busy_s=rows[[*parts]].sum(axis=1)).sort_values("busy_s")
    busiest = busy.drop_duplicates(["launch", "iteration"], keep="last")["worker"].value_counts()
    return str(busiest.index[0]) if busiest.iloc[0] > busiest.sum() / 2 else ""


RULE = Rule(
    title="work or traffic is skewed",
    limit="15 % of the time between the busiest worker and the average",
    find=find,
)
