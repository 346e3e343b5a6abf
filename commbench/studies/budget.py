"""Add blocks of launches until every comparison of a run is decided, or its budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from commbench import stats, workloads
from commbench.analysis.run import Run
from commbench.harness.cases import plan
from commbench.model import Launch, Manifest, Suite
from commbench.model.units import format_seconds
from commbench.workloads.workload import ClusterWorkload


def pilot(suite: Suite, done: Mapping[str, int] | None = None) -> Suite:
    """Return `suite` with one launch of every case, or as many as the case with the most in `done`.

    So a run that was interrupted within a block continues with the rest of this block.
    """
    launches = max((done or {}).values(), default=1)
    return replace(suite, cases=tuple(replace(case, launches=launches) for case in suite.cases))


def extend(
    launches: Iterable[Launch], manifest: Manifest, read: Callable[[], Run],
    report: Callable[[str], None],
) -> Iterator[Launch]:  # fmt: skip
    """Yield `launches`, then complete blocks of launches until the run ends.

    It also ends when each case has ``MIN_LAUNCHES`` launches, and all have failed.

    If no other block fits into the time for launches, the others of `launches` are left out.

    Parameters
    ----------
    read
        Returns the run from disk; only called between blocks, when nothing is measured.
    report
        Called with a line on the result of each look.
    """
    rule, suite = manifest.stopping, manifest.suite
    if rule is None:
        yield from launches
        return
    launches, n_looks = list(launches), 0
    if launches and launches[0].block == 0:
        # Nothing is to be judged before the first block, and pandas takes long to import.
        yield from launches
    else:
        data = read()
        # A resumed run has judged the looks before its last block.
        ends = data.ends
        n_looks = stats.look(data.replace(ends=ends[ends["block"] < ends["block"].max()]))
        # Launches that complete a block have its iterations.
        chosen = None
        if not rule.fixed_iterations:
            chosen = last_iterations(data) or stats.next_block(data).iterations
        for launch in launches:
            begins_block = launch.position == 0 and launch.block not in set(ends["block"])
            if begins_block and stats.look(read()) == stats.N_LOOKS:
                break
            yield _designed(launch, chosen)
    last_launches = {case.id: case.launches - 1 for case in suite.cases}
    while True:
        data = read()
        n_launches = data.ends["case_id"].value_counts().min()
        if len(stats.unknown(data)) == len(data.cases) and n_launches >= stats.MIN_LAUNCHES:
            return
        due = stats.look(data)
        is_new, n_looks = due > n_looks, due
        if is_new or due == stats.N_LOOKS:
            report(_describe(data, due))
            if due == stats.N_LOOKS or data.ended_by:
                return
        iterations = stats.next_block(data).iterations
        begun, n_blocks = data.launches_begun(), data.last_block()[0]
        block = plan(suite, manifest.seed, done=last_launches, begun=begun, n_blocks=n_blocks)
        for launch in block:
            yield _designed(launch, iterations)


def last_iterations(run: Run) -> int:
    """Return the timed iterations of a successful launch in the last block; 0 if there is none."""
    ends = run.ends
    is_last = ends["ok"].astype(bool) & (ends["block"] == ends["block"].max())
    last = ends.loc[is_last, ["case_id", "launch"]]
    is_timed = (run.samples["layer"] == "workload") & ~run.samples["warmup"]
    counts = run.samples[is_timed].merge(last).groupby(["case_id", "launch"]).size()
    return int(counts.max()) if len(counts) else 0


def _designed(launch: Launch, iterations: int | None) -> Launch:
    """Return a launch with the chosen iterations, of which ping-pong and all-to-all have none."""
    kind = workloads.load(launch.case.workload)
    if iterations is None or not issubclass(kind, ClusterWorkload):
        return launch
    return replace(launch, case=replace(launch.case, iterations=iterations))


def _describe(run: Run, number: int) -> str:
    """Return a line on look `number`: what is undecided, and when the run ends at the latest."""
    rule = run.manifest.stopping
    assert rule is not None
    spent_s = float(run.ends["seconds"].sum())
    open_ = [f"{one.candidate} vs {one.baseline}" for one in stats.undecided(run)]
    open_ += [run.case_labels[case_id] for case_id in stats.imprecise(run)["case_id"]]
    open_ += [f"{run.case_names[case_id]} (no launch ended well)" for case_id in stats.unknown(run)]
    names = list(dict.fromkeys(open_))
    shown = ", ".join(names[:4]) + f" and {len(names) - 4} more" * (len(names) > 4)
    n_unequal = sum(one.verdict == "unequal" for one in run.comparisons)
    what = "all is decided" if run.ended_by else "too few launches"
    what = f"undecided: {shown}" if names else what
    if n_unequal:
        what += f"; {n_unequal} of {len(run.comparisons)} moved other bytes, and get no verdict"
    latest_s = rule.longest_s if stats.n_missing_launches(run) else rule.budget_s
    # Launches may take longer than those before, and the time between them does not count.
    ends = f"; ends in about {format_seconds(max(0.0, latest_s - spent_s))} at the latest"
    return f"look {number} of {stats.N_LOOKS}, after {format_seconds(spent_s)}: {what}" + ends * (
        not run.ended_by
    )
