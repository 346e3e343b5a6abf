"""A project's history: a slowdown is found, and found in the commit that brought it.

The project is a workload: a ping-pong at the layer comm with a delay before each message. A commit
makes the delay longer, so that a message takes 30 % more time.
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

import processes
import pytest

ROOT = Path(__file__).parents[2]
N_EQUAL = 12
"""Commits that change nothing, before the slow one."""
N_AFTER = 2
LANE = '''
import asyncio

from commbench.workloads.pingpong import PingPong

DELAY_S = {delay_s}

class Lane(PingPong):
    """A ping-pong whose messages take their time."""
    name = "lane"
    summary = "the workload of a made-up project"

    async def exchange(self, comm, payload):
        await asyncio.sleep(DELAY_S)
        return await super().exchange(comm, payload)
'''
FAST_S, SLOW_S = 0.1, 0.131
"""The delay of a round trip before and after the slow commit: with the message itself a third."""
MEASURED = ["lane", "--sizes", "64KiB", "--iterations", "12", "--warmups", "2"]


class Project:
    """A repository whose commits are measured one after another, as on every push."""

    def __init__(self, folder):
        self.folder, self.repository = folder, folder / "project"
        self.results, self.html = folder / "asv-results", folder / "html"
        processes.plug_in(self.repository, "lane", "", workloads={"lane": "Lane"})
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commits = []
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

    def git(self, *arguments, **environ):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *map(str, arguments)]
        return subprocess.check_output(
            command, cwd=self.repository, text=True, env={**os.environ, **environ}
        ).strip()

    def commit(self, delay_s):
        number = len(self.commits)
        source = LANE.format(delay_s=delay_s)
        (self.repository / "lane.py").write_text(f"# change {number}\n{source}")
        self.git("add", ".")
        date = f"2025-01-01T{number:02d}:00:00+00:00"
        self.git("commit", "--quiet", "-m", number, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
        self.commits.append(self.git("rev-parse", "HEAD"))
        return self.commits[-1]

    def commbench(self, *arguments, expected=0):
        ended = subprocess.run(
            [sys.executable, "-m", "commbench.cli", *map(str, arguments)], cwd=self.repository,
            env={**os.environ, "PYTHONPATH": str(self.repository), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == expected, ended.stdout + ended.stderr
        return ended.stdout

    def record(self):
        run = self.commbench(
            "run", *MEASURED, "--launches", "3", "--output", self.folder / "runs"
        ).splitlines()[-1]
        file = self.commbench("export", run, "--to", "asv", "--output", self.results).strip()
        (row,) = json.loads(Path(file).read_text())["results"].values()
        return float(row[0][0])

    def regressions(self):
        command = ["asv", "--config", self.folder / "asv.conf.json", "publish", "--no-pull"]
        subprocess.check_output([sys.executable, "-m", *map(str, command)])
        index = json.loads((self.html / "index.json").read_text())
        found = json.loads((self.html / "regressions.json").read_text())["regressions"]
        return [
            (index["revision_to_hash"][str(jump[1])], jump[2], jump[3])
            for *_, jumps in found
            for jump in jumps
        ]

    def environment(self, commit):
        worktree = self.folder / commit[:12]
        self.git("worktree", "add", "--detach", "--quiet", worktree, commit)
        venv.create(worktree / ".venv", symlinks=True)
        (site,) = (worktree / ".venv" / "lib").glob("python*/site-packages")
        # What a test environment has installed, this one borrows.
        lines = [worktree, sysconfig.get_path("purelib"), ROOT]
        (site / "borrowed.pth").write_text("".join(f"{line}\n" for line in lines))
        return worktree / ".venv" / "bin" / "python"

    def ab(self, base, head, *, expected):
        sides = ("--base", self.environment(base), "--head", self.environment(head))
        options = ("--launches", "6", "--min-effect", "10%", "--format", "json")
        where = ("--output", self.folder / "runs")
        said = self.commbench("ab", *sides, *options, *where, *MEASURED, expected=expected)
        (found,) = json.loads(said)["comparisons"]
        return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_slowdown_of_30_percent_is_attributed_to_its_commit(tmp_path):
    project = Project(tmp_path)
    equal, after = [], []
    for _ in range(N_EQUAL):
        project.commit(FAST_S)
        equal.append(project.record())
    print("equal commits:", " ".join(f"{median * 1e3:.1f} ms" for median in equal), flush=True)
    assert project.regressions() == []
    slow = project.commit(SLOW_S)
    after.append(project.record())
    for _ in range(N_AFTER):
        project.commit(SLOW_S)
        after.append(project.record())
    print("slow commits:", " ".join(f"{median * 1e3:.1f} ms" for median in after))
    print(f"medians: {statistics.median(after) / statistics.median(equal):.2f} times as long")
    found = project.regressions()
    print("asv found:", found)
    assert [commit for commit, _, _ in found] == [slow]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("delay_s", "status", "verdicts"),
    [(SLOW_S, 3, {"slower"}), (FAST_S, 0, {"same", "inconclusive"})],
    ids=["slower", "equal"],
)
def test_a_slow_commit_fails_the_gate(tmp_path, delay_s, status, verdicts):
    project = Project(tmp_path)
    parent, child = project.commit(FAST_S), project.commit(delay_s)
    found = project.ab(parent, child, expected=status)
    print(f"A/B: {found['ratio']:.2f} times [{found['ci_low']:.2f}, {found['ci_high']:.2f}], "
          f"p={found['p_value']:.3f}, {found['verdict']}")  # fmt: skip
    assert found["verdict"] in verdicts
