"""Tests for authors of backends, workloads and launchers: does a plugin keep its contract.

::

    from commbench.conformance import check_backend, check_launcher, check_workload

    def test_backend():
        assert check_backend("ws") == {"websocket", "tcp"}

    def test_workload():
        check_workload("bands", size=500, bands=3)

    def test_launcher(tmp_path):
        check_launcher("ssh", tmp_path, hosts=("localhost", "localhost"))

All find what they check by its entry point, as the command line does. A promise that is not kept
is an ``AssertionError`` that says which, so they can't run under ``python -O``.
``docs/extending.md`` has a whole example.
"""

from __future__ import annotations

if not __debug__:
    raise ImportError("commbench.conformance checks by assert: run Python without -O")

from commbench.conformance.backends import check_backend
from commbench.conformance.launchers import check_launcher
from commbench.conformance.workloads import check_workload

__all__ = ["check_backend", "check_launcher", "check_workload"]
