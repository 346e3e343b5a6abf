"""The timed loops; no other module times a workload."""
