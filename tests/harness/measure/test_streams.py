"""Several pairs at once: what counts, and that no process is left behind."""

import time
from pathlib import Path

import psutil
import pytest
from faulty_pairs import Dies, Slow, Wrong, WrongAtLast
from launching import ping_pong, select

from commbench.errors import LaunchError, VerificationError
from commbench.harness.measure import streams
from commbench.machine import cores
from commbench.model.observed import IdleCost, Sample, TransportUsed, WorkerPlace
from commbench.store.emitter import InMemory

PAIRS = {"mode": "multi-pair", "window": 4}


@pytest.fixture
def measure_pairs(measure_alone, monkeypatch):
    """Return a function that measures pairs over tcp; they must leave no process behind."""
    # The clusters of other tests may be there yet.
    children = set(psutil.Process().children(recursive=True))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    yield lambda *args, **params: measure_alone(*args, **PAIRS | {"iterations": 100} | params)
    assert set(psutil.Process().children(recursive=True)) == children


def test_each_size_of_a_layer_is_one_sample_of_all_pairs(measure_pairs):
    records = measure_pairs(layers=("coroutine", "comm"), sizes=(1, 64 << 10))
    samples = select(records, Sample)
    assert [(s.layer, s.payload_bytes, s.iteration, s.warmup) for s in samples] == [
        (layer, size, 0, False) for layer in ("coroutine", "comm") for size in (1, 64 << 10)
    ]
    assert all(s.verified and s.seconds > 0 and s.cpu_seconds > 0 for s in samples)
    # Its median would be of two layers.
    (idle,) = select(records, IdleCost)
    assert idle.n_processes == 4
    # Each layer starts its processes and connects them, pair by pair.
    connections = [("0", "1"), ("1", "0"), ("2", "3"), ("3", "2")]
    assert [(r.src, r.dst) for r in select(records, TransportUsed)] == 2 * connections
    assert {r.transport for r in select(records, TransportUsed)} == {"tcp/lo"}
    pids = {r.worker: r.pid for r in select(records, WorkerPlace)}
    assert [*pids] == [*"0123"]
    assert len({*pids.values()}) == 4


def test_cpu_time_is_that_of_all_ends_from_the_common_start(measure_pairs, monkeypatch):
    starts, reads, reads_elsewhere, n_ends = [], [], [], []
    send, here = streams._Pairs._send, streams._Pairs._seconds_here
    cpu_seconds = cores.cpu_seconds

    def noted_ends(pids):
        n_ends.append(len({*pids}))
        return cpu_seconds(pids)

    def noted_send(pairs, message=None):
        starts.extend([message] * (message is not None))
        send(pairs, message)

    def noted_read(pairs):
        reads.append(time.perf_counter())
        return here(pairs)

    def noted_elsewhere(pairs):
        reads_elsewhere.append(time.perf_counter())
        return 0.0

    monkeypatch.setattr(cores, "cpu_seconds", noted_ends)
    monkeypatch.setattr(streams._Pairs, "_send", noted_send)
    monkeypatch.setattr(streams._Pairs, "_seconds_here", noted_read)
    monkeypatch.setattr(streams._Pairs, "_seconds_elsewhere", noted_elsewhere)
    measure_pairs(layers=("coroutine",), sizes=(1,))
    ((start_s,), (*_, began_s, ended_s)) = starts, reads
    assert start_s <= began_s < ended_s
    # A request to another host takes time of the streams.
    *_, asked_s, answered_s = reads_elsewhere
    assert asked_s < start_s < ended_s <= answered_s
    assert {*n_ends} == {4}


def test_the_fast_pair_goes_on_until_the_slow_one_has_enough(measure_pairs, monkeypatch):
    seen = []
    together = streams.together

    def noted(timings):
        seen.extend(timings)
        return together(timings)

    monkeypatch.setattr(streams, "together", noted)
    (sample,) = select(measure_pairs(Slow, layers=("coroutine",), sizes=(1,)), Sample)
    fast, slow = seen
    assert len(slow) >= 10
    assert fast[-1][1] >= slow[9][1] - 0.05
    _, seconds, n_windows = together(seen)
    assert seconds >= 9 * 0.05
    assert len(slow) - 1 <= n_windows <= len(fast) + len(slow)
    assert sample.seconds == pytest.approx(seconds / n_windows / 4)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (Wrong, VerificationError, "this is not what was sent"),
        (WrongAtLast, VerificationError, "this is not what was sent"),
        (Dies, LaunchError, "pair 1 ended while it was needed"),
    ],
)
def test_a_pair_that_fails_ends_the_launch(measure_pairs, kind, error, message):
    records, sizes = InMemory(), (1, 2) if kind is WrongAtLast else (8,)
    with pytest.raises(error, match=message):
        measure_pairs(kind, layers=("coroutine",), sizes=sizes, records=records)
    assert [sample.payload_bytes for sample in select(records, Sample)] == [*sizes[:-1]]


def test_windows_count_only_while_all_pairs_stream():
    alone = [(float(n), float(n + 1)) for n in range(10)]
    assert streams.together([alone, [(4.0, 5.0), (5.0, 6.0)]]) == (4.0, 2.0, 4.0)
    assert streams.together([alone]) == (0.0, 10.0, 10.0)


def test_pairs_that_never_ran_together_have_no_bandwidth():
    with pytest.raises(LaunchError, match="never streamed at the same time"):
        streams.together([[(0.0, 1.0)], [(2.0, 3.0)]])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tcp", "mpi", "ucx"])
def test_a_launch_of_two_pairs(backend, tmp_path):
    params = {"layers": ("coroutine", "comm"), "sizes": (1, 1 << 20), **PAIRS}
    records = ping_pong(backend, tmp_path, iterations=100, **params)
    assert len(select(records, Sample)) == 4
