"""Seeded data in the memory of a CPU or GPU, and access to blocks on the workers.

Workloads have the same code for both: the device selects the library that makes the data, and Dask
dispatches on their type.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from commbench.errors import LaunchError, UnavailableError, VerificationError
from commbench.machine.installed import install_command

_GAMMA, *_MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of SplitMix64 (Steele, Lea and Flood, 2014)."""
_PART = {"cpu": 2**14, "gpu": 2**24}
"""The numbers that are made at once: on a CPU in its caches, on a GPU in few kernels."""


def library(device: str, on_cpu: str, on_gpu: str) -> Any:
    """Return the module `on_cpu` for ``"cpu"``, and `on_gpu` for ``"gpu"``.

    Raises
    ------
    UnavailableError
        If it can't be imported.
    """
    name = on_gpu if device == "gpu" else on_cpu
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = install_command("gpu") if device == "gpu" else f"pip install {name}"
        raise UnavailableError(
            f"device {device}", f"{name} can't be imported ({error})", remedy
        ) from error


def array_library(device: str) -> Any:
    """Return NumPy for ``"cpu"`` and CuPy for ``"gpu"``; errors are those of `library`."""
    return library(device, "numpy", "cupy")


def frame_library(device: str) -> Any:
    """Return pandas for ``"cpu"`` and cuDF for ``"gpu"``; errors are those of `library`."""
    return library(device, "pandas", "cudf")


def detect(*, on_gpu: bool) -> str:
    """Return ``"gpu"`` if a workload can be `on_gpu`, CuPy is installed and a GPU visible.

    Else return ``"cpu"``.
    """
    # Importing this module must not take time: `commbench list` imports all workloads.
    from commbench.machine import gpu

    has_cupy = on_gpu and importlib.util.find_spec("cupy") is not None
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


def uniform_block(device: str, seed: int, start: Sequence[int], shape: Sequence[int]) -> Any:
    """Return the part of `shape` that begins at `start` of the random array that `seed` defines.

    Each number is a hash of the seed and its position, so that any worker can make any part. The
    hash is SplitMix64's without its last shift, which would change bits that a float has not.

    Returns
    -------
    array of float64, `shape`
        Uniform in [0, 1).
    """
    import numpy

    xp = array_library(device)

    def steps(axis: int, first: int, length: int) -> Any:
        positions = xp.arange(first, first + length, dtype="uint64")
        return positions * numpy.uint64(pow(_GAMMA, axis + 2, 2**64))

    block = xp.empty(tuple(shape))
    # In parts: on a CPU this takes a fifth of the time.
    n_rows = max(1, _PART[device] // max(1, math.prod(shape[1:])))
    for row in range(0, shape[0], n_rows):
        part = block[row : row + n_rows]
        hashed = steps(0, start[0] + row, len(part)) + numpy.uint64(seed * _GAMMA % 2**64)
        for axis in range(1, len(shape)):
            hashed = hashed[..., None] + steps(axis, start[axis], shape[axis])
        for shift, factor in zip((30, 27), _MIX, strict=True):
            hashed ^= hashed >> numpy.uint64(shift)
            hashed *= numpy.uint64(factor)
        part[...] = (hashed >> numpy.uint64(11)) * 2.0**-53
    return block


def _fill(*, device: str, seed: int, block_info: Any = None) -> Any:
    info = block_info[None]
    start = [first for first, _ in info["array-location"]]
    return uniform_block(device, seed, start, info["chunk-shape"])


def uniform_array(device: str, seed: int, shape: Sequence[int], chunks: Any) -> Any:
    """Return the lazy `dask.array.Array` of `shape` that `seed` defines, in blocks of `chunks`."""
    import dask.array as da

    return da.map_blocks(
        _fill,
        chunks=da.core.normalize_chunks(chunks, shape, dtype="float64"),
        dtype="float64",
        meta=array_library(device).empty((0,) * len(shape)),
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


def verify_blocks(
    client: Any,
    what: str,
    result: Any,
    chunks: Sequence[Sequence[int]],
    expected: Callable[[tuple[int, ...], tuple[int, ...]], Any],
) -> None:
    """Compare every number of a persisted array of float64 with what workers compute again.

    Parameters
    ----------
    what
        The name of the array, for the error.
    chunks
        The sides of its chunks along each axis.
    expected
        A function of a chunk's first position and its shape, which returns the chunk.

    Raises
    ------
    VerificationError
        With the block that is wrong.
    """
    blocks = finished_blocks(result, [len(sides) for sides in chunks])
    starts, shapes = (
        list(itertools.product(*values))
        for values in ([[sum(sides[:i]) for i in range(len(sides))] for sides in chunks], chunks)
    )
    futures = [blocks[index] for index in itertools.product(*(range(len(c)) for c in chunks))]
    compared = client.map(_difference, futures, starts, shapes, expected=expected, pure=False)
    for start, difference in zip(starts, client.gather(compared), strict=True):
        if difference:
            raise VerificationError(f"{what}, the block from {start} on: {difference}")


def _difference(block: Any, start: tuple[int, ...], shape: tuple[int, ...], expected: Any) -> str:
    kind = f"{block.dtype} {tuple(block.shape)}"
    if kind != f"float64 {shape}":
        return f"expected float64 {shape}, found {kind}"
    n_wrong = int((block != expected(start, shape)).sum())
    return f"{n_wrong} numbers are wrong" if n_wrong else ""
