"""Record the commit that is checked out in asv's history: what ``make asv`` runs.

Arguments that are not known here are those of ``commbench run``, for example ``--launches 10``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from commbench.errors import UsageError
from commbench.machine import environment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "asv"
COMMBENCH = (sys.executable, "-m", "commbench.cli")


def main() -> int:
    """Measure the suite and export the run, unless it would be taken for another commit's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", help="as the history calls it; its host's name by default")
    parser.add_argument("--force", action="store_true", help="take changes for the commit's")
    given, of_run = parser.parse_known_args()
    try:
        _check(force=given.force)
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    suite, output = ROOT / "suites" / "asv" / "suite.toml", ("--output", ROOT / "results")
    run = subprocess.run(
        [*COMMBENCH, "run", suite, "--skip-unavailable", *output, *of_run],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    print(run.stdout, end="")
    if run.returncode not in (0, 1):
        return run.returncode
    options = ["--force"] * given.force + (["--machine", given.machine] if given.machine else [])
    path = run.stdout.splitlines()[-1]
    export = [*COMMBENCH, "export", path, "--format", "asv", "--output", RESULTS, *options]
    status = subprocess.run(export, cwd=ROOT, check=False).returncode
    return status or run.returncode


def _check(*, force: bool) -> None:
    """Refuse before anything is measured what ``commbench export`` would refuse after it."""
    state = environment.checkout(ROOT)
    if state is None:
        raise UsageError(f"{ROOT} is no git checkout: its times would belong to no commit")
    if state["dirty"] and not force:
        raise UsageError(
            f"the working tree has changes that are not in {state['commit'][:12]}, and its times "
            "would be taken for that commit's. Commit or stash them, or record them all the same: "
            "--force"
        )


if __name__ == "__main__":
    sys.exit(main())
