"""Select the records that count, and sort and label them for reports.

A launch may still warm up after the planned warm-ups; its slower first samples are excluded. The
first window of samples is compared with the second half of the launch. It is warm-up if its median
is longer by more than ``_FLOOR`` and a one-sided Mann–Whitney test is significant at ``_ALPHA``;
then the next window is tested. If all windows of the first half are slow, that is drift rather
than warm-up, and no sample is excluded.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commbench.model import Case, ClusterSpec
from commbench.stats import inference

if TYPE_CHECKING:
    from commbench.analysis.run import Run

GROUP = ["case_id", "layer", "payload_bytes"]
"""The columns that identify a summary."""
_SWEPT = ("layers", "sizes")
"""Parameters that are lists in a case; every sample has one value of them."""
_WINDOW = 10
"""The minimum samples in a window; in long launches, a window is a twentieth of the samples."""
_FLOOR = 0.05
"""The relative slowdown below which samples are never called warm-up."""
_ALPHA = 0.01


def counted(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the rows of `table` that are of measured iterations and of successful launches.

    A launch that was cut short has recorded its first iterations only, and fast ones come first.
    If no launch of a case succeeded, all of its rows count, but it gets no interval.
    """
    keep = counts(table, run)
    return table if keep.all() else table[keep]


def counts(table: pd.DataFrame, run: Run) -> pd.Series[bool]:
    """Return a mask of the rows of `table` that ``counted`` keeps."""
    keep = table["iteration"] >= 0
    for case_id, launches in good_launches(run).items():
        # For millions of rows, many comparisons take less time than one isin.
        good = reduce(or_, (table["launch"] == launch for launch in launches))
        keep &= (table["case_id"] != case_id) | good
    return keep


def measured(run: Run) -> pd.DataFrame:
    """Return the samples of ``timed`` without those detected as warm-up, which user code hasn't."""
    samples = run.timed
    return samples if run.is_user_code else samples[~_warmup_mask(samples)]


def timed(run: Run) -> pd.DataFrame:
    """Return the verified samples of ``counted`` iterations, without planned warm-ups.

    Samples of another program, which name their ``tool``, count although they can't be verified.
    Negative durations, from a clock that was set back, are excluded, and regions of a user's code
    that raised, unless all of that name did.
    """
    samples = counted(run.samples, run)
    planned = samples["warmup"].astype(bool)
    sound = samples["verified"].astype(bool) | (samples["tool"] != "")
    kept = samples[~planned & sound & (samples["seconds"] >= 0)]
    if (run.regions["error"] == "").all():
        return kept
    keys = ["case_id", "launch", "iteration"]
    raised = pd.MultiIndex.from_frame(run.regions[run.regions["error"] != ""][keys])
    failed = pd.MultiIndex.from_frame(kept[keys]).isin(raised)
    all_failed = pd.Series(failed, kept.index).groupby(kept["case_id"]).transform("all")
    return kept[~failed | all_failed]


def outer_regions(run: Run) -> pd.DataFrame:
    """Return the rows of ``run.regions`` with other regions in them.

    Their threads' times include those of these regions, but their tasks and transfers do not.
    """
    return run.regions[run.regions["iteration"].isin(run.regions["parent"])]


def typical_sample(
    run: Run, case: Case, logged: pd.DataFrame | None = None
) -> pd.Series[Any] | None:
    """Return the sample of `case` that is nearest to its median, or None.

    Only samples with rows in the table `logged` count: by default that of tasks, or if there are
    none, of transfers. Those of outer regions don't: without the tasks of the inner ones, they
    would seem idle.
    """
    samples = run.measured
    samples = samples[(samples["case_id"] == case.id) & (samples["layer"] == "workload")]
    samples = samples[~samples["iteration"].isin(outer_regions(run)["iteration"])]
    keys = ["case_id", "launch", "iteration"]
    if logged is None:
        logged = run.transfers if run.tasks.empty else run.tasks
    logged = logged.loc[logged["case_id"] == case.id, keys]
    samples = samples.merge(logged.drop_duplicates(), on=keys)
    if samples.empty:
        return None
    medians = run.summaries.drop_duplicates("case_id").set_index("case_id")["median_s"]
    return samples.loc[(samples["seconds"] - medians[case.id]).abs().idxmin()]


