"""Analyses of a run: its records and results, warnings, comparability and references."""
