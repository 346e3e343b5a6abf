"""The statements of a user's code that send graphs to the scheduler."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from distributed.utils import nbytes
from distributed.worker import thread_state

from commbench.harness.line_times import Libraries
from commbench.machine.environment import SECRETS

_MAX_CHARACTERS = 80
_UNKNOWN = "", 0, 0.0
_LIBRARIES = Libraries()


class Submissions:
    """Records which statements make a client send graphs, and how many bytes.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sent = deque[tuple[tuple[str, int, float], set[Any]]]()
        self._nbytes = 0

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what the client sends."""
        # All of compute, persist, submit and map end there, in the thread that calls them.
        send = getattr(self._client, "_graph_to_futures", None)
        to_scheduler = getattr(self._client, "_send_to_scheduler", None)
        if send is None or to_scheduler is None:
            yield
            return

        def sent(*args: Any, **kwargs: Any) -> Any:
            code = _statement_above()
            # In the order in which threads send.
            with getattr(self._client, "_refcount_lock", None) or nullcontext():
                self._nbytes, began = 0, time.perf_counter()
                futures = send(*args, **kwargs)
                seconds = time.perf_counter() - began
                # Futures would keep results.
                with suppress(TypeError):
                    self._sent.append(((code, self._nbytes, seconds), {*futures}))
            return futures

        def counted(message: Any) -> Any:
            with suppress(Exception):
                # The pickled graph, by the version of Dask.
                pickled = message.get("expr_ser")
                frames = pickled.frames if pickled else message.get("graph_frames", ())
                self._nbytes += sum(map(nbytes, frames))
            return to_scheduler(message)

        self._client._graph_to_futures = sent
        self._client._send_to_scheduler = counted
        try:
            yield
        finally:
            vars(self._client).pop("_graph_to_futures", None)
            vars(self._client).pop("_send_to_scheduler", None)

    def take(self, client_id: str, key: str) -> tuple[str, int, float]:
        """Return the statement that sent a graph, its bytes and seconds; forget the earlier ones.

        Parameters
        ----------
        client_id, key
            The client that sent the graph, and any of the keys that it asked for.
        """
        if client_id != self._client.id:
            return _UNKNOWN
        # Other threads may send meanwhile.
        for position in range(len(self._sent)):
            sent, keys = self._sent[position]
            if key in keys or any(str(each) == key for each in keys if type(each) is not str):
                for _ in range(position + 1):
                    self._sent.popleft()
                return sent
        return _UNKNOWN


def _statement_above() -> str:
    """Return the innermost statement on this thread's stack that isn't a library's; or ""."""
    # Tasks in threads of this process may use the same client.
    if hasattr(thread_state, "key"):
        return ""
    # Code may have any file name, also in a folder that is gone.
    with suppress(Exception):
        for frame, line in traceback.walk_stack(sys._getframe(1)):
            file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
            if file not in _LIBRARIES and module.partition(".")[0] != "commbench":
                return statement(file, line)
    return ""


@lru_cache(maxsize=10_000)
def statement(file: str, line: int) -> str:
    """Return the name of a file, and the number and the text of the statement at a line.

    The text has no passwords in URLs, and no strings if a name in it is that of a secret.
    """
    lines = linecache.getlines(file)
    around = (each for each in _extents("".join(lines)) if each[0] <= line <= each[1])
    first, last = next(around, (line, line))
    text = re.sub(r"//[^/@\s]+@", "//…@", " ".join(map(str.strip, lines[first - 1 : last])))
    if SECRETS.search(text):
        text = re.sub(r"""(["'])(?:\\.|(?!\1).)*\1""", r"\1…\1", text)
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[: _MAX_CHARACTERS - 1]}…"
    name = "cell" if "ipykernel" in file or file.startswith("<ipython") else Path(file).name
    return f"{name}:{first} {text}".rstrip()


@lru_cache(maxsize=128)
def _extents(source: str) -> list[tuple[int, int]]:
    """Return the first and last lines of the statements that contain no others."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        (each.lineno, each.end_lineno or each.lineno)
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and not (hasattr(each, "body") or hasattr(each, "cases"))
    ]