def iteration_rows(sample: pd.Series[Any], table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `table` that belong to the iteration of a sample."""
    here = (table["launch"] == sample["launch"]) & (table["iteration"] == sample["iteration"])
    return table[here & (table["case_id"] == sample["case_id"])]


def n_warmup(seconds: np.ndarray[Any, Any]) -> int:
    """Return how many of the first samples of a launch are warm-up.

    Parameters
    ----------
    seconds
        Shape (n,), in the order of measurement. Fewer than four windows have no warm-up.

    Examples
    --------
    >>> steady = np.tile([1.0, 1.01, 1.02], 40)
    >>> n_warmup(steady), n_warmup(np.concatenate([steady[:18] * 3, steady]))
    (0, 20)
    """
    half = len(seconds) // 2
    window = max(_WINDOW, len(seconds) // 20)
    if half < 2 * window:
        return 0
    late = seconds[half:]
    limit = (1 + _FLOOR) * np.median(late)
    # The last one may be shorter; tests of one or two samples never give such a p.
    for begin in range(0, half - 2, window):
        early = seconds[begin : min(begin + window, half)]
        if np.median(early) <= limit or inference.larger(early, late) > _ALPHA:
            return begin
    return 0


def _warmup_mask(samples: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of the `samples` that are warm-up, with their index."""
    flags = pd.Series(data=False, index=samples.index)
    ordered = samples.sort_values("iteration", kind="stable")
    seconds = ordered["seconds"].to_numpy()
    for rows in ordered.groupby([*GROUP, "launch"], sort=False).indices.values():
        if n := n_warmup(seconds[rows]):
            flags.loc[ordered.index[rows[:n]]] = True
    return flags


def good_launches(run: Run) -> dict[str, list[int]]:
    """Return the successful launches per case id; cases without any are missing."""
    ends = run.ends[run.ends["ok"].astype(bool)]
    return {str(case_id): list(group) for case_id, group in ends.groupby("case_id")["launch"]}


def in_suite_order(table: pd.DataFrame, run: Run, then: list[str] | None = None) -> pd.DataFrame:
    """Return `table` sorted by its cases' order in the suite, then by the columns `then`."""
    order = {case.id: number for number, case in enumerate(run.suite.cases)}
    keys = [name for name in (then or ["layer", "payload_bytes", "launch"]) if name in table]
    return (
        # A mapped categorical would sort by its categories.
        table.assign(_case_number=table["case_id"].map(order).astype(float))
        .sort_values(["_case_number", *keys], kind="stable")
        .drop(columns="_case_number")
        .reset_index(drop=True)
    )


def case_labels(run: Run) -> dict[str, str]:
    """Return per case id the workload and the settings that differ between its cases.

    Cases that are compared have the same label.
    """
    cases = run.suite.cases
    settings = {case.id: _settings(case, case.common_cluster) for case in cases}
    labels = {}
    for case in cases:
        peers = [settings[peer.id] for peer in cases if peer.workload == case.workload]
        apart = ", ".join(
            f"{key}={_text(value) or 'none'}"
            for key, value in settings[case.id].items()
            if any(_text(peer.get(key)) != _text(value) for peer in peers)
        )
        peer = case.peer
        name = f"{case.workload} with {peer}" if peer else case.workload
        labels[case.id] = f"{name} ({apart})" if apart else name
    return labels


def describe_settings(case: Case) -> str:
    """Describe a case in one line, without its workload, backend, layers and sizes.

    ``case_labels`` is shorter, but only distinguishes the cases of one run.

    Examples
    --------
    >>> params = {"sizes": (1, 8), "pairs": 2}
    >>> describe_settings(Case(workload="pingpong", backend="tcp", params=params))
    'pairs=2, workers=2, threads=1, device=cpu, launcher=local, iterations=3, warmups=1'
    """
    settings = {
        **_settings(case, case.cluster),
        "iterations": case.iterations,
        "warmups": case.warmups,
    }
    # A function of a module is to be compared with its other versions.
    left_out = (*_SWEPT, *["sha256"] * (":" in case.workload))
    return ", ".join(
        f"{key}={_text(value)}"
        for key, value in settings.items()
        if key not in left_out and _text(value)
    )


def _settings(case: Case, cluster: ClusterSpec) -> dict[str, Any]:
    params = {name: case.params[name] for name in case.params if name not in case.later_params}
    return {**params, **cluster.labels()}


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
