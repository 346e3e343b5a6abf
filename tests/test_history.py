"""A project's history: a slowdown is found, and found in the commit that brought it.

The project is a workload: x + x.T, then rounds of (y + y.T) / 2, which change nothing but take
their time. One commit makes 13 of 10 rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import processes
import pytest

ROOT = Path(__file__).parents[1]
N_EQUAL = 12
"""Commits that change nothing, before the slow one."""
N_AFTER = 3
LANE = '''
from commbench.workloads.transpose_sum import TransposeSum

ROUNDS = {rounds}

class Lane(TransposeSum):
    """x + x.T, and rounds that leave it as it is."""
    name = "lane"
    summary = "the workload of a made-up project"

    def build(self):
        y = super().build()
        for _ in range(ROUNDS):
            y = (y + y.T) / 2
        return y
'''
MEASURED = ["lane", "--size", "2000", "--chunk", "500", "--iterations", "5"]


class Project:
    """A repository whose commits are measured one after another, as on every push."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repository = folder, folder / "project"
        self.results, self.html = folder / "asv-results", folder / "html"
        processes.plug_in(self.repository, "lane", "", workloads={"lane": "Lane"})
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commits: list[str] = []
        (folder / "asv.conf.json").write_text(
            json.dumps(
                {
                    "version": 1, "project": "lane", "repo": str(self.repository),
                    "branches": ["main"], "results_dir": str(self.results),
                    "html_dir": str(self.html), "environment_type": "existing",
                    "regressions_thresholds": {".*": 0.1},
                }
            )
        )  # fmt: skip

    def git(self, *arguments: Any, **environ: str) -> str:
        """Return what git prints."""
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *map(str, arguments)]
        return subprocess.check_output(
            command, cwd=self.repository, text=True, env={**os.environ, **environ}
        ).strip()

    def commit(self, rounds: int) -> str:
        """Commit the workload with so many rounds, an hour after the commit before."""
        number = len(self.commits)
        source = LANE.format(rounds=rounds)
        (self.repository / "lane.py").write_text(f"# change {number}\n{source}")
        self.git("add", ".")
        date = f"2025-01-01T{number:02d}:00:00+00:00"
        self.git("commit", "--quiet", "-m", number, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
        self.commits.append(self.git("rev-parse", "HEAD"))
        return self.commits[-1]

    def commbench(self, *arguments: Any, expected: int = 0) -> str:
        """Return what commbench prints, called in the checkout as CI would."""
        ended = subprocess.run(
            [sys.executable, "-m", "commbench.cli", *map(str, arguments)], cwd=self.repository,
            env={**os.environ, "PYTHONPATH": str(self.repository), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == expected, ended.stdout + ended.stderr
        return ended.stdout

    def record(self) -> float:
        """Measure what is checked out, export it and return the median in seconds."""
        run = self.commbench(
            "run", *MEASURED, "--launches", "6", "--output", self.folder / "runs"
        ).splitlines()[-1]
        file = self.commbench("export", run, "--to", "asv", "--output", self.results).strip()
        (row,) = json.loads(Path(file).read_text())["results"].values()
        return float(row[0][0])

    def regressions(self) -> list[Any]:
        """Return by commit the jumps that asv's step detection finds: times before and after."""
        command = ["asv", "--config", self.folder / "asv.conf.json", "publish", "--no-pull"]
        subprocess.check_output([sys.executable, "-m", *map(str, command)])
        index = json.loads((self.html / "index.json").read_text())
        found = json.loads((self.html / "regressions.json").read_text())["regressions"]
        return [
            (index["revision_to_hash"][str(jump[1])], jump[2], jump[3])
            for *_, jumps in found
            for jump in jumps
        ]

    def environment(self, commit: str) -> Path:
        """Return the Python of an environment that has the project as it was in `commit`."""
        worktree = self.folder / commit[:12]
        self.git("worktree", "add", "--detach", "--quiet", worktree, commit)
        venv.create(worktree / ".venv", symlinks=True)
        (site,) = (worktree / ".venv" / "lib").glob("python*/site-packages")
        # What a test environment has installed, this one borrows.
        lines = [worktree, sysconfig.get_path("purelib"), ROOT]
        (site / "borrowed.pth").write_text("".join(f"{line}\n" for line in lines))
        return worktree / ".venv" / "bin" / "python"

    def ab(self, base: str, head: str, *, expected: int) -> Any:
        """Return how two commits compare, measured in turns."""
        sides = ("--base", self.environment(base), "--head", self.environment(head))
        options = ("--launches", "8", "--min-effect", "10%", "--format", "json")
        where = ("--output", self.folder / "runs")
        said = self.commbench("ab", *sides, *options, *where, *MEASURED, expected=expected)
        (found,) = json.loads(said)["comparisons"]
        return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_slowdown_of_30_percent_is_attributed_to_its_commit(tmp_path: Path) -> None:
    """Twelve commits that change nothing raise nothing; then the slow one is named, and gated."""
    project = Project(tmp_path)
    medians = []
    for _ in range(N_EQUAL):
        project.commit(10)
        medians.append(project.record())
    print("equal commits:", " ".join(f"{median * 1e3:.0f} ms" for median in medians))
    assert project.regressions() == []

    slow = project.commit(13)
    after = [project.record()]
    for _ in range(N_AFTER):
        project.commit(13)
        after.append(project.record())
    print("slow commits:", " ".join(f"{median * 1e3:.0f} ms" for median in after))
    print(f"medians: {statistics.median(after) / statistics.median(medians):.2f} times")
    found = project.regressions()
    print("asv found:", found)
    assert [commit for commit, _, _ in found] == [slow]

    parent = project.commits[N_EQUAL - 1]
    slower = project.ab(parent, slow, expected=3)
    equal = project.ab(project.commits[0], project.commits[1], expected=0)
    for one in (slower, equal):
        print(f"A/B: {one['ratio']:.2f} [{one['ci_low']:.2f}, {one['ci_high']:.2f}] "
              f"p={one['p_value']:.3f} {one['verdict']}")  # fmt: skip
    assert (slower["verdict"], equal["verdict"] in ("same", "inconclusive")) == ("slower", True)
