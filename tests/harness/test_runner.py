"""A launch is a process group with a deadline; if it fails, the plan goes on without it."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import builders
import processes
import psutil
import pytest
from launching import make_launch

from commbench import backends
from commbench.errors import LaunchError, ResultsError
from commbench.harness import runner
from commbench.harness.cases import cases_for
from commbench.launchers.local import nanny_environment
from commbench.machine.process import MARK
from commbench.model import Case, ClusterSpec, Launch
from commbench.model.observed import (
    Failure,
    LaunchEnd,
    Phase,
    Sample,
    TransferRecord,
    TransportUsed,
)
from commbench.store.records import BULK

PLUG_IN = """
import os, subprocess, sys, time
from commbench_fake import FakeBackend
from commbench.model.observed import TransportUsed

RECORDS = "COMMBENCH_RECORDS_FD"

def started(pid):
    with open(os.environ["ODD_SCRATCH"] + "/../started", "w") as file:
        print(pid, file=file)

class Odd(FakeBackend):
    head = "odd"

    def __init__(self, options=()):
        super().__init__()
        self.options = options

    def environment(self, device, scratch):
        return {"ODD_SCRATCH": str(scratch)}

    def dask_config(self):
        return {"distributed.worker.memory.spill": 0.25, "array.chunk-size": "1MiB"}

    def simulate(self, launch):
        (option,) = self.options
        if option == "flood":
            os.write(int(os.environ[RECORDS]), b"x" * (4 << 20))
            time.sleep(1e6)
        elif option == "stray":
            started(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
        elif option == "holder":
            if (pid := os.fork()) == 0:
                os.setsid()
                time.sleep(1000)
            started(pid)
        elif option == "mute":
            os.close(int(os.environ[RECORDS]))
            time.sleep(1e6)
        elif option == "phase":
            os.write(int(os.environ[RECORDS]), b"# collecting\\n")
        elif option == "raise":
            raise RuntimeError("the dice are loaded")
        elif option == "long":
            raise RuntimeError("x" * (2 << 20))
        elif option == "chdir":
            os.chdir("/")
        elif option == "verbose":
            print("\\n".join(f"line {number}" for number in range(100)), flush=True)
            os._exit(3)
        elif option == "leave":
            os._exit(0)
        elif option == "environ":
            import dask.config
            shown = {**os.environ, "spill": dask.config.get("distributed.worker.memory.spill"),
                     "chunk": dask.config.get("array.chunk-size")}
            for name, value in shown.items():
                yield TransportUsed(case_id=launch.case.id, launch=launch.index, src="", dst="",
                                    transport=name, evidence=str(value))
        yield from super().simulate(launch)
"""


@pytest.fixture(scope="module", autouse=True)
def odd(tmp_path_factory):
    """Install the backend ``odd``, here and in the processes that are started."""
    folder = processes.plug_in(
        tmp_path_factory.mktemp("plugged"), "odd_backend", PLUG_IN, backends={"odd": "Odd"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setattr(runner, "_TICK_SECONDS", 0.05)
        yield


def launches(backend, *, count=1, **case):
    case = Case(workload="merge", backend=backend, **{"iterations": 2, "timeout_s": 600.0} | case)
    return [Launch(case=case, index=index, block=index, position=0) for index in range(count)]


def select(records, kind, case=None):
    """Return the records of one kind, and of one case."""
    return [r for r in records if isinstance(r, kind) and (case is None or r.case_id == case.id)]


def expire(patch):
    """Let an hour pass, as the runner sees it, and with it the deadline of the launch."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600, sleep=time.sleep)
    patch.setattr(runner, "time", clock)


def test_good_launch_leaves_only_its_records(tmp_path, tag):
    records = list(runner.run_plan(launches("fake"), tmp_path))
    assert tag.processes() == []
    assert [sample.iteration for sample in select(records, Sample)] == [-1, 0, 1]
    end = records[-1]
    assert end == LaunchEnd(
        case_id=launches("fake")[0].case.id, launch=0, block=0, position=0, ok=True,
        seconds=end.seconds,
    )  # fmt: skip
    assert select(records, LaunchEnd) == [end]
    assert not select(records, Failure)
    not_simulated = {"round_trips", "process_use"}
    assert {path.name for path in tmp_path.iterdir()} == {*BULK.values()} - not_simulated
    # Bulk records are in closed parts once.
    assert not select(records, TransferRecord)
    transfers = select(builders.all_records(tmp_path), TransferRecord)
    assert sorted((record.iteration, record.src, record.dst) for record in transfers) == [
        (iteration, src, dst) for iteration in (-1, 0, 1) for src, dst in ("01", "10")
    ]
    assert not list(tmp_path.rglob("*.open.parquet"))


def test_phases_are_yielded_from_the_start_on(tmp_path):
    records = list(runner.run_plan(launches("odd:phase"), tmp_path))
    assert isinstance(records[0], Phase)
    phases = [phase.name for phase in records if isinstance(phase, Phase)]
    assert phases == ["starting", "collecting"]
    assert records[-1].ok


FAULTS = {
    "fake:crash": ("launch", "the launch was killed by SIGKILL"),
    "fake:exit": ("launch", "the launch exited with status 7"),
    "fake:hang": ("deadline", r"no end after 600 s \(--timeout\)"),
    "fake:wrong": ("verify", "fake: expected 1, found 2"),
    "fake:rubbish": ("protocol", r"the launch wrote b'\\xff not a record', not a record"),
    "odd:flood": ("protocol", "the launch wrote b'x{80}', not a record"),
    "odd:leave": ("launch", r"(?s)the launch exited with status 0 before it had measured all.*"),
    "odd:raise": (
        "launch",
        r"RuntimeError: the dice are loaded; the traceback is in \S+launch.log",
    ),
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """Return the records and the folder of a plan with one launch of each fault and a good one."""
    path, tag = tmp_path_factory.mktemp("faults"), processes.Tag()
    plan = [launch for backend in [*FAULTS, "fake"] for launch in launches(backend)]
    hanging = plan[list(FAULTS).index("fake:hang")].case
    records = []
    with pytest.MonkeyPatch.context() as patch:
        tag.set(patch)
        for record in runner.run_plan(plan, path):
            records.append(record)
            if select([record], Sample, hanging):
                expire(patch)
            if isinstance(record, LaunchEnd):
                assert tag.processes() == []
    return records, path, {launch.case.backend: launch.case for launch in plan}


@pytest.mark.parametrize("backend", FAULTS)
def test_fault_is_one_failure_of_one_launch(backend, faults):
    records, _, cases = faults
    stage, message = FAULTS[backend]
    (failure,) = select(records, Failure, cases[backend])
    assert failure.stage == stage
    assert re.fullmatch(message, failure.message)
    assert [end.ok for end in select(records, LaunchEnd, cases[backend])] == [False]


def test_records_before_a_fault_are_kept_and_the_plan_goes_on(faults):
    records, _, cases = faults
    for backend in (name for name in FAULTS if name.startswith("fake")):
        assert [s.iteration for s in select(records, Sample, cases[backend])] == [-1]
    assert [end.ok for end in select(records, LaunchEnd, cases["fake"])] == [True]
    assert len(select(records, Sample, cases["fake"])) == 3


def test_only_logs_of_failed_launches_are_kept(faults):
    _, path, cases = faults
    files = {file for file in path.rglob("*") if file.is_file() and file.suffix != ".parquet"}
    assert files == {path / "logs" / f"{cases[name].id}-0" / "launch.log" for name in FAULTS}
    log = path / "logs" / f"{cases['odd:raise'].id}-0" / "launch.log"
    assert "Traceback" in log.read_text()


def test_a_failure_is_shorter_than_a_record_may_be(tmp_path):
    (failure,) = select(runner.run_plan(launches("odd:long"), tmp_path), Failure)
    assert failure.stage == "launch"
    assert re.fullmatch("RuntimeError: x{60000,}", failure.message)


def test_a_launch_begins_without_what_a_killed_one_left(tmp_path):
    plan = launches("odd:raise")
    left = runner.scratch_folder(plan[0], tmp_path) / "scheduler.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"address": "tcp://127.0.0.1:1"}')
    list(runner.run_plan(plan, tmp_path))
    assert [path.name for path in left.parent.iterdir()] == ["launch.log"]


def test_code_that_changes_the_directory_loses_no_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = list(runner.run_plan(launches("odd:chdir"), Path("run")))
    assert records[-1].ok
    assert len(select(builders.all_records(tmp_path / "run"), TransferRecord)) == 6


def test_an_interrupt_at_the_end_of_a_launch_kills_it(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    mark = "0123456789abcdef"
    child = subprocess.Popen(
        ["sleep", "1000"], stdin=subprocess.PIPE, start_new_session=True,
        env={**os.environ, MARK: mark},
    )  # fmt: skip
    monkeypatch.setattr(runner.process, "await_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner._end(child, mark)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("backend", "stages"), [("fake", []), ("fake:rubbish", ["protocol"])])
def test_a_process_that_survives_ends_the_run(tmp_path, monkeypatch, backend, stages):
    monkeypatch.setattr(runner.process, "kill_marked", lambda _: [123])
    plan, records = runner.run_plan(launches(backend, count=2), tmp_path / "a run"), []

    def run():
        for record in plan:
            records.append(record)

    with pytest.raises(LaunchError, match=r"survive SIGKILL: 123.*--resume '.*/a run'"):
        run()
    assert [failure.stage for failure in select(records, Failure)] == [*stages, "end"]
    assert select(records, LaunchEnd) == []


@pytest.mark.parametrize(("backend", "ok"), [("odd:phase", True), ("odd:verbose", False)])
def test_launches_need_no_pidfd(tmp_path, monkeypatch, backend, ok):
    monkeypatch.delattr(os, "pidfd_open")
    (end,) = select(list(runner.run_plan(launches(backend), tmp_path)), LaunchEnd)
    assert end.ok == ok


def test_failure_ends_with_the_last_lines_of_the_log(tmp_path):
    records = list(runner.run_plan(launches("odd:verbose"), tmp_path))
    (failure,) = select(records, Failure)
    first, *lines = failure.message.splitlines()
    assert "exited with status 3" in first
    assert "launch.log" in first
    assert lines == [f"  line {number}" for number in range(88, 100)]


@pytest.mark.parametrize("kind", ["stray", "holder"])
def test_grandchildren_in_other_sessions_are_killed(kind, tmp_path, tag):
    """``holder`` has the pipe for records, whose end the runner must not wait for."""
    records = list(runner.run_plan(launches(f"odd:{kind}"), tmp_path))
    assert len((tmp_path / "logs" / "started").read_text().split()) == 1
    assert records[-1].ok
    assert tag.processes() == []


def test_launch_that_closes_its_pipe_meets_the_deadline(tmp_path, tag, monkeypatch):
    records = []
    for record in runner.run_plan(launches("odd:mute"), tmp_path):
        records.append(record)
        if records.count(None) == 2:
            expire(monkeypatch)
    assert [failure.stage for failure in select(records, Failure)] == ["deadline"]
    assert records[-1].seconds >= 3600
    assert tag.processes() == []


def test_launch_that_ended_while_the_runner_was_stopped_is_complete(tmp_path, tag, monkeypatch):
    before = set(psutil.Process().children())
    records = []
    for record in runner.run_plan(launches("fake"), tmp_path):
        records.append(record)
        if isinstance(record, Sample):
            for child in set(psutil.Process().children()) - before:
                # A leader that is a zombie has not ended before its last thread has.
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            expire(monkeypatch)
    assert not select(records, Failure)
    assert len(select(records, Sample)) == 3
    assert records[-1].ok


def test_stopped_launch_meets_the_deadline(tmp_path, tag, monkeypatch):
    monkeypatch.setattr(runner, "_UNDO_SECONDS", 0.1)
    records = []
    for record in runner.run_plan(launches("fake:hang"), tmp_path):
        records.append(record)
        if isinstance(record, Sample):
            (launch,) = tag.launched()
            launch.kill(signal.SIGSTOP)
            expire(monkeypatch)
    assert [failure.stage for failure in select(records, Failure)] == ["deadline"]
    assert tag.processes() == []


def test_records_arrive_while_the_launch_goes_on_and_closing_ends_it(tmp_path, tag):
    records = runner.run_plan(launches("fake:hang"), tmp_path)
    while not isinstance(next(records), Sample):
        pass
    while next(records) is not None:
        pass
    assert [process.role for process in tag.launched()] == ["launch"]
    records.close()
    assert tag.processes() == []


def test_every_launch_has_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_ARRAY__CHUNK_SIZE", "7MiB")
    plan = launches("odd:environ", count=2, cluster=ClusterSpec(env={"ODD_CASE": "yes"}))
    shown = select(builders.measured(plan, tmp_path), TransportUsed)
    first, second = (
        {r.transport: r.evidence for r in shown if r.launch == index and r.transport != "fake"}
        for index in (0, 1)
    )
    scratch = str(tmp_path / "logs" / f"{plan[0].case.id}-0")
    assert first["ODD_SCRATCH"] == scratch
    assert first["ODD_CASE"] == "yes"
    assert first["spill"] == "0.25"
    assert first["chunk"] == "1MiB"
    assert first[MARK]
    assert first[MARK] != second[MARK]
    assert MARK not in os.environ


def test_all_layers_of_a_ping_pong_have_the_variables_of_workers(tmp_path):
    (case,) = cases_for("pingpong", ["tcp"], {"layers": ("raw",)}, ClusterSpec())
    launch = make_launch(case)
    environ = runner.environment(launch, backends.parse("tcp"), tmp_path)
    assert nanny_environment().keys() <= environ.keys()


def test_logs_that_cannot_be_written_end_the_run(tmp_path):
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ResultsError, match=r"can't write the logs .*logs"):
        list(runner.run_plan(launches("fake"), tmp_path))


def test_process_that_cannot_be_started_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    records = list(runner.run_plan(launches("fake", count=2), tmp_path))
    failures = select(records, Failure)
    assert ["/no/such/python" in failure.message for failure in failures] == [True] * 2
    assert [end.ok for end in select(records, LaunchEnd)] == [False, False]
