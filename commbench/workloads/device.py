"""Seeded data in the memory of a CPU or GPU, and access to blocks on the workers.

Workloads have the same code for both: the device selects the library that makes the data, and Dask
dispatches on their type.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Sequence
from typing import Any

from commbench.errors import LaunchError, UnavailableError, VerificationError
from commbench.machine.installed import install_command


def _library(device: str, on_cpu: str, on_gpu: str) -> Any:
    name = on_gpu if device == "gpu" else on_cpu
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = install_command("gpu") if device == "gpu" else f"pip install {name}"
        raise UnavailableError(
            f"device {device}", f"{name} can't be imported ({error})", remedy
        ) from error


def array_library(device: str) -> Any:
    """Return NumPy for ``"cpu"`` and CuPy for ``"gpu"``.

    Raises
    ------
    UnavailableError
        If it can't be imported.
    """
    return _library(device, "numpy", "cupy")


def frame_library(device: str) -> Any:
    """Return pandas for ``"cpu"`` and cuDF for ``"gpu"``.

    Raises
    ------
    UnavailableError
        If it can't be imported.
    """
    return _library(device, "pandas", "cudf")


def detect() -> str:
    """Return ``"gpu"`` if CuPy is installed and a GPU visible, else ``"cpu"``."""
    # Importing this module must not take time: `commbench list` imports all workloads.
    from commbench.machine import gpu

    has_cupy = importlib.util.find_spec("cupy") is not None
    return "gpu" if has_cupy and gpu.devices(os.environ) else "cpu"


def random_bytes(device: str, size: int, *seeds: int) -> Any:
    """Return a random uint8 array of shape ``(size,)``, the same on every device."""
    import numpy

    random = numpy.random.default_rng(seeds)
    return array_library(device).asarray(random.integers(0, 256, size, dtype=numpy.uint8))


def n_wrong_bytes(array: Any, device: str, size: int, *seeds: int) -> int:
    """Return how many bytes of `array` are not those of ``random_bytes``; all if it is another."""
    expected = random_bytes(device, size, *seeds)
    if (getattr(array, "shape", None), str(getattr(array, "dtype", ""))) != ((size,), "uint8"):
        return size
    return int((array != expected).sum())


def uniform_block(device: str, seed: int, index: Sequence[int], shape: Sequence[int]) -> Any:
    """Return the block at `index` of the random array that `seed` defines.

    Every block has a separate generator, so any worker can make any block without communication.

    Returns
    -------
    array of float64, `shape`
        Uniform in [0, 1).
    """
    rng = array_library(device).random.default_rng((seed, *index))
    return rng.random(tuple(shape))


def _fill(*, device: str, seed: int, block_info: Any = None) -> Any:
    info = block_info[None]
    return uniform_block(device, seed, info["chunk-location"], info["chunk-shape"])


def uniform_array(device: str, seed: int, shape: tuple[int, int], chunks: tuple[int, int]) -> Any:
    """Return a lazy `dask.array.Array` of blocks of `uniform_block`; the last may be smaller."""
    import dask.array as da

    return da.map_blocks(
        _fill,
        chunks=da.core.normalize_chunks(chunks, shape, dtype="float64"),
        dtype="float64",
        meta=array_library(device).empty((0, 0)),
        device=device,
        seed=seed,
    )


def persist_input(client: Any, *collections: Any) -> list[Any]:
    """Persist `collections`, wait until they are in memory, and return them.

    Raises
    ------
    LaunchError
        If a task failed.
    """
    from distributed import futures_of

    persisted: list[Any] = client.persist(list(collections))
    wait_finished(futures_of(persisted), "the input can't be created: task {!r}")
    return persisted


def wait_finished(futures: Sequence[Any], complaint: str) -> None:
    """Wait for `futures`.

    Raises
    ------
    LaunchError
        If one has failed. The message has the error and the `complaint`, in which ``{!r}`` stands
        for the key, as ``"the task {!r} failed"``.
    """
    from distributed import wait

    wait(futures)
    for future in futures:
        if future.status != "finished":
            # exception() waits unless the future is in error.
            error = future.exception() if future.status == "error" else future.status
            raise LaunchError(f"{complaint.format(future.key)}: {error!r}")


def finished_blocks(result: Any, numblocks: Sequence[int]) -> dict[tuple[int, ...], Any]:
    """Return the futures of a persisted array or data frame, by block index.

    Raises
    ------
    VerificationError
        If the collection does not have `numblocks` blocks per axis, or a block is missing.
    """
    from distributed import futures_of

    actual = result.numblocks if hasattr(result, "numblocks") else (result.npartitions,)
    if tuple(actual) != tuple(numblocks):
        raise VerificationError(f"expected {tuple(numblocks)} blocks, found {tuple(actual)}")
    futures = {tuple(future.key[1:]): future for future in futures_of(result)}
    for index in itertools.product(*map(range, numblocks)):
        if index not in futures:
            raise VerificationError(f"block {index} of the result is missing")
    return futures
