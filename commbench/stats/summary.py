"""Medians and their intervals.

The launch is the unit of replication: samples of one launch share a cluster, its memory layout
and its period of time, so they are not independent. Medians are taken within each launch first;
the interval is that of the launches' medians.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commbench.stats import grouping
from commbench.stats.inference import launches_interval
from commbench.stats.selection import GROUP, good_launches, in_suite_order, outer_regions
from commbench.stats.stability import modes

if TYPE_CHECKING:
    from commbench.analysis.run import Run


_COLUMNS = (
    "workload", "backend", "case_id", "layer", "payload_bytes", "n_launches", "n_samples",
    "n_warmup", "median_s", "ci_low_s", "ci_high_s", "confidence", "low_mode_s", "high_mode_s",
    "low_mode_share", "min_s", "p5_s", "p25_s", "p75_s", "p95_s", "p99_s", "max_s", "cpu_s",
    "build_s", "submit_s", "throughput_Bps",
)  # fmt: skip


def launch_medians(run: Run) -> pd.DataFrame:
    """Return the median of every launch's measured samples.

    Returns
    -------
    DataFrame
        Columns case_id, workload, backend, layer, payload_bytes, launch, median_s, in the
        order of the suite's cases.
    """
    grouped = run.measured.groupby([*GROUP, "workload", "backend", "launch"], sort=True)
    medians = grouped["seconds"].median().rename("median_s").reset_index()
    return in_suite_order(medians, run)


def summaries(run: Run) -> pd.DataFrame:
    """Return a summary of the samples of each case, layer and payload size.

    Returns
    -------
    DataFrame
        One row per summary, in the order of the suite's cases, with the columns ``_COLUMNS``. Only
        the ``n_launches`` successful launches count; if it is 0, the samples are of launches that
        were cut short. ``median_s`` is the median over launches of each launch's median. The
        interval contains the true median with probability ``confidence`` (nan, nan and 0 for one
        launch). If the launches split into two modes, ``low_mode_s`` and ``high_mode_s`` are
        theirs, and ``low_mode_share`` of the launches are in the faster one; else they are nan. The
        percentiles are over all measured samples, without ``n_warmup`` that were detected as
        warm-up, and nan unless a sample is expected beyond them (p99: 100 samples). ``cpu_s`` is
        nan if it was not measured, ``throughput_Bps`` (payload / median) without bytes or time.
    """
    good, n_timed = good_launches(run), run.timed.groupby(GROUP).size()
    medians = dict(iter(run.launch_medians.groupby(GROUP)["median_s"]))
    rows = [
        _summarize(key, group, medians[key], len(good.get(key[0], ())), int(n_timed[key]))
        for key, group in run.measured.groupby(GROUP)
    ]
    return in_suite_order(pd.DataFrame(rows, columns=list(_COLUMNS)), run)


def _summarize(
    key: tuple[str, str, int], samples: pd.DataFrame, medians: pd.Series[float], n_good: int,
    n_timed: int,
) -> dict[str, Any]:  # fmt: skip
    case_id, layer, payload_bytes = key
    low, high, level = launches_interval(medians.tolist() if n_good else [])
    seconds = samples["seconds"].to_numpy()
    low_mode, high_mode, share = (n_good and modes(medians.to_numpy())) or (math.nan,) * 3
    shares = [0.05, 0.25, 0.75, 0.95, 0.99]
    quantiles = np.quantile(seconds, shares)
    quantiles[~grouping.are_within(shares, len(seconds))] = math.nan
    p5, p25, p75, p95, p99 = quantiles.tolist()
    median_s = float(medians.median())
    known = payload_bytes > 0 and median_s > 0
    return {
        "workload": samples["workload"].iloc[0], "backend": samples["backend"].iloc[0],
        "case_id": case_id, "layer": layer, "payload_bytes": int(payload_bytes),
        "n_launches": len(medians) if n_good else 0, "n_samples": len(seconds),
        "n_warmup": n_timed - len(seconds), "median_s": median_s, "ci_low_s": low,
        "ci_high_s": high, "confidence": level, "low_mode_s": low_mode, "high_mode_s": high_mode,
        "low_mode_share": share, "min_s": float(seconds.min()), "p5_s": p5, "p25_s": p25,
        "p75_s": p75, "p95_s": p95, "p99_s": p99, "max_s": float(seconds.max()),
        "cpu_s": float(samples["cpu_seconds"][samples["cpu_seconds"] > 0].median()),
        "build_s": float(samples["build_seconds"].median()),
        "submit_s": float(samples["submit_seconds"].median()),
        "throughput_Bps": payload_bytes / median_s if known else math.nan,
    }  # fmt: skip


def idle_cores(run: Run) -> pd.DataFrame:
    """Return the cores that an idle cluster uses, per case: the median over launches."""
    seconds = run.idle["seconds"].where(run.idle["seconds"] > 0)
    table = run.idle.assign(idle_cores=run.idle["cpu_seconds"] / seconds)
    grouped = table.groupby(["case_id", "workload", "backend"])
    medians = grouped[["idle_cores", "n_processes"]].median().reset_index()
    return in_suite_order(medians, run)


def costs(run: Run) -> pd.DataFrame:
    """Return the summaries with their cost in CPU time.

    Returns
    -------
    DataFrame
        The table of ``summaries`` with ``moved_bytes``, those that a sample moved between
        processes, ``cpu_s_per_GB``, its CPU seconds per gigabyte of these, and ``idle_cores``.
    """
    summaries = run.summaries
    idle = run.idle_cores.set_index("case_id")["idle_cores"]
    on_cluster = summaries["layer"] == "workload"
    on_wire = summaries["case_id"].map(run.moved_bytes)
    moved = (summaries["payload_bytes"] * 1.0).where(~on_cluster, on_wire)
    # The bytes of regions with others in them are not all of those that the CPU time was for.
    outer = summaries["case_id"].isin(outer_regions(run)["case_id"])
    cost = summaries["cpu_s"] / (moved / 1e9).mask(outer)
    return summaries.assign(
        moved_bytes=moved,
        cpu_s_per_GB=cost.where(moved > 0),
        idle_cores=summaries["case_id"].map(idle),
    )
