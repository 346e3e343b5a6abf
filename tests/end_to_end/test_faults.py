"""What a user sees, and what is left, when something dies, hangs, lies or is interrupted."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter

import processes
import pytest

from commbench import backends
from commbench.store.directory import read_manifest

pytestmark = pytest.mark.timeout(900)
PLUG_IN = """
import os, subprocess
from dataclasses import dataclass, field

import dask
from commbench.errors import VerificationError
from commbench.workloads.base import ClusterWorkload


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
    summary = "a workload that goes wrong as it is told"
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


@pytest.fixture
def line(tmp_path):
    with processes.command_line(tmp_path) as line:
        yield line


def failure_of(line, run, launch=0):
    (failure,) = [f for f in line.report(run)["failures"] if f["launch"] == launch]
    return failure


def n_samples(run, launch):
    return sum(sample["launch"] == launch for sample in processes.records(run, "Sample"))


def assert_told_well(ended, *words):
    assert "Traceback" not in ended.said, ended.said
    told = [text for text in ended.stderr.splitlines() if text.startswith("failed: ")]
    for word in words:
        assert sum(word in text for text in told) == 1, ended.stderr


def assert_nothing_left(line, running=None):
    assert line.tag.processes() == []
    if running is not None:
        # A process that has lost its environment already may still be on its way out.
        processes.until(lambda: not running.living_groups(), "the launches' groups are empty")
    assert list(line.temporary.iterdir()) == []


def test_a_death_costs_its_launch_alone(line):
    running = line.start("run", *MERGE, "--launches", "3", "--iterations", "8")
    victims = {0: "worker 1", 1: "scheduler"}
    for launch, role in victims.items():
        running.until_record("Sample", launch)
        running.find("launch")
        running.find(role).kill()
        running.until_record("LaunchEnd", launch)
    ended = running.finish()

    assert ended.status == 1
    assert_told_well(ended, "merge tcp: worker 1 (process ", "merge tcp: scheduler (process ")
    assert "[3/3] merge tcp: done" in ended.stderr
    run = ended.run
    failures = line.report(run)["failures"]
    assert [(f["launch"], f["stage"]) for f in failures] == [(0, "measure"), (1, "measure")]
    assert all("was killed by SIGKILL" in failure["message"] for failure in failures)
    assert f"{run}/logs/" in failures[0]["message"]
    assert all(n_samples(run, launch) >= 1 for launch in victims)
    assert n_samples(run, 2) == 8
    assert [end["ok"] for end in processes.records(run, "LaunchEnd")] == [False, False, True]
    assert {path.name for path in (run / "logs").glob("*-0/*")} == {
        "launch.log", "scheduler.log", "scheduler.json", "worker-0.log", "worker-1.log"
    }  # fmt: skip
    assert_nothing_left(line, running)


def test_a_launch_that_is_stopped_meets_the_deadline(line):
    running = line.start("run", "merge", "--backends", "fake:hang", "--timeout", "15s",
                         "--launches", "1", "--iterations", "2")  # fmt: skip
    running.until_record("Sample")
    running.find("launch").kill(signal.SIGSTOP)
    ended = running.finish()
    assert ended.status == 1
    assert_told_well(ended, "merge fake:hang: no end after 15 s (--timeout)")
    (end,) = processes.records(ended.run, "LaunchEnd")
    assert end["seconds"] >= 15
    assert_nothing_left(line, running)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker 0", "scheduler", "launch"])
def test_a_process_that_hangs_meets_the_deadline(role, line):
    running = line.start(
        "run", *TRANSPOSE, "--launches", "1", "--iterations", "10000", "--timeout", "60s"
    )
    running.until_record("Sample")
    running.find("launch")
    running.find(role).kill(signal.SIGSTOP)
    ended = running.finish()
    assert ended.status == 1
    assert_told_well(ended, "transpose-sum tcp: no end after 60 s (--timeout)")
    (end,) = processes.records(ended.run, "LaunchEnd")
    assert end["seconds"] >= 60
    assert failure_of(line, ended.run)["stage"] == "deadline"
    assert n_samples(ended.run, 0) >= 1
    assert_nothing_left(line, running)


