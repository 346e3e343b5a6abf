"""``csv``: one row per case and message size, in base units."""

from __future__ import annotations

import json

import pandas as pd

from commbench.analysis.run import Run
from commbench.model import FETCHES, LAYERS


def render(run: Run) -> str:
    """Return the summaries as comma-separated values with a header, parameters as JSON."""
    cases = [run.cases[case_id] for case_id in run.costs["case_id"]]
    keys = run.costs[["case_id", "layer", "payload_bytes"]].itertuples(index=False)
    sizes = [run.message_bytes(*key) if key[1] in (*LAYERS, *FETCHES) else None for key in keys]
    table = run.costs.assign(
        given_backend=[case.backend for case in cases],
        message_bytes=pd.array(sizes, dtype="Int64"),
        params=[json.dumps(dict(case.params)) for case in cases],
        n_workers=[case.cluster.n_workers for case in cases],
        threads_per_worker=[case.cluster.threads_per_worker for case in cases],
        device=[case.cluster.device for case in cases],
    )
    return str(table.to_csv(index=False, lineterminator="\n"))
