"""The wire format of a message.

A message of Dask is one MPI message, the *header*, then one for each large frame, all on the same
tag, so that MPI keeps their order::

    header   uint64 n | n x uint64 size of each frame | the bundle, where it is small
    bundle   all frames under 32 KiB, end to end

The bundle is part of the header if that stays within 64 KiB, else it is the first large frame. A
frame of GPU memory always counts as large, and has the highest bit of its size set. A large frame
of more than 1 GiB is sent in pieces of 1 GiB: Open MPI 5 counts bytes in 32 bits. Both ends derive
from the sizes alone which frames are large. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

__all__ = ["DEVICE", "LARGE", "MANY", "MAX_HEADER", "Layout", "pack", "pieces", "separate"]

LARGE = 32 * 1024
"""Frames of at least this size, in bytes, are sent separately, without a copy."""

MAX_HEADER = 64 * 1024
"""The largest header, in bytes, that includes the bundle."""

MAX_PIECE = 1 << 30
"""The largest MPI message, in bytes."""

MAX_SHARED = 2048
"""The bytes of other frames that an array may keep alive; or 5 % of its size, as with tcp."""

MANY = 256
"""Above this number of frames, small frames are not copied here: that may take long."""

DEVICE = 1 << 63
"""The bit that marks the size of a frame of GPU memory."""

_COUNT = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview


def _prelude(n_frames: int) -> struct.Struct:
    return _PRELUDES[n_frames] if n_frames < len(_PRELUDES) else struct.Struct(f"<{n_frames + 1}Q")


_PRELUDES = [struct.Struct(f"<{n + 1}Q") for n in range(32)]


def pack(
    frames: Sequence[Buffer], on_device: Collection[int] = ()
) -> tuple[bytes, list[Buffer], int]:
    """Return the header, the large frames, and the size of both in bytes.

    Parameters
    ----------
    frames
        Contiguous, one-dimensional, of bytes.
    on_device
        The indices of the frames that are to arrive in GPU memory.

    Examples
    --------
    >>> header, large, nbytes = pack([b"abc", bytes(LARGE)])
    >>> len(header), [len(frame) for frame in large], nbytes
    (27, [32768], 32795)
    """
    sizes = [len(frame) for frame in frames]
    if on_device:
        return _pack_marked(frames, sizes, on_device)
    prelude = _prelude(len(sizes)).pack(len(sizes), *sizes)
    nbytes = len(prelude) + sum(sizes)
    if nbytes <= LARGE:
        return b"".join([prelude, *frames]), [], nbytes
    small = [frame for frame, size in zip(frames, sizes, strict=True) if size < LARGE]
    large = [frame for frame, size in zip(frames, sizes, strict=True) if size >= LARGE]
    if sum(map(len, small)) + len(prelude) <= MAX_HEADER:
        return b"".join([prelude, *small]), large, nbytes
    return prelude, [b"".join(small), *large], nbytes


def _pack_marked(
    frames: Sequence[Buffer], sizes: list[int], on_device: Collection[int]
) -> tuple[bytes, list[Buffer], int]:
    marked = [size | DEVICE if index in on_device else size for index, size in enumerate(sizes)]
    prelude = _prelude(len(sizes)).pack(len(sizes), *marked)
    small = b"".join(frame for frame, size in zip(frames, marked, strict=True) if size < LARGE)
    large = [frame for frame, size in zip(frames, marked, strict=True) if size >= LARGE]
    nbytes = len(prelude) + sum(sizes)
    if len(small) + len(prelude) <= MAX_HEADER:
        return prelude + small, large, nbytes
    return prelude, [small, *large], nbytes


def pieces(buffer: Any) -> list[Any]:
    """Return the slices of a buffer that are sent as MPI messages.

    Examples
    --------
    >>> [len(piece) for piece in pieces(b"abc")]
    [3]
    """
    if len(buffer) <= MAX_PIECE:
        return [buffer]
    whole = memoryview(buffer) if isinstance(buffer, bytes) else buffer
    return [whole[start : start + MAX_PIECE] for start in range(0, len(whole), MAX_PIECE)]


def separate(frames: Sequence[Any]) -> list[Any]:
    """Copy the small frames, so that none keeps others alive.

    Examples
    --------
    >>> bundle = memoryview(bytearray(b"abc"))
    >>> first, second = separate([bundle[:1], bundle[1:]])
    >>> bytes(first), bytes(second), first.obj is second.obj
    (b'a', b'bc', False)
    """
    return [
        np.array(frame, np.uint8).data
        if isinstance(frame, memoryview) and len(frame) < LARGE
        else frame
        for frame in frames
    ]


class Layout:
    """The layout of a message, parsed from its header.

    Parameters
    ----------
    header
        A writable buffer; frames may be views of it.

    Attributes
    ----------
    large_sizes
        The sizes of the large frames, in order.
    on_device
        For each of these, whether it is to arrive in GPU memory.

    Raises
    ------
    ValueError
        If the header is inconsistent.

    Examples
    --------
    >>> layout = Layout(memoryview(bytearray(pack([b"abc", b""])[0])))
    >>> layout.large_sizes, [bytes(frame) for frame in layout.frames([])]
    ([], [b'abc', b''])
    """

    __slots__ = ("_bundle", "_sizes", "large_sizes", "on_device")

    def __init__(self, header: memoryview) -> None:
        try:
            (n_frames,) = _COUNT.unpack_from(header)
            # Before the sizes are read: a count of 2^60 must not become an allocation.
            if (n_frames + 1) * 8 > len(header):
                raise ValueError(f"a header of {len(header)} B can't announce {n_frames} frames")
            self._sizes: tuple[int, ...] = _prelude(n_frames).unpack_from(header)[1:]
        except struct.error as error:
            raise ValueError(f"a header of {len(header)} B is too short") from error
        start = (n_frames + 1) * 8
        in_bundle = sum([size for size in self._sizes if size < LARGE])
        large = [size for size in self._sizes if size >= LARGE]
        self.large_sizes = [size & ~DEVICE for size in large]
        self.on_device = [size >= DEVICE for size in large]
        self._bundle: memoryview | None = header[start:]
        if start + in_bundle > MAX_HEADER:
            self._bundle = None
            self.large_sizes.insert(0, in_bundle)
            self.on_device.insert(0, False)
            in_bundle = 0
        if len(header) != start + in_bundle:
            raise ValueError(f"a header of {len(header)} B should have {start + in_bundle} B")

    def frames(self, large: Sequence[Any]) -> list[Any]:
        """Return all frames in order, given the received large frames.

        Small frames are copied if they would otherwise keep each other, or much else, alive. With
        more than `MANY` frames that is left to the caller and `separate`.
        """
        received = iter(large)
        bundle = next(received) if self._bundle is None else self._bundle
        frames: list[Any] = []
        start = 0
        for size in self._sizes:
            if size >= LARGE:
                frames.append(next(received))
            else:
                frames.append(bundle[start : start + size])
                start += size
        if len(frames) > MANY or self._may_share(len(bundle)):
            return frames
        return separate(frames)

    def _may_share(self, n_bundled: int) -> bool:
        # The first two frames are Dask's. The application may keep the others.
        if len(self._sizes) > 3:
            return False
        last = self._sizes[-1] if self._sizes else 0
        return n_bundled - last <= max(MAX_SHARED, last // 20)
