"""A user's script, and a function of a module, in fresh clusters."""

import ast
import json
import textwrap

import processes
import pytest

from commbench import load

SCRIPT = """
    import dask.array as da
    import neighbour

    left_open = open(__file__ + ".log", "w")

    def main(client, n=400):
        left_open.write("written ")
        x = da.ones((n, n), chunks=n // 2).persist()
        {end}
        x = x.map_blocks(lambda block: neighbour.twice(block))
        return (x + x.T).sum()
"""


@pytest.fixture
def run_script(tmp_path):
    """Return a function that runs a script of another folder, and returns its end."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "neighbour.py").write_text("def twice(x): return 2 * x")

    def run(*arguments, end=""):
        (folder / "job.py").write_text(textwrap.dedent(SCRIPT.replace("{end}", end)))
        return line.run(*arguments, "--launches", "1", "--iterations", "2", "--quiet")

    with processes.command_line(tmp_path) as line:
        yield run


def test_a_script_is_measured_as_any_workload_and_recorded_by_name_and_hash(run_script, tmp_path):
    ended = run_script(tmp_path / "jobs" / "job.py", "--n", "600", "--backends", "tcp")
    assert ended.status == 0, ended.said
    run = load(ended.run)
    (workload,) = {case.workload for case in run.suite.cases}
    (params,) = {json.dumps(dict(case.params)) for case in run.suite.cases}
    assert workload.endswith("jobs/job.py")
    assert json.loads(params)["n"] == 600
    assert len(json.loads(params)["sha256"]) == 64
    assert len(run.samples.query("not warmup")) == 2
    assert not run.samples["verified"].any()
    assert "sum" in set(run.tasks["name"])
    # A script that ends flushes its files, also those that it has not closed.
    assert (tmp_path / "jobs" / "job.py.log").read_text().startswith("written ")
    assert "your code returns is not verified" in processes.invoke("report", ended.run).stdout


@pytest.mark.slow
def test_a_main_and_the_scheduler_have_the_threads_of_the_user_and_workers_those_of_nannies(
    tmp_path, monkeypatch
):
    script = """
        from pathlib import Path

        def main(client):
            def variables():
                import os
                return [os.environ.get(f"{name}_NUM_THREADS") for name in ("OPENBLAS", "MKL")]

            workers = client.run(variables).values()
            here = [variables(), client.run_on_scheduler(variables), *workers]
            Path(__file__).with_suffix(".said").write_text(repr(here))
    """
    (tmp_path / "job.py").write_text(textwrap.dedent(script))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    with processes.command_line(tmp_path) as line:
        ended = line.run(tmp_path / "job.py", "--launches", "1", "--iterations", "1", "--quiet")
    assert ended.status == 0, ended.said
    here, scheduler, *workers = ast.literal_eval((tmp_path / "job.said").read_text())
    assert here == scheduler == [None, "3"]
    assert workers == [["1", "3"]] * 2


@pytest.mark.slow
def test_a_main_that_closes_the_client_is_a_failure(run_script, tmp_path):
    ended = run_script(tmp_path / "jobs" / "job.py", end="client.close()")
    assert ended.status == 1
    (failure,) = load(ended.run).failures["message"]
    assert "job.py closed the client; leave it open" in failure


@pytest.mark.slow
def test_beside_a_script_nothing_is_imported_with_safe_path(tmp_path):
    # As `commbench ab` runs it: each side has a version of the module installed.
    bench = """
        import neighbour

        def main(client):
            assert neighbour.version == "installed"
            assert client.submit(lambda: __import__("neighbour").version).result() == "installed"
    """
    for folder, version in (("jobs", "beside"), ("site", "installed")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "neighbour.py").write_text(f"version = {version!r}")
    (tmp_path / "jobs" / "bench.py").write_text(textwrap.dedent(bench))
    with processes.command_line(tmp_path) as line:
        line.environ.update(PYTHONSAFEPATH="1", PYTHONPATH=str(tmp_path / "site"))
        ended = line.run(
            tmp_path / "jobs" / "bench.py", "--launches", "1", "--iterations", "1", "--quiet",
            "--backends", "tcp",
        )  # fmt: skip
    assert ended.status == 0, ended.said
