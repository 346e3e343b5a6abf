import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EACH_NOTEBOOK = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
READERS = {"IPython.display", "commbench", "math", "numpy", "pandas", "textwrap"}
"""What a notebook may import: nothing that measures, writes files or starts processes."""
LIVE = "measure-live"
"""The notebook that measures, with other numbers each time."""
MEASURES = {"dask.array", "distributed", "tempfile"}
ABSOLUTE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|var|opt|usr|mnt|srv|Users)/")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path):
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def text_of(lines):
    return lines if isinstance(lines, str) else "".join(lines)


def outputs(cell):
    """Yield the kind and the content of each output of a cell; pictures are not compared."""
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield output["name"], {"text/plain": text_of(output["text"])}
        elif output["output_type"] == "error":
            yield "error", {"text/plain": output["evalue"]}
        else:
            yield (
                output["output_type"],
                {
                    mime: text_of(content) if mime.startswith("text/") else "a picture"
                    for mime, content in output["data"].items()
                },
            )


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & {*path.parts}
    }


def parametrized(path):
    # One kernel by default: each takes seconds to import pandas and Matplotlib.
    marks = () if path.stem == "tour-of-a-run" else pytest.mark.slow
    return pytest.param(path, marks=marks, id=path.stem)


@pytest.fixture(scope="module", params=map(parametrized, NOTEBOOKS))
def executed(request, tmp_path_factory):
    """Return a notebook, and the folder of a copy of the project in which it was executed."""
    copy = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
    shutil.copytree(ROOT / "results/reference", copy / "results/reference", ignore=unwanted)
    (copy / "notebooks").mkdir()
    for path in (request.param, FOLDER / "execute.py"):
        shutil.copy(path, copy / "notebooks")
    done = subprocess.run(
        [sys.executable, "execute.py"], cwd=copy / "notebooks", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return request.param, copy


def test_executing_a_notebook_reproduces_its_committed_outputs(executed):
    path, copy = executed
    for old, new in zip(code_cells(path), code_cells(copy / "notebooks" / path.name), strict=True):
        shown = [list(outputs(cell)) for cell in (old, new)]
        if path.stem == LIVE:
            shown = [[(kind, set(content)) for kind, content in each] for each in shown]
        assert shown[0] == shown[1], text_of(old["source"])


def test_executing_a_notebook_changes_no_other_file(executed):
    path, copy = executed
    results = "results/reference"
    assert contents(copy / results) == contents(ROOT / results)
    assert set(contents(copy / "notebooks")) == {path.name, "execute.py"}


@EACH_NOTEBOOK
def test_a_notebook_imports_nothing_that_measures_or_writes(path):
    imported = set()
    for cell in code_cells(path):
        # Magics are no Python.
        for node in ast.walk(ast.parse(text_of(cell["source"]))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert "commbench" in imported
    assert imported - READERS <= (MEASURES if path.stem == LIVE else set())


@EACH_NOTEBOOK
def test_a_notebook_is_committed_executed_in_order_without_errors_and_absolute_paths(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in outputs(cell)]
    assert {kind for kind, _ in shown} <= {"stdout", "execute_result", "display_data"}
    for _, content in shown:
        for text in content.values():
            assert not ABSOLUTE_PATH.search(text), text
            assert "Warning:" not in text


@EACH_NOTEBOOK
def test_a_notebook_has_tables_and_figures_with_a_text_after_each_figure(path):
    kinds = [
        {mime for _, content in outputs(cell) for mime in content}
        if cell["cell_type"] == "code"
        else {"prose"}
        for cell in read(path)["cells"]
    ]
    figures = [number for number, mimes in enumerate(kinds) if "image/png" in mimes]
    assert figures
    assert any("text/html" in mimes for mimes in kinds)
    texts = [number for number, mimes in enumerate(kinds) if {"prose", "text/markdown"} & mimes]
    assert {number + 1 for number in figures} <= {*texts}


@EACH_NOTEBOOK
def test_a_notebook_has_no_metadata_that_varies_and_is_small(path):
    notebook = read(path)
    assert [cell for cell in notebook["cells"] if cell["metadata"]] == []
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert path.stat().st_size < 600_000


def test_the_readme_links_to_every_notebook():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w-]+\.ipynb)\)", page)
    assert sorted(linked) == [path.name for path in NOTEBOOKS]
