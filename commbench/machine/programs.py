"""Other programs of this machine, asked within a time limit: nvidia-smi, git, ucx_info."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def ask(command: Sequence[str | Path], timeout_s: float, **env: str) -> tuple[str, str]:
    """Run a program, with `env` set, and return what it printed and why that is void, if it is."""
    name, pipe = Path(command[0]).name, subprocess.PIPE
    # A git hook's GIT_DIR would redirect git.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | env
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env,
            encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        text, complaint = process.communicate(timeout=timeout_s)
    except OSError as error:
        return "", f"{name} can't be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        # A process that is stuck in a driver outlives its SIGKILL: don't wait for it.
        with suppress(OSError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=1)
        return "", f"{name} did not answer within {timeout_s:g} s"
    if process.returncode == 0:
        return text, ""
    said = (complaint.strip() or text.strip() or "it said nothing").splitlines()[0]
    return "", f"{name} failed (exit status {process.returncode}): {said}"
