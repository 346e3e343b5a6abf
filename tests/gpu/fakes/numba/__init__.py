"""What distributed asks of Numba for RMM's buffers."""

from __future__ import annotations
