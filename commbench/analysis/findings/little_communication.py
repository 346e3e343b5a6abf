"""Nothing wrong with communication."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import MIN_EFFECT, CaseRecords, Rule
from commbench.model import Finding

_MOSTLY = 0.5
"""The least share of the time in tasks; else scheduler and client may be what takes long."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if tasks take the time, and task threads hardly ever await data.

    Not of a case that is slower than another: that one does something better.
    """
    awaited = case.effect(case.share("data_s"))
    in_tasks = case.share("compute_s", "other_cpu_s", "queue_s", "blocked_s").median()
    is_slower = any(c.slower_id == case.case.id for c in case.run.comparisons)
    if awaited.share < MIN_EFFECT and in_tasks >= _MOSTLY and not is_slower:
        yield Finding(
            statement=f"task threads await data {awaited.share:.1%} of the time: communication "
            "is not what takes long",
            evidence="profile: await data",
            effect=awaited,
            remedy=f"keep the backend; tasks take the time{_largest(case)}"
            + f"; they sleep {case.share('blocked_s').median():.0%} of the time, for locks, files, "
            "services or subprocesses: if these can serve several at once, use more threads per "
            "worker"
            * (
                case.case.cluster.device != "gpu"
                and bool(case.share("blocked_s").median() >= _MOSTLY / 2)
                # Others have to be waiting for a thread.
                and case.n_tasks > case.n_workers * case.case.cluster.threads_per_worker
            ),
            doubt="tasks that wait for others' results look idle, not as if they awaited data",
            is_fine=True,
        )


def _largest(case: CaseRecords) -> str:
    """Return which tasks take the most time, as the end of a sentence."""
    seconds = case.tasks.groupby("name", observed=True)["seconds"].sum()
    if not seconds.any():
        return ""
    text = f", {seconds.max() / seconds.sum():.0%} of it in {seconds.idxmax()}"
    longest, share = case.longest_line("task")
    return text + f", and {share:.0%} at {longest}" * bool(longest)


RULE = Rule(
    title="little communication",
    limit="less than 5 % of the time, of which tasks take half or more",
    find=find,
)
