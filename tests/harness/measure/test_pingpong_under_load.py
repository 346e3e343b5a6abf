"""Latency under load: that the load is there all the time, and that nothing hides its end."""

from __future__ import annotations

import asyncio

import builders
import psutil
import pytest

from commbench import backends
from commbench.backends.tcp import TcpBackend
from commbench.errors import VerificationError
from commbench.harness.measure import layers, pingpong
from commbench.model import Case, Failure, IdleCost, Launch, Load, Sample
from commbench.workloads.base import Context
from commbench.workloads.pingpong import PingPong

LOADED = {"mode": "loaded-latency", "load_size": 1 << 16, "window": 4}


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Return a function that measures a ping-pong under load and appends its records to a list."""
    # The clusters of other tests may be there yet.
    children = set(psutil.Process().children(recursive=True))
    monkeypatch.setattr("commbench.machine.process._NOTICE_SECONDS", 0.1)
    monkeypatch.setattr(
        pingpong,
        "measure_idle",
        lambda launch, _, n_processes: IdleCost(
            case_id=launch.case.id, launch=0, seconds=1, cpu_seconds=0, n_processes=n_processes
        ),
    )

    def measure(records, *, iterations=50, **params):
        case = Case(workload="pingpong", backend="tcp", iterations=iterations, warmups=10)
        given = LOADED | {"seconds_per_size": 60.0, "sizes": (1, 64 << 10)} | params
        workload = PingPong(PingPong.Params(**given), Context(n_workers=2, device="cpu", seed=7))
        launch = Launch(case=case, index=0, block=0, position=0)
        pingpong.measure_pair(launch, workload, TcpBackend(), tmp_path, records.append)

    yield measure
    assert set(psutil.Process().children(recursive=True)) == children


def samples(records):
    """Return the measured samples."""
    return [r for r in records if isinstance(r, Sample) and not r.warmup]


def test_the_load_flows_from_before_the_first_message_to_after_the_last(measure, monkeypatch):
    """Windows lie all along the samples, and are what the record of the load counts."""
    seen = []
    exchange = layers.Messages.exchange

    async def noted(self, *n_left):
        timing = await exchange(self, *n_left)
        if not self._exchange.one_by_one:
            seen.append(timing)
        return timing

    monkeypatch.setattr(layers.Messages, "exchange", noted)
    records = []
    measure(records, layers=("comm",))
    (load,) = [record for record in records if isinstance(record, Load)]
    first, last = samples(records)[0], samples(records)[-1]
    assert 0 < load.nbytes // (4 << 16) <= len(seen) - 1
    assert load.seconds >= last.started_at_s + 2 * last.seconds - first.started_at_s


@pytest.mark.parametrize("layer", ["coroutine", "comm"])
def test_messages_and_their_counts_are_those_of_latency(measure, layer):
    """Half round trips, verified, of the number asked for, without CPU time of their own."""
    records = []
    measure(records, layers=(layer,))
    counts = dict.fromkeys((1, 64 << 10), 0)
    for sample in samples(records):
        counts[sample.payload_bytes] += 1
        assert sample.verified
        assert sample.seconds > 0
        assert sample.cpu_seconds == 0
    assert counts == {1: 50, 64 << 10: 5}


def test_a_load_that_breaks_off_ends_the_measurement(measure, monkeypatch):
    """No latency counts as measured under a load that was gone, and the reason is told."""
    exchange = layers.Messages.exchange
    count = iter(range(100))

    async def breaks(self, *n_left):
        if not self._exchange.one_by_one and next(count) == 3:
            raise VerificationError("the load broke off")
        return await exchange(self, *n_left)

    monkeypatch.setattr(layers.Messages, "exchange", breaks)
    records = []
    with pytest.raises(VerificationError, match="the load broke off"):
        measure(records, iterations=10**6)
    assert not [record for record in records if isinstance(record, Load)]


def test_a_message_that_comes_back_wrong_ends_the_load(measure, monkeypatch):
    """What is wrong in the measurement itself is told, and the load does not go on for ever."""

    async def measured(*_):
        await asyncio.sleep(0.01)
        raise VerificationError("differs from what was sent")

    monkeypatch.setattr(pingpong._Pair, "_measure_sizes", measured)
    with pytest.raises(VerificationError, match="differs from what was sent"):
        measure([])


@pytest.mark.parametrize(
    "backend",
    ["tcp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mpi", "ucx"))],
)
def test_a_launch_under_load_ends_well(backend, tmp_path):
    """Real launches over each backend, from the plan to the record of the load."""
    if problem := backends.parse(backend).unavailable("cpu"):
        pytest.skip(f"{backend}: {problem.reason}")
    params = LOADED | {"layers": ("coroutine", "comm"), "sizes": (1, 1 << 20)}
    case = Case(workload="pingpong", backend=backend, params=params, iterations=50, warmups=10)
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = builders.measured(plan, tmp_path)
    assert not [record for record in records if isinstance(record, Failure)], records
    assert len(samples(records)) == 2 * (50 + 5)
    loads = [record for record in records if isinstance(record, Load)]
    assert [load.layer for load in loads] == ["coroutine", "comm"]
    assert all(load.nbytes > 0 and load.seconds > 0 for load in loads)
