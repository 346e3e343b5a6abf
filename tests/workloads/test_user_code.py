"""A user's file as a workload: what is refused before anything starts, and what a call does."""

import dataclasses
import sys
import textwrap

import processes
import pytest
from distributed import Event, futures_of

from commbench import workloads
from commbench.cli import run_command
from commbench.errors import LaunchError, UsageError
from commbench.workloads import user_code
from commbench.workloads.workload import Context

REFUSED = {
    "no main": ("print(1)", "commbench profile job.py"),
    "only a class": ("class main: pass", "no function main(client)"),
    "a cluster at import": (
        "from distributed import Client\nclient = Client()\ndef main(client): pass",
        "job.py, line 2, makes a cluster",
    ),
    "a cluster in main": (
        "import distributed\ndef main(client):\n    distributed.LocalCluster(n_workers=1)",
        "job.py, line 3, makes a cluster",
    ),
    "a cluster in a function that main calls": (
        "from distributed import Client as C\ndef make():\n    return C()\n"
        "def main(client):\n    with make() as mine: pass",
        "job.py, line 3, makes a cluster",
    ),
    "no client": ("def main(): pass", "main of job.py takes (), and is called with a client only"),
    "two arguments": ("def main(client, n): pass", "takes (client, n)"),
    "a keyword without default": ("def main(client, *, n): pass", "with a default for all else"),
    "asynchronous": ("async def main(client): pass", "gets a synchronous client"),
    "a syntax error": ("def main(client:\n    pass", "job.py is not Python: '(' was never closed"),
    "null bytes": ("\0", "job.py is not Python"),
    "an option of run": ("def main(client, seed=1): pass", "the parameter seed has the name of"),
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a file into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(source, name="job.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return write


def made(name="job.py", **params):
    kind = workloads.load(name)
    return kind(kind.Params(**params), Context(n_workers=2, device="cpu", seed=1))


@pytest.mark.parametrize(("source", "message"), REFUSED.values(), ids=REFUSED)
def test_a_script_that_cant_be_varied_is_refused_before_anything_starts(source, message, write):
    folder = write(source).parent
    assert message in processes.usage_error(processes.invoke("run", "job.py"))
    assert [*folder.iterdir()] == [folder / "job.py"]


def test_a_client_of_another_library_is_no_cluster(write):
    write("""
        from google.cloud import storage

        class Client: ...

        def main(client):
            storage.Client().bucket("mine")
            Client()
            client.api.Client()
    """)
    assert workloads.load("job.py").source.is_script


def test_the_four_lines_to_add_are_python(write):
    write("print(1)")
    message = processes.usage_error(processes.invoke("run", "job.py"))
    lines = textwrap.dedent("\n".join(message.splitlines()[-4:])).splitlines()
    compile("\n".join([lines[0], "    pass", *lines[1:]]), "added", "exec")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.py", "the script gone.py does not exist"),
        ("folder.py", "the script folder.py is a folder"),
        ("gone:main", "there is no Python module gone"),
        ("folder.gone:main", "there is no Python module folder.gone"),
        ("job.py:main", "of a script main(client) is called, so write job.py"),
        ("sys:exit", "there is no Python module sys"),
        (":main", "there is no Python module ''"),
        ("__main__:main", "there is no Python module __main__"),
        ("job:other", "the module defines no function 'other'; it defines: main"),
        ("job:", "the module defines no function ''"),
    ],
)
def test_a_name_of_nothing_is_refused(name, message, write):
    folder = write("def main(client): pass").parent
    (folder / "folder.py").mkdir()
    assert message in processes.usage_error(processes.invoke("run", name))


def test_a_plug_in_comes_before_a_file_of_its_name(write):
    write("def main(client): pass", "merge.py")
    assert workloads.load("merge").__module__ == "commbench.workloads.merge"
    assert issubclass(workloads.load("merge.py"), user_code.UserCode)


def test_keywords_with_simple_defaults_are_options(write):
    write("""
        def main(client, n=1000, *rest, fraction=0.5, name="x", flag=True, path=None, _debug=1):
            "Do it.\\n\\nMore."
    """)
    text = processes.invoke("run", "job.py", "-h").stdout
    assert "Do it." in text
    assert all(f"--{name} " in text for name in ("n", "fraction", "name", "flag"))
    assert not any(f"--{name}" in text for name in ("path", "debug", "rest", "sha256"))


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("*clients, rows=3", ["rows"]), ("client, n=1, /, rows=3", ["rows"]),
        ("client=None, rows=3", ["rows"]), ("client, sha256='mine', rows=3", ["rows"]),
    ],
)  # fmt: skip
def test_keywords_are_what_can_be_given_by_name(write, parameters, names):
    write(f"def main({parameters}): pass")
    params = workloads.load("job.py").Params
    assert [each.name for each in dataclasses.fields(params)] == ["sha256", *names]


def test_a_whole_number_is_the_default_of_a_fraction(write, monkeypatch):
    write("def main(client, share: float = 1, n: int = 2, *, rest: float = 0): pass")
    suites = []
    monkeypatch.setattr(run_command, "start", lambda suite, _, **__: suites.append(suite) or 0)
    assert processes.invoke("run", "job.py", "--share", "0.5").exit_code == 0
    (case,) = suites[0].cases
    assert [case.params[name] for name in ("share", "n", "rest")] == [0.5, 2, 0.0]


