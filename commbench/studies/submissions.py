"""The statements of a user's code that send graphs to the scheduler."""

from __future__ import annotations

import ast
import linecache
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

_MAX_CHARACTERS = 80
_PACKAGES = ("site-packages", "dist-packages")
_LIBRARIES = tuple(
    f"{Path(folder).resolve()}/"
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"),
                   Path(__file__).parents[1])
)  # fmt: skip


class Submissions:
    """Records which statements make a client send graphs.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sent = deque[tuple[str, set[Any]]]()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what the client sends."""
        # All of compute, persist, submit and map end there, in the thread that calls them.
        send = getattr(self._client, "_graph_to_futures", None)
        if send is None:
            yield
            return

        def sent(*args: Any, **kwargs: Any) -> Any:
            code = _statement_above()
            futures = send(*args, **kwargs)
            self._sent.append((code, {*futures}))
            return futures

        self._client._graph_to_futures = sent
        try:
            yield
        finally:
            vars(self._client).pop("_graph_to_futures", None)

    def code(self, client_id: str, key: str) -> str:
        """Return the statement that sent a graph, and forget the earlier ones.

        Parameters
        ----------
        client_id, key
            The client that sent the graph, and any of the keys that it asked for.
        """
        if client_id != self._client.id:
            return ""
        for position, (code, keys) in enumerate(self._sent):
            if any(str(each) == key for each in keys):
                for _ in range(position + 1):
                    self._sent.popleft()
                return code
        return ""


def _statement_above() -> str:
    """Return the innermost statement on this thread's stack that isn't a library's; or ""."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            return _statement(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@lru_cache(maxsize=10_000)
def _is_library(file: str) -> bool:
    path = Path(file)
    is_installed = any(name in path.parts for name in _PACKAGES)
    return file.startswith("<frozen") or is_installed or str(path.resolve()).startswith(_LIBRARIES)


@lru_cache(maxsize=10_000)
def _statement(file: str, line: int) -> str:
    """Return the name of a file, and the number and the text of the statement at a line."""
    lines = linecache.getlines(file)
    first, last = next(
        (each for each in _extents("".join(lines)) if each[0] <= line <= each[1]), (line, line)
    )
    text = " ".join(map(str.strip, lines[first - 1 : last]))
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[: _MAX_CHARACTERS - 1]}…"
    name = "cell" if "ipykernel" in file or file.startswith("<ipython") else Path(file).name
    return f"{name}:{first} {text}".rstrip()


@lru_cache(maxsize=16)
def _extents(source: str) -> list[tuple[int, int]]:
    """Return the first and last lines of the statements that contain no others."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [
        (each.lineno, each.end_lineno or each.lineno)
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and not hasattr(each, "body")
    ]
