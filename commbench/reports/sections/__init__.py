"""Sections and tables of a report, the installed sections, and the formatting of cells."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from commbench import stats
from commbench.analysis.run import Run
from commbench.backends import parse_or_none
from commbench.errors import ResultsError, UnknownNameError
from commbench.model import Manifest, registry
from commbench.model.units import format_bandwidth, format_message_size, format_seconds
from commbench.stats.links import is_elsewhere

if TYPE_CHECKING:
    from commbench.reports.html.pair_matrix import Block
    from commbench.reports.html.timeline import Timeline

CHANNELS = {
    "gather": ("", "From the receivers' transfer logs"),
    "alone": (", one at a time", "The largest blocks, nothing else under way"),
    "together": (", all at once", "The largest blocks, all pairs fetching"),
    "rounds": (", in rounds", "The largest blocks, in rounds of pairs that share no host"),
    "again": (", again alone", "Those that were slow in rounds, with nothing else under way"),
    "p2p": (", by P2P", "From the senders' logs of batches of shards"),
}
"""Per channel: the end of titles, and the source of the numbers."""
_FORMATTING = "[\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
REST = "The format json has all."
"""The end of the note of a table that does not show all rows."""


@dataclass(frozen=True)
class Table:
    """A table of text: the first column is aligned left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: frozenset[str] = frozenset()
    """Columns of prose: aligned left, and wrapped if the page is narrow."""
    figure: str = ""
    """The name of a figure that makes the table unnecessary in the opening of a page."""

    @classmethod
    def from_columns(
        cls, title: str, columns: Mapping[str, Iterable[str]], note: str = "",
        text_columns: Iterable[str] = (), figure: str = "",
    ) -> Table:  # fmt: skip
        """Return a table of these columns, given by their titles."""
        rows = tuple(zip(*columns.values(), strict=True))
        return cls(title, tuple(columns), rows, note, frozenset(text_columns), figure)

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
        The heading on the HTML page.
    position
        Sections are sorted by this number. Those of commbench have 5 to 100.
    tables
        Returns the tables of a run, none if it has no data for the section.
    page_tables
        Returns the tables of the HTML page, if they differ.
    figures
        The names of the figures of the HTML page.
    matrices, timelines
        Return the interactive matrices and time lines of the HTML page, as
        ``reports/html/pair_matrix.py`` and ``timeline.py`` define them.
    opening
        Returns lines and tables for the report's opening, which has about 35 lines in all.
    to_read, not_to_conclude
        What to read in the section's figures and tables, and what not to conclude from them, for
        readers who see them for the first time.
    """

    title: str
    position: int
    tables: Callable[[Run], Iterable[Table]]
    page_tables: Callable[[Run], Iterable[Table]] | None = None
    figures: tuple[str, ...] = ()
    matrices: Callable[[Run], Iterable[Block]] = lambda _run: ()
    timelines: Callable[[Run], Iterable[Timeline]] = lambda _run: ()
    opening: Callable[[Run], Iterable[str | Table]] = lambda _run: ()
    to_read: str = ""
    not_to_conclude: str = ""


def sections() -> list[Section]:
    """Return the installed sections in the order of their positions."""
    installed = (_load(name) for name in registry.names("section"))
    return sorted(installed, key=lambda section: (section.position, section.title))


class Reading(str):
    """Advice on how to read a figure, and what not to conclude, shown by Jupyter as Markdown."""

    def _repr_markdown_(self) -> str:
        return self


def reading(figure: str) -> Reading:
    """Return how to read the figure of this name, and conclusions that it doesn't allow.

    Raises
    ------
    UnknownNameError
        If no section has a figure of that name; the message lists all.
    """
    by_figure = {name: section for section in sections() for name in section.figures}
    if figure not in by_figure:
        raise UnknownNameError("figure", figure, sorted(by_figure))
    section = by_figure[figure]
    return Reading(
        f"**What to read.** {section.to_read}\n\n"
        f"**What not to conclude.** {section.not_to_conclude}"
    )


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables of all sections that the run has data for."""
    for section in sections():
        yield from safe_tables(section, run)


