"""What a reader must know before the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commbench import stats
from commbench.analysis import disturbances, found_cluster
from commbench.model.units import format_bandwidth

if TYPE_CHECKING:
    from commbench.analysis.run import Run

_MIN_COVERAGE = 0.95
_NAMED = 6
"""The slow pairs of a case that are named in its warning; the table has more."""


def find(run: Run) -> list[str]:
    """Return the warnings about a run, what is wrong with its transports first."""
    tasks, summaries = run.case_labels, run.summaries
    found = [text for text in run.pair_transports["contradiction"].unique() if text]
    found += list(run.notes)
    if run.suite.reproduces and stats.reproduced(run) is None:
        found.append(
            f"the suite reproduces {run.suite.reproduces}, which this commbench doesn't know; "
            "use the commbench that made the run"
        )
    found += found_cluster.find(run)
    found += _clocks(run)
    found += _stopped(run)
    n_planned = max(sum(case.launches for case in run.suite.cases), len(run.ends))
    n_good = int(run.ends["ok"].astype(bool).sum())
    n_failed = len(run.ends) - n_good
    if n_failed:
        found.append(f"{n_failed} of {n_planned} launches failed; see Failures")
    if n_good + n_failed < n_planned:
        found.append(
            f"only {n_good + n_failed} of {n_planned} launches were run; go on with "
            f"commbench run --resume {run.path}"
        )
    for row in summaries[summaries["n_launches"] == 0].drop_duplicates("case_id").itertuples():
        found.append(
            f"{tasks[row.case_id]} over {row.backend}: no launch ended well; the median is of "
            "launches that were cut short, and is nothing to quote"
        )
    weak = summaries[summaries["confidence"].between(0, stats.CONFIDENCE, inclusive="left")]
    weak = weak[weak["n_launches"] > 0]
    if len(weak):
        n_launches = int(weak["n_launches"].min())
        found.append(
            f"{n_launches} launch{'es give' if n_launches > 1 else ' gives'} no 95 % interval of "
            "the median (6 do): the intervals shown hold it with the probability that stands "
            "beside them, and a backend that has no better one is not called faster or slower"
        )
    found += _slow_pairs(run)
    for case_id, rows in run.pairs.groupby("case_id", sort=False, observed=True):
        if n_untimed := int(rows["n_untimed"].sum()):
            found.append(
                f"{tasks[case_id]} over {rows['backend'].iloc[0]}: {n_untimed} of "
                f"{int(rows['n'].sum())} transfers ended when they began or before, by their "
                "clocks; they are in no bandwidth"
            )
    for row in run.coverage.itertuples():
        where = f"{tasks[row.case_id]} over {row.backend}"
        if row.n_lost > 0:
            found.append(f"{where}: {row.n_lost} of {row.n_started} fetches are missing in the log")
        elif row.n_lost < 0:
            found.append(f"{where}: the logs have {-row.n_lost} fetches that no worker began")
        if row.coverage < _MIN_COVERAGE:
            found.append(
                f"{where}: the transfer logs saw {row.coverage:.1%} of the bytes between workers; "
                f"they missed {1 - row.coverage:.1%} (P2P shuffles don't pass through them), so "
                "the pair bandwidths below describe a part of the traffic only"
            )
    found += disturbances.find(run)
    return found


def _clocks(run: Run) -> list[str]:
    seconds = run.samples["seconds"]
    found = []
    if n_negative := int((seconds < 0).sum()):
        found.append(
            f"{n_negative} of {len(seconds)} samples ended before they began, by their clock; "
            "they are left out"
        )
    if n_zero := int((seconds == 0).sum()):
        found.append(
            f"{n_zero} of {len(seconds)} samples took no time, by their clock: it is too coarse "
            "for them, and a ratio or bandwidth of such a median is not given"
        )
    return found


def _stopped(run: Run) -> list[str]:
    tasks, summaries = run.case_labels, run.summaries
    rule, reason = run.manifest.stopping, run.ended_by
    limits = {"launches": "--max-launches", "time": "--time-budget"}
    if rule is None or reason not in limits:
        return []
    return [
        f"stopped by {limits[reason]} before every median was known within ±{rule.rel_ci:.2g} of "
        f"itself: {tasks[row.case_id]} over {row.backend} is known within "
        + (f"±{row.half_width:.2g}" if row.half_width < 1 else "no such range")
        for row in stats.widest(summaries).itertuples()
    ]


def _slow_pairs(run: Run) -> Iterator[str]:
    tasks = run.case_labels
    for (case_id, channel), rows in run.slow_pairs.groupby(
        ["case_id", "channel"], sort=False, observed=True
    ):
        worst = next(rows.itertuples())
        also = [f"{row.src} → {row.dst}" for row in rows.iloc[1:_NAMED].itertuples()]
        more = [f"{len(rows) - _NAMED} more"] * (len(rows) > _NAMED)
        yield (
            f"{tasks[case_id]} over {worst.backend}{'' if channel == 'gather' else f', {channel}'}:"
            f" pair {worst.src} → {worst.dst} is {worst.slowdown:.1f} × slower than the typical "
            f"pair ({format_bandwidth(worst.q50_Bps)} against "
            f"{format_bandwidth(worst.typical_Bps)})"
            + (f"; slow, too: {', '.join(also + more)}" if also else "")
        )
