import json
import linecache
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from distributed.worker import thread_state

from commbench.studies.submissions import Submissions


class Client:
    """A client that sends nothing."""

    id = "Client-1"

    def _graph_to_futures(self, graph, keys):
        self._send_to_scheduler(graph)
        return dict.fromkeys(keys)

    def _send_to_scheduler(self, message):
        pass


@pytest.fixture
def client():
    return Client()


def line(text):
    """Return the number of the line in this file that has a text, and its text."""
    lines = linecache.getlines(__file__)
    (number,) = (n for n, each in enumerate(lines, 1) if each.rstrip().endswith(f"# {text}"))
    return f"test_submissions.py:{number} {lines[number - 1].strip()}"


def sent(client, run):
    """Return the statement with which `run` sends a graph."""
    submissions = Submissions(client)
    with submissions.recorded():
        run(client)
    return submissions.take(client.id, "('x', 1)")[0]


def test_the_statement_is_the_innermost_of_the_code(client):
    def compute(client):
        for _ in range(1):
            client._graph_to_futures({}, [("x", 0), ("x", 1)])  # innermost

    assert sent(client, compute) == line("innermost")


def test_a_statement_over_several_lines_has_the_first_ones_number(client):
    def compute(client):
        # The two lines are one.
        client._graph_to_futures(  # begins
            {}, [("x", 1)]
        )  # fmt: skip

    assert sent(client, compute) == f'{line("begins")} {{}}, [("x", 1)] )  # fmt: skip'


def test_the_head_of_a_loop_is_without_its_body(client):
    def compute(client):
        for _ in client._graph_to_futures({}, [("x", 1)]):  # loop
            pass

    assert sent(client, compute) == line("loop")


def test_libraries_are_no_code_of_the_user(client):
    # The decoder is part of the standard library, and calls this.
    def compute(client):
        json.loads("{}", object_hook=lambda _: send(client))  # decoder

    name = json.__file__.replace("__init__", "hook")
    code = compile("def send(c): c._graph_to_futures({}, [('x', 1)])", name, "exec")
    names = {}
    exec(code, names)
    send = names["send"]
    assert sent(client, compute) == line("decoder")


@pytest.mark.parametrize(
    ("file", "statement"),
    [("<stdin>", "<stdin>:2"), (f"{tempfile.gettempdir()}/ipykernel_1/2.py", "cell:2 f(c")],
)
def test_code_that_is_no_file_or_has_an_error_has_the_number_of_a_line(client, file, statement):
    # A notebook's cell is in this cache.
    linecache.cache[file] = (9, None, ["\n", "f(c\n"] * ("ipykernel" in file), file)
    try:
        code = compile("\nc._graph_to_futures({}, [('x', 1)])", file, "exec")
        assert sent(client, lambda c: exec(code, {"c": c})) == statement
    finally:
        del linecache.cache[file]


def test_a_statement_in_a_match_is_that_of_its_case(client):
    def compute(client):
        match 1:
            case 1:
                client._graph_to_futures({}, [("x", 1)])  # case

    assert sent(client, compute) == line("case")


def test_code_in_a_folder_that_is_gone_goes_on(client, tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    code = compile("c._graph_to_futures({}, [('x', 1)])", "job.py", "exec")
    assert sent(client, lambda c: exec(code, {"c": c})) in ("", "job.py:1")


def test_secrets_in_a_statement_are_not_recorded(client):
    def compute(client, **options):
        client._graph_to_futures({"to": "db://me:pw@host/t"}, [("x", 1)])  # address

    assert sent(client, compute) == line("address").replace("me:pw", "…")

    def compute(client, **options):
        client._graph_to_futures({"secret": 'a"b', "n": 1}, ['x', "('x', 1)"])  # fmt: skip

    assert 'a"b' not in sent(client, compute)


def test_graphs_of_several_threads_have_their_statements(client):
    client._refcount_lock = threading.RLock()
    arrived = []

    def send(graph, keys):
        arrived.extend(keys)
        time.sleep(0)
        return dict.fromkeys(keys)

    client._graph_to_futures = send
    submissions = Submissions(client)

    def submit(name):
        for number in range(500):
            if name == "one":
                client._graph_to_futures({}, [f"{name}-{number}"])  # one
            else:
                client._graph_to_futures({}, [f"{name}-{number}"])  # two

    with submissions.recorded(), ThreadPoolExecutor(2) as threads:
        interval, _ = sys.getswitchinterval(), sys.setswitchinterval(1e-6)
        try:
            for done in [threads.submit(submit, name) for name in ("one", "two")]:
                done.result()
        finally:
            sys.setswitchinterval(interval)
    assert len(arrived) == 1000
    codes = [(key, submissions.take(client.id, key)[0]) for key in arrived]
    assert codes == [(key, line(key.partition("-")[0])) for key in arrived]


def test_graphs_that_tasks_of_this_process_send_are_not_the_users(client):
    thread_state.key = "task"
    try:
        assert sent(client, lambda c: c._graph_to_futures({}, [("x", 1)])) == ""
    finally:
        del thread_state.key


@pytest.mark.parametrize(
    ("message", "nbytes"),
    [
        ({"expr_ser": SimpleNamespace(frames=[b"123", memoryview(b"45")])}, 5),
        ({"graph_frames": [b"123"]}, 3),
        ({}, 0),
        # What can't be counted is sent nevertheless.
        (None, 0),
    ],
)
def test_the_bytes_of_a_graph_are_those_of_its_pickle(client, message, nbytes):
    messages = []
    client._send_to_scheduler = messages.append
    submissions = Submissions(client)
    began = time.perf_counter()
    with submissions.recorded():
        client._graph_to_futures({"graph_frames": [b"earlier"]}, ["w"])
        client._graph_to_futures(message, ["x"])
    _, n_sent, seconds = submissions.take(client.id, "x")
    assert n_sent == nbytes
    assert 0 < seconds < time.perf_counter() - began
    assert messages[-1] is message


def test_graphs_that_never_arrived_are_left_out(client):
    submissions = Submissions(client)
    with submissions.recorded():
        client._graph_to_futures({}, ["lost"])
        client._graph_to_futures({}, ["x"])  # arrived
    assert submissions.take("Client-2", "x") == ("", 0, 0.0)
    assert submissions.take(client.id, "unknown") == ("", 0, 0.0)
    assert submissions.take(client.id, "x")[0] == line("arrived")
    assert submissions.take(client.id, "lost") == ("", 0, 0.0)


def test_the_client_is_left_as_it_was_and_exceptions_are_its_own(client):
    submissions = Submissions(client)
    with pytest.raises(TypeError, match="missing"), submissions.recorded():
        client._graph_to_futures()
    assert vars(client) == {}
    # Another Dask may send graphs in another way.
    other = type("Other", (), {"id": "Client-3"})()
    with Submissions(other).recorded():
        assert vars(other) == {}
