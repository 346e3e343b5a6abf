"""Workloads: the computations and message exchanges that are measured."""
