"""Outcomes of trials with known answers: run trials until a time is up, and keep every outcome.

The trial that is the furthest behind its share comes next, so that a run goes on where the last one
ended or was interrupted.
"""

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from commbench.machine import environment

ROOT = Path(__file__).resolve().parents[1]


def add(
    file: Path, trials: Mapping[str, Callable[[int, Path], Iterator[Any]]],
    shares: Mapping[str, float], failed: Callable[[str, int], Any], about: str,
) -> None:  # fmt: skip
    """Run trials for the minutes that the command line gives, and add their outcomes to a file.

    Parameters
    ----------
    trials
        Functions of a seed and an empty folder, which yield outcomes, by name.
    shares
        How often a trial runs for each time of the others.
    failed
        Returns the outcome of a trial that raised, by its name and seed.
    about
        The description of the command.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("trials", nargs="*", choices=[*trials, []], default=[])
    given = parser.parse_args()
    chosen = given.trials or list(trials)
    until = time.monotonic() + 60 * given.minutes
    rows = read(file)
    done = Counter(name for name, _ in {(row["trial"], row["seed"]) for row in rows})
    lasted_s = {row["trial"]: row["seconds"] for row in rows}
    file.parent.mkdir(parents=True, exist_ok=True)
    # An interrupted run has its page, too.
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            name = min(chosen, key=lambda name: done[name] / shares.get(name, 1))
            began = time.monotonic()
            if began + lasted_s.get(name, 0) > until:
                break
            _run(file, name, done[name], trials[name], failed)
            lasted_s[name] = time.monotonic() - began
            done[name] += 1


def _run(file: Path, name: str, seed: int, trial: Any, failed: Callable[[str, int], Any]) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            answers = list(trial(seed, Path(folder)))
        except (Exception, pytest.skip.Exception) as error:
            # Trials that fail must not be left out of the rates.
            print(f"{name} {seed}: {type(error).__name__}: {error}", file=sys.stderr)
            answers = [failed(name, seed)]
    common = {
        "trial": name, "seed": seed, "commit": _commit(), "machine": _machine(),
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    rows = [common | dataclasses.asdict(answer) for answer in answers]
    lines = [json.dumps(row, default=np.generic.item) + "\n" for row in rows]
    with file.open("a", encoding="utf-8") as out:
        out.write("".join(lines))
    right = sum(answer.right for answer in answers)
    print(f"{name} {seed}: {right} of {len(answers)} right, {common['seconds']} s", flush=True)


def _commit() -> str:
    """Return the commit that is checked out, with + if the package differs from it."""
    git = ["git", "-C", str(ROOT)]
    command = [*git, "rev-parse", "--short", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    command = [*git, "diff", "--quiet", "HEAD", "--", "commbench"]
    return head + "+" * subprocess.run(command, check=False).returncode


def _machine() -> str:
    """Return the processor and the number of its cores."""
    cpu = environment.cpu(Path("/"))
    return f"{cpu['model']}, {cpu['usable_cores']} cores"


def read(file: Path) -> list[dict[str, Any]]:
    """Return all outcomes in a file so far."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def origin(table: pd.DataFrame) -> str:
    """Return when, at which commits and where these outcomes were made, as a sentence."""
    return (
        f"Outcomes from {table['at'].min()} to {table['at'].max()}, commits "
        f"{', '.join(f'`{name}`' for name in table['commit'].unique())} (+: with changes), on "
        f"{' and '.join(table['machine'].unique())}."
    )


def exact(flags: Iterable[bool]) -> Any:
    """Return Clopper and Pearson's interval of a share."""
    several = list(flags)
    return stats.binomtest(int(sum(several)), len(several)).proportion_ci(method="exact")


def rate(flags: Iterable[bool]) -> str:
    """Return a share with its interval."""
    several = list(flags)
    interval = exact(several)
    return f"{sum(several)} of {len(several)} ({interval.low:.0%} to {interval.high:.0%})"
