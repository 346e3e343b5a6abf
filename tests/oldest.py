"""Print the least versions that pyproject.toml allows, as constraints for pip.

What else they need has the versions of constraints.txt.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("mpi",)


def oldest() -> dict[str, str]:
    """Return the least version of each package that commbench names, and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    return dict(re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", text).groups() for text in wanted)


def main() -> None:
    """Print a line for each package."""
    found = oldest()
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, equals, version = line.lower().partition("==")
        if equals:
            found.setdefault(name, version)
    for name, version in found.items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
