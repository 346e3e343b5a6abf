"""A user's file as a workload: ``main(client)`` of a script, or a function ``module:function``.

The file is read, and not run, until a launch has started its cluster. There it runs anew in each
launch, as a script runs in a process that ``multiprocessing`` starts, so that what it has under
``if __name__ == "__main__":`` is left out. Workers get the functions of a script by value.

Parameters: the keywords of the function with a number, a text or a boolean as default.

The sample is the time of a call, until the futures and collections that it returns are computed: in
lists, tuples, sets, dicts, dataclasses, and objects of classes of the function's package or folder.
Its result is not verified, and its payload is not known.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib
import os
import runpy
import sys
from collections import deque
from collections.abc import Iterator, Mapping, ValuesView
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass, make_dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from commbench.errors import LaunchError, UsageError
from commbench.workloads.workload import ClusterWorkload, Context

_MAIN, _MODULE = "main", "__mp_main__"
_CLUSTERS = ("Client", "LocalCluster")
_INSTALLED = "site-packages"
_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""The classes of values that contain no collection, of which a result may have millions."""
_TO_ADD = f"""
    def {_MAIN}(client):  # the code to measure, below, with this client
    if __name__ == "__main__":
        with Client() as client:
            {_MAIN}(client)"""
_SHA256 = "sha256"
AB = "COMMBENCH_AB"
"""The environment variable that `commbench ab` sets."""


@dataclass(frozen=True)
class _Source:
    """The file of a workload, and the function in it."""

    name: str
    file: Path
    function: str
    is_script: bool


class UserCode(ClusterWorkload):
    """A function of a user's file; its subclasses are of one function each.

    Raises
    ------
    UsageError
        If the file is another one than that of the parameters.
    """

    tool = "your code"
    task_placement = "dask"
    has_estimate = False
    source: ClassVar[_Source]

    def __init__(self, params: Any, context: Context) -> None:
        super().__init__(params, context)
        self._arguments = asdict(params)
        current = type(params)().sha256
        # It is empty in `commbench ab`.
        if self._arguments.pop(_SHA256) not in (current, ""):
            raise UsageError(
                f"{self.source.file.name} is not what it was when the run began (its SHA-256 is "
                f"{current[:12]}…, and was {params.sha256[:12]}…); begin a new run"
            )

    def set_up(self) -> None:
        """Let this process, and those that it starts, import what is next to a script.

        As in Python itself, they don't with ``PYTHONSAFEPATH``: `commbench ab` sets it, because
        both sides would import what is next to the script, and not what they have installed.
        """
        if not self.source.is_script:
            return
        sys.argv = [str(self.source.file)]
        if not sys.flags.safe_path:
            folder = str(self.source.file.parent)
            sys.path.insert(0, folder)
            known = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, known)))

    def prepare(self, client: Any) -> None:
        """Run the file, which defines the function."""
        source = self.source
        with _explained(f"{source.name}, when it is imported,", client):
            if source.is_script:
                # Functions of a module that can't be imported are sent to workers by value.
                defined = runpy.run_path(str(source.file), run_name=_MODULE)
                # Dataclasses look it up. It is empty, so that functions are sent by value.
                sys.modules[_MODULE] = ModuleType(_MODULE)
                self._function = defined[source.function]
            else:
                module = importlib.import_module(source.name.partition(":")[0])
                self._function = getattr(module, source.function)

    def build(self) -> None:
        """Collect garbage of the last call; the user's function builds its graphs itself."""
        gc.collect()

    def compute(self, client: Any, graph: Any) -> Any:
        """Call the function, and return its result; persist the lazy collections in it, if any."""
        from dask.base import is_dask_collection
        from distributed import Future

        del graph
        with _explained(f"{self.source.function} of {self.source.name}", client):
            result = self._function(client, **self._arguments)
            if isinstance(result, Iterator):
                result = [*result]
        lazy: list[Any] = []
        others: list[Any] = []
        unread = [result]
        # Objects may refer to each other, and millions may be of one class.
        seen, kinds = dict[int, Any](), dict[type, tuple[str, ...] | None]()
        while unread:
            part = unread.pop()
            kind = type(part)
            if kind in _PLAIN or id(part) in seen:
                continue
            seen[id(part)] = part
            if kind not in kinds:
                kinds[kind] = self._attributes(kind)
            names = kinds[kind]
            if is_dask_collection(part):
                lazy.append(part)
            elif isinstance(part, list | tuple | set | frozenset | deque | ValuesView):
                unread += part
            elif isinstance(part, Mapping):
                unread += part.values()
            elif names is None:
                others.append(part)
            else:
                unread += [getattr(part, name) for name in names if hasattr(part, name)]
                unread += getattr(part, "__dict__", {}).values()
        # Graphs with common tasks are submitted as one, as by `dask.compute`.
        if lazy or any(isinstance(part, Future) for part in others):
            return [*(client.persist(lazy) if lazy else ()), *others]
        return result

    def _attributes(self, kind: type) -> tuple[str, ...] | None:
        """Return the slots of a class that is a dataclass or the user's; None of any other.

        The user's are those of modules in the folder of the file, and in its package: others may be
        as large as a client, with all that it knows.
        """
        file = str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
        package, folder = kind.__module__.partition(".")[0], self.source.file.resolve().parent
        is_users = (
            kind.__module__ == _MODULE
            or package == self.source.name.partition(":")[0].partition(".")[0]
            or (file and Path(file).resolve().is_relative_to(folder) and _INSTALLED not in file)
        )
        if not (kind is SimpleNamespace or is_dataclass(kind) or is_users):
            return None
        slots = (getattr(each, "__slots__", ()) for each in kind.__mro__)
        return tuple(name for each in slots for name in ([each] if isinstance(each, str) else each))

    def verify(self, client: Any, result: Any) -> None:
        """Do nothing: what the result should be is not known."""


