"""``make truth``: run trials with known answers, keep the outcomes, and write ``docs/truth.md``.

The trial with the fewest outcomes comes next, until the time is up. So a run goes on where the last
one has ended. ``results/truth/outcomes.jsonl`` has every outcome with commit and machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from trials import TRIALS  # noqa: E402

FILE = ROOT / "results" / "truth" / "outcomes.jsonl"
PAGE = ROOT / "docs" / "truth.md"
HEAD = """\
# Truth: how often is commbench right?

Trials whose answer is known beforehand, and what commbench said. Intervals are of Clopper and
Pearson, 95 %. `make truth` runs more trials, those with the fewest outcomes first, for 40 minutes
(`ARGS="--minutes 5"`), adds the outcomes to `results/truth/outcomes.jsonl`, and writes this page.

"""


def main() -> None:
    """Run trials until the time is up, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("trials", nargs="*", choices=[*TRIALS, []], default=list(TRIALS))
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    done = Counter(row["trial"] for row in outcomes() if row["question"] == row["first"])
    FILE.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < until:
        name = min(given.trials, key=lambda name: done[name])
        run_trial(name, seed=done[name])
        done[name] += 1
    PAGE.write_text(page(), encoding="utf-8")


def run_trial(name: str, seed: int) -> None:
    """Run one trial, and add its outcomes to the file."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = [dataclasses.asdict(row) for row in TRIALS[name](seed, Path(folder))]
    where = {
        "trial": name, "seed": seed, "first": rows[0]["question"], "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip
    with FILE.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(where | row) + "\n")
    right = sum(row["right"] for row in rows)
    print(
        f"{name} {seed}: {right} of {len(rows)} right, {time.monotonic() - began:.0f} s", flush=True
    )


def commit() -> str:
    """Return the commit that is checked out."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def outcomes() -> list[dict[str, Any]]:
    """Return all outcomes so far."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    return [json.loads(line) for line in lines]


def page() -> str:
    """Return the page: a row for each question."""
    table = pd.DataFrame(outcomes())
    rows = ["| question | n | right | something else named | error: median (5 % to 95 %) |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for question, group in table.groupby("question"):
        errors = group["error"].dropna()
        low, middle, high = errors.quantile([0.05, 0.5, 0.95]) if len(errors) else (0, 0, 0)
        shown = f"{middle:+.1%} ({low:+.1%} to {high:+.1%})" if len(errors) else ""
        right, false = rate(group["right"]), rate(group["false"])
        rows.append(f"| {question} | {len(group)} | {right} | {false} | {shown} |")
    last = table.iloc[-1]
    made = (
        f"\nOutcomes from {table['at'].min()} to {last['at']}, commits "
        f"{', '.join(f'`{name}`' for name in table['commit'].unique())}, on "
        f"{' and '.join(table['machine'].unique())}.\n"
    )
    return HEAD + "\n".join(rows) + "\n" + made


def rate(flags: pd.Series[bool]) -> str:
    """Return a share with its interval."""
    interval = stats.binomtest(int(flags.sum()), len(flags)).proportion_ci(method="exact")
    return f"{flags.mean():.0%} ({interval.low:.0%} to {interval.high:.0%})"


if __name__ == "__main__":
    main()
