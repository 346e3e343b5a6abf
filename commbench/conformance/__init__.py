"""Tests for authors of backends, workloads and launchers: does a plugin keep its contract.

``docs/extending.md``, "Check it", has an example.
"""

from __future__ import annotations

if not __debug__:
    raise ImportError("commbench.conformance checks by assert: run Python without -O")

from commbench.conformance.backend_kit import check_backend
from commbench.conformance.launcher_kit import check_launcher
from commbench.conformance.workload_kit import check_workload

__all__ = ["check_backend", "check_launcher", "check_workload"]
