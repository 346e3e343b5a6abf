"""``csv``: one row per case and message size, in base units."""

from __future__ import annotations

import json

from commbench.analysis.run import Run


def render(run: Run) -> str:
    """Return the summaries as comma-separated values with a header, parameters as JSON."""
    cases = [run.cases[case_id] for case_id in run.costs["case_id"]]
    table = run.costs.assign(
        params=[json.dumps(dict(case.params)) for case in cases],
        n_workers=[case.cluster.n_workers for case in cases],
        threads_per_worker=[case.cluster.threads_per_worker for case in cases],
        device=[case.cluster.device for case in cases],
    )
    return str(table.to_csv(index=False, lineterminator="\n"))
