"""What a reader must know of clusters that commbench did not start, but found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commbench.analysis.disturbances import COMPRESSION
from commbench.model import GPU_MEMORY

if TYPE_CHECKING:
    from commbench.analysis.run import Run


def find(run: Run) -> Iterator[str]:
    """Yield one warning per case that was measured on a running cluster."""
    settings = run.settings[~run.settings["name"].isin((COMPRESSION, GPU_MEMORY))]
    measured = set(run.samples["case_id"])
    for case in run.suite.cases:
        if not case.cluster.scheduler or case.id not in measured:
            continue
        own = settings[settings["case_id"] == case.id][["name", "value"]].drop_duplicates()
        told = ", ".join(f"{row.name}={row.value}" for row in own.itertuples(index=False))
        found = f"; settings of UCX found on its workers: {told}" if told else ""
        yield (
            f"{run.case_labels[case.id]} over {case.backend}: all launches measured one running "
            f"cluster ({case.cluster.scheduler}), not fresh ones: what differs from one start to "
            f"the next is in no interval and no test, and its settings are as found{found}"
        )
