"""``%%commbench``: profile a cell of a notebook, after ``%load_ext commbench``."""

from __future__ import annotations

import ast
from functools import partial
from typing import Any

from commbench.errors import UsageError
from commbench.model import registry
from commbench.studies.profile import profile


def load_ipython_extension(ipython: Any) -> None:
    """Add the magic ``%%commbench [CLIENT]``; IPython calls this."""

    def commbench(line: str, cell: str) -> Any:
        """Run the cell, and print what the cluster of CLIENT, or of the last client, did."""
        with profile(_client(line.strip(), ipython.user_ns), "cell") as run:
            value = _run(cell, ipython)
        print(registry.load("report", "terminal")(run), end="")  # noqa: T201 - the cell's output
        return value

    ipython.register_magic_function(commbench, "cell")


def _client(name: str, variables: dict[str, Any]) -> Any:
    from distributed import default_client

    if name and name not in variables:
        raise UsageError(f"there is no variable {name}; write %%commbench, or a client after it")
    try:
        return variables[name] if name else default_client()
    except ValueError:
        raise UsageError(
            "no client is connected; make one before this cell: client = Client()"
        ) from None


def _run(cell: str, ipython: Any) -> Any:
    """Run the cell with the variables of the notebook; return its last expression, as IPython."""
    tree = ast.parse(ipython.transform_cell(cell))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    # Else the cell would have the future statements of this module.
    compiled = partial(compile, filename="<cell>", dont_inherit=True)
    exec(compiled(tree, mode="exec"), ipython.user_ns)  # noqa: S102
    if last is None:
        return None
    return eval(compiled(ast.Expression(last.value), mode="eval"), ipython.user_ns)  # noqa: S307
