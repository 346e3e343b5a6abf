"""The benchmarks that `asv run` finds here, as asv.conf.json says."""
