"""Latency under load: that the load is there all the time, and that nothing hides its end."""

import asyncio

import pytest
from launching import ping_pong, select

from commbench.errors import VerificationError
from commbench.harness.measure import exchanges, message_loop
from commbench.model.observed import Load, Sample
from commbench.store.emitter import InMemory

LOADED = {"mode": "loaded-latency", "load_size": 1 << 16, "window": 4}
SIZES = (1, 64 << 10)


def samples(records):
    """Return the measured samples."""
    return [sample for sample in select(records, Sample) if not sample.warmup]


def test_the_load_flows_from_before_the_first_message_to_after_the_last(measure, monkeypatch):
    seen = []
    exchange = exchanges.Messages.exchange

    async def noted(self, *n_left):
        timing = await exchange(self, *n_left)
        if not self._exchange.one_by_one:
            seen.append(timing)
        return timing

    monkeypatch.setattr(exchanges.Messages, "exchange", noted)
    records = measure(layers=("comm",), sizes=SIZES, iterations=50, **LOADED)
    (load,) = select(records, Load)
    first, last = samples(records)[0], samples(records)[-1]
    assert 0 < load.nbytes // (4 << 16) <= len(seen) - 1
    assert load.seconds >= last.started_at_s + 2 * last.seconds - first.started_at_s


@pytest.mark.parametrize("layer", ["coroutine", "comm"])
def test_messages_and_their_counts_are_those_of_latency(measure, layer):
    records = measure(layers=(layer,), sizes=SIZES, iterations=50, **LOADED)
    # The messages' share of the CPU time is unknown.
    assert all(s.verified and s.seconds > 0 and s.cpu_seconds == 0 for s in samples(records))
    assert [s.payload_bytes for s in samples(records)] == [1] * 50 + [64 << 10] * 5


def test_a_load_that_breaks_off_ends_the_measurement(measure, monkeypatch):
    exchange = exchanges.Messages.exchange
    count = iter(range(100))

    async def breaks(self, *n_left):
        if not self._exchange.one_by_one and next(count) == 3:
            raise VerificationError("the load broke off")
        return await exchange(self, *n_left)

    monkeypatch.setattr(exchanges.Messages, "exchange", breaks)
    records = InMemory()
    with pytest.raises(VerificationError, match="the load broke off"):
        measure(records=records, iterations=10**6, **LOADED)
    assert not select(records, Load)


def test_a_message_that_comes_back_wrong_ends_the_load(measure, monkeypatch):
    async def measured(*_):
        await asyncio.sleep(0.01)
        raise VerificationError("differs from what was sent")

    monkeypatch.setattr(message_loop._Pair, "_measure_sizes", measured)
    with pytest.raises(VerificationError, match="differs from what was sent"):
        measure(**LOADED)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tcp", "mpi", "ucx"])
def test_a_launch_under_load(backend, tmp_path):
    records = ping_pong(
        backend, tmp_path, layers=("coroutine", "comm"), sizes=(1, 1 << 20), **LOADED
    )
    assert len(samples(records)) == 2 * (50 + 5)
    loads = select(records, Load)
    assert [load.layer for load in loads] == ["coroutine", "comm"]
    assert all(load.nbytes > 0 and load.seconds > 0 for load in loads)
