"""Which records count, and in which order they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData


def measured(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples that count: verified, and no warm-up."""
    return samples[~samples["warmup"].astype(bool) & samples["verified"].astype(bool)]


def in_suite_order(
    table: pd.DataFrame, run: RunData, then: list[str] | None = None
) -> pd.DataFrame:
    """Return `table` sorted by its cases' order in the suite, then by the columns `then`."""
    order = {case.id: place for place, case in enumerate(run.run.suite.cases)}
    keys = [name for name in (then or ["layer", "payload_bytes", "launch"]) if name in table]
    return (
        table.assign(_place=table["case_id"].map(order))
        .sort_values(["_place", *keys], kind="stable")
        .drop(columns="_place")
        .reset_index(drop=True)
    )
