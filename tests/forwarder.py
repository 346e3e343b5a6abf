"""Forward packets between two new devices, each after a delay: ``forwarder.py NAME NAME SECONDS``.

The devices may be moved to other namespaces. They are there until the end of standard input.
"""

import collections
import contextlib
import fcntl
import os
import select
import struct
import sys
import time

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LARGEST = 65536


def main() -> None:
    """Say that the devices are there, and forward."""
    *names, delay_s = sys.argv[1:]
    one, other = map(_open, names)
    print("ready", flush=True)
    delayed = collections.deque[tuple[float, int, bytes]]()
    while True:
        timeout_s = max(0.0, delayed[0][0] - time.monotonic()) if delayed else None
        ready, _, _ = select.select([one, other, sys.stdin], [], [], timeout_s)
        if sys.stdin in ready:
            return
        now = time.monotonic()
        for end in {one, other}.intersection(ready):
            try:
                while True:
                    packet = os.read(end, _LARGEST)
                    delayed.append((now + float(delay_s), other if end == one else one, packet))
            except BlockingIOError:
                pass
        while delayed and delayed[0][0] <= now:
            _, end, packet = delayed.popleft()
            # A device that isn't up yet gets none.
            with contextlib.suppress(OSError):
                os.write(end, packet)


def _open(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


if __name__ == "__main__":
    main()