def safe_tables(section: Section, run: Run, *, page: bool = False) -> list[Table]:
    """Return the tables of a section, or a table with the error if that fails.

    If `page` is true, these are the tables of the HTML page.
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
    """Add a table with the error if a section fails, so that other sections are still shown.

    ``ResultsError`` is raised, because unreadable records are not the fault of a section.
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
        section: Section = registry.load("section", name)
        return section
    return Section(title=name, position=1000, tables=lambda _run: problems)


def heading(run: Run) -> str:
    """Return a line with the suite, the time and the machine of a run."""
    manifest = run.manifest
    scale = manifest.suite.scale
    share = f" at {100 * scale:.3g} % of its full size" if scale < 1 else ""
    machine = "started on " * is_elsewhere(run) + stats.machine(manifest)
    return f"{manifest.suite.name}{share} · {started_at(manifest)} · {machine}"


def started_at(run: Manifest) -> str:
    """Return the start of `run`, to the minute."""
    return f"{run.started_at[:16].replace('T', ' ')} UTC"


def by_size(
    title: str, cells: Mapping[tuple[int, str], str], note: str, first: str = "size"
) -> Table:
    """Return a table of `cells` with a row per size and a column per name."""
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
    """The text of a number, with the number itself in ``value`` to sort by.

    Examples
    --------
    >>> Quantity("1.50 ms", 0.0015).value
    0.0015
    """

    value: float

    def __new__(cls, text: str, value: float) -> Quantity:
        """Return `text` as the text of `value`, which is nan if unknown."""
        made = super().__new__(cls, text)
        made.value = float(value)
        return made


def quantity(form: Callable[[Any], str], value: Any) -> Quantity:
    """Return `value`, formatted by `form`."""
    return Quantity(form(value), value)


def quantities(form: Callable[[Any], str], values: Iterable[Any]) -> list[Quantity]:
    """Return each of `values`, formatted by `form`."""
    return [quantity(form, value) for value in values]


def median_time(row: Any, n: int = 1) -> Quantity:
    """Return the median of a summary over `n`, or both modes if its launches split into two."""
    if math.isnan(row.low_mode_s):
        return quantity(format_seconds, row.median_s / n)
    ends = range_ends(row.low_mode_s / n, row.high_mode_s / n)
    return Quantity(" or ".join(ends), row.median_s / n)


def idle_cores(n_cores: float) -> Quantity:
    """Return the cores that an idle cluster uses, in hundredths."""
    text = "<0.01" if 0 < n_cores < 0.005 else f"{n_cores:.2f}"
    return Quantity("—" if math.isnan(n_cores) else text, n_cores)


def median_rate(row: Any, amount: float, form: Callable[[float], str]) -> Quantity:
    """Return `amount` over the median of a summary, or over both modes."""
    times = [row.median_s] if math.isnan(row.low_mode_s) else [row.low_mode_s, row.high_mode_s]
    rates = [amount / s if s else math.nan for s in (*times, row.median_s)]
    return Quantity(" or ".join(map(form, rates[:-1])), rates[-1])


def median_bandwidth(row: Any) -> Quantity:
    """Return the payload over the median of a summary, or over both modes."""
    return median_rate(row, row.payload_bytes or math.nan, format_bandwidth)


def range_ends(low_s: float, high_s: float) -> tuple[str, str]:
    """Return two durations as text; the first has no unit if both have the same.

    Examples
    --------
    >>> range_ends(0.9, 1.5), range_ends(1.0, 1.5)
    (('900 ms', '1.50 s'), ('1.00', '1.50 s'))
    """
    low, high = format_seconds(low_s), format_seconds(high_s)
    return (low.split()[0] if low.split()[-1] == high.split()[-1] else low), high


