"""GPU memory over mpi:// goes as it is where MPI takes it, else through pinned host memory."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commbench.mpi import gpu_frames
from commbench.mpi.wire_format import DEVICE, LARGE, Layout, pack

FAKES = Path(__file__).parents[1] / "gpu" / "fakes"


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize(
    "name", ["staged", "direct", "in_pieces", "host", "no_memory", "forwarded"]
)
def test_arrays_on_gpus(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FAKES / "mpi_scenarios.py"), name],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKES), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]


def mpich(answer: int, error: int = 0) -> Any:
    """Return a library that is asked as MPICH is."""

    def query(kind: int, supported: Any) -> int:
        assert kind == 0
        supported._obj.value = answer
        return error

    return SimpleNamespace(MPIX_GPU_query_support=query, MPIX_Query_cuda_support=lambda: 1)


@pytest.mark.parametrize(
    ("library", "environ", "aware"),
    [
        (mpich(1), {}, True),
        (mpich(0), {}, False),
        (mpich(1, error=17), {}, False),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), {}, True),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 0), {"MV2_USE_CUDA": "1"}, False),
        (ctypes.CDLL(None), {}, False),
        (SimpleNamespace(), {"MV2_USE_CUDA": "1"}, True),
        (SimpleNamespace(), {"MV2_USE_CUDA": "0"}, False),
        (SimpleNamespace(), {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
    ],
)
def test_mpi_library_is_asked_before_environment_variables_count(
    library: Any, environ: dict[str, str], aware: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MV2_USE_CUDA", "MPICH_GPU_SUPPORT_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert gpu_frames._reports_cuda(library) is aware


def test_process_that_has_not_loaded_cupy_sends_host_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be a scheduler that has no GPU; who has loaded CuPy asks its MPI.

    RMM says nothing: Dask's workers import it wherever it is installed.
    """
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace())
    assert gpu_frames.path() == gpu_frames.HOST

    def no_driver() -> bool:
        raise RuntimeError("cudaErrorInsufficientDriver")

    # Without a driver, and while it is imported.
    for is_available in ({"is_available": lambda: False}, {"is_available": no_driver}, {}):
        cupy = SimpleNamespace(**is_available)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        assert gpu_frames.path() == gpu_frames.HOST
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(is_available=lambda: True))
    for aware, path in ((True, gpu_frames.DIRECT), (False, gpu_frames.STAGED)):
        monkeypatch.setattr(gpu_frames, "is_cuda_aware", lambda aware=aware: aware)
        assert gpu_frames.path() == path


@pytest.mark.parametrize(
    ("path", "rest"), [(gpu_frames.DIRECT, []), (gpu_frames.STAGED, ["asarray", "get", 0])]
)
@pytest.mark.parametrize(("number", "first"), [(0, []), (1, [1])])
def test_a_frame_on_another_gpu_and_its_copy_on_this_one_are_complete_when_sent(
    number: int, first: list[Any], path: str, rest: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def gpu(number: int = 0) -> Any:
        return SimpleNamespace(id=number, synchronize=lambda: calls.append(number))

    class Array:
        __cuda_array_interface__ = {"shape": (8,)}  # noqa: RUF012
        nbytes = 8
        device = gpu(number)
        reshape = view = lambda self, _: self

        def get(self, out: Any) -> None:
            calls.append("get")

    def asarray(frame: Any) -> Any:
        calls.append("asarray")
        return frame

    cupy = SimpleNamespace(ndarray=Array, asarray=asarray, cuda=SimpleNamespace(Device=gpu))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(gpu_frames, "path", lambda: path)
    monkeypatch.setattr(gpu_frames, "pinned", bytearray)
    gpu_frames.outgoing(Array())
    assert calls == [*first, "asarray", 0, *rest]


def test_frames_of_gpu_memory_are_sent_apart_from_bundled_frames() -> None:
    frames = [b"small", b"gpu", bytes(LARGE), b"", b"more"]
    header, large, nbytes = pack(frames, {1, 3})
    assert [bytes(frame) for frame in large] == [b"gpu", bytes(LARGE), b""]
    assert nbytes == 6 * 8 + sum(map(len, frames))
    layout = Layout(memoryview(bytearray(header)))
    assert (layout.large_sizes, layout.on_device) == ([3, LARGE, 0], [True, False, True])
    unpacked = layout.frames(["on the GPU", memoryview(large[1]), "empty"])
    assert [unpacked[1], unpacked[3]] == ["on the GPU", "empty"]
    assert [bytes(unpacked[i]) for i in (0, 2, 4)] == [b"small", bytes(LARGE), b"more"]


def test_bundle_too_large_for_the_header_comes_before_gpu_frames() -> None:
    frames = [bytes(LARGE - 1)] * 3
    header, large, _ = pack([*frames, b"gpu"], {3})
    layout = Layout(memoryview(bytearray(header)))
    assert layout.large_sizes == [3 * (LARGE - 1), 3]
    assert layout.on_device == [False, True]
    assert [len(frame) for frame in large] == layout.large_sizes
    assert len(layout.frames([memoryview(large[0]), "gpu"])) == 4


def test_device_mark_is_not_part_of_the_size() -> None:
    """A stranger's header can't make a receiver allocate more than it says."""
    header = bytearray(b"\1" + bytes(7) + (DEVICE | 7).to_bytes(8, "little"))
    assert Layout(memoryview(header)).large_sizes == [7]
