"""Medians, their intervals, and what two of them say of each other.

The launch is the unit of replication: samples of one launch share a cluster, its memory layout
and its place in time, so they are not independent. Medians are taken within each launch first;
the interval is that of the launches' medians.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commbench.model import Case, Comparison, Summary
from commbench.stats.selection import good_launches, in_suite_order, measured

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData

CONFIDENCE = 0.95
_GROUP = ["case_id", "layer", "payload_bytes"]


def median_interval(n: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """Return the order statistics that enclose a median of `n` independent values.

    Returns
    -------
    (k, level)
        With the values sorted, the interval from the k-th smallest to the k-th largest
        (k from 1) holds the median of the distribution, whatever its shape, with probability
        `level`: the narrowest that reaches `confidence`, or else the widest that there is.

    Notes
    -----
    ``level = 1 - 2 P(B < k)`` with B binomial (n, 1/2); see H. A. David and H. N. Nagaraja,
    Order Statistics, 3rd ed., section 7.1.

    Examples
    --------
    >>> median_interval(6), median_interval(3)
    ((1, 0.96875), (1, 0.75))
    """
    from scipy.stats import binom

    k = 1
    while k + 1 <= n // 2 and 1 - 2 * binom.cdf(k, n, 0.5) >= confidence:
        k += 1
    return k, max(0.0, float(1 - 2 * binom.cdf(k - 1, n, 0.5)))


def launch_medians(run: RunData) -> pd.DataFrame:
    """Return the median of every launch's measured samples.

    Returns
    -------
    DataFrame
        Columns case_id, workload, backend, layer, payload_bytes, launch, median_s, in the
        order of the suite's cases.
    """
    samples = measured(run)
    grouped = samples.groupby([*_GROUP, "workload", "backend", "launch"], sort=True)
    medians = grouped["seconds"].median().rename("median_s").reset_index()
    return in_suite_order(medians, run)


def summaries(run: RunData) -> pd.DataFrame:
    """Return one row per case, layer and payload size: ``Summary``'s fields, with the names.

    Returns
    -------
    DataFrame
        The fields of ``Summary``, ``throughput_Bps``, ``workload`` and ``backend``, in the order
        of the suite's cases.
    """
    import pandas as pd

    medians, good = launch_medians(run), good_launches(run)
    rows = []
    for (case_id, layer, payload_bytes), group in measured(run).groupby(_GROUP):
        here = (
            (medians.case_id == case_id)
            & (medians.layer == layer)
            & (medians.payload_bytes == payload_bytes)
        )
        n_good = len(good.get(case_id, ()))
        summary = _summarize(case_id, layer, payload_bytes, group, medians[here].median_s, n_good)
        names = {"workload": group.workload.iloc[0], "backend": group.backend.iloc[0]}
        rows.append({**names, **vars(summary), "throughput_Bps": summary.throughput_Bps})
    columns = ["workload", "backend", *Summary.__dataclass_fields__, "throughput_Bps"]
    return in_suite_order(pd.DataFrame(rows, columns=columns), run)


def _summarize(
    case_id: str, layer: str, payload_bytes: int, samples: pd.DataFrame,
    medians: pd.Series[float], n_good: int,
) -> Summary:  # fmt: skip
    import numpy as np

    sorted_medians = np.sort(medians.to_numpy())
    k, level = median_interval(len(sorted_medians)) if n_good else (1, 0.0)
    seconds = samples["seconds"].to_numpy()
    p5, p25, p75, p95, p99 = np.quantile(seconds, [0.05, 0.25, 0.75, 0.95, 0.99]).tolist()
    return Summary(
        case_id=case_id,
        layer=layer,
        payload_bytes=int(payload_bytes),
        n_launches=len(sorted_medians) if n_good else 0,
        n_samples=len(seconds),
        median_s=float(np.median(sorted_medians)),
        ci_low_s=float(sorted_medians[k - 1]) if level else float("nan"),
        ci_high_s=float(sorted_medians[-k]) if level else float("nan"),
        confidence=level,
        min_s=float(seconds.min()),
        p5_s=p5, p25_s=p25, p75_s=p75, p95_s=p95, p99_s=p99,
        max_s=float(seconds.max()),
        cpu_s=float(samples["cpu_seconds"].where(samples["cpu_seconds"] > 0).median()),
        build_s=float(samples["build_seconds"].median()),
        submit_s=float(samples["submit_seconds"].median()),
    )  # fmt: skip


def comparisons(run: RunData) -> list[Comparison]:
    """Compare every backend of a task with the first one of the suite that has samples of it.

    The interval of the ratio is the widest that the two medians' intervals allow, and there is a
    verdict only where both reach the confidence that ``median_interval`` aims at.
    """
    table = summaries(run)
    groups: dict[Any, list[Any]] = {}
    cases = {case.id: case for case in run.run.suite.cases}
    for row in table.itertuples():
        groups.setdefault((_task(cases[row.case_id]), row.layer, row.payload_bytes), []).append(row)
    found = []
    for (_, layer, payload_bytes), (baseline, *candidates) in groups.items():
        for candidate in candidates:
            low = _ratio(candidate.ci_low_s, baseline.ci_high_s)
            high = _ratio(candidate.ci_high_s, baseline.ci_low_s)
            sure = min(candidate.confidence, baseline.confidence) >= CONFIDENCE
            verdict = "faster" if high < 1 else "slower" if low > 1 else "inconclusive"
            found.append(
                Comparison(
                    workload=candidate.workload,
                    layer=layer,
                    payload_bytes=payload_bytes,
                    baseline=baseline.backend,
                    candidate=candidate.backend,
                    baseline_id=baseline.case_id,
                    candidate_id=candidate.case_id,
                    ratio=_ratio(candidate.median_s, baseline.median_s),
                    ci_low=low,
                    ci_high=high,
                    verdict=verdict if sure else "inconclusive",
                )
            )
    return found


def _ratio(candidate: float, baseline: float) -> float:
    return candidate / baseline if baseline > 0 else float("nan")


def _task(case: Case) -> Any:
    # What two cases must share to be compared: everything but the backend.
    return (case.workload, repr(sorted(case.params.items())), repr(case.cluster))


def idle_cores(run: RunData) -> pd.DataFrame:
    """Return the cores that an idle cluster burns, per case: the median over launches."""
    seconds = run.idle["seconds"].where(run.idle["seconds"] > 0)
    table = run.idle.assign(idle_cores=run.idle["cpu_seconds"] / seconds)
    grouped = table.groupby(["case_id", "workload", "backend"])
    medians = grouped[["idle_cores", "n_processes"]].median().reset_index()
    return in_suite_order(medians, run)
