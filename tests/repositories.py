"""Git repositories of made-up projects, and asv's configuration for them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Repository:
    """A git repository with commits an hour apart, and asv's results next to it."""

    def __init__(self, folder: Path, name: str = "project") -> None:
        self.path, self.commits = folder / name, []
        self.results, self.html = folder / "asv-results", folder / "html"
        self.config = folder / "asv.conf.json"
        self.path.mkdir(exist_ok=True)
        self.git("init", "--quiet", "--initial-branch", "main")

    def git(self, *arguments: Any, **environ: str) -> str:
        """Return what git prints."""
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *map(str, arguments)]
        return subprocess.check_output(
            command, cwd=self.path, text=True, env={**os.environ, **environ}
        ).strip()

    def commit(self, **files: str) -> str:
        """Write ``files``, commit all that has changed, and return the commit."""
        for name, content in files.items():
            (self.path / name).write_text(content)
        self.git("add", ".")
        number = len(self.commits)
        date = f"2025-01-01T{number:02d}:00:00+00:00"
        self.git("commit", "--quiet", "-m", number, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
        self.commits.append(self.git("rev-parse", "HEAD"))
        return self.commits[-1]

    def configure_asv(self, **more: Any) -> None:
        """Write asv's configuration."""
        content = {
            "version": 1, "project": self.path.name, "repo": str(self.path), "branches": ["main"],
            "results_dir": str(self.results), "html_dir": str(self.html),
            "environment_type": "existing",
        }  # fmt: skip
        self.config.write_text(json.dumps(content | more))

    def regressions(self) -> list[Any]:
        """Return the regressions that asv has published: names, and steps in them."""
        file = self.html / "regressions.json"
        return list(json.loads(file.read_text())["regressions"])