@contextmanager
def _explained(what: str, client: Any) -> Iterator[None]:
    """Say what raised an exception; raise one if the block ends the process or makes clients."""
    from distributed import Client

    init = Client.__init__

    def refuse(other: Any, *args: Any, **kwargs: Any) -> None:
        # Workers in this process make clients for their tasks.
        if kwargs.get("name") != "worker":
            raise LaunchError(
                f"{what} makes a client, so that commbench can't vary its cluster; use the client "
                "that the function gets, or profile the code as it is: commbench profile"
            )
        init(other, *args, **kwargs)

    Client.__init__ = refuse
    try:
        yield
    except SystemExit as error:
        raise LaunchError(f"{what} ended its process (sys.exit); let it return") from error
    except Exception as error:
        error.add_note(f"raised by {what}")
        if isinstance(error, ModuleNotFoundError) and sys.flags.safe_path:
            error.add_note(
                "with PYTHONSAFEPATH, as in commbench ab, modules in the script's folder are not "
                "imported: the project has to install them"
            )
        raise
    finally:
        Client.__init__ = init
    if client.status != "running":
        raise LaunchError(f"{what} closed the client; leave it open, commbench closes it")


def is_named_by(name: str) -> bool:
    """Return whether `name` is that of a script or a function, and not of a plug-in or suite."""
    return name.endswith(".py") or ":" in name


def normalize(name: str, folder: Path = Path()) -> str:
    """Return the name of a script as it is recorded: without the name of the user.

    Parameters
    ----------
    name
        The path of a script, absolute or relative to `folder`; other names are not changed.

    Examples
    --------
    >>> normalize("jobs/../my_job.py"), normalize("package.jobs:merge")
    ('my_job.py', 'package.jobs:merge')
    """
    if not name.endswith(".py"):
        return name
    if "\0" in name:
        raise UsageError(f"{name!r} is no path of a script")
    path = (folder / os.path.expanduser(name)).resolve()
    for base, prefix in ((Path.cwd(), ""), (Path.home().resolve(), "~/")):
        if path.is_relative_to(base):
            return f"{prefix}{path.relative_to(base)}"
    return str(path)


def workload(name: str) -> type[UserCode]:
    """Return the workload of ``SCRIPT.py`` or ``module:function``.

    Raises
    ------
    UsageError
        If the file or the function is missing, or can't be a workload.
    """
    source = _source(name)
    content, tree = _parse(source)
    function = _function(source, tree)
    # Of an installed function, `commbench ab` compares two versions.
    is_compared = AB in os.environ and not source.is_script
    digest = "" if is_compared else hashlib.sha256(content).hexdigest()
    more = {"help": "SHA-256 of the file", "is_option": False}
    params = make_dataclass(
        "Params",
        [
            (_SHA256, str, field(default=digest, metadata=more)),
            *(
                (key, type(value), field(default=value, metadata={"help": f"{key} of {name}"}))
                for key, value in _keywords(source, function).items()
            ),
        ],
        frozen=True, kw_only=True,
    )  # fmt: skip
    summary, *_ = (ast.get_docstring(function) or f"{source.function}(client) of {name}").split(
        "\n"
    )
    return type(
        "UserCode", (UserCode,),
        {"name": name, "summary": summary, "Params": params, "source": source},
    )  # fmt: skip


