"""Launchers, which start the processes of a cluster."""
