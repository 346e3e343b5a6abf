"""Count the lines of Python and the modules: ``make count``."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print a row for each folder of ``commbench/``, and their sums."""
    modules = sorted((ROOT / "commbench").rglob("*.py"))
    folders: dict[str, list[Path]] = {}
    for path in modules:
        folders.setdefault(path.relative_to(ROOT / "commbench").parts[0], []).append(path)
    for name, paths in folders.items():
        _row(name, paths)
    _row("commbench without mpi", [path for path in modules if path not in folders["mpi"]])
    _row("tests", (ROOT / "tests").rglob("*.py"))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    _row("pages", pages)


def _row(name: str, paths: Iterable[Path]) -> None:
    counts = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
    print(f"{name:24}{len(counts):5} files{sum(counts):8} lines")


if __name__ == "__main__":
    main()
