"""Seeded data in the memory of a CPU or GPU, and a look at what is left on the workers.

The workloads are written once for both: a device decides which library makes the data, and
Dask dispatches on the data from there on.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Sequence
from typing import Any

from commbench.errors import LaunchError, UnavailableError, VerificationError
from commbench.machine import gpu

_LIBRARIES = {("cpu", "array"): "numpy", ("gpu", "array"): "cupy",
              ("cpu", "frame"): "pandas", ("gpu", "frame"): "cudf"}  # fmt: skip


def _library(device: str, kind: str) -> Any:
    name = _LIBRARIES[device, kind]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "'commbench[gpu]'" if device == "gpu" else name
        raise UnavailableError(
            f"device {device}", f"{name} can't be imported ({error})", f"pip install {package}"
        ) from error


def array_library(device: str) -> Any:
    """Return NumPy for ``"cpu"`` and CuPy for ``"gpu"``.

    Raises
    ------
    UnavailableError
        Where it can't be imported.
    """
    return _library(device, "array")


def frame_library(device: str) -> Any:
    """Return pandas for ``"cpu"`` and cuDF for ``"gpu"``.

    Raises
    ------
    UnavailableError
        Where it can't be imported.
    """
    return _library(device, "frame")


def detect() -> str:
    """Return ``"gpu"`` where there are CuPy and a GPU that is not hidden, else ``"cpu"``."""
    has_cupy = importlib.util.find_spec("cupy") is not None
    return "gpu" if has_cupy and gpu.devices(os.environ) else "cpu"


def uniform_block(device: str, seed: int, place: Sequence[int], shape: Sequence[int]) -> Any:
    """Return the block at `place` of the random array that `seed` defines.

    Every block has a generator of its own, so that any worker can make any block again without
    a byte of it crossing the wire.

    Returns
    -------
    array of float64, `shape`
        Uniform in [0, 1).
    """
    rng = array_library(device).random.default_rng((seed, *place))
    return rng.random(tuple(shape))


def _fill(*, device: str, seed: int, block_info: Any = None) -> Any:
    here = block_info[None]
    return uniform_block(device, seed, here["chunk-location"], here["chunk-shape"])


def uniform_array(device: str, seed: int, shape: tuple[int, int], chunks: tuple[int, int]) -> Any:
    """Return a lazy `dask.array.Array` of `uniform_block`, the last ones ragged."""
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
    """Persist `collections`, wait and return them.

    Raises
    ------
    LaunchError
        Where a task failed: ``wait`` says nothing of it.
    """
    from distributed import futures_of, wait

    persisted: list[Any] = client.persist(list(collections))
    wait(persisted)
    for future in futures_of(persisted):
        if future.status != "finished":
            raise LaunchError(f"the input can't be created: {_state(future)}")
    return persisted


def demand_finished(futures: Sequence[Any], complaint: str) -> None:
    """Wait for `futures`, and raise what is wrong where one did not end well.

    Parameters
    ----------
    complaint
        With ``{!r}`` for the key, as ``"the task {!r} failed"``.

    Raises
    ------
    LaunchError
        With the complaint and the error.
    """
    from distributed import wait

    wait(futures)
    for future in futures:
        if future.status != "finished":
            # Only a future in error has an exception at once: on others exception() would wait.
            error = future.exception() if future.status == "error" else future.status
            raise LaunchError(f"{complaint.format(future.key)}: {error!r}")


def finished_blocks(result: Any, numblocks: Sequence[int]) -> dict[tuple[int, ...], Any]:
    """Return the futures of a persisted array or data frame, by their place in it.

    Raises
    ------
    VerificationError
        Where the collection is cut in another way than `numblocks` tells, or a block is
        missing or did not finish.
    """
    from distributed import futures_of

    found = result.numblocks if hasattr(result, "numblocks") else (result.npartitions,)
    if tuple(found) != tuple(numblocks):
        raise VerificationError(f"expected {tuple(numblocks)} blocks, found {tuple(found)}")
    futures = {tuple(future.key[1:]): future for future in futures_of(result)}
    for place in itertools.product(*map(range, numblocks)):
        if place not in futures:
            raise VerificationError(f"block {place} of the result is missing")
        if futures[place].status != "finished":
            raise VerificationError(f"block {place} of the result: {_state(futures[place])}")
    return futures


def _state(future: Any) -> str:
    # Only a future in error has an exception at once: on others exception() would wait.
    reason = f": {future.exception()!r}" if future.status == "error" else ""
    return f"task {future.key} is {future.status}{reason}"
