"""One worker fetches from another: two keys by turns, each answer checked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import builders
import pytest

from commbench.errors import LaunchError, VerificationError
from commbench.harness.measure import fetches
from commbench.model import Case, Failure, IdleCost, Launch, LaunchEnd, Sample
from commbench.workloads.base import Context
from commbench.workloads.pingpong import PingPong

KEYS = ["payload-0", "payload-1"]


def workload(seconds_per_size=60.0):
    """Return a ping-pong at the layer worker."""
    params = PingPong.Params(layers=("worker",), seconds_per_size=seconds_per_size)
    return PingPong(params, Context(n_workers=2, device="cpu", seed=3))


@pytest.fixture
def fetch(monkeypatch):
    """Return a function that runs the loop of fetches against made-up answers."""

    def fetch(answer, size=100, n_warmups=2, n_samples=6, seconds_per_size=60.0):
        asked = []

        async def get_data_from_worker(rpc, keys, worker, *, who):
            asked.append(keys[0])
            return answer(keys[0], len(asked))

        monkeypatch.setattr("distributed.worker.get_data_from_worker", get_data_from_worker)
        dask_worker = SimpleNamespace(rpc=None, address="tcp://here")
        timings, _ = asyncio.run(
            fetches._fetch(
                workload(seconds_per_size), size, KEYS, "tcp://there", n_warmups, n_samples, (),
                dask_worker=dask_worker,
            )
        )  # fmt: skip
        return timings, asked

    return fetch


def right(key, count, size=100):
    """Answer with what the key stands for."""
    payload = fetches._payload(workload(), size, KEYS.index(key))
    return {"status": "OK", "data": {key: payload}}


def test_two_keys_take_turns(fetch):
    """Neighbouring fetches never ask for the same key, through warm-ups and samples."""
    timings, asked = fetch(right)
    assert asked == KEYS * 4
    assert [number for number, _, _ in timings] == list(range(-2, 6))
    assert all(seconds > 0 for _, _, seconds in timings)


@pytest.mark.parametrize("size", [1, 2, 9, 100])
def test_the_keys_differ_in_content_from_their_first_byte_on(size):
    """Two keys of one size, down to a byte, have no byte in common where it matters."""
    one, other = (fetches._payload(workload(), size, number) for number in (0, 1))
    assert one.shape == other.shape == (size,)
    assert one[0] != other[0]
    assert (one[8:] != other[8:]).all()


def test_what_was_fetched_last_is_not_taken_for_what_is_fetched_now(fetch):
    """An answer that is the other key's is no sample."""

    def stale(key, count):
        return {"status": "OK", "data": {key: right(KEYS[0], count)["data"][KEYS[0]]}}

    with pytest.raises(VerificationError, match="differs from what was sent"):
        fetch(stale)


def test_the_last_answer_is_compared_whole(fetch):
    """A wrong byte far from the first ones is found in the last fetch."""

    def garbled(key, count):
        answer = right(key, count)
        answer["data"][key][50] ^= 1
        return answer

    with pytest.raises(VerificationError, match="to a message of 100 B differs"):
        fetch(garbled)


def test_a_busy_sender_is_no_fast_fetch(fetch):
    """An answer without data ends the launch."""
    with pytest.raises(LaunchError, match="payload-0 answered 'busy'"):
        fetch(lambda *_: {"status": "busy"})


def test_a_size_stops_after_its_time_but_not_before_ten_fetches(fetch):
    """Past the time for a size ten fetches are enough."""
    timings, _ = fetch(right, n_samples=1000, seconds_per_size=1e-9)
    assert [number for number, _, _ in timings if number >= 0] == list(range(10))


def test_a_live_cluster_is_measured(tmp_path):
    """Two workers over tcp give verified samples of each size, and what the idle cluster burns."""
    params = {"layers": ("worker",), "sizes": (1, 100_000)}
    case = Case(workload="pingpong", backend="tcp", params=params, iterations=40, warmups=10)
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = builders.measured(plan, tmp_path)
    assert not [record for record in records if isinstance(record, Failure)], records
    assert isinstance(records[-1], LaunchEnd)
    (idle,) = [record for record in records if isinstance(record, IdleCost)]
    assert idle.n_processes == 4
    for size, n in ((1, 40), (100_000, 10)):
        found = [r for r in records if isinstance(r, Sample) and r.payload_bytes == size]
        assert {(s.layer, s.verified, s.tool) for s in found} == {("worker", True, "")}
        assert 4 <= len([s for s in found if not s.warmup]) <= n
        assert all(0 < s.seconds < 60 and s.cpu_seconds > 0 for s in found)