def test_keywords_keep_their_case_and_texts_their_units(write, monkeypatch):
    write("def main(client, N=1000, chunk_bytes='128MiB', timeout_s=1): pass")
    suites = []
    monkeypatch.setattr(run_command, "start", lambda suite, _, **__: suites.append(suite) or 0)
    command = ("run", "job.py", "--N", "2e3", "--chunk-bytes", "1GB", "--timeout-s", "120")
    assert processes.invoke(*command).exit_code == 0
    (case,) = suites[0].cases
    given = {name: case.params[name] for name in ("N", "chunk_bytes", "timeout_s")}
    assert given == {"N": 2000, "chunk_bytes": "1GB", "timeout_s": 120}


def test_a_function_that_makes_a_client_but_is_not_called_is_no_reason_to_refuse(write):
    write("""
        from distributed import Client

        def client():
            with Client() as made:
                yield made

        def by_hand():
            main(Client())

        COMMANDS = {"by-hand": by_hand}

        def main(client):
            client.run(len, COMMANDS)
    """)
    assert workloads.load("job.py").name == "job.py"


def test_a_script_is_recorded_without_the_name_of_its_user(write, monkeypatch, tmp_path):
    write("def main(client): pass")
    (tmp_path / "other").mkdir()
    assert user_code.normalize(str(tmp_path / "job.py")) == "job.py"
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_code.normalize("../job.py") == "~/job.py"
    assert workloads.load("~/job.py").source.file == tmp_path / "job.py"


def test_a_file_that_changed_since_the_run_began_is_refused(write):
    write("def main(client): pass")
    before = made().params.sha256
    write("def main(client): return 1")
    with pytest.raises(UsageError, match="begin a new run"):
        made(sha256=before)


def test_a_module_is_read_and_not_imported(write):
    write("raise ZeroDivisionError\ndef main(client): pass")
    assert workloads.load("job:main").source.function == "main"
    assert "job" not in sys.modules


@pytest.fixture
def call(client, write, monkeypatch):
    """Return a function that prepares a script and calls its main, in a process of its launch."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setitem(sys.modules, user_code._MODULE, None)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def call(source, **params):
        write(source)
        work = made(**params)
        work.set_up()
        work.prepare(client)
        return work.compute(client, work.build())

    return call


@pytest.mark.parametrize(
    ("result", "values"),
    [
        ("client.submit(local, 3)", [6]),
        ("lazy(1, 3)", [6]),
        ("lazy(1, 3), {'more': [lazy(2, 3), client.submit(local, 4)], 'n': 1}", [6, 8, 12]),
        ("(lazy(n, 3) for n in (1, 2))", [6, 12]),
        ("{1: lazy(1, 3)}.values()", [6]),
        ("Factor(client.submit(local, 3))", [6]),
        ("Slotted(lazy(1, 3))", [6]),
        ("deque([lazy(1, 3)])", [6]),
        ("SimpleNamespace(x=client.submit(local, 3))", [6]),
        ("Other(client.map(local, [3, 4]))", [6, 8]),
        ("Tight(client.submit(local, 3))", [6]),
        ("helper.Held(client.submit(local, 3))", [6]),
    ],
    ids=[
        "future", "lazy collection", "several", "generator", "values", "dataclass", "slots",
        "deque", "namespace", "object", "object with slots", "object of a module beside",
    ],
)  # fmt: skip
def test_a_result_is_computed_by_workers_that_get_functions_by_value(
    result, values, client, call, write, monkeypatch
):
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    write(
        """
        class Held:
            def __init__(self, value):
                self.value, self.me = value, [self]
    """,
        "helper.py",
    )
    source = f"""
        from collections import deque
        from types import SimpleNamespace

        import dask.array as da
        from dataclasses import dataclass

        import helper

        class Tight:
            __slots__ = ("value",)

            def __init__(self, value):
                self.value = value

        class Other:
            def __init__(self, value):
                self.value = value

        @dataclass
        class Factor:
            value: int = 2

        @dataclass(slots=True)
        class Slotted:
            value: object
            parent: object = None

            def __post_init__(self):
                self.parent = self

        def local(number):
            return Factor().value * number

        def lazy(value, count):
            return da.full(count, value, chunks=1).map_blocks(local).sum()

        def main(client):
            return {result}
    """
    assert sorted(client.gather(futures_of(call(source)))) == values


def test_a_future_that_is_not_returned_is_not_awaited(call, client):
    source = """
        from distributed import Event

        KEPT = []

        def main(client):
            KEPT.append(client.submit(lambda: Event("go").wait("20s"), pure=False))
            return 3
    """
    assert call(source) == 3
    Event("go").set()


def test_annotations_of_dataclasses_can_be_text(call):
    source = """
        from __future__ import annotations
        from dataclasses import dataclass

        def main(client):
            @dataclass
            class Row:
                x: int = 3

            return Row().x
    """
    assert call(source) == 3


def test_main_gets_its_parameters_and_no_guarded_code_runs(call):
    source = """
        import sys

        def main(client, n=1, flag=False):
            return n, flag, len(sys.argv)

        if __name__ == "__main__":
            raise AssertionError
    """
    assert call(source, n=5, flag=True) == (5, True, 1)


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("raise ValueError('mine')\ndef main(client): pass", ValueError, "when it is imported"),
        ("import sys\nsys.exit(0)\ndef main(client): pass", LaunchError, "ended its process"),
        ("def main(client): raise ValueError('mine')", ValueError, "raised by main of job.py"),
        ("def main(client): exit(0)", LaunchError, "ended its process"),
        ("def main(client): client.submit(int, 'x').result()", ValueError, "raised by main"),
        (
            "import distributed\nclass Job:\n    def run(self): distributed.Client()\n"
            "def main(client): Job().run()",
            LaunchError,
            "main of job.py makes a client",
        ),
    ],
)
def test_what_raises_is_named(source, kind, message, call):
    with pytest.raises(kind) as error:
        call(source)
    assert message in "".join([str(error.value), *getattr(error.value, "__notes__", ())])
