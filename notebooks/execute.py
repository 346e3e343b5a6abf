"""Execute the notebooks of this folder in place: ``make notebooks``.

The same results give the same files: what else varies (times, versions, the kernel's name) is left
out, and nobody's own settings of Jupyter and IPython count.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

HERE = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
PATIENCE_SECONDS = 120


def execute(path: Path, scratch: Path) -> None:
    """Execute the notebook in `path` in a kernel of its own and write it back with its outputs.

    Parameters
    ----------
    scratch
        Where the sockets to the kernel are; other users of the machine can't reach them there.

    Raises
    ------
    CellExecutionError
        Where a cell raises; the file is left as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=PATIENCE_SECONDS,
        startup_timeout=PATIENCE_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
        config=Config(KernelManager={"transport": "ipc", "ip": str(scratch / path.stem)}),
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    nbformat.write(notebook, path)


def main() -> None:
    """Execute all of them, one after another: one measures, and others would disturb it."""
    with tempfile.TemporaryDirectory() as scratch:
        places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        os.environ |= dict.fromkeys(places, scratch)
        for path in sorted(HERE.glob("*.ipynb")):
            execute(path, Path(scratch))


if __name__ == "__main__":
    main()
