import asyncio
import itertools
import os
import time

import psutil
import pytest
from distributed.comm import CommClosedError
from launching import select

from commbench.backends.tcp import TcpBackend
from commbench.errors import LaunchError, VerificationError
from commbench.harness.measure import peer
from commbench.machine import process
from commbench.model.observed import Sample, TransportUsed, WorkerPlace
from commbench.store.emitter import InMemory
from commbench.workloads.pingpong import PingPong

KB, MiB = 1024, 1 << 20


def test_above_8_kib_there_are_a_tenth_of_the_messages_and_warm_ups(measure):
    sizes = (8 * KB + 1, 1, 8 * KB, MiB)
    records = measure(sizes=sizes, iterations=20, warmups=10)
    samples = select(records, Sample)
    assert list(dict.fromkeys(s.payload_bytes for s in samples)) == list(sizes)
    for size, n_warmups, n_messages in ((1, 10, 20), (8192, 10, 20), (8193, 1, 2), (MiB, 1, 2)):
        assert [(s.iteration, s.warmup) for s in samples if s.payload_bytes == size] == [
            (number, number < 0) for number in range(-n_warmups, n_messages)
        ]
    assert {(s.layer, s.verified) for s in samples} == {("comm", True)}


class Slow(PingPong):
    """Every exchange takes 50 ms."""

    async def exchange(self, comm, payload):
        await asyncio.sleep(0.05)
        return await super().exchange(comm, payload)


def test_after_its_time_a_size_ends_with_ten_messages_and_fewer_warm_ups(measure):
    records = measure(Slow, sizes=(64,), seconds_per_size=0.12, iterations=1000)
    samples = select(records, Sample)
    assert [s.iteration for s in samples if not s.warmup] == list(range(10))
    assert 1 <= len([s for s in samples if s.warmup]) <= 4


def test_within_its_time_a_size_has_more_than_ten_messages(measure):
    records = measure(Slow, sizes=(64,), seconds_per_size=1.0, iterations=1000, warmups=0)
    samples = select(records, Sample)
    # Fewer than 20 where the machine is slow, but for as long as the user allowed.
    assert 10 <= len(samples) <= 20
    last = samples[-1]
    assert last.started_at_s + 2 * last.seconds - samples[0].started_at_s > 0.9


def test_a_sample_is_half_the_round_trip(measure):
    samples = select(measure(Slow, sizes=(64,), iterations=12, warmups=0), Sample)
    assert [(s.iteration, s.warmup) for s in samples] == [(n, False) for n in range(12)]
    assert 0.025 <= min(s.seconds for s in samples) < 0.05
    starts = [s.started_at_s for s in samples]
    for sample, following in zip(samples, starts[1:], strict=False):
        assert sample.started_at_s + 2 * sample.seconds <= following + 0.001
    assert abs(starts[0] - time.time()) < 60


def test_locations_and_transports_of_both_ends_come_after_the_samples(measure):
    records = measure(sizes=(1,))
    one, other = select(records[-4:-2], WorkerPlace)
    assert (one.worker, one.pid, other.worker) == ("0", os.getpid(), "1")
    assert one.pid != other.pid
    assert one.host_id == other.host_id
    used = select(records[-2:], TransportUsed)
    assert [(t.src, t.dst, t.transport) for t in used] == [
        ("0", "1", "tcp/lo"), ("1", "0", "tcp/lo")
    ]  # fmt: skip
    # The two ends of one socket, as either sees it.
    there, back = (t.evidence for t in used)
    assert there.split()[2::2] == back.split()[:1:-2]
    assert there.startswith("comm: socket ")


def changing(change):
    """Return a kind of ping-pong whose reply is what `change` makes of all replies so far."""

    class Changed(PingPong):
        replies = ()

        async def exchange(self, comm, payload):
            self.replies = (*self.replies, (await super().exchange(comm, payload)).copy())
            return change(self.replies)

    return Changed


