"""``%%commbench``: profile a cell of a notebook, after ``%load_ext commbench``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from commbench.errors import UsageError
from commbench.model import registry
from commbench.studies.profile import profile


def load_ipython_extension(ipython: Any) -> None:
    """Add the magic ``%%commbench [CLIENT]``; IPython calls this."""

    def commbench(line: str, cell: str) -> Any:
        """Run the cell, and print what the cluster of CLIENT, or of the last client, did."""
        run_cell = _compiled(cell, ipython)
        with profile(_client(line.strip(), ipython.user_ns), "cell") as run:
            value = run_cell()
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


def _compiled(cell: str, ipython: Any) -> Callable[[], Any]:
    """Return a function that runs the cell with the variables of the notebook.

    It returns the value of the last expression, as IPython does.
    """
    tree = ast.parse(ipython.transform_cell(cell))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    # Else the cell would have the future statements of this module.
    compiled = partial(compile, filename="<cell>", dont_inherit=True)
    try:
        first = compiled(tree, mode="exec")
        body = last.value if last is not None else ast.Constant(None, lineno=1, col_offset=0)
        value = compiled(ast.Expression(body), mode="eval")
    except SyntaxError as error:
        if not {"await", "async", "asynchronous"} & {*re.findall("[a-z]+", str(error))}:
            raise
        raise UsageError(
            "%%commbench runs no top-level await; write async with commbench.profile(client): …"
        ) from error

    def run() -> Any:
        exec(first, ipython.user_ns)  # noqa: S102
        return eval(value, ipython.user_ns)  # noqa: S307

    return run
