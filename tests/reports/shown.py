"""What a report shows."""

from commbench.reports.sections import tables


def titled(run, words):
    """Return the only table of a report whose title has these words."""
    (table,) = [table for table in tables(run) if words in table.title]
    return table


def titles(run):
    return [table.title for table in tables(run)]
