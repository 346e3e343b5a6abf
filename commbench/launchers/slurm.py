"""``slurm``: workers as jobs of Slurm, by ``sbatch``."""

from __future__ import annotations

from pathlib import Path

from commbench.launchers.jobqueue import JobLauncher


class SlurmLauncher(JobLauncher):
    """Submit the workers to Slurm."""

    name = "slurm"
    job_class = "dask_jobqueue.slurm:SLURMJob"
    status_command = "squeue"

    def log_directives(self, logs: Path) -> list[str]:  # noqa: D102
        return [f"-o {logs}/job-%j.log"]
