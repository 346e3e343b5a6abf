"""``csv``: one row per case and message size, in base units."""

from __future__ import annotations

from commbench.reports.content import Content


def render(content: Content) -> str:
    """Return the summaries as comma-separated values with a header."""
    return str(content.summaries.to_csv(index=False, lineterminator="\n"))
