"""What commbench takes of dask-cuda."""

from __future__ import annotations
