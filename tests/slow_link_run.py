"""Make the reference run with a slow link: ``python tests/slow_link_run.py``, as root.

Four hosts are network namespaces of this machine. The link between 1 and 3 lets pass 60 MB/s each
way, the others what the machine can do. The run is left in ``results/``.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import namespaces
import processes

RATES_BPS = {(1, 3): 60e6}


def main() -> None:
    """Run the suite on host 0 and end with its exit status."""
    root = Path(__file__).resolve().parents[1]
    with namespaces.hosts(4, RATES_BPS) as there, tempfile.TemporaryDirectory() as scratch:
        plugged = processes.plug_in(
            Path(scratch), "namespace_launcher", namespaces.LAUNCHER,
            launchers={"namespaces": "NamespaceLauncher"},
        )  # fmt: skip
        command = ["-m", "commbench.cli", "run", "tests/slow_link.toml"]
        done = subprocess.run(
            ["ip", "netns", "exec", there.names[0], sys.executable, *command],
            cwd=root, env=os.environ | there.environ | {"PYTHONPATH": str(plugged)}, check=False,
        )  # fmt: skip
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
