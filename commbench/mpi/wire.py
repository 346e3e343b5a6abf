"""How the frames of one message travel.

A message is one *header*, then each large frame as a message of its own, all on the same tag,
whose order MPI keeps::

    header   uint64 n | n x uint64 size of each frame | the bundle, where it is small
    bundle   all frames under 32 KiB, end to end

The bundle travels in the header while that stays within 64 KiB, else as the first large frame.
A frame of GPU memory is large whatever its size, and marked by the highest bit of that.
A large frame of more than 1 GiB travels in pieces of 1 GiB: Open MPI 5 counts in 32 bits.
Which frames are large is a function of these numbers alone, so both ends work it out by themselves.
Little-endian, as every machine that Dask and MPI share today.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

__all__ = ["DEVICE", "LARGE", "MANY", "MAX_HEADER", "Layout", "pack", "pieces", "separate"]

LARGE = 32 * 1024
"""A frame of at least so many bytes travels by itself, without a copy."""

MAX_HEADER = 64 * 1024
"""The bundle travels in the header while the whole has at most so many bytes."""

MAX_PIECE = 1 << 30
"""The largest number of bytes that MPI is asked to send or receive at once."""

MAX_SHARED = 2048
"""The bytes of its message that an array may keep, or else a twentieth of its size, as with tcp."""

MANY = 256
"""Small frames of a message of more frames are not copied here: that may take long."""

DEVICE = 1 << 63
"""The mark of a frame of GPU memory."""

_COUNT = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview


def _prelude(n_frames: int) -> struct.Struct:
    return _PRELUDES[n_frames] if n_frames < len(_PRELUDES) else struct.Struct(f"<{n_frames + 1}Q")


_PRELUDES = [struct.Struct(f"<{n + 1}Q") for n in range(32)]


def pack(
    frames: Sequence[Buffer], on_device: Collection[int] = ()
) -> tuple[bytes, list[Buffer], int]:
    """Return the header, what travels by itself after it, and the bytes of both.

    Parameters
    ----------
    frames
        Contiguous, one-dimensional, of bytes.
    on_device
        The places of those that are to arrive in GPU memory.

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
    marked = [size | DEVICE if place in on_device else size for place, size in enumerate(sizes)]
    prelude = _prelude(len(sizes)).pack(len(sizes), *marked)
    small = b"".join(frame for frame, size in zip(frames, marked, strict=True) if size < LARGE)
    large = [frame for frame, size in zip(frames, marked, strict=True) if size >= LARGE]
    nbytes = len(prelude) + sum(sizes)
    if len(small) + len(prelude) <= MAX_HEADER:
        return prelude + small, large, nbytes
    return prelude, [small, *large], nbytes


def pieces(buffer: Any) -> list[Any]:
    """Return the slices of a buffer that travel one by one.

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
    """Copy the small frames, so that none keeps the memory of others.

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
    """What a header announces.

    Parameters
    ----------
    header
        A writable buffer, of which the frames may become part.

    Attributes
    ----------
    large_sizes
        The sizes of what travels by itself, in order.
    on_device
        Of each of these, whether it is to arrive in GPU memory.

    Raises
    ------
    ValueError
        Where the header contradicts itself.

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
        """Return all frames in order, given the buffers that `large_sizes` asked for.

        Those in GPU memory are what they were given as, all others buffers of host memory. Small
        frames are copied where they would keep each other, or much else, in memory; where there
        are more than `MANY` frames, that is left to the caller and `separate`.
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
        # The first two frames are Dask's own. What else there is may be kept by the application.
        if len(self._sizes) > 3:
            return False
        last = self._sizes[-1] if self._sizes else 0
        return n_bundled - last <= max(MAX_SHARED, last // 20)
