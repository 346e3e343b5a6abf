"""Studies: adaptive runs, A/B comparisons, the history of asv, and ``commbench doctor``."""
