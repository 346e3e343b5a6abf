"""The sections of a report: what a section and a table are, those installed, and texts of cells."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.analysis.run import Run
from commbench.errors import ResultsError
from commbench.model import Manifest, registry
from commbench.model.units import format_message_size

if TYPE_CHECKING:
    import pandas as pd

CHANNELS = {
    "gather": ("", "From the receivers' transfer logs"),
    "alone": (", one at a time", "The largest blocks of all-to-all, nothing else under way"),
    "together": (", all at once", "The largest blocks of all-to-all, all pairs fetching"),
}
"""Of fetches by channel: what follows a title, and where the numbers come from."""
REST = "The format json has all."
"""What follows the note of a table that was cut."""


@dataclass(frozen=True)
class Table:
    """A titled table of text; the first column is aligned left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: frozenset[str] = frozenset()
    """Columns of prose: aligned left, and wrapped where the page is narrow."""

    @classmethod
    def of_columns(
        cls, title: str, columns: Mapping[str, Iterable[str]], note: str = "",
        text_columns: Iterable[str] = (),
    ) -> Table:  # fmt: skip
        """Return a table of `columns`, by their titles."""
        rows = tuple(zip(*columns.values(), strict=True))
        return cls(title, tuple(columns), rows, note, frozenset(text_columns))

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the columns, each on one line and without hyphens within words."""
        return tuple(name.replace("-\n", "").replace("\n", " ") for name in self.columns)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One subject of a report: an entry point in the group ``commbench.sections``.

    Parameters
    ----------
    title
        What the HTML page calls it.
    position
        Sections stand in the order of this: commbench's own at 10, 20, … 100, the answer first.
    tables
        Returns the tables of a run; none where it has no data for the section.
    page_tables
        Returns the tables of the HTML page, where the reader can sort them, if they are others.
    page_matrices
        Returns the matrices of pairs that stand before them there.
    figures
        The names of the figures that follow them there.
    """

    title: str
    position: int
    tables: Callable[[Run], Iterable[Table]]
    page_tables: Callable[[Run], Iterable[Table]] | None = None
    page_matrices: Callable[[Run], Iterable[Any]] = lambda _run: ()
    figures: tuple[str, ...] = ()


def sections() -> list[Section]:
    """Return the sections that are installed, the answer first."""
    installed = (_load(name) for name in registry.names("section"))
    return sorted(installed, key=lambda section: (section.position, section.title))


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables that the run has data for, the answer first."""
    for section in sections():
        yield from safe_tables(section, run)


def safe_tables(section: Section, run: Run, *, page: bool = False) -> list[Table]:
    """Return the tables of a section; if that fails, one that says so.

    `page` is true for those of the HTML page.
    """
    make = section.page_tables if page and section.page_tables else section.tables
    shown: list[Table] = []
    with guarded(section.title, shown):
        made = list(make(run))
        if bad := [table for table in made if not isinstance(table, Table)]:
            raise TypeError(f"expected tables, got {bad[0]!r}")
        cells = (cell for table in made for row in table.rows for cell in row)
        if strange := [cell for cell in cells if not isinstance(cell, str)]:
            raise TypeError(f"expected text in a cell, got {strange[0]!r}")
        shown += made
    return shown


@contextmanager
def guarded(title: str, tables: list[Table]) -> Iterator[None]:
    """Add a table that says so where a section fails in the block: it must not cost the rest.

    Records that can't be read are no section's problem.
    """
    try:
        yield
    except ResultsError:
        raise
    except Exception as error:  # noqa: BLE001 - it may be a third party's
        text = f"this section could not be made: {error!r}"
        tables.append(Table(title, ("problem",), ((text,),), text_columns=frozenset({"problem"})))


def _load(name: str) -> Section:
    problems: list[Table] = []
    with guarded(name, problems):
        section = registry.load("section", name)
        if not isinstance(section, Section):
            raise TypeError(f"expected a Section, got {section!r}")
        return section
    return Section(title=name, position=1000, tables=lambda _run: problems)


def heading(run: Run) -> str:
    """Return one line that says what was run, where and when."""
    manifest = run.manifest
    scale = manifest.suite.scale
    share = f" at {100 * scale:.3g} % of its full size" if scale < 1 else ""
    cpu = manifest.environment.get("cpu") or {}
    return (
        f"{manifest.suite.name}{share} · {started_at(manifest)} · "
        f"{cpu.get('model') or 'unknown CPU'}, {cpu.get('usable_cores') or '?'} cores"
    )


def started_at(run: Manifest) -> str:
    """Return when `run` began, to the minute."""
    return f"{run.started_at[:16].replace('T', ' ')} UTC"


def by_size(
    title: str, cells: Mapping[tuple[int, str], str], note: str, first: str = "size"
) -> Table:
    """Return a table of a row per size and a column per name, whose keys in `cells` they are."""
    columns = dict.fromkeys(name for _, name in cells)
    sizes = sorted({size for size, _ in cells})
    rows = (
        (
            quantity(format_message_size, int(size)),
            *(cells.get((size, name), "—") for name in columns),
        )
        for size in sizes
    )
    return Table(title, (first, *columns), tuple(rows), note)


class Quantity(str):
    """The text of a number, and in ``value`` the number itself, by which it can be sorted.

    Examples
    --------
    >>> Quantity("1.50 ms", 0.0015).value
    0.0015
    """

    value: float

    def __new__(cls, text: str, value: float) -> Quantity:
        """Return `text` as the text of `value`; nan where that is unknown."""
        made = super().__new__(cls, text)
        made.value = float(value)
        return made


def quantity(form: Callable[[Any], str], value: Any) -> Quantity:
    """Return `value` as `form` writes it."""
    return Quantity(form(value), value)


def quantities(form: Callable[[Any], str], values: Iterable[Any]) -> list[Quantity]:
    """Return each of `values` as `form` writes it."""
    return [quantity(form, value) for value in values]


def printable(text: str) -> str:
    """Return `text` without what would steer a terminal: a results file may come from anywhere."""
    lines = text.replace("\r\n", "\n")
    # Nor halves of characters, which no file can hold.
    return re.sub(r"[^\t\n -~\xa0-\ud7ff\ue000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", lines)


def labels(run: Run, table: pd.DataFrame) -> list[str]:
    """Return the backend of each row, and its task where the run has several."""
    if len({*run.case_labels.values()}) == 1:
        return [str(backend) for backend in table["backend"]]
    tasks = table["case_id"].map(run.case_labels)
    return [f"{task} {backend}" for task, backend in zip(tasks, table["backend"], strict=True)]


def number(value: float) -> Quantity:
    """Return three significant digits; nan is a dash."""
    digits = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    return Quantity("—" if math.isnan(value) else digits, value)


def percent(share: float) -> str:
    """Return a share in percent; nan is a dash."""
    return "—" if math.isnan(share) else f"{share:.1%}"


def counts(group: pd.DataFrame) -> str:
    """Return how many launches and samples stand behind the rows of summaries."""

    def span(column: str) -> str:
        low, high = int(group[column].min()), int(group[column].max())
        return str(low) if low == high else f"{low} to {high}"

    return f"{span('n_launches')} launches, {span('n_samples')} samples"


def warmup(group: pd.DataFrame) -> str:
    """Return a sentence on the samples that were found to be warm-up; nothing without any."""
    n_warmup, n_samples = int(group["n_warmup"].sum()), int(group["n_samples"].sum())
    if not n_warmup:
        return ""
    return (
        f" {n_warmup} of {n_warmup + n_samples} samples, at the begin of launches, were found to be"
        " warm-up and don't count."
    )
