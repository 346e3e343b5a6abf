"""Record the commit that is checked out in asv's history: what ``make asv`` runs.

Arguments that are not known here are asv's, for example ``--bench merge``.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

from commbench import asv, environment
from commbench.errors import CommbenchError, UsageError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "asv"


def main() -> int:
    """Check what asv doesn't, run it, and put back what it has forgotten."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default=platform.node(), help="as asv knows it")
    parser.add_argument("--force", action="store_true", help="take changes for the commit's")
    given, of_asv = parser.parse_known_args()
    try:
        commit = _commit(force=given.force)
        _check_registered(given.machine)
    except CommbenchError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    known = asv.listed(RESULTS)
    command = [
        sys.executable, "-m", "asv", "run", "--environment", "existing:same",
        "--set-commit-hash", commit, "--machine", given.machine, "--record-samples",
        "--show-stderr", "--no-pull", *of_asv,
    ]  # fmt: skip
    status = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
    # asv lists only what it has found in suites/asv; what was exported would not be shown.
    asv.join(RESULTS, known)
    if status == 0:
        print(f"To look at the history: {sys.executable} -m asv publish --no-pull && "
              f"{sys.executable} -m asv preview")  # fmt: skip
    return status


def _commit(*, force: bool) -> str:
    state = environment.checkout(ROOT)
    if state is None:
        raise UsageError(f"{ROOT} is no git checkout: its times would belong to no commit")
    if state["dirty"] and not force:
        raise UsageError(
            f"the working tree has changes that are not in {state['commit'][:12]}, and its times "
            "would be taken for that commit's. Commit or stash them, or record them all the same: "
            "--force"
        )
    return str(state["commit"])


def _check_registered(machine: str) -> None:
    # Otherwise asv asks, and waits for answers that no script gives.
    file = Path.home() / ".asv-machine.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    names = sorted(name for name in known if name != "version")
    if machine in names or (names and len(names) == 1 and machine == platform.node()):
        return
    raise UsageError(
        f"asv doesn't know the machine {machine!r} (it knows {', '.join(names) or 'none'}); "
        f"register it: {sys.executable} -m asv machine --yes --machine {machine}"
    )


if __name__ == "__main__":
    sys.exit(main())
