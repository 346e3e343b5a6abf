"""What a user sees, and what remains, when something dies, hangs, fails or is interrupted."""

import contextlib
import os
import re
import signal
import time
from collections import Counter

import processes
import pytest
from processes import invoke, only

from commbench import backends
from commbench.store.directory import read_manifest

pytestmark = pytest.mark.timeout(900)
PLUG_IN = """
import os, subprocess
from dataclasses import dataclass, field

import dask
from commbench.errors import VerificationError
from commbench.workloads.workload import ClusterWorkload


def stray():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(os.environ["STRAYS"], "a") as file:
        print(child.pid, file=file)


def double(number, how):
    if how == "raise" and number == 2:
        raise ZeroDivisionError("the dice are loaded")
    return 2 * number


class Odd(ClusterWorkload):
    name = "odd"
    summary = "a workload that goes wrong"
    payload_bytes = 8

    @dataclass(frozen=True, kw_only=True)
    class Params:
        how: str = field(default="", metadata={"help": "raise or wrong"})

    def prepare(self, client):
        self.n_calls = 0
        stray()
        client.run(stray)

    def build(self):
        self.n_calls += 1
        how = self.params.how if self.n_calls > 1 else ""
        return [dask.delayed(double, pure=False)(n, how) for n in range(3)]

    def verify(self, client, result):
        if self.n_calls > 1 and self.params.how == "wrong":
            raise VerificationError("odd: expected 4, found 5")
"""

MERGE = ("merge", "--rows", "20000", "--warmups", "0", "--timeout", "1000")
PINGPONG = ("pingpong", "--sizes", "64KiB", "--warmups", "0", "--seconds-per-size", "500")
TRANSPOSE = ("transpose-sum", "--size", "200", "--chunk", "100", "--warmups", "0")
ENDLESS = ("--iterations", "10000")


@pytest.fixture
def line(tmp_path):
    with processes.command_line(tmp_path) as line:
        yield line


def n_samples(run, launch):
    return sum(sample["launch"] == launch for sample in processes.records(run, "Sample"))


def assert_reported(ended, *messages):
    """Assert that each of `messages` is in one failure on standard error, without a traceback."""
    assert "Traceback" not in ended.said, ended.said
    failures = [text for text in ended.stderr.splitlines() if text.startswith("failed: ")]
    for message in messages:
        assert sum(message in text for text in failures) == 1, ended.stderr


def error_line(ended):
    """Return the one error of a command, which has no traceback."""
    assert "Traceback" not in ended.said, ended.said
    (error,) = [text for text in ended.stderr.splitlines() if text.startswith("Error: ")]
    return error


PURGED = "dask-scratch-space"
"""The folder from which Dask removes what killed workers have left when the next one starts."""


def assert_nothing_left(line, running=None):
    """Assert that no process is left, nor a temporary file that Dask would not remove."""
    assert line.tag.processes() == []
    if running is not None:
        # A process that has lost its environment already may still be on its way out.
        processes.until(lambda: not running.living_groups(), "the launches' groups are empty")
    assert {path.name for path in line.temporary.iterdir()} <= {PURGED}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    """Kill a worker, then a scheduler, then orchestrator and launch at once: a launch each."""
    with processes.command_line(tmp_path_factory.mktemp("deaths")) as line:
        running = line.start("run", *TRANSPOSE, "--launches", "3", *ENDLESS)
        for launch, role in enumerate(("worker 1", "scheduler")):
            running.until_record("Sample", launch)
            running.find("launch")
            running.find(role).kill()
            running.until_record("LaunchEnd", launch)
        running.until_record("Sample", 2)
        victims = [running.find(role) for role in ("orchestrator", "launch")]
        assert len(line.tag.launched()) == 4
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for victim in victims:
                victim.kill(number)
        processes.until(lambda: not line.tag.processes(), "all are gone")
        ended = running.finish()
        assert_nothing_left(line, running)
        yield line.report(running.run), running.run, ended


def test_death_in_a_cluster_is_one_failure_of_its_launch(deaths):
    report, run, ended = deaths
    assert_reported(ended, "sum tcp: worker 1 (process ", "sum tcp: scheduler (process ")
    failures = report["failures"]
    assert [(f["launch"], f["stage"]) for f in failures] == [(0, "measure"), (1, "measure")]
    assert all("was killed by SIGKILL" in failure["message"] for failure in failures)
    assert f"{run}/logs/" in failures[0]["message"]
    assert [end["ok"] for end in processes.records(run, "LaunchEnd")] == [False, False]