@pytest.mark.parametrize(
    ("backend", "roles"),
    [
        ("ucx:shm", ("peer",)),
        pytest.param("tcp", ("peer", "launch"), marks=pytest.mark.slow),
        pytest.param("ucx", ("peer", "launch"), marks=pytest.mark.slow),
        pytest.param("ucx:shm", ("launch", "launch"), marks=pytest.mark.slow),
    ],
)
def test_deaths_in_a_pair_leave_nothing_behind(backend, roles, tmp_path):
    if problem := backends.parse(backend).unavailable("cpu"):
        pytest.skip(problem.reason)
    with (
        processes.private_memory() as memory,
        processes.command_line(tmp_path, memory.prefix) as line,
    ):
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
        words = {"peer": "peer (process ", "launch": "the launch was killed by SIGKILL"}
        for role, count in Counter(roles).items():
            assert ended.stderr.count(f"failed: pingpong {backend}: {words[role]}") == count
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
def test_deaths_in_a_cluster_over_ucx_leave_nothing_behind(role, backend, tmp_path):
    if problem := backends.parse(backend).unavailable("cpu"):
        pytest.skip(problem.reason)
    with (
        processes.private_memory() as memory,
        processes.command_line(tmp_path, memory.prefix) as line,
    ):
        running = line.start(
            "run", *MERGE, "--backends", backend, "--launches", "1", "--iterations", "100"
        )
        running.until_record("Sample")
        running.find("launch")
        running.find(role).kill()
        ended = running.finish()
        processes.until(lambda: not line.tag.launched(), "the launch ends")
        if role == "orchestrator":
            assert ended.status == -signal.SIGKILL
        else:
            assert ended.status == 1
            assert_told_well(ended, "was killed by SIGKILL")
        assert line.report(running.run)["cases"] != []
        assert_nothing_left(line, running)
        assert memory.leftovers() == []


def test_all_are_gone_when_orchestrator_and_launch_are_killed_at_once(line):
    running = line.start("run", *TRANSPOSE, "--launches", "1", "--iterations", "10000")
    running.until_record("Sample")
    victims = [running.find(role) for role in ("orchestrator", "launch")]
    assert len(line.tag.launched()) == 4
    for victim in victims:
        victim.kill(signal.SIGSTOP)
    for victim in victims:
        victim.kill()
    processes.until(lambda: not line.tag.processes(), "all are gone")
    running.finish()
    assert_nothing_left(line, running)


@pytest.mark.parametrize(
    ("how", "stage", "words"),
    [
        ("raise", "launch", "failed: ZeroDivisionError('the dice are loaded')"),
        pytest.param("wrong", "verify", "odd: expected 4, found 5", marks=pytest.mark.slow),
    ],
)
def test_a_workload_of_a_third_party_that_goes_wrong(how, stage, words, line, tmp_path):
    plugged = processes.plug_in(
        tmp_path / "plugged", "odd_workload", PLUG_IN, workloads={"odd": "Odd"}
    )
    line.environ["PYTHONPATH"] = f"{plugged}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    line.environ["STRAYS"] = str(tmp_path / "strays")
    ended = line.run("odd", "--how", how, "--launches", "1", "--iterations", "3", "--warmups", "0")
    assert ended.status == 1
    assert_told_well(ended, words)
    failure = failure_of(line, ended.run)
    assert failure["stage"] == stage
    assert failure["workload"] == "odd"
    assert [s["iteration"] for s in processes.records(ended.run, "Sample")] == [0]
    # One of the launch and one of either worker, each in a session of its own.
    assert len((tmp_path / "strays").read_text().split()) == 3
    assert_nothing_left(line)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_run_in_order(number, line):
    running = line.start("run", "merge", "--backends", "fake:hang", "--launches", "2")
    running.until_record("Sample")
    running.find("launch")
    running.child.send_signal(number)
    ended = running.finish()
    assert ended.status == 130
    assert "Traceback" not in ended.said
    assert f"commbench run --resume {ended.run}" in ended.stderr
    assert "only 0 of 2 launches were run" in ended.stdout.replace("\n", " ")
    assert line.report(ended.run)["failures"] == []
    assert_nothing_left(line, running)


def test_an_impatient_user_leaves_nothing_behind_either(line):
    running = line.start("run", "merge", "--backends", "fake:hang", "--launches", "2")
    running.until_record("Sample")
    running.find("launch")
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):
            running.child.send_signal(signal.SIGINT)
        time.sleep(0.05)
    ended = running.finish()
    assert ended.status != 0
    assert "Traceback" not in ended.said
    assert line.report(running.run)["failures"] == []
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


def test_what_is_in_other_sessions_goes_with_the_orchestrator(line, tmp_path):
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
    arguments = {
        "fake:slow": ("merge", "--backends", "fake:slow", "--iterations", "2"),
        "tcp": (
            "pingpong", "--sizes", "1,2,3,4,5,6,7,8", "--iterations", "1000",
            "--seconds-per-size", "60",
        ),
    }[request.param]  # fmt: skip
    with processes.command_line(tmp_path_factory.mktemp("resumed")) as line:
        running = line.start("run", *arguments, "--launches", "4")
        running.until_record("Sample")
        running.find("launch")
        running.child.send_signal(signal.SIGINT)
        interrupted = running.finish()
        assert_nothing_left(line, running)

        seen = len(running.records("Sample"))
        running = line.start("run", "--resume", interrupted.run, output=False)
        processes.until(lambda: len(running.records("Sample")) > seen, "a new sample")
        running.find("launch")
        running.find("orchestrator").kill()
        processes.until(lambda: not line.tag.launched(), "the launch ends by itself")
        killed = running.finish()
        assert_nothing_left(line, running)
        between = line.report(interrupted.run)

        last = line.start("run", "--resume", interrupted.run, output=False).finish()
        assert_nothing_left(line)
        yield line, interrupted, killed, between, last


