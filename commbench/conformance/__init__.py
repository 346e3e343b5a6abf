"""Tests for authors of backends, workloads and launchers: does a plugin keep its contract.

::

    from commbench.conformance import check_backend, check_launcher, check_workload

    def test_backend():
        assert check_backend("ws") == {"websocket", "tcp"}

    def test_workload():
        check_workload("rechunk", size=500, bands=3)

    def test_launcher(tmp_path):
        check_launcher("ssh", tmp_path, hosts=("localhost", "localhost"))

The names are those of entry points, as on the command line. A violation of the contract is an
``AssertionError``. ``docs/extending.md`` has a complete example.
"""

from __future__ import annotations

from commbench.conformance.backends import check_backend
from commbench.conformance.launchers import check_launcher
from commbench.conformance.workloads import check_workload

__all__ = ["check_backend", "check_launcher", "check_workload"]
