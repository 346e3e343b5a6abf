"""The fakes are packages of their own names: nobody but their users may import them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import fake_machine
import pytest

collect_ignore = ["fakes"]

_NAMES = ("cupy", "cupyx", "rmm", "numba", "dask_cuda")


def _ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in _NAMES]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the fake CuPy, which this process imports, as it does the other fakes."""
    kept = {name: sys.modules.pop(name) for name in _ours()}
    monkeypatch.syspath_prepend(fake_machine.FAKES)
    yield importlib.import_module("cupy")
    for name in _ours():
        del sys.modules[name]
    sys.modules.update(kept)