def _source(name: str) -> _Source:
    if name.endswith(".py"):
        file = Path(os.path.expanduser(name)).resolve()
        if not os.path.isfile(file):
            problem = "is a folder" if os.path.isdir(file) else "does not exist"
            raise UsageError(f"the script {name} {problem}; name a Python file")
        return _Source(name, file, _MAIN, is_script=True)
    module, _, function = name.partition(":")
    if module.endswith(".py"):
        raise UsageError(
            f"{name}: of a script main(client) is called, so write {module}; of another function "
            f"write module:function, such as {Path(module).stem}:{function or _MAIN}"
        )
    existing = [path for path in _candidates(module) if os.path.isfile(path)]
    if not existing:
        raise UsageError(
            f"{name}: there is no Python module {module or repr(module)} here or among the "
            "installed ones; write module:function, such as package.jobs:main"
        )
    return _Source(name, existing[0], function, is_script=False)


def _candidates(module: str) -> Iterator[Path]:
    """Yield the files that the module can have; nothing is imported, not even its packages."""
    top, *rest = module.split(".")
    here = [] if sys.flags.safe_path else [""]
    if top in ("", "__main__"):
        return
    spec = PathFinder.find_spec(top, [*here, *sys.path]) or find_spec(top)
    if spec is None:
        return
    if not rest:
        yield Path(spec.origin or "")
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *rest)
        yield from (path.with_suffix(".py"), path / "__init__.py")


def _parse(source: _Source) -> tuple[bytes, ast.Module]:
    try:
        content = source.file.read_bytes()
        return content, ast.parse(content)
    except OSError as error:
        raise UsageError(f"{source.name} can't be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        problem = f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else error
        raise UsageError(f"{source.name} is not Python: {problem}") from error


def _function(source: _Source, tree: ast.Module) -> ast.FunctionDef:
    """Return the definition of the function, which takes a client; the file starts no cluster."""
    defined = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    function = defined.get(source.function)
    profile = f"It can be profiled as it is: commbench profile {source.name}. To measure it,"
    if function is None and source.is_script:
        raise UsageError(
            f"{source.name} has no function {_MAIN}(client), which fresh clusters could be given "
            f"to. {profile} add four lines, and indent what {_MAIN} has to do:{_TO_ADD}"
        )
    if function is None:
        raise UsageError(
            f"{source.name}: the module defines no function {source.function!r}; it defines: "
            f"{', '.join(sorted(defined)) or 'none'}"
        )
    if isinstance(function, ast.AsyncFunctionDef):
        raise UsageError(
            f"{source.function} of {source.name} is asynchronous, and gets a synchronous client; "
            f"write def {source.function}(client)"
        )
    statements = [*filter(_is_run_at_import, tree.body), *function.body]
    for statement in statements:  # more are added: those of functions that these call
        for node in ast.walk(statement):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in defined:
                statements += defined.pop(called.id).body
    started = next(_clusters(statements, _imported(tree)), None)
    if started is not None:
        raise UsageError(
            f"{source.name}, line {started.lineno}, makes a cluster or a client, so that "
            f"commbench can't vary it. {profile} use the client that {source.function} gets, and "
            f"have no other outside of these lines:{_TO_ADD}"
        )
    return function


def _is_run_at_import(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test))


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the full name of each name, such as ``distributed.Client`` or ``__main__.Client``."""
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                imported[alias.asname or alias.name.partition(".")[0]] = module + alias.name
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            imported[node.name] = f"__main__.{node.name}"
    return imported


def _clusters(statements: list[ast.stmt], imported: Mapping[str, str]) -> Iterator[ast.Call]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                first, *rest = ast.unparse(node.func).split(".")
                name = ".".join([imported.get(first, first), *rest])
                # Other libraries and the script itself may have a `Client`, too.
                is_dask = name.startswith(("dask", "distributed")) or name == first
                if is_dask and name.rpartition(".")[2] in _CLUSTERS:
                    yield node


def _keywords(source: _Source, function: ast.FunctionDef) -> Mapping[str, Any]:
    """Return the simple defaults by keyword; a call must need no more than a client."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    n_required = len(names) - len(given.defaults)
    if n_required > 1 or None in given.kw_defaults or not (names or given.vararg):
        raise UsageError(
            f"{source.function} of {source.name} takes ({ast.unparse(given)}), and is called with "
            f"a client only; write def {source.function}(client), with a default for all else"
        )
    names += [each.arg for each in given.kwonlyargs]
    defaults = (*given.defaults, *filter(None, given.kw_defaults))
    pairs = [*zip(names[n_required:], defaults, strict=True)]
    keywords = {}
    floats = {
        each.arg
        for each in (*given.args, *given.kwonlyargs)
        if each.annotation is not None and ast.unparse(each.annotation) == "float"
    }
    # The client, and what is only positional, have no keyword.
    n_unnamed = max(len(given.posonlyargs), min(1, len(given.args)))
    for name, default in pairs[max(0, n_unnamed - n_required) :]:
        try:
            value = ast.literal_eval(default)
        except ValueError:
            continue
        is_simple = type(value) in (int, float, bool, str)
        if is_simple and not name.startswith("_") and name != _SHA256:
            keywords[name] = float(value) if name in floats and type(value) is int else value
    return keywords
