from __future__ import annotations

import asyncio
import os
import statistics
import time
import zlib

import builders
import processes
import psutil
import pytest
from distributed.comm import CommClosedError

from commbench import backends
from commbench.backends.tcp import TcpBackend
from commbench.errors import LaunchError, VerificationError
from commbench.harness.measure import pingpong
from commbench.machine import process
from commbench.model import (
    Case,
    Failure,
    IdleCost,
    Launch,
    LaunchEnd,
    Sample,
    TransportUsed,
    WorkerPlace,
)
from commbench.workloads.base import Context
from commbench.workloads.pingpong import PingPong

KB, MiB = 1024, 1 << 20


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Return a function that measures a ping-pong over tcp and appends the records to a list."""
    monkeypatch.setattr(
        pingpong,
        "measure_idle",
        lambda launch, _, n_processes: IdleCost(
            case_id=launch.case.id, launch=0, seconds=1, cpu_seconds=0, n_processes=n_processes
        ),
    )

    monkeypatch.setattr("commbench.machine.process._NOTICE_SECONDS", 0.1)

    def measure(kind=PingPong, *, backend=None, records=None, iterations=20, warmups=10, **params):
        case = Case(workload="pingpong", backend="tcp", iterations=iterations, warmups=warmups)
        launch = Launch(case=case, index=0, block=0, position=0)
        records = [] if records is None else records
        context = Context(n_workers=2, device="cpu", seed=7)
        workload = kind(PingPong.Params(**{"seconds_per_size": 60.0} | params), context)
        pingpong.measure_pair(launch, workload, backend or TcpBackend(), tmp_path, records.append)
        return records

    return measure


def samples_of(records, size=None):
    """Return the samples, or those of one size."""
    found = [record for record in records if isinstance(record, Sample)]
    return [sample for sample in found if size in (None, sample.payload_bytes)]


def test_sizes_and_counts_are_as_asked(measure):
    """Each size has its warm-ups, flagged, and its messages; a tenth of both above 8 KiB."""
    sizes = (8 * KB + 1, 1, 8 * KB, MiB)
    records = measure(sizes=sizes, iterations=20, warmups=10)
    assert list(dict.fromkeys(s.payload_bytes for s in samples_of(records))) == list(sizes)
    for size, n_warmups, n_messages in ((1, 10, 20), (8192, 10, 20), (8193, 1, 2), (MiB, 1, 2)):
        found = [(s.iteration, s.warmup) for s in samples_of(records, size)]
        assert found == [(number, number < 0) for number in range(-n_warmups, n_messages)]
    assert {(s.layer, s.verified) for s in samples_of(records)} == {("comm", True)}


def test_without_warm_ups_there_are_none(measure):
    """No warm-up is made where none is asked for."""
    found = samples_of(measure(sizes=(1,), iterations=3, warmups=0))
    assert [(s.iteration, s.warmup) for s in found] == [(0, False), (1, False), (2, False)]


class Slow(PingPong):
    """Every exchange takes 50 ms."""

    async def exchange(self, comm, payload):
        """Wait, then exchange."""
        await asyncio.sleep(0.05)
        return await super().exchange(comm, payload)


def test_a_size_that_takes_too_long_stops_after_ten_messages(measure):
    """Past the time for a size ten messages are enough, and fewer warm-ups do."""
    found = samples_of(measure(Slow, sizes=(64,), seconds_per_size=0.12, iterations=1000))
    assert [s.iteration for s in found if not s.warmup] == list(range(10))
    assert 1 <= len([s for s in found if s.warmup]) <= 4


def test_within_its_time_a_size_has_more_than_ten_messages(measure):
    """The time for a size ends it at the first message after it, and not before."""
    found = samples_of(measure(Slow, sizes=(64,), seconds_per_size=1.0, iterations=1000, warmups=0))
    # Fewer than 20 where the machine is slow, but for as long as the user allowed.
    assert 10 <= len(found) <= 20
    last = found[-1]
    assert last.started_at_s + 2 * last.seconds - found[0].started_at_s > 0.9


def test_a_sample_is_half_the_round_trip(measure):
    """The seconds of a sample are half of the time from the message to its reply."""
    found = samples_of(measure(Slow, sizes=(64,), iterations=12, warmups=0))
    assert 0.025 <= min(s.seconds for s in found) < 0.05
    starts = [s.started_at_s for s in found]
    for sample, following in zip(found, starts[1:], strict=False):
        assert sample.started_at_s + 2 * sample.seconds <= following + 0.001
    assert abs(starts[0] - time.time()) < 60


def test_places_and_transports_of_both_ends_are_told_after_the_samples(measure):
    """Where each end is, and what carried its bytes."""
    *_, one, other, there, back = measure(sizes=(1,))
    assert [(place.worker, type(place)) for place in (one, other)] == [
        ("0", WorkerPlace), ("1", WorkerPlace),
    ]  # fmt: skip
    assert one.pid == os.getpid() != other.pid
    assert one.host_id == other.host_id
    assert isinstance(there, TransportUsed)
    assert isinstance(back, TransportUsed)
    assert [(t.src, t.dst, t.transport) for t in (there, back)] == [
        ("0", "1", "tcp/lo"), ("1", "0", "tcp/lo")
    ]  # fmt: skip
    # The two ends of one socket, as either sees it.
    assert there.evidence.split()[2::2] == back.evidence.split()[:1:-2]
    assert there.evidence.startswith("comm: socket ")


class Corrupted(PingPong):
    """A bit of the last byte of every reply is turned."""

    async def exchange(self, comm, payload):
        """Exchange, and garble what came."""
        reply = (await super().exchange(comm, payload)).copy()
        reply[-1] ^= 1
        return reply


class Stale(PingPong):
    """From the second message on the reply is the one before."""

    replies = ()

    async def exchange(self, comm, payload):
        """Exchange, and return what was received last time."""
        self.replies = (*self.replies[-1:], (await super().exchange(comm, payload)).copy())
        return self.replies[0]


class StaleOnce(PingPong):
    """The third reply is the one before; all others are right."""

    replies = ()

    async def exchange(self, comm, payload):
        """Exchange, and return what was received last time where it is the third."""
        self.replies = (*self.replies, (await super().exchange(comm, payload)).copy())
        return self.replies[1 if len(self.replies) == 3 else -1]


class Short(PingPong):
    """The reply lacks its last byte."""

    async def exchange(self, comm, payload):
        """Exchange, and cut what came."""
        return (await super().exchange(comm, payload))[:-1]


class Foreign(PingPong):
    """The reply is bytes and no array."""

    async def exchange(self, comm, payload):
        """Exchange, and take the array apart."""
        return bytes(await super().exchange(comm, payload))


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        (Corrupted, 1, "to a message of 1 B differs"),
        (Corrupted, 8, "to a message of 8 B differs"),
        (Corrupted, 3 * MiB, "to a message of 3145728 B differs"),
        (Stale, 1, "to a message of 1 B differs"),
        (Stale, 100, "to a message of 100 B differs"),
        (StaleOnce, 100, "to a message of 100 B differs"),
        (Short, 100, r"sent ndarray of shape \(100,\), uint8, .* answered .* \(99,\)"),
        (Foreign, 100, "the peer answered b['\"]"),
    ],
)
def test_a_wrong_reply_is_no_sample(measure, kind, size, message):
    """A reply that is garbled, stale, cut or of another type voids all samples of its size."""
    records = []
    with pytest.raises(VerificationError, match=message):
        measure(kind, sizes=(size,), records=records)
    assert samples_of(records) == []


def test_sizes_before_a_wrong_reply_are_kept(measure):
    """What was verified before the wrong reply has been emitted already."""

    class LargeCorrupted(Corrupted):
        """Only large replies are garbled."""

        async def exchange(self, comm, payload):
            """Garble what is large."""
            kind = Corrupted if payload.size > 100 else PingPong
            return await kind.exchange(self, comm, payload)

    records = []
    with pytest.raises(VerificationError, match="to a message of 101 B differs"):
        measure(LargeCorrupted, sizes=(100, 101), records=records, iterations=5, warmups=0)
    assert [s.payload_bytes for s in samples_of(records)] == [100] * 5


def test_payloads_are_random_and_reproducible():
    """The bytes of a payload don't repeat, and follow from the seed and the size."""

    def payload(seed, size):
        context = Context(n_workers=2, device="cpu", seed=seed)
        return PingPong(PingPong.Params(), context).payload(size)

    data = payload(1, MiB).tobytes()
    assert len(zlib.compress(data)) > len(data)
    assert payload(1, MiB).tobytes() == data
    assert payload(2, MiB).tobytes() != data
    assert payload(1, 2 * MiB).tobytes()[:1000] != data[:1000]


