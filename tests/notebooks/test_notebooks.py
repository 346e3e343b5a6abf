"""The notebooks say what the reference runs say, and do nothing but read them."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "notebooks"
_NOTEBOOKS = [pytest.param(path, id=path.stem) for path in sorted(_FOLDER.glob("*.ipynb"))]
_READERS = {"IPython.display", "commbench", "math", "numpy", "pandas", "textwrap"}
"""What a notebook may import: nothing that measures, writes files or starts processes."""
_MACHINES_OWN = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|var|opt|usr|mnt|srv|Users)/")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _code(path: Path) -> list[Any]:
    return [cell for cell in _read(path)["cells"] if cell["cell_type"] == "code"]


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def _shown(cell: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what a cell shows, by kind; of a picture that it is one."""
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield output["name"], {"text/plain": _text(output["text"])}
        elif output["output_type"] == "error":
            yield "error", {"text/plain": output["evalue"]}
        else:
            yield (
                output["output_type"],
                {
                    mime: _text(content) if mime.startswith("text/") else "a picture"
                    for mime, content in output["data"].items()
                },
            )


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project's folders in which the notebooks were executed again."""
    copy = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
    for folder in ("notebooks", "results/reference"):
        shutil.copytree(_ROOT / folder, copy / folder, ignore=unwanted)
    done = subprocess.run(
        [sys.executable, "execute.py"],
        cwd=copy / "notebooks", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return copy


@pytest.mark.parametrize("path", _NOTEBOOKS)
def test_the_committed_outputs_are_those_of_today(path: Path, again: Path) -> None:
    """Executed again, every cell prints the same numbers and shows as many pictures."""
    then, now = _code(path), _code(again / "notebooks" / path.name)
    for old, new in zip(then, now, strict=True):
        assert list(_shown(old)) == list(_shown(new)), _text(old["source"])


def test_executing_changes_no_result(again: Path) -> None:
    """Of the reference runs no byte has changed, and no file was added or lost."""
    results = Path("results") / "reference"
    assert _contents(again / results) == _contents(_ROOT / results)


def test_executing_leaves_nothing_else_behind(again: Path) -> None:
    """Beside the notebooks there are the files that were there before."""
    before = {name for name in _contents(_FOLDER) if "__pycache__" not in name}
    assert set(_contents(again / "notebooks")) == {
        name for name in before if ".ipynb_checkpoints" not in name
    }


@pytest.mark.parametrize("path", _NOTEBOOKS)
def test_a_notebook_only_reads(path: Path) -> None:
    """Its cells are Python without magics, and import nothing that measures or writes."""
    imported = set()
    for cell in _code(path):
        for node in ast.walk(ast.parse(_text(cell["source"]))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert "commbench" in imported
    assert imported - _READERS == set()


@pytest.mark.parametrize("path", _NOTEBOOKS)
def test_a_notebook_is_committed_with_clean_outputs(path: Path) -> None:
    """Its cells were executed in order, without an error, a warning or a path of a machine."""
    cells = _code(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in _shown(cell)]
    assert {kind for kind, _ in shown} <= {"stdout", "execute_result", "display_data"}
    for _, content in shown:
        for text in content.values():
            assert not _MACHINES_OWN.search(text), text
            assert "Warning:" not in text


@pytest.mark.parametrize("path", _NOTEBOOKS)
def test_a_notebook_shows_tables_and_figures(path: Path) -> None:
    """There is at least one of each, and a text follows each figure."""
    cells = _read(path)["cells"]
    kinds = [{mime for _, content in _shown(cell) for mime in content}
             if cell["cell_type"] == "code" else {"prose"} for cell in cells]  # fmt: skip
    figures = [number for number, mimes in enumerate(kinds) if "image/png" in mimes]
    assert figures
    assert any("text/html" in mimes for mimes in kinds)
    assert [number for number in figures if kinds[number + 1 : number + 2] != [{"prose"}]] == []


@pytest.mark.parametrize("path", _NOTEBOOKS)
def test_a_notebook_holds_nothing_that_varies(path: Path) -> None:
    """No times of execution, versions or names of a kernel are stored, and it is small."""
    notebook = _read(path)
    assert [cell for cell in notebook["cells"] if cell["metadata"]] == []
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert path.stat().st_size < 600_000


@pytest.mark.parametrize("path", _NOTEBOOKS)
def test_a_notebooks_links_lead_somewhere(path: Path) -> None:
    """Files that its text links to exist."""
    prose = [cell for cell in _read(path)["cells"] if cell["cell_type"] == "markdown"]
    for cell in prose:
        for link in re.findall(r"\]\(([^)#:]+)\)", _text(cell["source"])):
            assert (path.parent / link).exists(), link


def test_every_notebook_is_in_the_folders_table() -> None:
    """notebooks/README.md links to each of them, and to no other."""
    page = (_FOLDER / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w-]+\.ipynb)\)", page)
    assert sorted(linked) == sorted(path.name for path in _FOLDER.glob("*.ipynb"))
