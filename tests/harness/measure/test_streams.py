"""Several pairs at once: what counts, and that no process is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from commbench import backends
from commbench.backends.tcp import TcpBackend
from commbench.errors import LaunchError, VerificationError
from commbench.harness.measure import pingpong, streams
from commbench.harness.runner import run_plan
from commbench.model import Case, Failure, IdleCost, Launch, Sample, TransportUsed, WorkerPlace
from commbench.workloads.base import Context
from commbench.workloads.pingpong import PingPong

MiB = 1 << 20


class Wrong(PingPong):
    """Finds every second message wrong."""

    def verify(self, payload, reply, *, whole):
        """Fail where the number of the window is odd."""
        if payload[0] % 2:
            raise VerificationError("this is not what was sent")


class Dies(PingPong):
    """Ends the process that sends."""

    def stamp(self, payload, number):
        """End the second pair's process."""
        if number >> 32 == 1:
            os._exit(7)


class Slow(PingPong):
    """Every window of the second pair takes long."""

    def stamp(self, payload, number):
        """Take 50 ms, which count: they pass while the pairs run."""
        if number >> 32 == 1:
            time.sleep(0.05)
        super().stamp(payload, number)


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Return a function that measures pairs over tcp and returns the records."""
    # The clusters of other tests may be there yet.
    children = set(psutil.Process().children(recursive=True))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr("commbench.machine.process._NOTICE_SECONDS", 0.1)
    monkeypatch.setattr(
        streams,
        "measure_idle",
        lambda launch, _, n_processes: IdleCost(
            case_id=launch.case.id, launch=0, seconds=1, cpu_seconds=0, n_processes=n_processes
        ),
    )

    def measure(kind=PingPong, *, iterations=100, **params):
        case = Case(workload="pingpong", backend="tcp", iterations=iterations, warmups=10)
        given = {"seconds_per_size": 60.0, "mode": "multi-pair", "window": 4} | params
        context = Context(n_workers=2, device="cpu", seed=7)
        records = []
        launch = Launch(case=case, index=0, block=0, position=0)
        workload = kind(PingPong.Params(**given), context)
        pingpong.measure_pair(launch, workload, TcpBackend(), tmp_path, records.append)
        return records

    yield measure
    assert set(psutil.Process().children(recursive=True)) == children


def samples(records):
    """Return the samples among the records."""
    return [record for record in records if isinstance(record, Sample)]


def test_each_size_of_a_layer_has_one_sample(measure):
    """One stretch in which all pairs ran is one sample, verified, with every process's CPU time."""
    records = measure(layers=("coroutine", "comm"), sizes=(1, 64 << 10))
    assert [(s.layer, s.payload_bytes, s.iteration, s.warmup) for s in samples(records)] == [
        (layer, size, 0, False) for layer in ("coroutine", "comm") for size in (1, 64 << 10)
    ]
    assert all(s.verified and s.seconds > 0 and s.cpu_seconds > 0 for s in samples(records))
    assert {r.n_processes for r in records if isinstance(r, IdleCost)} == {4}


@pytest.mark.parametrize("n_pairs", [1, 3])
def test_every_pair_tells_what_carried_it(measure, n_pairs):
    """Processes are numbered pair by pair, and each pair has its transport both ways."""
    records = measure(sizes=(1,), pairs=n_pairs)
    used = [(r.src, r.dst, r.transport) for r in records if isinstance(r, TransportUsed)]
    ends = [(2 * n, 2 * n + 1) for n in range(n_pairs)]
    assert used == [
        (str(src), str(dst), "tcp/lo") for one, two in ends for src, dst in ((one, two), (two, one))
    ]
    places = {r.worker: r.pid for r in records if isinstance(r, WorkerPlace)}
    assert [*places] == [str(number) for number in range(2 * n_pairs)]
    assert len({*places.values()}) == 2 * n_pairs


def test_the_fast_pair_goes_on_until_the_slow_one_has_enough(measure, monkeypatch):
    """The time is that in which the slow pair sent its windows, and all that came in it counts."""
    seen = []
    together = streams.together

    def noted(timings):
        seen.extend(timings)
        return together(timings)

    monkeypatch.setattr(streams, "together", noted)
    (sample,) = samples(measure(Slow, sizes=(1,), iterations=100))
    fast, slow = seen
    assert len(slow) >= 10
    assert fast[-1][1] >= slow[9][1] - 0.05
    _, seconds, n_windows = together(seen)
    assert seconds >= 9 * 0.05
    assert len(slow) - 1 <= n_windows <= len(fast) + len(slow)
    assert sample.seconds == pytest.approx(seconds / n_windows / 4)


def test_what_arrives_wrong_in_one_pair_is_no_sample(measure):
    """A window that is found wrong in another process ends the launch with that reason."""
    with pytest.raises(VerificationError, match="this is not what was sent"):
        measure(Wrong, sizes=(8,))


def test_a_pair_that_ends_is_told(measure):
    """Nobody waits for a process that is gone."""
    with pytest.raises(LaunchError, match="pair 1 ended while it was needed"):
        measure(Dies, sizes=(8,))


def test_windows_outside_the_common_time_do_not_count():
    """What one pair sends before the other began, or after it ended, makes nothing faster."""
    alone = [(float(n), float(n + 1)) for n in range(10)]
    assert streams.together([alone, [(4.0, 5.0), (5.0, 6.0)]]) == (4.0, 2.0, 4.0)
    assert streams.together([alone]) == (0.0, 10.0, 10.0)


def test_pairs_that_never_ran_together_have_no_bandwidth():
    """Where one pair had ended before another began, there is no number."""
    with pytest.raises(LaunchError, match="never streamed at the same time"):
        streams.together([[(0.0, 1.0)], [(2.0, 3.0)]])


@pytest.mark.parametrize(
    "backend",
    ["tcp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mpi", "ucx"))],
)
def test_a_launch_of_two_pairs_ends_well(backend, tmp_path):
    """Real launches over each backend, from the plan to the samples."""
    if problem := backends.parse(backend).unavailable("cpu"):
        pytest.skip(f"{backend}: {problem.reason}")
    params = {
        "layers": ("coroutine", "comm"), "sizes": (1, MiB), "mode": "multi-pair", "window": 4,
    }  # fmt: skip
    case = Case(workload="pingpong", backend=backend, params=params, iterations=100, warmups=10)
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = list(run_plan(plan, tmp_path))
    assert not [record for record in records if isinstance(record, Failure)], records
    assert len(samples(records)) == 4