def test_samples_before_a_death_are_kept(deaths):
    _, run, _ = deaths
    assert all(n_samples(run, launch) >= 1 for launch in range(3))


def test_logs_of_a_launch_with_a_death_are_kept(deaths):
    _, run, _ = deaths
    assert {path.name for path in (run / "logs").glob("*-0/*")} == {
        "launch.log", "scheduler.log", "scheduler.json", "worker-0.log", "worker-1.log"
    }  # fmt: skip


def test_run_with_its_orchestrator_killed_can_be_reported(deaths):
    report, _, ended = deaths
    assert ended.status == -signal.SIGKILL
    (case,) = report["cases"]
    assert case["workload"] == "transpose-sum"


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker 0", "scheduler", "launch"])
def test_launch_with_a_stopped_process_meets_the_deadline(role, line):
    running = line.start("run", *TRANSPOSE, "--launches", "1", *ENDLESS, "--timeout", "60s")
    running.until_record("Sample")
    running.find("launch")
    running.find(role).kill(signal.SIGSTOP)
    ended = running.finish()
    assert ended.status == 1
    assert_reported(ended, "transpose-sum tcp: no end after 60 s (--timeout)")
    (end,) = processes.records(ended.run, "LaunchEnd")
    assert end["seconds"] >= 60
    assert [failure["stage"] for failure in line.report(ended.run)["failures"]] == ["deadline"]
    assert n_samples(ended.run, 0) >= 1
    assert_nothing_left(line, running)


@pytest.fixture
def private(tmp_path):
    """Return a function that gives a backend's command line with its shared memory, or skips."""
    with contextlib.ExitStack() as stack:

        def start(backend):
            if problem := backends.parse(backend).unavailable("cpu"):
                pytest.skip(problem.reason)
            memory = stack.enter_context(processes.private_memory())
            return stack.enter_context(processes.command_line(tmp_path, memory.prefix)), memory

        yield start


@pytest.mark.parametrize(
    ("backend", "roles"),
    [
        ("ucx:shm", ("peer",)),
        pytest.param("tcp", ("peer", "launch"), marks=pytest.mark.slow),
        pytest.param("ucx", ("peer", "launch"), marks=pytest.mark.slow),
        pytest.param("ucx:shm", ("launch", "launch"), marks=pytest.mark.slow),
    ],
)
def test_deaths_in_a_pair_leave_nothing_behind(backend, roles, private):
    """In each launch another process dies, and the orchestrator in the last one."""
    line, memory = private(backend)
    running = line.start(
        "run", *PINGPONG, "--backends", backend, "--launches", str(len(roles) + 1),
        "--iterations", "99999999",
    )  # fmt: skip
    for launch, role in enumerate(roles):
        running.until_record("IdleCost", launch)
        running.find("launch")
        victim = running.find(role)
        # The messages begin, over UCX in rings of shared memory.
        time.sleep(0.5)
        victim.kill()
        running.until_record("LaunchEnd", launch)
    running.until_record("IdleCost", len(roles))
    running.find("launch")
    running.find("orchestrator").kill()
    # The kernel closes the pipe that the launch watches: all go by themselves.
    processes.until(lambda: not line.tag.launched(), "the launch ends by itself")
    ended = running.finish()

    assert ended.status == -signal.SIGKILL
    messages = {"peer": "peer (process ", "launch": "the launch was killed by SIGKILL"}
    for role, count in Counter(roles).items():
        assert ended.stderr.count(f"failed: pingpong {backend}: {messages[role]}") == count
    assert "Traceback" not in ended.said
    failures = line.report(running.run)["failures"]
    stages = {"peer": "measure", "launch": "launch"}
    assert [f["stage"] for f in failures] == [stages[role] for role in roles]
    assert all("was killed by SIGKILL" in failure["message"] for failure in failures)
    assert_nothing_left(line, running)
    assert memory.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ucx", "ucx:shm"])
