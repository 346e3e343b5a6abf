"""The public names are documented, and pages and notebooks use no others."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path

import pages
import pytest

import commbench

NOTEBOOKS = sorted((pages.ROOT / "notebooks").glob("*.ipynb"))


def test_the_page_documents_every_public_name():
    text = (pages.ROOT / "docs/api.md").read_text()
    documented = {
        re.split(r"\W", name)[0] for name in re.findall(r"`([A-Za-z_]+(?:\([^`]*\))?)`", text)
    }
    assert set(commbench.__all__) - documented == set()


@pytest.mark.parametrize("name", commbench.__all__)
def test_every_public_name_is_importable_and_has_a_docstring(name):
    public = getattr(commbench, name)
    assert public.__doc__
    # A module that is no direct one would only be there if something else had imported it.
    assert not isinstance(public, types.ModuleType) or public.__name__ == f"commbench.{name}"


def code_of(path: Path) -> str:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))


@pytest.mark.parametrize("path", [*pages.PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_pages_and_notebooks_import_public_names_only(path):
    assert re.findall(r"(?:from|import) commbench\.\S+.*", code_of(path)) == []
