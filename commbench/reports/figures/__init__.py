"""The figures of a run, drawn once for the files next to its records and for the HTML report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib.figure import Figure

from commbench.analysis.run import Run
from commbench.errors import ResultsError, UsageError
from commbench.model import registry
from commbench.reports.figures import style
from commbench.reports.sections import sections


@dataclass(frozen=True)
class Drawing:
    """A figure, or the ``problem`` with drawing it."""

    name: str
    figure: Figure
    problem: str = ""

    @cached_property
    def svg(self) -> bytes:
        """The image as SVG."""
        return style.encoded(self.figure, "svg")

    @cached_property
    def png(self) -> bytes:
        """The image as PNG."""
        return style.encoded(self.figure, "png")

    @property
    def words(self) -> str:
        """The title and the caption, for screen readers."""
        said = (self.figure.get_suptitle(), self.figure.get_supxlabel())
        return " ".join(" ".join(said).split()) or self.name


def figure(run: Run, name: str) -> Figure | None:
    """Return a figure of a run, or None if the run has no data for it.

    Parameters
    ----------
    run
        A run, as ``commbench.load`` returns it.
    name
        One of the plots of ``commbench list``, for example ``"pair-bandwidth"``.

    Raises
    ------
    UnknownNameError
        If no plot has that name; the message lists all.
    UsageError
        If it is no run.
    """
    if not isinstance(run, Run):
        raise UsageError(f"figure takes a run, as commbench.load returns it, and a name: {run!r}")
    plot: Figure | None = registry.load("plot", name)(run)
    return plot


def drawn(run: Run) -> list[Drawing]:
    """Return the run's figures by all installed plots; they are drawn once and cached."""
    # In its dictionary, which is cleared when the files of the run are read again.
    cache: dict[str, Any] = vars(run)
    if "drawn" not in cache:
        cache["drawn"] = list(filter(None, (_draw(run, name) for name in registry.names("plot"))))
    drawings: list[Drawing] = cache["drawn"]
    return drawings


def drawn_narrow(run: Run, name: str) -> Drawing | None:
    """Return a figure of the run, drawn for a narrow screen."""
    with style.narrow():
        return _draw(run, name)


def first_drawn(run: Run) -> Drawing | None:
    """Return the first figure of the report, without drawing the others."""
    installed = registry.names("plot")
    names = (name for each in sections() for name in each.figures if name in installed)
    drawings = (_draw(run, name) for name in names)
    return next((each for each in drawings if each and not each.problem), None)


def _draw(run: Run, name: str) -> Drawing | None:
    try:
        if (shown := figure(run, name)) is None:
            return None
        drawing = Drawing(name, shown)
        drawing.svg  # noqa: B018 - raises if the figure can't be saved
        return drawing
    except ResultsError:
        raise
    except Exception as error:  # noqa: BLE001 - a plug-in's figure must not cost the report
        return Drawing(name, Figure(), f"the figure {name} could not be drawn: {error!r}")
