"""The figures of a run, drawn once for the files next to its records and for the HTML report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from matplotlib.figure import Figure

from commbench.analysis.run import Run
from commbench.errors import ResultsError
from commbench.model import registry
from commbench.reports.figures import style


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
    """
    plot: Figure | None = registry.load("plot", name)(run)
    return plot


_drawn: WeakKeyDictionary[Run, tuple[Drawing, ...]] = WeakKeyDictionary()


def drawn(run: Run) -> tuple[Drawing, ...]:
    """Return the run's figures by all installed plots; they are drawn once and cached."""
    if run not in _drawn:
        _drawn[run] = tuple(_draw(run))
    return _drawn[run]


def _draw(run: Run) -> Iterator[Drawing]:
    for name in registry.names("plot"):
        try:
            figure = registry.load("plot", name)(run)
            if figure is None:
                continue
            drawing = Drawing(name, figure)
            drawing.svg  # noqa: B018 - raises if the figure can't be saved
        except ResultsError:
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in's figure must not cost the report
            drawing = Drawing(name, Figure(), f"the figure {name} could not be drawn: {error!r}")
        yield drawing
