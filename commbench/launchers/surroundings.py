"""What of this process's environment goes along to processes that don't inherit it.

SSH hands nothing on, and job queues what their sites have chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from commbench.machine import process

_PREFIXES = (
    "DASK_", "COMMBENCH_", "CUDA_", "RAPIDS_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_",
)  # fmt: skip
_NAMES = ("PYTHONPATH", "LD_LIBRARY_PATH")
_OF_THIS_HOST = ("COMMBENCH_RECORDS_FD", "COMMBENCH_SCRATCH", "DASK_INTERNAL_INHERIT_CONFIG")


def handed_on(
    environ: Mapping[str, str], env: Mapping[str, str], defaults: Mapping[str, str],
    own: tuple[str, ...] = (),
) -> dict[str, str]:  # fmt: skip
    """Return the variables that the processes of a cluster are to have wherever they run.

    Those of Dask, commbench and libraries that compute, those that the backend names, and where
    libraries are found.

    Parameters
    ----------
    environ
        The environment of the launch: what the user, the backend and the case set.
    env
        What the case has set in it, to go along whatever its name.
    defaults
        What is set where nothing else does it.
    own
        What the names of variables begin with that the launcher's own libraries read.
    """
    prefixes = (*_PREFIXES, *own, *filter(None, environ.get(process.FORWARDED, "").split(",")))
    chosen = {
        name: value
        for name, value in environ.items()
        if (name.startswith(prefixes) or name in _NAMES) and name not in _OF_THIS_HOST
    }
    return {**defaults, **chosen, **{name: environ.get(name, env[name]) for name in env}}


def without_paths_in(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` but those that name something in `folder`, which other hosts lack."""
    return {name: value for name, value in variables.items() if str(folder) not in value}
