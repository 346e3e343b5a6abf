"""Figures: one kind per module, each with ``plot(run) -> Figure | None``."""
