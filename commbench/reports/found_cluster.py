"""What a reader must know of clusters that commbench did not start, but found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from commbench.model import GPU_MEMORY
from commbench.reports.disturbances import COMPRESSION

if TYPE_CHECKING:
    from commbench.store import RunData

EXTERNAL = "external"


def find(data: RunData, tasks: Mapping[str, str]) -> Iterator[str]:
    """Yield one warning per case that was measured on a running cluster."""
    settings = data.settings[~data.settings["name"].isin((COMPRESSION, GPU_MEMORY))]
    measured = set(data.samples["case_id"])
    for case in data.run.suite.cases:
        if case.cluster.launcher != EXTERNAL or case.id not in measured:
            continue
        own = settings[settings["case_id"] == case.id][["name", "value"]].drop_duplicates()
        told = ", ".join(f"{row.name}={row.value}" for row in own.itertuples(index=False))
        found = f"; settings of UCX found on its workers: {told}" if told else ""
        yield (
            f"{tasks[case.id]} over {case.backend}: all launches measured one running cluster "
            f"({case.cluster.scheduler}), not fresh ones: what differs from one start to the next "
            f"is in no interval and no test, and its settings are as found{found}"
        )
