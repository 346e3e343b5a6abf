"""A table, and the texts of its cells."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.reports.content import Content

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A titled table of text; the first column is aligned left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: frozenset[str] = frozenset()
    """Columns of prose: aligned left, and wrapped where the page is narrow."""


def printable(text: str) -> str:
    """Return `text` without what would steer a terminal: a results file may come from anywhere."""
    lines = text.replace("\r\n", "\n")
    return re.sub(r"[^\t\n -~\xa0-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", lines)


def label(content: Content, row: Any) -> str:
    """Return the backend of a row, and its task where the run has several."""
    several = len(set(content.tasks.values())) > 1
    return f"{content.tasks[row.case_id]} {row.backend}" if several else str(row.backend)


def number(value: float) -> str:
    """Return three significant digits; nan is a dash."""
    return "—" if math.isnan(value) else f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


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
