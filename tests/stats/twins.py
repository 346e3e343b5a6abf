"""Real launches of backends that are alike, or differ by a known share: ground truth for verdicts.

``twin:a`` and ``twin:b`` are tcp under other names; ``twin:10`` waits after every message for a
tenth of its time. One run has all three in every block.
"""

import os
import subprocess
import sys
from pathlib import Path

import processes

PLUG_IN = '''
import os
import time

from commbench.backends.tcp import TcpBackend
from commbench.workloads.pingpong import PingPong

class Twin(TcpBackend):
    """tcp, slowed by the percentage that its option gives."""
    head = "twin"

    def __init__(self, options=()):
        super().__init__()
        self.options = tuple(options)

    def environment(self, device, scratch):
        (option,) = self.options
        return {"TWIN_PERCENT": option if option.isdigit() else "0"}

class SlowedPingPong(PingPong):
    """A ping-pong at the layer comm that takes longer by TWIN_PERCENT."""
    name = "slowed-pingpong"

    async def exchange(self, comm, payload):
        began = time.perf_counter()
        reply = await super().exchange(comm, payload)
        seconds = time.perf_counter() - began
        until = began + seconds * (1 + int(os.environ["TWIN_PERCENT"]) / 100)
        while time.perf_counter() < until:
            pass
        return reply
'''
BACKENDS = ("twin:a", "twin:b", "twin:10")
SIZES = (1, 1 << 18)


def measure(folder, n_blocks):
    """Run `n_blocks` blocks of all three and return the run's directory."""
    plugged = processes.plug_in(
        folder / "plugged", "twin_backend", PLUG_IN,
        backends={"twin": "Twin"}, workloads={"slowed-pingpong": "SlowedPingPong"},
    )  # fmt: skip
    path = os.pathsep.join([str(plugged), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable, "-m", "commbench.cli", "run", "slowed-pingpong",
        "--backends", ",".join(BACKENDS), "--sizes", ",".join(map(str, SIZES)),
        "--launches", str(n_blocks), "--output", str(folder / "results"),
    ]  # fmt: skip
    output = subprocess.check_output(command, env={**os.environ, "PYTHONPATH": path}, text=True)
    return Path(output.splitlines()[-1])


if __name__ == "__main__":
    print(measure(Path(sys.argv[1]), int(sys.argv[2])))
