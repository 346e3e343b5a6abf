"""A machine with two GPUs, for processes that import the fakes."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import builders
import pytest
import trees

from commbench.harness.cases import cases_for, make_suite, plan
from commbench.machine import environment
from commbench.model import ClusterSpec
from commbench.model.observed import Failure, Record

FAKES = Path(__file__).parent / "fakes"


def two_gpus(folder: Path, patch: pytest.MonkeyPatch, rows: str = trees.ROWS) -> None:
    """Let nvidia-smi tell of two GPUs, and the processes that this one starts import the fakes."""
    if importlib.util.find_spec("numba_cuda"):
        pytest.skip("numba-cuda is installed, which replaces numba.cuda of the fakes")
    trees.nvidia_smi(folder / "bin", patch, rows)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fakes = os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    patch.setenv("PYTHONPATH", fakes.rstrip(os.pathsep))
    environment._query_nvidia_smi.cache_clear()


def launch(
    folder: Path, workload: str, backend: str, params: dict[str, Any], **cluster: Any
) -> list[Record]:
    """Measure a case once, in one launch, and return its records."""
    spec = ClusterSpec(device="gpu", **cluster)
    cases = cases_for(
        workload, [backend], params, spec, launches=1, iterations=2, warmups=1, timeout_s=240
    )
    launches = plan(make_suite("fake", cases), seed=0)
    return builders.measured(launches, folder)


def of_kind(kind: type[Any], records: list[Record]) -> list[Any]:
    """Return those of a kind, where the launch ended well."""
    failures = [record.message for record in records if isinstance(record, Failure)]
    assert not failures, failures
    return [record for record in records if isinstance(record, kind)]
