"""Programs that tests run instead of ``commbench``, ``pip`` and ``python`` on a page.

``commbench run`` measures as little as it can: the arguments in `_LESS` follow those of the page,
and of an option that is given twice the last one counts. ``commbench compare`` and ``check`` may
well see a regression in that, or nothing: their exit statuses 3 and 4 become 0. ``pip install
FOLDER`` installs into the folder that ``SHIMS_SITE`` names, without dependencies.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

_LESS = {
    "": "--iterations 1 --warmups 0",
    "launches": "--launches 1",
    "budget": "--budget 1s",
    "pingpong": "--iterations 20 --warmups 2 --seconds-per-size 0.05",
    "merge": "--rows 20000",
    "transpose-sum": "--size 1000 --chunk 250",
    "svd": "--rows 20000 --columns 20 --chunk-rows 5000",
    "shuffle": "--partitions 4",
    "rechunk": "--size 8MiB --chunk-size 1MiB",
    "groupby": "--rows 5000",
    "map-overlap": "--size 400 --chunk 100",
    "matmul": "--size 400 --chunk 100",
    "all-to-all": "--sizes 1KiB,32KiB,1MiB",
}


def shortened(words: list[str]) -> list[str]:
    """Return the arguments of ``commbench`` with which it does the same in little time."""
    if words[:1] != ["run"] or {"--resume", "--help"} & set(words):
        return words
    has_budget = {"--budget", "--detect", "--rigorous"} & set(words)
    keys = ["budget" if has_budget else "launches", "", *words[1:2]]
    return [*words, *(word for key in keys for word in _LESS.get(key, "").split())]


def install(folder: Path, site: Path) -> None:
    """Put a package and its entry points into `site`, as pip would."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = re.sub(r"[-.]+", "_", project["name"])
    for module in folder.glob("*.py"):
        shutil.copy(module, site)
    info = site / f"{name}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def main(program: str, words: list[str]) -> None:
    """Do what the program would."""
    if program == "pip":
        for folder in filter(lambda word: (Path(word) / "pyproject.toml").exists(), words):
            into = ["--quiet", "--no-deps", "--target", os.environ["SHIMS_SITE"], folder]
            subprocess.run([sys.executable, "-m", "pip", "install", *into], check=True)
        return
    if program == "python":
        os.execv(sys.executable, [sys.executable, *words])
    from commbench.cli.main import main as commbench

    sys.argv = ["commbench", *shortened(words)]
    try:
        commbench()
    except SystemExit as ended:
        if words[0] in ("compare", "check") and ended.code in (3, 4):
            return
        raise


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