def test_an_interrupted_run_can_be_read_and_resumed(resumed):
    _, interrupted, killed, between, last = resumed
    assert interrupted.status == 130
    assert killed.status == -signal.SIGKILL
    assert last.status == 0, last
    for ended in (interrupted, killed, last):
        assert "Traceback" not in ended.said
    assert f"commbench run --resume {interrupted.run}" in interrupted.stderr
    assert between["failures"] == []
    # A machine that is busy lets the first launches end before they are interrupted.
    assert any(re.search(r"only [0-3] of 4 launches were run", w) for w in between["warnings"])


def test_a_resumed_run_is_completed_by_what_was_missing(resumed):
    line, interrupted, _, _, last = resumed
    assert last.run == interrupted.run
    ends = processes.records(last.run, "LaunchEnd")
    assert [end["ok"] for end in ends] == [True] * 4
    samples = processes.records(last.run, "Sample")
    found = [
        {(s["payload_bytes"], s["iteration"]) for s in samples if s["launch"] == end["launch"]}
        for end in ends
    ]
    assert all(of_launch == found[0] for of_launch in found)
    (case,) = read_manifest(last.run).suite.cases
    n_sizes = len(case.params.get("sizes", [1]))
    assert len(found[0]) == (case.warmups + case.iterations) * n_sizes
    assert line.report(last.run)["failures"] == []


def test_a_resumed_run_gives_no_number_twice(resumed):
    samples = processes.records(resumed[1].run, "Sample")
    seen = Counter((s["launch"], s["payload_bytes"], s["iteration"]) for s in samples)
    assert max(seen.values()) == 1


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    (folder / "results").mkdir()
    with (
        processes.private_memory(folder / "results", "200k") as memory,
        processes.command_line(folder, memory.prefix) as line,
    ):
        arguments = ("--sizes", "1,2", "--warmups", "0", "--iterations", "400", "--launches", "3")
        ended = line.start("run", "pingpong", *arguments).finish()
        (run,) = [word for word in ended.stderr.split() if word.startswith(str(line.output))][-1:]
        yield line, ended, run


def test_a_full_disk_is_told_and_costs_no_record(full_disk):
    line, ended, run = full_disk
    assert "Traceback" not in ended.said, ended.said
    (told,) = [text for text in ended.stderr.splitlines() if text.startswith("Error: ")]
    assert f"{run}/samples.jsonl: No space left on device" in told
    assert f"--resume {run}" in told
    cases = line.report(run)["cases"]
    # How many fit depends on the parts and logs; each launch that ended has more.
    assert sum(case["n_samples"] + case["n_warmup"] for case in cases) > 100
    assert_nothing_left(line)


def test_a_full_disk_is_status_1(full_disk):
    assert full_disk[1].status == 1


def test_no_room_for_the_first_logs_is_told(tmp_path):
    (tmp_path / "results").mkdir()
    with (
        processes.private_memory(tmp_path / "results", "1m,nr_inodes=4") as memory,
        processes.command_line(tmp_path, memory.prefix) as line,
    ):
        ended = line.run("merge", "--backends", "fake", "--launches", "1")
        assert ended.status == 1
        assert "Traceback" not in ended.said, ended.said
        (told,) = [text for text in ended.stderr.splitlines() if text.startswith("Error: ")]
        assert "No space left on device" in told
        assert "--resume" in told
        assert_nothing_left(line)


def test_a_read_only_directory_is_told_before_anything_starts(tmp_path):
    (tmp_path / "results").mkdir()
    with (
        processes.private_memory(tmp_path / "results", "1m,ro") as memory,
        processes.command_line(tmp_path, memory.prefix) as line,
    ):
        running = line.start("run", *MERGE)
        launched = []
        while running.child.poll() is None:
            launched += line.tag.launched()
            time.sleep(0.02)
        ended = running.finish()
        assert ended.status == 1
        assert "Traceback" not in ended.said
        (told,) = [text for text in ended.stderr.splitlines() if text.startswith("Error: ")]
        assert f"{tmp_path}/results" in told
        assert "Read-only file system" in told
        assert "--output" in told
        assert launched == []
        assert_nothing_left(line)
