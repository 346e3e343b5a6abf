"""A project's history: a slowdown is attributed to the commit that brought it.

The project is a workload: a ping-pong at the layer comm with a delay before each message. A commit
makes the delay longer, so that a message takes 30 % more time.
"""

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
from repositories import Repository

ROOT = Path(__file__).parents[2]
N_EQUAL = 12
"""Commits that change nothing, before the slow one."""
N_AFTER = 2
LANE = '''
import asyncio

from commbench.workloads.pingpong import PingPong

DELAY_S = {delay_s}

class Lane(PingPong):
    """A ping-pong whose messages are delayed."""
    name = "lane"
    summary = "the workload of a made-up project"

    async def exchange(self, comm, payload):
        await asyncio.sleep(DELAY_S)
        return await super().exchange(comm, payload)
'''
FAST_S, SLOW_S = 0.1, 0.131
"""The delay of a round trip before and after the slow commit: with the message itself a third."""
MEASURED = ["lane", "--sizes", "64KiB", "--iterations", "12", "--warmups", "2"]


class Project(Repository):
    """A project whose commits are measured one after another, as on every push."""

    def __init__(self, folder):
        super().__init__(folder, "lane")
        self.folder = folder
        processes.plug_in(self.path, "lane", "", workloads={"lane": "Lane"})
        self.configure_asv(regressions_thresholds={".*": 0.1})

    def change(self, delay_s):
        """Commit the workload with such a delay."""
        source = f"# change {len(self.commits)}\n" + LANE.format(delay_s=delay_s)
        return self.commit(**{"lane.py": source})

    def commbench(self, *arguments, expected=0):
        ended = subprocess.run(
            [sys.executable, "-m", "commbench.cli", *map(str, arguments)], cwd=self.path,
            env={**os.environ, "PYTHONPATH": str(self.path), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == expected, ended.stdout + ended.stderr
        return ended.stdout

    def record(self):
        run = self.commbench(
            "run", *MEASURED, "--launches", "3", "--output", self.folder / "runs"
        ).splitlines()[-1]
        file = self.commbench("export", run, "--output", self.results).strip()
        (row,) = json.loads(Path(file).read_text())["results"].values()
        return float(row[0][0])

    def steps(self):
        """Return the steps that asv detects: the commit, and the times before and after."""
        command = ["asv", "--config", self.config, "publish", "--no-pull"]
        subprocess.check_output([sys.executable, "-m", *map(str, command)])
        revisions = json.loads((self.html / "index.json").read_text())["revision_to_hash"]
        jumps = [jump for *_, jumps in self.regressions() for jump in jumps]
        return [(revisions[str(jump[1])], jump[2], jump[3]) for jump in jumps]

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
        report = self.commbench("ab", *sides, *options, *where, *MEASURED, expected=expected)
        (comparison,) = json.loads(report)["comparisons"]
        return comparison


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_slowdown_of_30_percent_is_attributed_to_its_commit(tmp_path):
    project = Project(tmp_path)
    equal, after = [], []
    for _ in range(N_EQUAL):
        project.change(FAST_S)
        equal.append(project.record())
    print("equal commits:", " ".join(f"{median * 1e3:.1f} ms" for median in equal), flush=True)
    assert project.steps() == []
    slow = project.change(SLOW_S)
    after.append(project.record())
    for _ in range(N_AFTER):
        project.change(SLOW_S)
        after.append(project.record())
    print("slow commits:", " ".join(f"{median * 1e3:.1f} ms" for median in after))
    print(f"medians: {statistics.median(after) / statistics.median(equal):.2f} times as long")
    steps = project.steps()
    print("steps:", steps)
    assert [commit for commit, _, _ in steps] == [slow]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("delay_s", "status", "verdicts"),
    [(SLOW_S, 3, {"slower"}), (FAST_S, 0, {"same", "inconclusive"})],
    ids=["slower", "equal"],
)
def test_slow_commit_fails_the_gate(tmp_path, delay_s, status, verdicts):
    project = Project(tmp_path)
    parent, child = project.change(FAST_S), project.change(delay_s)
    comparison = project.ab(parent, child, expected=status)
    print("A/B:", comparison)
    assert comparison["verdict"] in verdicts
