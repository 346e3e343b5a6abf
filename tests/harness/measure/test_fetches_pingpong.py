"""One worker fetches from another: two keys by turns, each answer checked."""

import asyncio
from types import SimpleNamespace

import pytest
from launching import ping_pong, require, select

from commbench.errors import LaunchError, VerificationError
from commbench.harness.measure import fetches
from commbench.model.observed import IdleCost, Sample, TransportUsed
from commbench.workloads.pingpong import PingPong
from commbench.workloads.workload import Context

KEYS = ["payload-0", "payload-1"]


WORKLOAD = PingPong(
    PingPong.Params(layers=("worker",), seconds_per_size=60.0),
    Context(n_workers=2, device="cpu", seed=3),
)


@pytest.fixture
def fetch(monkeypatch):
    """Return a function that runs the loop of fetches against made-up answers."""

    def fetch(answer):
        asked = []

        async def get_data_from_worker(rpc, keys, worker, *, who):
            asked.append(keys[0])
            return answer(keys[0], len(asked))

        monkeypatch.setattr("distributed.worker.get_data_from_worker", get_data_from_worker)
        dask_worker = SimpleNamespace(rpc=None, address="tcp://here")
        timings, _ = asyncio.run(
            fetches._fetch(WORKLOAD, 100, KEYS, "tcp://there", 2, 6, (), dask_worker=dask_worker)
        )
        return timings, asked

    return fetch


def right(key, count):
    """Answer with what the key stands for."""
    payload = fetches._payload(WORKLOAD, 100, KEYS.index(key))
    return {"status": "OK", "data": {key: payload}}


def test_neighbouring_fetches_never_ask_for_the_same_key(fetch):
    timings, asked = fetch(right)
    assert asked == KEYS * 4
    assert [number for number, _, _ in timings] == list(range(-2, 6))
    assert all(seconds > 0 for _, _, seconds in timings)


@pytest.mark.parametrize("size", [1, 2, 9, 100])
def test_two_keys_of_one_size_differ_from_their_first_byte_on(size):
    one, other = (fetches._payload(WORKLOAD, size, number) for number in (0, 1))
    assert one.shape == other.shape == (size,)
    assert one[0] != other[0]
    assert (one[8:] != other[8:]).all()


def test_the_answer_to_the_other_key_is_no_sample(fetch):
    def stale(key, count):
        return {"status": "OK", "data": {key: right(KEYS[0], count)["data"][KEYS[0]]}}

    with pytest.raises(VerificationError, match="differs from what was sent"):
        fetch(stale)


def test_every_byte_of_the_last_answer_is_compared(fetch):
    def garbled(key, count):
        answer = right(key, count)
        answer["data"][key][50] ^= 1
        return answer

    with pytest.raises(VerificationError, match="to a message of 100 B differs"):
        fetch(garbled)


def test_an_answer_without_data_ends_the_launch(fetch):
    with pytest.raises(LaunchError, match="payload-0 answered 'busy'"):
        fetch(lambda *_: {"status": "busy"})


@pytest.mark.slow
def test_a_launch_fetches_between_two_workers(tmp_path):
    records = ping_pong("tcp", tmp_path, iterations=40, layers=("worker",), sizes=(1, 100_000))
    (idle,) = select(records, IdleCost)
    assert idle.n_processes == 4
    assert {used.transport for used in select(records, TransportUsed)} == {"tcp/lo"}
    for size, n in ((1, 40), (100_000, 10)):
        samples = [s for s in select(records, Sample) if s.payload_bytes == size]
        assert {(s.layer, s.verified, s.tool) for s in samples} == {("worker", True, "")}
        assert 4 <= len([s for s in samples if not s.warmup]) <= n
        assert all(0 < s.seconds < 60 and s.cpu_seconds > 0 for s in samples)


@pytest.mark.parametrize("backend", ["mpi", pytest.param("ucx:shm", marks=pytest.mark.slow)])
def test_workers_start_after_a_layer_in_the_process_of_the_launch(backend, tmp_path):
    require(backend)
    given = {"iterations": 4, "warmups": 1, "layers": ("comm", "worker"), "sizes": (1,)}
    records = ping_pong(backend, tmp_path, **given)
    assert {sample.layer for sample in select(records, Sample)} >= {"comm", "worker"}
