from __future__ import annotations

import os
from pathlib import Path

import builders
import processes
import pytest

from commbench.errors import ResultsError
from commbench.harness import runner
from commbench.model import (
    Case,
    ClusterSpec,
    Failure,
    Launch,
    LaunchEnd,
    Sample,
    TransferRecord,
    TransportUsed,
)
from commbench.store.parts import all_records
from commbench.store.records import BULK

PLUG_IN = """
import os, subprocess, sys, time
from commbench_fake import FakeBackend
from commbench.model import TransportUsed

RECORDS = "COMMBENCH_RECORDS_FD"
LINES = {
    "flood": b"x" * (4 << 20),
    "number": b"17\\n",
    "fields": b'{"record": "Sample"}\\n',
    "kind": b'{"record": "Surprise", "case_id": "", "launch": 0}\\n',
    "binary": bytes(range(256)) + b"\\n",
}

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
        for option in self.options:
            if option in LINES:
                os.write(int(os.environ[RECORDS]), LINES[option])
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
            elif option == "raise":
                raise RuntimeError("the dice are loaded")
            elif option == "import":
                import a_package_that_nobody_has
            elif option == "verbose":
                print("\\n".join(f"line {number}" for number in range(100)))
                os._exit(3)
            elif option == "environ":
                import dask.config
                shown = {**os.environ, "spill": dask.config.get("distributed.worker.memory.spill"),
                         "chunk": dask.config.get("array.chunk-size")}
                for name, value in shown.items():
                    yield TransportUsed(case_id=launch.case.id, launch=launch.index, src="", dst="",
                                        transport=name, evidence=str(value))
        yield from super().simulate(launch)
"""


def launches(backend, *, count=1, **case):
    case = Case(workload="merge", backend=backend, **{"iterations": 2, "timeout_s": 600.0} | case)
    return [Launch(case=case, index=index, block=index, position=0) for index in range(count)]


def of(records, kind):
    return [record for record in records if isinstance(record, kind)]


@pytest.fixture
def odd(tmp_path, monkeypatch):
    folder = processes.plug_in(
        tmp_path / "plugged", "odd_backend", PLUG_IN, backends={"odd": "Odd"}
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def test_a_good_launch_streams_its_records_and_leaves_no_log(tmp_path, tag):
    records = list(runner.run_plan(launches("fake"), tmp_path))
    assert [sample.iteration for sample in of(records, Sample)] == [-1, 0, 1]
    end = records[-1]
    assert end == LaunchEnd(
        case_id=launches("fake")[0].case.id, launch=0, block=0, position=0, ok=True,
        seconds=end.seconds,
    )  # fmt: skip
    assert of(records, LaunchEnd) == [end]
    assert not of(records, Failure)
    assert {path.name for path in tmp_path.iterdir()} == set(BULK.values())
    assert tag.processes() == []


def test_many_records_lie_in_parts(tmp_path):
    found = list(runner.run_plan(launches("fake"), tmp_path))
    assert not of(found, TransferRecord)
    many = [(one.iteration, one.src, one.dst) for one in of(all_records(tmp_path), TransferRecord)]
    assert sorted(many) == [
        (iteration, src, dst) for iteration in (-1, 0, 1) for src, dst in ("01", "10")
    ]
    assert not list(tmp_path.rglob("*.open.parquet"))


FAULTS = {
    "fake:crash": ("launch", "the launch was killed by SIGKILL"),
    "fake:exit": ("launch", "the launch exited with status 7"),
    "fake:hang": ("deadline", "no end after 15 s (--timeout)"),
    "fake:wrong": ("verify", "fake: expected 1, found 2"),
    "fake:rubbish": ("protocol", r"the launch wrote b'\xff not a record', not a record"),
}


@pytest.mark.parametrize(("backend", "told"), FAULTS.items(), ids=FAULTS)
def test_a_fault_costs_its_launch_alone(backend, told, tmp_path, tag):
    timeout_s = 15.0 if backend == "fake:hang" else 600.0
    plan = [*launches(backend, timeout_s=timeout_s), *launches("fake")]
    bad, good = plan[0].case.id, plan[1].case.id
    records = list(runner.run_plan(plan, tmp_path))
    samples = [record for record in of(records, Sample) if record.case_id == bad]
    assert [sample.iteration for sample in samples] == [-1]
    stage, message = told
    assert of(records, Failure) == [
        Failure(case_id=bad, launch=0, stage=stage, message=message)
    ]  # fmt: skip
    assert [(end.case_id, end.ok) for end in of(records, LaunchEnd)] == [(bad, False), (good, True)]
    assert len([record for record in of(records, Sample) if record.case_id == good]) == 3
    assert tag.processes() == []


@pytest.mark.parametrize("line", ["flood", "number", "fields", "kind", "binary"])
def test_whatever_is_no_record_ends_the_launch_at_once(line, tmp_path, tag, odd):
    records = list(runner.run_plan(launches(f"odd:{line}", timeout_s=600), tmp_path))
    failure, end = [record for record in records if record is not None]
    assert failure.stage == "protocol"
    assert "not a record" in failure.message
    assert len(failure.message) < 500
    assert not end.ok
    assert tag.processes() == []


@pytest.mark.parametrize("kind", ["stray", "holder"])
def test_what_a_launch_leaves_behind_is_killed(kind, tmp_path, tag, odd):
    records = list(runner.run_plan(launches(f"odd:{kind}", timeout_s=600), tmp_path))
    assert len((tmp_path / "logs" / "started").read_text().split()) == 1
    assert records[-1].ok
    assert tag.processes() == []


def test_a_launch_that_closes_its_pipe_and_hangs_meets_the_deadline(tmp_path, tag, odd):
    records = list(runner.run_plan(launches("odd:mute", timeout_s=5.0), tmp_path))
    (failure,) = of(records, Failure)
    assert failure.stage == "deadline"
    assert records.count(None) >= 2
    assert records[-1].seconds >= 5
    assert tag.processes() == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [("raise", "RuntimeError: the dice are loaded"), ("import", "a_package_that_nobody_has")],
)
def test_an_unexpected_error_names_the_log_with_its_traceback(kind, message, tmp_path, odd):
    records = list(runner.run_plan(launches(f"odd:{kind}"), tmp_path))
    (failure,) = of(records, Failure)
    assert failure.stage == "launch"
    assert message in failure.message
    assert "\n" not in failure.message
    log = next(Path(word) for word in failure.message.split() if word.startswith(str(tmp_path)))
    assert "Traceback" in log.read_text()


