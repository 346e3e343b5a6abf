"""A stream over UCX that anyone would write by hand: the yardstick of ``ucx_perftest -t tag_bw``.

Nothing of commbench is in it. ``python ucx_stream.py SIZE WINDOW COUNT`` prints the seconds per
message of COUNT windows, each of which ends when the peer has received all of its messages.
"""

import subprocess
import sys
import time

import numpy
from ucxx._lib import libucxx
from ucxx._lib.arr import Array

DATA, REPLY = libucxx.UCXXTag(1), libucxx.UCXXTag(2)
WARMUPS = 2


def finish(worker, requests):
    """Poll until all requests are complete."""
    while not all(request.completed for request in requests):
        worker.progress()
    for request in requests:
        request.check_error()


def new_worker():
    """Return a worker that is polled."""
    return libucxx.UCXWorker(libucxx.UCXContext(feature_flags=(libucxx.Feature.TAG,)))


def serve(size, window, count):
    """Receive every window, and answer it."""
    worker, accepted = new_worker(), []
    listener = libucxx.UCXListener.create(
        worker, 0, lambda request: accepted.append(
            listener.create_endpoint_from_conn_request(request, endpoint_error_handling=True)
        ),
    )  # fmt: skip
    print(listener.port, flush=True)
    while not accepted:
        worker.progress()
    (endpoint,) = accepted
    received = [Array(numpy.zeros(size, "u1")) for _ in range(window)]
    reply = Array(numpy.ones(1, "u1"))
    for _ in range(WARMUPS + count):
        finish(worker, [endpoint.tag_recv(each, tag=DATA) for each in received])
        finish(worker, [endpoint.tag_send(reply, tag=REPLY)])
    # The peer has the last reply when it closes.
    sys.stdin.read()


def measure(size, window, count):
    """Return the seconds per message."""
    command = [sys.executable, __file__, "serve", *sys.argv[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        worker = new_worker()
        endpoint = libucxx.UCXEndpoint.create(
            worker, "127.0.0.1", int(peer.stdout.readline()), endpoint_error_handling=True
        )
        sent = Array(numpy.random.default_rng(0).integers(0, 256, size, dtype="u1"))
        reply = Array(numpy.zeros(1, "u1"))
        for number in range(WARMUPS + count):
            if number == WARMUPS:
                began = time.perf_counter()
            sends = [endpoint.tag_send(sent, tag=DATA) for _ in range(window)]
            finish(worker, [*sends, endpoint.tag_recv(reply, tag=REPLY)])
        seconds = time.perf_counter() - began
        peer.stdin.close()
    return seconds / (window * count)


if __name__ == "__main__":
    *role, size, window, count = sys.argv[1:]
    if role:
        serve(int(size), int(window), int(count))
    else:
        print(measure(int(size), int(window), int(count)))