def test_nothing_is_left_after_an_error(measure, monkeypatch):
    """The peer is gone when the measurement ends, however that was."""
    tag = processes.Tag()
    for name, value in tag.environ.items():
        monkeypatch.setenv(name, value)
    seen = []

    class Looks(Corrupted):
        """Looks for the peer while it is there."""

        async def exchange(self, comm, payload):
            """Exchange, and look."""
            seen.extend(found.role for found in tag.processes())
            return await super().exchange(comm, payload)

    with pytest.raises(VerificationError):
        measure(Looks, sizes=(1,))
    assert set(seen) == {"peer"}
    assert tag.processes() == []


class Unheard(TcpBackend):
    """A backend whose peer can't know it."""

    head = "unheard-of"


def test_a_peer_that_does_not_start_is_told_with_its_last_words(measure):
    """A peer that ends before it listens is told with its exit status and the end of its log."""
    with pytest.raises(LaunchError) as caught:
        measure(backend=Unheard())
    message = str(caught.value)
    assert message.startswith("the peer exited with status 1 before it listened")
    assert "peer.log" in message
    assert "unknown backend 'unheard-of'" in message


class LosesPeer(PingPong):
    """The peer dies, and its connection closes before anybody is told of the death."""

    async def exchange(self, comm, payload):
        """Kill the peer and behave like a closed connection."""
        children = psutil.Process().children()
        program = "commbench.harness.measure.peer"
        (peer,) = (child for child in children if program in child.cmdline())
        peer.kill()
        raise CommClosedError("in <TCP>: Stream is closed")


