"""``commbench.run`` is the command ``run``; launches are simulated in this process."""

import asyncio
import inspect
import pickle
import shlex

import builders
import processes
import pytest

import commbench
from commbench.cli import python_api
from commbench.harness import runner

pytestmark = pytest.mark.usefixtures("simulated", "no_figures", "no_rules")


def test_a_run_has_what_the_command_would_have_made(tmp_path, capsys):
    run = commbench.run(
        "merge", backends=["fake", "fake:slow"], launches=2, iterations=2, frac_match=0.5,
        workers=None, skip_unavailable=True, quiet=True, output=tmp_path,
    )  # fmt: skip
    assert (run.path / "report.html").exists()
    assert len(run.samples[~run.samples["warmup"]]) == 8
    assert run.suite.cases[0].params["frac_match"] == 0.5
    # The report is the run's; and the command makes the same cases.
    assert capsys.readouterr().out == ""
    words = shlex.split(run.manifest.command)
    assert words[:2] == ["commbench", "run"]
    processes.invoke(*words[1:])
    (other,) = (path for path in tmp_path.iterdir() if path != run.path)
    assert commbench.load(other).suite == run.suite


def test_progress_is_shown_unless_quiet(tmp_path, capsys):
    commbench.run("merge", backends="fake", launches=1, output=tmp_path)
    assert "[1/1] merge fake: done" in capsys.readouterr().err


def test_launches_that_fail_are_in_the_run(tmp_path):
    run = commbench.run("merge", backends=["fake:wrong"], launches=1, output=tmp_path)
    assert len(run.failures) == 1
    assert "<div" in run._repr_html_()


def test_a_run_is_continued(tmp_path):
    first = commbench.run("merge", backends="fake", launches=1, output=tmp_path)
    assert len(commbench.run(resume=first.path, launches=3).ends) == 3


@pytest.mark.parametrize(
    ("workload", "given", "message"),
    [
        ("merge", {"bakends": "fake"}, "No such option '--bakends'"),
        ("merge", {"rows": "many"}, "'many' is not a number"),
        ("merg", {}, "did you mean 'merge'"),
        ("", {}, "name a workload"),
        ("merge", {"help": True}, "leave out"),
    ],
)
def test_a_wrong_call_is_a_usage_error(tmp_path, workload, given, message):
    with pytest.raises(commbench.UsageError, match=message):
        commbench.run(workload, output=tmp_path, **given) if workload else commbench.run()
    assert not any(tmp_path.iterdir())


def test_what_this_machine_lacks_has_the_reason_and_the_remedy(tmp_path):
    with pytest.raises(commbench.UnavailableError, match="Nothing else is left") as error:
        commbench.run("merge", backends=["ucx:ib"], output=tmp_path)
    assert "no RDMA device" in error.value.reason
    assert error.value.remedy
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_an_interrupted_run_raises_and_can_be_continued(tmp_path, monkeypatch, capsys):
    def interrupted(plan, run):
        yield from builders.simulate_plan(list(plan)[:1], run)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commbench.run("merge", backends="fake", launches=2, output=tmp_path)
    assert "to go on" in capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    assert len(commbench.load(path).ends) == 1


def test_a_run_that_raises_can_be_continued_at_once(tmp_path, monkeypatch):
    def full(plan, run):
        raise commbench.errors.UnwritableError("no room")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_plan", full)
        try:
            commbench.run("merge", backends="fake", launches=1, output=tmp_path)
        except commbench.errors.UnwritableError:
            # The traceback still refers to the run's store.
            patch.setattr(runner, "run_plan", builders.simulate_plan)
            (path,) = tmp_path.iterdir()
            assert len(commbench.run(resume=path).ends) == 1
        else:
            pytest.fail("no error was raised")


def test_a_coroutine_returns_the_run(tmp_path):
    assert inspect.signature(commbench.run).parameters == (
        inspect.signature(commbench.run_async).parameters
    )
    run = asyncio.run(commbench.run_async("merge", backends="fake", launches=1, output=tmp_path))
    assert len(run.ends) == 1


def test_a_cancelled_coroutine_ends_the_launch_and_not_the_event_loop(tmp_path, monkeypatch):
    closed = []

    def endless(plan, run):
        try:
            while True:
                yield None
        finally:
            closed.append(run)

    async def main():
        task = asyncio.create_task(
            commbench.run_async("merge", backends="fake", launches=1, output=tmp_path)
        )
        while not any(tmp_path.iterdir()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(tmp_path.iterdir())

    monkeypatch.setattr(runner, "run_plan", endless)
    assert asyncio.run(main()) == closed


def test_a_list_repeats_an_option_that_may_be_repeated():
    arguments = python_api._arguments({"vary": ["A=1|2", "B=1|2"], "backends": ["tcp", "mpi"]})
    assert arguments == ["--vary", "A=1|2", "--vary", "B=1|2", "--backends", "tcp,mpi"]


def test_a_switch_of_the_workload_may_be_off(tmp_path):
    assert python_api._switches("scatter") == {"direct"}
    assert python_api._switches("smoke") == python_api._switches("") == set()
    arguments = python_api._arguments({"direct": False, "quick": False}, {"direct"})
    assert arguments == ["--direct=false"]
    script = tmp_path / "script.py"
    script.write_text("def main(client, fast=True):\n    pass\n")
    assert python_api._switches(script) == {"fast"}
