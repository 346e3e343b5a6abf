"""Group-sequential tests of a run with a time budget, and the design of its next block.

The run is analysed at most five times, when a fifth of its budget after the other is spent. A
comparison that is decided at one of these looks is tested at the look's level, so that all looks
together have the error rate of one test (P. C. O'Brien and T. R. Fleming, Biometrics 35 (1979)).
The number of iterations per launch balances the cost and the variance of both (T. Kalibera and
R. Jones, Rigorous benchmarking in reasonable time, ISMM 2013). It depends on variances only, never
on a difference between backends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commbench.stats.inference import CONFIDENCE, MIN_LAUNCHES
from commbench.stats.selection import good_launches

if TYPE_CHECKING:
    from commbench.analysis.run import Run
    from commbench.model import Comparison

N_LOOKS = 5
_BOUNDARY = 2.040
"""The constant for five looks and a two-sided level of 5 %: C. Jennison and B. W. Turnbull, Group
Sequential Methods, 2000, table 2.3."""
_ENOUGH_LAUNCHES = 10
_MAX_ITERATIONS = 30
_LEAST_BETWEEN = 1 / 16
"""The least share of the variance within launches that is assumed between them, because few
launches estimate it badly."""


@dataclass(frozen=True)
class Block:
    """The next block of launches: its iterations per launch, if they change, and its seconds."""

    iterations: int | None
    seconds: float


def next_block(run: Run) -> Block:
    """Return the design of the next block of a run, from its launches that have ended."""
    rule, ends = run.manifest.stopping, run.ends
    typical_s = ends.groupby("case_id")["seconds"].median()
    whole = float(typical_s.sum())
    samples = run.measured
    samples = samples[samples["layer"] == "workload"].merge(ends[["case_id", "launch"]])
    if rule is None or rule.fixed_iterations or samples.empty:
        return Block(None, whole)
    by_launch = samples.sort_values("iteration").groupby(["case_id", "launch"])
    # Of an iteration not all is timed: its result is verified, and its log collected.
    periods_s = by_launch["started_at_s"].diff().groupby(samples["case_id"]).median()
    each_s = np.fmax(samples.groupby("case_id")["seconds"].median(), periods_s)
    rest = ends.merge(by_launch.size().rename("n").reset_index(), on=["case_id", "launch"])
    without_s = (rest["seconds"] - rest["n"] * rest["case_id"].map(each_s)).clip(lower=0.0)
    without_s = without_s.groupby(rest["case_id"]).median()
    overhead_s = float(without_s.sum())
    # Cases that always fail have no samples.
    overhead_s += float(typical_s.drop(rest["case_id"].unique()).sum())
    iteration_s = float(each_s.sum())
    logs = np.log(samples["seconds"].clip(lower=1e-9)).groupby(
        [samples["case_id"], samples["launch"]]
    )
    within = float(logs.var().groupby("case_id").mean().mean())
    between = float(logs.mean().groupby("case_id").var().mean()) - within / logs.size().mean()
    if not within > 0:
        return Block(None, whole)
    ratio = within / max(between if between > 0 else 0.0, _LEAST_BETWEEN * within)
    best = math.sqrt(overhead_s / iteration_s * ratio)
    # A launch whose iterations take twice as long still meets its deadline.
    timeout_s = pd.Series({case_id: case.timeout_s for case_id, case in run.cases.items()})
    best = min(best, float(((timeout_s - without_s) / each_s).min()) / 2)
    n_missing = _ENOUGH_LAUNCHES - int(ends.groupby("case_id").size().min())
    if n_missing > 0:
        left_s = rule.budget_s - float(ends["seconds"].sum())
        best = min(best, (left_s / n_missing - overhead_s) / iteration_s)
    iterations = max(1, min(_MAX_ITERATIONS, int(best)))
    return Block(iterations, overhead_s + iterations * iteration_s)


def limit_s(run: Run) -> float:
    """Return the seconds that all launches of a run with a budget may take.

    That is the budget, or ``longest_s`` if that makes the ``MIN_LAUNCHES`` of each case that is not
    always failing, without which there is no interval and no verdict.
    """
    rule, ends = run.manifest.stopping, run.ends
    if rule is None:
        return math.inf
    n_missing = n_missing_launches(run)
    needed_s = float(ends["seconds"].sum()) + n_missing * next_block(run).seconds
    is_longer = n_missing > 0 and rule.budget_s < needed_s <= rule.longest_s
    return rule.longest_s if is_longer else rule.budget_s


def n_missing_launches(run: Run) -> int:
    """Return how many launches each case lacks for a verdict, if it is not always failing."""
    n_good = run.ends["case_id"][run.ends["ok"].astype(bool)].value_counts()
    return max(0, MIN_LAUNCHES - int(n_good.min())) if len(n_good) else 0


def look(run: Run) -> int:
    """Return how many looks have been due, from 0 to ``N_LOOKS``.

    The last is due when no other block fits into the time that launches may take.
    """
    rule, ends = run.manifest.stopping, run.ends
    if rule is None or ends.empty:
        return 0
    spent_s = float(ends["seconds"].sum())
    if spent_s + next_block(run).seconds > limit_s(run):
        return N_LOOKS
    return min(N_LOOKS - 1, int(N_LOOKS * spent_s / rule.budget_s))


def significance(run: Run) -> float:
    """Return the two-sided level of the tests of `run`: 5 %, or that of its last look.

    Examples
    --------
    >>> [round(look_level(k), 4) for k in range(1, 6)]
    [0.0, 0.0013, 0.0084, 0.0226, 0.0414]
    """
    if run.manifest.stopping is None:
        return 1 - CONFIDENCE
    return look_level(max(1, look(run)))


def look_level(number: int) -> float:
    """Return the two-sided level of O'Brien and Fleming's test at look `number`, from 1 on."""
    return math.erfc(_BOUNDARY * math.sqrt(N_LOOKS / number / 2))


def undecided(run: Run) -> list[Comparison]:
    """Return the comparisons without a verdict."""
    return [one for one in run.comparisons if one.verdict == "inconclusive"]


def imprecise(run: Run) -> pd.DataFrame:
    """Return the summaries of cases that are compared with none, and not known well enough.

    Well enough is an interval within ±``detect`` of the median. The column ``within`` has the share
    at its farther end; it is infinite if the interval's level is below 95 %, or the median is 0.
    """
    rule = run.manifest.stopping
    compared = {
        case_id for one in run.comparisons for case_id in (one.baseline_id, one.candidate_id)
    }
    table = run.summaries
    table = table[(table["n_launches"] > 0) & ~table["case_id"].isin(compared)]
    sufficient = (table["confidence"] >= CONFIDENCE) & (table["median_s"] > 0)
    ends = table[["ci_low_s", "ci_high_s"]].div(table["median_s"], axis="index")
    within = (ends - 1).abs().max(axis="columns")
    table = table.assign(within=within.where(sufficient, math.inf))
    return table[table["within"] > (rule.detect if rule else 0.0)]


def unknown(run: Run) -> list[str]:
    """Return the ids of the cases of which no launch has ended well."""
    known = good_launches(run)
    return [case_id for case_id in run.cases if case_id not in known]


def ended_by(run: Run) -> str:
    """Return why a run with a budget has ended: ``decided`` or ``time``; else an empty string."""
    if run.manifest.stopping is None or not (due := look(run)):
        return ""
    lost = unknown(run)
    n_failed = run.ends["case_id"].value_counts()
    # Others get the time of a case that surely fails.
    is_lost = all(n_failed.get(case_id, 0) >= MIN_LAUNCHES for case_id in lost)
    # Those of few launches may differ in the bytes that they move by chance.
    early = any(c.verdict == "unequal" and c.n_launches < MIN_LAUNCHES for c in run.comparisons)
    is_open = early or bool(undecided(run)) or not imprecise(run).empty
    if not is_open and is_lost and len(lost) < len(run.cases):
        return "decided"
    return "time" if due == N_LOOKS else ""
