"""commbench: benchmarks and profiles communication in Dask.

``commbench.load(run)`` reads the results that ``commbench run`` left behind, and
``commbench.figure(run, name)`` draws them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commbench.analysis.run import Run

__all__ = ["figure", "load"]
__version__ = "0.1.0.dev0"


def load(run: str | Path) -> Run:
    """Return a run: its records as pandas frames, and what is computed of them.

    Files are read when they are first needed.

    Parameters
    ----------
    run
        The run's directory, as ``commbench run`` prints it in its last line.

    Raises
    ------
    ResultsError
        Where the directory holds no run, or one of another schema version; later, where a file
        of it can't be read.
    """
    from commbench.analysis.run import Run

    return Run.read(Path(run))


def figure(run: Run, name: str) -> Figure | None:
    """Return a figure of a run, or None where the run has nothing to show in it.

    Parameters
    ----------
    run
        What ``load`` returned.
    name
        One of the plots that ``commbench list`` names, for example ``"pair-bandwidth"``.

    Raises
    ------
    UnknownNameError
        Where no plot has that name; it lists those that there are.
    """
    from commbench.model import registry

    drawn: Figure | None = registry.load("plot", name)(run)
    return drawn
