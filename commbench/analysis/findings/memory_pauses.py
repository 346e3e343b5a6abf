"""Workers that pause because their memory is full."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commbench.analysis.findings import CaseRecords, Rule, preparation, scheduler, small_messages
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers were paused in measured iterations."""
    paused = case.measured_rows("spills")
    paused = paused[paused["paused_seconds"] > 0]
    if paused.empty:
        return
    keys = ["launch", "iteration"]
    total_s: pd.Series[float] = paused.groupby(keys)["paused_seconds"].sum()
    longest_s: pd.Series[float] = paused.groupby(keys)["paused_seconds"].max()
    mean, most = (
        (seconds.reindex(case.wall_s.index, fill_value=0.0) / case.wall_s).clip(upper=1.0)
        for seconds in (total_s / case.n_workers, longest_s)
    )
    # Tasks that run go on, so that only threads without one lose time.
    unused = [case.share("data_s", "idle_s", how=how) for how in ("mean", "max")]
    # Rules that advise larger ones.
    larger = (preparation.RULE, scheduler.RULE, small_messages.RULE)
    yield Finding(
        statement=f"workers begin no task {mean.median():.0%} of the time, because their memory "
        "is full",
        evidence="spills: paused_seconds",
        effect=case.effect(np.minimum(mean, unused[0]), np.minimum(most, unused[1])),
        remedy="make smaller pieces, or " * (not any(map(case.findings, larger)))
        + "take fewer workers or threads with the same memory in all",
        doubt="memory that the allocator keeps counts, too: see MALLOC_TRIM_THRESHOLD_ in Dask's "
        "documentation",
    )


RULE = Rule(title="workers pause", limit="5 % of the time", find=find)
