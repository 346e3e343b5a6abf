"""Compare two commits of commbench, block by block: what ``make asv-compare BASE=…`` runs.

Each commit gets a worktree in ``build/commits`` and in it the environment that its own Makefile
makes; both stay there for the next time. Arguments that are not known here are those of
``commbench ab``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from commbench.errors import CommbenchError, UsageError
from commbench.machine import environment

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "suites" / "asv" / "suite.toml"


def main() -> int:
    """Make both environments and measure them in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("head", nargs="?", default="HEAD", help="the commit to judge")
    parser.add_argument("--suite", default=str(SUITE), help="what to measure")
    parser.add_argument("--force", action="store_true", help="leave uncommitted changes out")
    given, options = parser.parse_known_args()
    try:
        dirty = (environment.checkout(ROOT) or {}).get("dirty")
        if given.head == "HEAD" and dirty and not given.force:
            raise UsageError(
                "the working tree has changes that HEAD doesn't have, and only commits are "
                "compared. Commit or stash them, or leave them out: --force"
            )
        base, head = (_environment(_resolve(name)) for name in (given.base, given.head))
    except CommbenchError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    command = [
        sys.executable, "-m", "commbench.cli", "ab", "--base", base, "--head", head,
        "--output", ROOT / "results", *options, given.suite,
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def _resolve(name: str) -> str:
    command = ("git", "-C", ROOT, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    said, problem = environment.run_tool(command, 10)
    if problem:
        raise UsageError(f"there is no commit {name!r} here ({problem}); fetch it, or name another")
    # An old git repeats the option.
    return said.split()[-1]


def _environment(commit: str) -> Path:
    """Return the Python of the environment of `commit`, made if it isn't there."""
    folder = ROOT / "build" / "commits" / commit[:12]
    python = folder / ".venv" / "bin" / "python"
    steps: list[list[str | Path]] = []
    if not folder.exists():
        steps.append(["git", "-C", ROOT, "worktree", "add", "--detach", folder, commit])
    # Its own Makefile knows how, and does nothing where it has been done.
    steps.append(["make", "-C", folder, f"PYTHON={sys.executable}", ".venv/.ready"])
    for step in steps:
        if subprocess.run(step, stdout=sys.stderr, check=False).returncode:
            raise UsageError(f"{' '.join(map(str, step))} failed; what it said stands above")
    return python


if __name__ == "__main__":
    sys.exit(main())