def test_a_closed_connection_is_not_told_before_the_death_behind_it(measure, monkeypatch):
    """Where the peer died, that is what is told, and not merely that a stream is closed."""
    monkeypatch.setattr("commbench.machine.process._on_death", None)
    monkeypatch.setattr("commbench.machine.process._NOTICE_SECONDS", 2.0)
    told = []

    def report(message):
        told.append(message)
        # The launch would end here; without it, the error goes its way.
        process.on_death(report)

    process.on_death(report)
    with pytest.raises(CommClosedError):
        measure(LosesPeer)
    (message,) = told
    assert message.startswith("peer (process ")
    assert "was killed by SIGKILL while it was needed" in message


class Busy(PingPong):
    """Every exchange uses 20 ms of the processor."""

    async def exchange(self, comm, payload):
        """Use the processor, then exchange."""
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        return await super().exchange(comm, payload)


def test_cpu_seconds_are_both_ends(measure):
    """The CPU time of a message is half the mean round trip's, without the warm-ups'."""
    found = samples_of(measure(Busy, sizes=(64,), iterations=15, warmups=15))
    (cpu_seconds,) = {s.cpu_seconds for s in found}
    assert 0.01 < cpu_seconds < 0.0175


@pytest.fixture(scope="module")
def over_ucx(tmp_path_factory):
    """Return the records of real launches at 8 MiB over ucx and ucx:shm, by backend."""
    if problem := backends.parse("ucx:shm").unavailable("cpu"):
        pytest.skip(problem.reason)
    params = {"sizes": (8 * MiB,), "layers": ("comm",), "seconds_per_size": 2.0}
    found = {}
    for name in ("ucx", "ucx:shm"):
        case = Case(
            workload="pingpong", backend=name, params=params, iterations=300, warmups=50,
            timeout_s=240.0,
        )  # fmt: skip
        plan = [Launch(case=case, index=0, block=0, position=0)]
        records = builders.measured(plan, tmp_path_factory.mktemp("launches"))
        assert not [record for record in records if isinstance(record, Failure)], records
        assert isinstance(records[-1], LaunchEnd)
        found[name] = records
    return found


def test_shared_memory_is_what_ucx_shm_uses(over_ucx):
    """``ucx:shm`` shows sysv or posix in both directions and contradicts nothing."""
    told = [record for record in over_ucx["ucx:shm"] if isinstance(record, TransportUsed)]
    assert [(t.src, t.dst) for t in told] == [("0", "1"), ("1", "0")]
    for used in told:
        assert used.transport.partition("/")[0] in ("sysv", "posix")
        assert used.transport in used.evidence
        assert used.contradiction == ""


def test_plain_ucx_is_tcp_and_says_so(over_ucx):
    """``ucx`` shows tcp, says that this is not what one may think, and what would mend it."""
    told = [record for record in over_ucx["ucx"] if isinstance(record, TransportUsed)]
    assert len(told) == 2
    for used in told:
        assert used.transport.startswith("tcp/")
        assert used.transport in used.evidence
        assert "ucx:shm" in used.contradiction


def test_shared_memory_is_faster_than_tcp(over_ucx):
    """At 8 MiB the median over shared memory is below that over tcp, given two cores."""
    measured = [s for s in samples_of(over_ucx["ucx:shm"]) if not s.warmup]
    n_cores = measured[0].cpu_seconds / statistics.mean(s.seconds for s in measured)
    if n_cores < 1.5:
        # The ends take turns at filling and emptying a ring of 512 KiB, both of them polling.
        pytest.skip(f"the machine is busy: the two ends had {n_cores:.2f} cores between them")
    medians = {
        name: statistics.median(s.seconds for s in samples_of(records) if not s.warmup)
        for name, records in over_ucx.items()
    }
    assert medians["ucx:shm"] < medians["ucx"]


def test_the_variables_of_ucx_stay_in_the_launches(over_ucx):
    """What a backend sets is set in its launches alone, and not in this process."""
    assert "UCX_MM_ERROR_HANDLING" not in os.environ
