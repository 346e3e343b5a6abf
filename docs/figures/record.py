"""Record the README's run as an SVG: ``python docs/figures/record.py``.

It is the command that made the reference run, and the report that the run ended with.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

import commbench
from commbench.reports import terminal

RUN = "results/reference/20261125-make-run"
SVG = Path(__file__).with_name("merge-4-backends.svg")


def recording() -> str:
    """Return the recording of 80 columns as SVG; equal reports give equal text."""
    run = commbench.load(RUN)
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(Text(f"$ {run.manifest.command}", style="bold green"))
    console.print(Text(terminal.render(run).rstrip()))
    return console.export_svg(title="commbench", theme=MONOKAI, unique_id="commbench")


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[2])
    os.environ["COLUMNS"] = "80"
    SVG.write_text(recording(), encoding="utf-8")
