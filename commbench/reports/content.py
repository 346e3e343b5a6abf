"""What every report says, whatever its format: the run, its summaries and the warnings first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from commbench import stats
from commbench.model import Comparison
from commbench.reports import warnings

if TYPE_CHECKING:
    import pandas as pd

    from commbench.reports.figures import Drawing
    from commbench.store import RunData


@dataclass(frozen=True)
class Content:
    """A run with everything that is derived from it, computed once.

    ``summaries`` has the columns of ``stats.summaries`` and, per row, ``cpu_s_per_GB`` (CPU
    seconds of a sample over the bytes that it moved between processes) and ``idle_cores``.
    ``tasks`` names by case id what was measured, whatever the backend.
    """

    data: RunData
    tasks: Mapping[str, str]
    summaries: pd.DataFrame
    comparisons: list[Comparison]
    pair_bandwidths: stats.PairBandwidths
    slow_pairs: pd.DataFrame
    coverage: pd.DataFrame
    transports: pd.DataFrame
    profiles: pd.DataFrame
    warnings: tuple[str, ...]

    @property
    def pairs(self) -> pd.DataFrame:
        """What ``stats.pairs`` returns, its texts as categoricals."""
        return self.pair_bandwidths.table

    @cached_property
    def link_bandwidths(self) -> pd.DataFrame:
        """What ``stats.link_bandwidths`` makes of the pairs."""
        return stats.link_bandwidths(self.data, self.pair_bandwidths)

    @property
    def places(self) -> pd.DataFrame:
        """Where each worker was, in the first launch in which it was there."""
        kept = [name for name in self.data.places if name not in ("launch", "pid")]
        return self.data.places.drop_duplicates(kept)

    @cached_property
    def figures(self) -> tuple[Drawing, ...]:
        """The figures that the run has data for, drawn when they are first asked for."""
        from commbench.reports import figures

        return tuple(figures.draw(self.data))


def build(data: RunData) -> Content:
    """Derive everything that reports show from the records of a run."""
    tasks, coverage = stats.tasks(data), stats.coverage(data)
    pair_bandwidths = stats.pair_bandwidths(data)
    pairs = pair_bandwidths.table
    slow_pairs = stats.slow_pairs(pairs, data)
    summaries = _with_costs(data, stats.summaries(data), coverage)
    transports = data.transports.drop_duplicates(
        ["case_id", "src", "dst", "transport", "contradiction"]
    )
    return Content(
        data=data,
        tasks=tasks,
        summaries=summaries,
        comparisons=stats.comparisons(data),
        pair_bandwidths=pair_bandwidths,
        slow_pairs=slow_pairs,
        coverage=coverage,
        transports=transports,
        profiles=stats.profile_shares(stats.worker_profiles(data), data),
        warnings=tuple(
            warnings.find(data, tasks, summaries, pairs, slow_pairs, coverage, transports)
        ),
    )


def _with_costs(data: RunData, summaries: pd.DataFrame, coverage: pd.DataFrame) -> pd.DataFrame:
    idle = stats.idle_cores(data).set_index("case_id")["idle_cores"]
    # The bytes of iterations that were found to be warm-up were counted, too.
    n_iterations = (summaries["n_samples"] + summaries["n_warmup"]).groupby(summaries["case_id"])
    moved = summaries["payload_bytes"] * 1.0
    wire = coverage.set_index("case_id")["wire_bytes"] / n_iterations.sum()
    on_cluster = summaries["layer"] == "workload"
    moved = moved.where(~on_cluster, summaries["case_id"].map(wire))
    cost = summaries["cpu_s"] / (moved / 1e9)
    return summaries.assign(
        cpu_s_per_GB=cost.where(moved > 0), idle_cores=summaries["case_id"].map(idle)
    )
