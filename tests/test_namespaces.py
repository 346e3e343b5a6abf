"""Hosts that are namespaces have the delays and losses that they are given."""

import subprocess
import sys

import namespaces
import pytest
from namespaces import Layout

SERVER = """
import socket
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
there.bind(("", 5000))
print("ready", flush=True)
large = 0
while True:
    message, address = there.recvfrom(2000)
    large += len(message) > 1
    if len(message) == 1:
        there.sendto(b"%d" % large, address)
        large = 0
"""
CLIENT = """
import socket, sys, time
address, batches = sys.argv[1], int(sys.argv[2])
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.settimeout(30)
arrived, seconds = 0, []
for _ in range(batches):
    # No more than its buffer has room for.
    for _ in range(40):
        here.sendto(bytes(1000), (address, 5000))
    began = time.perf_counter()
    here.sendto(b"?", (address, 5000))
    arrived += int(here.recv(20))
    seconds.append(time.perf_counter() - began)
print(arrived, min(seconds))
"""


@pytest.mark.parametrize(("delay_s", "loss", "batches"), [(0.05, 0.0, 5), (0.0, 0.3, 50)])
def test_large_packets_are_lost_and_all_are_delayed(delay_s, loss, batches):
    link = (1, 0)
    layout = Layout(2, {link: 0.0}, delay_s={link: delay_s}, loss={link: loss} if loss else {})
    with namespaces.laid_out(layout) as there:
        run, server = ["ip", "netns", "exec"], [there.names[0], sys.executable, "-c", SERVER]
        with subprocess.Popen([*run, *server], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            client = [there.names[1], sys.executable, "-c", CLIENT, there.addresses[0]]
            try:
                done = subprocess.run(
                    [*run, *client, str(batches)], capture_output=True, text=True, timeout=60
                )
            finally:
                process.kill()
    assert not done.returncode, done.stderr
    arrived, seconds = map(float, done.stdout.split())
    # The quickest of several round trips.
    assert (seconds >= 0.1) == (delay_s == 0.05)
    n_sent = 40 * batches
    # Five standard errors.
    spread = 5 * (n_sent * loss * (1 - loss)) ** 0.5
    assert arrived == pytest.approx(n_sent * (1 - loss), abs=spread)
