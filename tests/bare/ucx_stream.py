"""A stream over UCX that anyone would write by hand: the yardstick of ``ucx_perftest -t tag_bw``.

Nothing of commbench is in it. ``python ucx_stream.py SIZE WINDOW COUNT`` prints the seconds per
message of COUNT windows, each of which ends when the peer has received all of its messages. Both
processes use one buffer for all messages, as ``ucx_perftest`` does, so that the caches do the same
for both.
"""

import subprocess
import sys
import time

import numpy
from ucxx._lib import libucxx
from ucxx._lib.arr import Array

DATA, REPLY = libucxx.UCXXTag(1), libucxx.UCXXTag(2)
WARMUPS = 2


def finish(requests):
    """Poll until all requests are complete."""
    while not all(request.completed for request in requests):
        worker.progress()
    for request in requests:
        request.check_error()


def serve():
    """Receive every window, and answer it."""
    accepted = []
    listener = libucxx.UCXListener.create(
        worker, 0, lambda request: accepted.append(
            listener.create_endpoint_from_conn_request(request, endpoint_error_handling=True)
        ),
    )  # fmt: skip
    print(listener.port, flush=True)
    while not accepted:
        worker.progress()
    for _ in range(WARMUPS + count):
        finish([accepted[0].tag_recv(buffer, tag=DATA) for buffer in buffers])
        finish([accepted[0].tag_send(reply, tag=REPLY)])
    # The peer has the last reply when it closes.
    sys.stdin.read()


def measure(port):
    """Return the seconds per message."""
    endpoint = libucxx.UCXEndpoint.create(worker, "127.0.0.1", port, endpoint_error_handling=True)
    for number in range(WARMUPS + count):
        if number == WARMUPS:
            began = time.perf_counter()
        sends = [endpoint.tag_send(buffer, tag=DATA) for buffer in buffers]
        finish([*sends, endpoint.tag_recv(reply, tag=REPLY)])
    return (time.perf_counter() - began) / (len(buffers) * count)


if __name__ == "__main__":
    size, window, count = map(int, sys.argv[-3:])
    worker = libucxx.UCXWorker(libucxx.UCXContext(feature_flags=(libucxx.Feature.TAG,)))
    buffers = [Array(numpy.random.default_rng(0).integers(0, 256, size, "u1"))] * window
    reply = Array(numpy.zeros(1, "u1"))
    if len(sys.argv) > 4:
        serve()
    else:
        command = [sys.executable, __file__, "serve", *sys.argv[1:]]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
            print(measure(int(peer.stdout.readline())))
            peer.stdin.close()