def test_a_launch_that_dies_is_told_with_its_last_words(tmp_path, odd):
    records = list(runner.run_plan(launches("odd:verbose"), tmp_path))
    (failure,) = of(records, Failure)
    first, *lines = failure.message.splitlines()
    assert "exited with status 3" in first
    assert "launch.log" in first
    assert lines == [f"  line {number}" for number in range(88, 100)]


def test_only_the_logs_of_a_failed_launch_are_kept(tmp_path):
    plan = [*launches("fake:wrong"), *launches("fake")]
    list(runner.run_plan(plan, tmp_path))
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix != ".parquet"]
    assert files == [Path("logs", f"{plan[0].case.id}-0", "launch.log")]
    assert not list(tmp_path.rglob("tmp"))


def test_records_come_while_the_launch_goes_on(tmp_path, tag):
    records = runner.run_plan(launches("fake:hang", timeout_s=600), tmp_path)
    while not isinstance(next(records), Sample):
        pass
    while next(records) is not None:
        pass
    records.close()


def test_closing_the_iterator_ends_the_launch(tmp_path, tag):
    records = runner.run_plan(launches("fake:hang", timeout_s=600), tmp_path)
    while not isinstance(next(records), Sample):
        pass
    assert [process.role for process in tag.launched()] == ["launch"]
    records.close()
    assert tag.processes() == []


def test_every_launch_has_an_environment_of_its_own(tmp_path, odd, monkeypatch):
    monkeypatch.setenv("DASK_ARRAY__CHUNK_SIZE", "7MiB")
    monkeypatch.delenv("DASK_TEMPORARY_DIRECTORY", raising=False)
    spec = ClusterSpec(env={"ODD_CASE": "yes"})
    plan = launches("odd:environ", count=2, cluster=spec)
    records = builders.measured(plan, tmp_path)
    first, second = (
        {
            record.transport: record.evidence
            for record in of(records, TransportUsed)
            if record.launch == index and record.transport != "fake"
        }
        for index in (0, 1)
    )
    scratch = str(tmp_path / "logs" / f"{plan[0].case.id}-0")
    assert first["ODD_SCRATCH"] == scratch
    assert first["ODD_CASE"] == "yes"
    assert first["spill"] == "0.25"
    assert first["chunk"] == "1MiB"
    assert first["DASK_TEMPORARY_DIRECTORY"].startswith(scratch)
    assert first[runner.MARK]
    assert first[runner.MARK] != second[runner.MARK]
    assert runner.MARK not in os.environ


def test_a_users_folder_for_temporary_files_is_respected(tmp_path, odd, monkeypatch):
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", "/elsewhere")
    records = builders.measured(launches("odd:environ"), tmp_path)
    seen = {record.transport: record.evidence for record in of(records, TransportUsed)}
    assert seen["DASK_TEMPORARY_DIRECTORY"] == "/elsewhere"


def test_logs_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ResultsError, match=r"can't write the logs .*logs.*--resume"):
        list(runner.run_plan(launches("fake"), tmp_path))


def test_a_process_that_cannot_be_started_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    records = list(runner.run_plan(launches("fake", count=2), tmp_path))
    assert ["/no/such/python" in failure.message for failure in of(records, Failure)] == [True] * 2
    assert [end.ok for end in of(records, LaunchEnd)] == [False, False]