def corrupted(replies):
    """Return the last reply with a bit of its last byte turned."""
    reply = replies[-1].copy()
    reply[-1] ^= 1
    return reply


def stale_once(replies):
    """Return the reply before as the third, and otherwise the last."""
    return replies[1 if len(replies) == 3 else -1]


@pytest.mark.parametrize(
    ("change", "size", "message"),
    [
        (corrupted, 1, "to a message of 1 B differs"),
        (corrupted, 3 * MiB, "to a message of 3145728 B differs"),
        (stale_once, 1, "to a message of 1 B differs"),
        (stale_once, 100, "to a message of 100 B differs"),
        (
            lambda replies: replies[-1][:-1],
            100,
            r"sent ndarray of shape \(100,\), uint8, .* answered .* \(99,\)",
        ),
        (lambda replies: bytes(replies[-1]), 100, "the peer answered b['\"]"),
    ],
)
def test_a_wrong_reply_is_no_sample(measure, change, size, message):
    records = InMemory()
    with pytest.raises(VerificationError, match=message):
        measure(changing(change), sizes=(size,), records=records)
    assert select(records, Sample) == []


def test_samples_of_earlier_sizes_are_kept_after_a_wrong_reply(measure):
    def large_corrupted(replies):
        return corrupted(replies) if replies[-1].size > 100 else replies[-1]

    records = InMemory()
    with pytest.raises(VerificationError, match="to a message of 101 B differs"):
        measure(
            changing(large_corrupted), sizes=(100, 101), records=records, iterations=5, warmups=0
        )
    assert [s.payload_bytes for s in select(records, Sample)] == [100] * 5


def test_no_process_is_left_after_an_error(measure_alone, tag):
    seen = set()

    def look(replies):
        seen.update(process.role for process in tag.processes())
        return corrupted(replies)

    with pytest.raises(VerificationError):
        measure_alone(changing(look), sizes=(1,))
    assert seen == {"peer"}
    assert tag.processes() == []


class Unheard(TcpBackend):
    """A backend whose peer can't know it."""

    head = "unheard-of"


def test_a_peer_that_does_not_start_is_reported_with_the_end_of_its_log(measure_alone):
    with pytest.raises(LaunchError) as caught:
        measure_alone(backend=Unheard())
    message = str(caught.value)
    assert message.startswith("the peer exited with status 1 before it listened")
    assert "peer.log" in message
    assert "unknown backend 'unheard-of'" in message


class LosesPeer(PingPong):
    """The peer dies, and its connection closes before the death is noticed."""

    async def exchange(self, comm, payload):
        max(psutil.Process().children(), key=lambda child: child.create_time()).kill()
        raise CommClosedError("in <TCP>: Stream is closed")


def test_a_peers_death_is_reported_before_the_closed_connection(measure_alone, monkeypatch):
    monkeypatch.setattr(process, "_on_death", None)
    monkeypatch.setattr(process, "_NOTICE_SECONDS", 1.0)
    messages = []

    def report(message):
        messages.append(message)
        # The launch would end here; without it, the error goes its way.
        process.on_death(report)

    process.on_death(report)
    with pytest.raises(CommClosedError):
        measure_alone(LosesPeer)
    (message,) = messages
    assert message.startswith("peer (process ")
    assert "was killed by SIGKILL while it was needed" in message


class Busy(PingPong):
    """Every exchange uses 20 ms of the processor."""

    async def exchange(self, comm, payload):
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        return await super().exchange(comm, payload)


def test_cpu_seconds_are_those_of_both_ends_without_the_warm_ups(measure, monkeypatch):
    # Read at the start, after the warm-ups and at the end: the peer uses 3 s for 30 messages.
    readings = itertools.count(step=3.0)
    monkeypatch.setattr(peer.Peer, "cpu_seconds", lambda _: next(readings))
    samples = select(measure(Busy, sizes=(64,), iterations=15, warmups=15), Sample)
    (cpu_seconds,) = {s.cpu_seconds for s in samples}
    assert 0.11 < cpu_seconds < 0.1175
