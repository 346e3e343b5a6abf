"""The timed loops: the only place where a clock is read around a workload."""
