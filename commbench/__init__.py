"""commbench: benchmarks and profiles communication in Dask.

``commbench.load(run)`` reads the results that ``commbench run`` left behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commbench.store import RunData

__all__ = ["load"]
__version__ = "0.1.0.dev0"


def load(run: str | Path) -> RunData:
    """Return the records of a run as pandas frames.

    Parameters
    ----------
    run
        The run's directory, as ``commbench run`` prints it in its last line.

    Raises
    ------
    ResultsError
        Where the directory holds no run, or one of another schema version.
    """
    from commbench.store import RunData

    return RunData.read(Path(run))
