"""``pbs``: workers as jobs of PBS and Torque, by ``qsub``."""

from __future__ import annotations

from pathlib import Path

from commbench.launchers.jobqueue import JobLauncher


class PbsLauncher(JobLauncher):
    """Submit the workers to PBS and Torque."""

    name = "pbs"
    job_class = "dask_jobqueue.pbs:PBSJob"
    status_command = "qstat -s"

    def log_directives(self, logs: Path) -> list[str]:  # noqa: D102
        return ["-j oe", f"-o {logs}/"]
