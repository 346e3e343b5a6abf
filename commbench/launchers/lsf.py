"""``lsf``: workers as jobs of LSF, by ``bsub``."""

from __future__ import annotations

from pathlib import Path

from commbench.launchers.jobqueue import JobLauncher


class LsfLauncher(JobLauncher):
    """Submit the workers to LSF."""

    name = "lsf"
    job_class = "dask_jobqueue.lsf:LSFJob"
    status_command = "bjobs -p"

    def log_directives(self, logs: Path) -> list[str]:  # noqa: D102
        return [f"-o {logs}/job-%J.log"]