@pytest.mark.parametrize("role", ["worker 0", "scheduler", "launch", "orchestrator"])
def test_deaths_in_a_cluster_over_ucx_leave_nothing_behind(role, backend, private):
    line, memory = private(backend)
    options = ("--backends", backend, "--launches", "1", "--iterations", "100")
    running = line.start("run", *MERGE, *options)
    running.until_record("Sample")
    running.find("launch")
    running.find(role).kill()
    ended = running.finish()
    processes.until(lambda: not line.tag.launched(), "the launch ends")
    if role == "orchestrator":
        assert ended.status == -signal.SIGKILL
    else:
        assert ended.status == 1
        assert_reported(ended, "was killed by SIGKILL")
    assert line.report(running.run)["cases"] != []
    assert_nothing_left(line, running)
    assert memory.leftovers() == []


@pytest.mark.parametrize(
    ("how", "stage", "message"),
    [
        ("raise", "launch", "failed: ZeroDivisionError('the dice are loaded')"),
        pytest.param("wrong", "verify", "odd: expected 4, found 5", marks=pytest.mark.slow),
    ],
)
def test_workload_that_goes_wrong_is_one_failure(how, stage, message, tmp_path, tag, monkeypatch):
    """What it has started in other sessions, in the launch and on either worker, is killed."""
    plugged = processes.plug_in(
        tmp_path / "plugged", "odd_workload", PLUG_IN, workloads={"odd": "Odd"}
    )
    monkeypatch.syspath_prepend(plugged)
    monkeypatch.setenv("PYTHONPATH", str(plugged), prepend=os.pathsep)
    monkeypatch.setenv("STRAYS", str(tmp_path / "strays"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    only(monkeypatch, "plot")
    only(monkeypatch, "rule")
    options = ("--launches", "1", "--iterations", "3", "--warmups", "0")
    result = invoke("run", "odd", "--how", how, *options, "--output", tmp_path / "results")
    assert result.exit_code == 1
    assert result.stderr.count(message) == 1
    (run,) = (tmp_path / "results").iterdir()
    (failure,) = processes.records(run, "Failure")
    assert failure["stage"] == stage
    assert [sample["iteration"] for sample in processes.records(run, "Sample")] == [0]
    assert len((tmp_path / "strays").read_text().split()) == 3
    assert tag.processes() == []
    assert {path.name for path in (tmp_path / "tmp").iterdir()} <= {PURGED}


HANGING = ("run", "merge", "--backends", "fake:hang", "--launches", "2")


def test_repeated_interrupts_leave_a_readable_run(line):
    running = line.start(*HANGING)
    running.until_record("Sample")
    running.find("launch")
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):
            running.child.send_signal(signal.SIGINT)
        time.sleep(0.05)
    ended = running.finish()
    # Python restores the default handler when it exits; a shell shows 130 for this, too.
    assert ended.status in (130, -signal.SIGINT)
    assert "Traceback" not in ended.said
    assert f"commbench run --resume {ended.run}" in ended.stderr
    assert line.report(running.run)["failures"] == []
    assert_nothing_left(line, running)


def test_an_interrupt_that_ends_the_reader_too_leaves_a_report(line):
    """As Ctrl-C does with ``2>&1 | tee log``."""
    running = line.start(*HANGING)
    running.until_record("Sample")
    running.find("launch")
    running.child.stdout.close()
    running.child.stderr.close()
    running.child.send_signal(signal.SIGINT)
    assert running.child.wait(processes.PATIENCE_SECONDS) == 130
    assert (running.run / "report.md").exists()
    assert_nothing_left(line, running)


STRAYING = """
import subprocess, time
from commbench_fake import FakeBackend

class Straying(FakeBackend):
    head = "straying"

    def simulate(self, launch):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        yield from super().simulate(launch)
        time.sleep(1000)
"""


def test_processes_in_other_sessions_end_with_the_orchestrator(line, tmp_path):
    plugged = processes.plug_in(
        tmp_path / "plugged", "straying_backend", STRAYING, backends={"straying": "Straying"}
    )
    line.environ["PYTHONPATH"] = f"{plugged}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    running = line.start("run", "merge", "--backends", "straying", "--launches", "1")
    running.until_record("ThreadTime")
    assert sorted(p.role for p in line.tag.launched()) == ["launch", "other"]
    running.find("orchestrator").kill()
    processes.until(lambda: not line.tag.launched(), "all are gone")
    running.finish()
    assert_nothing_left(line, running)


@pytest.fixture(scope="module", params=["fake:slow", pytest.param("tcp", marks=pytest.mark.slow)])
def resumed(tmp_path_factory, request):
    """Interrupt a run, resume and kill it, and resume it again."""
    arguments = {
        "fake:slow": ("merge", "--backends", "fake:slow", "--iterations", "2"),
        "tcp": (
            "pingpong", "--sizes", "1,2,3,4,5,6,7,8", "--iterations", "1000",
            "--seconds-per-size", "60",
        ),
    }[request.param]  # fmt: skip
    with processes.command_line(tmp_path_factory.mktemp("resumed")) as line:
        running = line.start("run", *arguments, "--launches", "3")
        running.until_record("Sample")
        running.find("launch")
        running.child.send_signal(signal.SIGTERM)
        interrupted = running.finish()
        assert_nothing_left(line, running)

        n_before = len(running.records("Sample"))
        running = line.start("run", "--resume", interrupted.run, output=False)
        processes.until(lambda: len(running.records("Sample")) > n_before, "a new sample")
        running.find("launch")
        running.find("orchestrator").kill()
        processes.until(lambda: not line.tag.launched(), "the launch ends by itself")
        killed = running.finish()
        assert_nothing_left(line, running)
        between = line.report(interrupted.run)

        with pytest.MonkeyPatch.context() as patch:
            only(patch, "plot")
            last = invoke("run", "--resume", interrupted.run)
        yield interrupted, killed, between, last


def test_interrupted_and_killed_runs_can_be_reported(resumed):
    interrupted, killed, between, last = resumed
    assert interrupted.status == 130
    assert killed.status == -signal.SIGKILL
    assert last.exit_code == 0, last.output
    assert "Traceback" not in interrupted.said + killed.said
    assert f"commbench run --resume {interrupted.run}" in interrupted.stderr
    assert between["failures"] == []
    # A machine that is busy lets the first launches end before they are interrupted.
    assert any(re.search(r"only [0-2] of 3 launches were run", w) for w in between["warnings"])


def test_resuming_adds_the_missing_launches(resumed):
    interrupted, _, _, last = resumed
    assert last.stdout.splitlines()[-1] == str(interrupted.run)
    ends = processes.records(interrupted.run, "LaunchEnd")
    assert [end["ok"] for end in ends] == [True] * 3
    samples = processes.records(interrupted.run, "Sample")
    complete = [
        {(s["payload_bytes"], s["iteration"]) for s in samples if s["launch"] == end["launch"]}
        for end in ends
    ]
    assert all(launch == complete[0] for launch in complete)
    (case,) = read_manifest(interrupted.run).suite.cases
    n_sizes = len(case.params.get("sizes", [1]))
    assert len(complete[0]) == (case.warmups + case.iterations) * n_sizes
    assert processes.records(interrupted.run, "Failure") == []


def test_resumed_launches_have_new_numbers(resumed):
    samples = processes.records(resumed[0].run, "Sample")
    counts = Counter((s["launch"], s["payload_bytes"], s["iteration"]) for s in samples)
    assert max(counts.values()) == 1


@pytest.fixture
def mounted(tmp_path):
    """Return a function that gives a command line whose results are on a mounted disk."""
    (tmp_path / "results").mkdir()
    with contextlib.ExitStack() as stack:

        def mount(options):
            memory = stack.enter_context(processes.private_memory(tmp_path / "results", options))
            return stack.enter_context(processes.command_line(tmp_path, memory.prefix))

        yield mount


def test_full_disk_is_status_1_and_keeps_the_records(mounted):
    line = mounted("200k")
    options = ("--sizes", "1,2", "--warmups", "0", "--iterations", "400", "--launches", "3")
    ended = line.run("pingpong", *options)
    error = error_line(ended)
    run = [word for word in ended.stderr.split() if word.startswith(str(line.output))][-1]
    assert ended.status == 1
    assert f"{run}/samples.jsonl: No space left on device" in error
    assert f"--resume {run}" in error
    cases = line.report(run)["cases"]
    # How many fit depends on the parts and logs; each launch that ended has more.
    assert sum(case["n_samples"] + case["n_warmup"] for case in cases) > 100
    assert_nothing_left(line)