def printable(text: str) -> str:
    """Return `text` with control characters replaced: results files may be from anyone.

    Those that are invisible, or change the order of others, are replaced, too.
    """
    # Surrogates are replaced, too: they can't be encoded. XML has no U+FFFE and U+FFFF.
    known = r"\t\n -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff"
    replaced = "\N{REPLACEMENT CHARACTER}"
    return re.sub(f"[^{known}]|{_FORMATTING}", replaced, text.replace("\r\n", "\n"))


def natural(name: str) -> list[tuple[str, int]]:
    """Return a sorting key that puts ``worker-10`` after ``worker-9``."""
    return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def some(names: Sequence[str], most: int) -> str:
    """Return the first `most` of `names`, and their number if there are more."""
    return ", ".join(names[:most]) + f", … ({len(names)})" * (len(names) > most)


def labels(run: Run, table: pd.DataFrame) -> list[str]:
    """Return the backend of each row, preceded by its task if the run has several."""
    if len({*run.case_labels.values()}) == 1:
        return [str(backend) for backend in table["backend"]]
    tasks = table["case_id"].map(run.case_labels)
    return [f"{task} {backend}" for task, backend in zip(tasks, table["backend"], strict=True)]


def variants_title(run: Run) -> str:
    """Return the title of the column that distinguishes the compared cases."""
    only_backends = all(case.varied == ("backend",) for case in run.suite.cases)
    return "backend" if only_backends else "setting"


def with_tuning(names: Iterable[str], device: str = "cpu") -> list[str]:
    """Return names with *default* and *tuned* where there are both of a backend.

    The tuned options are recommended for CPU memory only.

    Examples
    --------
    >>> with_tuning(["tcp", "ucx", "ucx:shm", "ucx:shm+thread-future"])
    ['tcp', 'ucx (default)', 'ucx:shm', 'ucx:shm+thread-future (tuned)']
    >>> with_tuning(["ucx", "ucx:shm+thread-future"], "gpu")
    ['ucx', 'ucx:shm+thread-future']
    """
    tunings: dict[str, dict[str, str]] = {}
    for name in names:
        if backend := parse_or_none(name):
            tunings.setdefault(backend.head, {})[name] = backend.tuning
    shown = {
        name: f"{name} ({tuning})"
        for group in tunings.values()
        if device == "cpu" and {"default", "tuned"} <= {*group.values()}
        for name, tuning in group.items() if tuning
    }  # fmt: skip
    return [shown.get(name, name) for name in names]


def number(value: float) -> Quantity:
    """Return `value` with three significant digits, or a dash if it is nan."""
    digits = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    return Quantity("—" if math.isnan(value) else digits, value)


def percent(share: float) -> str:
    """Return a share in percent, or a dash if it is nan."""
    return "—" if math.isnan(share) else f"{share:.1%}"


def interval_title(levels: pd.Series[float]) -> str:
    """Return the title of a column of intervals with these probabilities."""
    known = levels[levels > 0]
    if known.empty:
        return "interval"
    ends = dict.fromkeys(f"{level:.0%}" for level in (known.min(), known.max()))
    return f"{' to '.join(ends)}\ninterval"


def counts(group: pd.DataFrame) -> str:
    """Return the numbers of launches and samples of these rows of summaries."""

    def span(column: str, one: str) -> str:
        low, high = int(group[column].min()), int(group[column].max())
        return f"{low} to " * (low < high) + plural(high, one)

    return f"{span('n_launches', 'launch')}, {span('n_samples', 'sample')}"


def plural(n: int, one: str) -> str:
    """Return a number of things.

    Examples
    --------
    >>> plural(1, "launch"), plural(2, "launch"), plural(0, "sample")
    ('1 launch', '2 launches', '0 samples')
    """
    return f"{n} {one}{'' if n == 1 else 'es' if one.endswith('ch') else 's'}"


def warmup(group: pd.DataFrame) -> str:
    """Return a sentence on the samples detected as warm-up, or an empty string."""
    n_warmup, n_samples = int(group["n_warmup"].sum()), int(group["n_samples"].sum())
    if not n_warmup:
        return ""
    return (
        f" {n_warmup} of {n_warmup + n_samples} samples, at the start of launches, were detected as"
        " warm-up and don't count."
    )
