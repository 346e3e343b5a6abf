"""``%%commbench`` in IPython, with a cluster of this process."""

import atexit
import sys

import pytest
from distributed import Client

from commbench import load

interactiveshell = pytest.importorskip("IPython.core.interactiveshell")


@pytest.fixture(scope="module")
def client():
    with Client(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as client:
        yield client


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Return a shell with the magic, and the names of two clients, of which one is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # The shell takes the place of this module, which processes that are spawned look for.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    shell = interactiveshell.InteractiveShell()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "commbench")
    yield shell
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()


@pytest.mark.parametrize("line", ["", "mine"])
def test_a_cell_is_run_as_without_us_and_reported(line, shell, client, capsys, tmp_path):
    shell.user_ns["mine"] = client
    cell = f"%%commbench {line}\nnumber = 2\nmine.submit(sum, [1, number]).result()"
    outcome = shell.run_cell(cell)
    assert (outcome.result, shell.user_ns["number"]) == (3, 2)
    assert "cell took" in capsys.readouterr().out
    (path,) = (tmp_path / "results").iterdir()
    assert set(load(path).tasks["name"]) == {"sum"}


def test_a_cell_has_no_future_statements_of_ours(shell, client):
    outcome = shell.run_cell("%%commbench\ndef f(x: int): ...\nf.__annotations__['x']")
    assert outcome.result is int


@pytest.mark.parametrize(
    "last", ["await client.submit(sum, [1])", "[x async for x in y]", "async with x: ..."]
)
def test_a_cell_that_awaits_is_refused_before_anything_runs(last, shell, client, tmp_path):
    outcome = shell.run_cell(f"%%commbench\nnumber = 5\n{last}")
    assert "async with commbench.profile(client)" in str(outcome.error_in_exec)
    assert "number" not in shell.user_ns
    assert not (tmp_path / "results").exists()


def test_an_exception_of_the_cell_is_recorded_and_raised(shell, client, tmp_path):
    outcome = shell.run_cell("%%commbench\nraise KeyError('mine')")
    assert isinstance(outcome.error_in_exec, KeyError)
    (path,) = (tmp_path / "results").iterdir()
    assert load(path).regions["error"].tolist() == ["KeyError: 'mine'"]


@pytest.mark.parametrize(
    ("line", "message"), [("other", "there is no variable other"), ("number", "not 2")]
)
def test_what_is_no_client_is_refused(line, message, shell, client, tmp_path):
    shell.user_ns["number"] = 2
    outcome = shell.run_cell(f"%%commbench {line}\nnumber = 3")
    assert message in str(outcome.error_in_exec)
    assert shell.user_ns["number"] == 2
    assert not (tmp_path / "results").exists()


def test_without_a_client_nothing_runs(shell, monkeypatch):
    def none():
        raise ValueError

    monkeypatch.setattr("distributed.default_client", none)
    outcome = shell.run_cell("%%commbench\nnumber = 3")
    assert "no client is connected" in str(outcome.error_in_exec)
    assert "number" not in shell.user_ns
