"""Fetches between workers of a live cluster: pingpong's layer ``worker``, and all-to-all.

A sample times ``distributed.worker.get_data_from_worker`` on the fetching worker, which also
fetches the input of tasks: a comm from the pool, the request, the sender's answer with the data,
and its deserialization. The clocks are read at the same points as for Dask's transfer log, which
does not record these fetches. Fetched data are only kept until they are verified, so every fetch
transfers data. All-to-all verifies when the clocks have stopped on all workers.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from distributed.diagnostics.plugin import WorkerPlugin

from commbench.backends.backend import Backend
from commbench.errors import LaunchError
from commbench.harness import wire
from commbench.harness.measure import conditions, plugins, record_keys, traffic
from commbench.harness.measure.conditions import N_IDLE_LAUNCHES, measure_idle
from commbench.harness.measure.exchanges import Pace
from commbench.launchers.launcher import RunningCluster, ask
from commbench.launchers.local import LocalLauncher
from commbench.machine import cores, gpu
from commbench.model import AGAIN, FETCHES, Launch
from commbench.model.observed import LogCount, RoundTrip, TransferRecord
from commbench.store import parts
from commbench.store.emitter import Emit, Emitter
from commbench.workloads.device import wait_finished
from commbench.workloads.workload import FetchWorkload, PairWorkload

ALONE, TOGETHER, ROUNDS = FETCHES
SENDER, FETCHER = "0", "1"
_LEAD_SECONDS = 0.05
"""The least delay of the common start after the request, in seconds."""
_EARLY_S = 0.002
"""The time before the common start that workers don't sleep, but look at the clock."""
_BUSY_SECONDS = 0.15
"""The time that Dask waits before it asks a busy sender again."""
_N_KEYS = 2
_ROUND_BYTES, _ROUND_BLOCKS, _ROUND_SECONDS = 32 << 20, 20, 0.1
"""Limits of a pair in a round: bytes, blocks, or time."""
_SUSPICIOUS = 1.3
"""The time over that of the median pair of a sweep from which a pair fetches again alone."""

_Fetched = tuple[int, float, float]
"""The number of a fetch, its start in seconds since the epoch, and its duration."""


def measure_worker(
    launch: Launch, workload: PairWorkload, backend: Backend, scratch: Path, emit: Emit
) -> None:
    """Start two workers, sweep the message sizes, and emit a sample for every fetch.

    Two keys with different content are fetched in turns, so that stale data are detected.

    Raises
    ------
    LaunchError
        If the cluster does not start, or the sending worker refuses.
    VerificationError
        If fetched data are wrong.
    """
    # UCX and MPI, which other layers have started in this process, don't survive a fork.
    options = {} if workload.layers == ("worker",) else {"start": "spawn"}
    spec = replace(launch.case.cluster, n_workers=2, threads_per_worker=1, launcher_options=options)
    with LocalLauncher().start(spec, backend.protocol, scratch) as cluster:
        conditions.validate_gpus(launch, cluster, emit)
        client, case = cluster.client, launch.case
        address = {name: address for address, name in cluster.names.items()}
        if workload.layers == ("worker",) and launch.index < N_IDLE_LAUNCHES:
            emit(measure_idle(launch, cluster.cpu_seconds, cluster.n_processes))
        pids = tuple(client.run(os.getpid).values())
        for size in workload.sizes:
            keys = _put(client, workload, size, address[SENDER])
            counts = (workload.n_samples(size, n) for n in (case.warmups, case.iterations))
            (answer,) = client.run(
                _fetch, workload, size, [key.key for key in keys], address[SENDER], *counts, pids,
                workers=[address[FETCHER]],
            ).values()  # fmt: skip
            timings, cpu_seconds = answer
            for number, started_at_s, seconds in timings:
                emit(
                    record_keys.sample(
                        launch, number, "worker", size, started_at_s, seconds, cpu_seconds
                    )
                )
        if workload.layers == ("worker",):
            with plugins.installed(cluster, *plugins.wire_meters(cluster)):
                client.run(wire.introduce, [*address.values()])
                for record in traffic.links(launch, backend, cluster):
                    emit(record)


def _put(client: Any, workload: PairWorkload, size: int, sender: str) -> list[Any]:
    keys = [
        client.submit(
            _payload, workload, size, number, key=f"payload-{size}-{number}", workers=[sender]
        )
        for number in range(_N_KEYS)
    ]
    wait_finished(keys, "the payload {!r} can't be made")
    return keys


def _payload(workload: PairWorkload, size: int, number: int) -> Any:
    payload = workload.payload(size)
    # Change every byte.
    payload ^= 0x55 * number
    workload.stamp(payload, number)
    gpu.synchronize(workload.context.device)
    return payload


async def _fetch(
    workload: PairWorkload, size: int, keys: list[str], sender: str, n_warmups: int,
    n_samples: int, pids: tuple[int, ...], dask_worker: Any,
) -> tuple[list[_Fetched], float]:  # fmt: skip
    """Fetch the keys in turn, and verify each outside the timing; runs on the worker."""
    expected = [_payload(workload, size, number) for number in range(len(keys))]
    pace = Pace(n_warmups, n_samples, workload.seconds_per_size, lambda: cores.cpu_seconds(pids))
    timings: list[_Fetched] = []
    for number in pace:
        key, payload = keys[number % len(keys)], expected[number % len(keys)]
        answer, began_at_s, seconds = await _get(dask_worker, key, sender, workload.context.device)
        if answer["status"] != "OK":
            raise LaunchError(f"the worker with {key} answered {answer['status']!r}")
        workload.verify(payload, answer["data"][key], whole=False)
        timings.append((number, began_at_s, seconds))
    cpu_seconds = pace.cpu_seconds()
    workload.verify(payload, answer["data"][key], whole=True)
    return timings, cpu_seconds


async def _get(
    dask_worker: Any, key: str, sender: str, device: str
) -> tuple[dict[str, Any], float, float]:
    """Fetch a key; return the answer, the start in seconds since the epoch, and the duration."""
    from distributed.worker import get_data_from_worker

    began_at_s, began = time.time(), time.perf_counter()
    answer = await get_data_from_worker(
        rpc=dask_worker.rpc, keys=[key], worker=sender, who=dask_worker.address
    )
    gpu.synchronize(device)
    return answer, began_at_s, time.perf_counter() - began


def measure_fetches(
    launch: Launch, workload: FetchWorkload, backend: Backend, cluster: RunningCluster,
    emit: Emitter,
) -> None:  # fmt: skip
    """Run the warm-ups and iterations of one launch, and emit their records.

    Raises
    ------
    LaunchError
        If a block can't be made or fetched.
    VerificationError
        If a fetched block is wrong.
    """
    client, case = cluster.client, launch.case
    with plugins.installed(cluster, *plugins.wire_meters(cluster), Fetcher(workload)):
        names = sorted((len(name), name, address) for address, name in cluster.names.items())
        members = [
            _Member(number, name, address) for number, (_, name, address) in enumerate(names)
        ]
        if workload.in_rounds:
            members = _one_per_host(launch, cluster, members)
        if launch.index < N_IDLE_LAUNCHES:
            emit(measure_idle(launch, cluster.cpu_seconds, cluster.n_processes))
        blocks = [
            client.submit(
                workload.block, member.number, size, key=key(member.number, size),
                workers=[member.address], allow_other_workers=False,
            )
            for member in members
            for size in workload.sizes
        ]  # fmt: skip
        wait_finished(blocks, "the block {!r} can't be made")
        order = random.Random(f"{case.seed} {launch.index}")
        for iteration in range(-case.warmups, case.iterations):
            emit.phase(record_keys.counted(iteration, case))
            # Requests to many workers take longer to arrive. One of two may be disturbed.
            lead_s = max(_LEAD_SECONDS, 2 * min(_seconds_to_forget(client) for _ in range(2)))
            counters = traffic.network_counters()
            exchange = _Exchange(launch, iteration, cluster, members, order, lead_s)
            for size in workload.sizes:
                if workload.in_rounds:
                    exchange.in_rounds(size, emit, judged=size == max(workload.sizes))
                else:
                    exchange.sweep(ALONE, size, exchange.one_by_one(), emit)
                    exchange.together(size, emit)
            exchange.echo(workload.in_rounds, emit)
            with emit.region() as keep:
                for record in chain(
                    exchange.counts(),
                    traffic.wire_bytes(launch, iteration, cluster),
                    traffic.network_bytes(launch, iteration, counters),
                ):
                    keep(record)
        if not cluster.shares_processes:
            for link in traffic.links(launch, backend, cluster):
                emit(link)
        del blocks


def _seconds_to_forget(client: Any) -> float:
    """Reset the counts of all workers, and return how long that takes."""
    began = time.perf_counter()
    client.run(wire.forget)
    return time.perf_counter() - began


class _Member(NamedTuple):
    """A worker, with its number for the workload."""

    number: int
    name: str
    address: str


_Group = Mapping[_Member, Sequence[_Member]]
"""Receivers that fetch at once, and the owners of the blocks that each fetches in turn."""


def _one_per_host(launch: Launch, cluster: RunningCluster, members: list[_Member]) -> list[_Member]:
    """Return the first of `members` on each host; all if they are on one host."""
    places = conditions.worker_places(launch, cluster)
    hosts = {location.worker: location.host_id for location in places}
    first = {hosts[member.name]: member for member in reversed(members)}
    if len(first) == 1:
        return members
    return [member for member in members if member in first.values()]


def rounds(n: int) -> Iterator[list[tuple[int, int]]]:
    """Yield pairs of n players, none of which shares a player, until each has met each other.

    By the circle method of tournaments: n - 1 rounds, or n, in each of which one rests, if n is
    odd. Source: E. Lucas, Récréations mathématiques, volume 2 (1883), sixth recreation.

    Examples
    --------
    >>> [*rounds(4)]
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    >>> [*rounds(3)]
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    ring = [*range(n + n % 2)]
    for _ in ring[1:]:
        half = len(ring) // 2
        pairs = zip(ring[:half], ring[: half - 1 : -1], strict=True)
        yield [pair for pair in pairs if max(pair) < n]
        ring.insert(1, ring.pop())


class _Exchange:
    """The fetches of one iteration."""

    def __init__(
        self, launch: Launch, iteration: int, cluster: RunningCluster, members: list[_Member],
        order: random.Random, lead_s: float,
    ) -> None:  # fmt: skip
        self._launch, self._iteration, self._lead_s = launch, iteration, lead_s
        self._common = record_keys.keys(launch, iteration)
        self._cluster, self._members, self._order = cluster, members, order
        self._offsets = conditions.clock_offsets(cluster)
        self._n_pairs = len(members) * (len(members) - 1)
        self._n_fetched = dict.fromkeys(members, 0)
        self._n_busy = dict.fromkeys(members, 0)

    def one_by_one(self) -> Iterator[_Group]:
        """Yield each worker, in random order, with all others."""
        for receiver in self._shuffled(self._members):
            others = [member for member in self._members if member != receiver]
            yield {receiver: self._shuffled(others)}

    def in_rounds(self, size: int, emit: Emitter, *, judged: bool) -> None:
        """Measure the pairs of each round at once, and those of the first round alone.

        If the size is `judged`, the slowest pairs, at most as many as there are members, fetch
        again alone, to separate slow links from those that had to share with other pairs.
        """
        n_blocks = max(1, min(_ROUND_BLOCKS, _ROUND_BYTES // size))
        halves = [*self._halves(n_blocks)]
        seconds = self.sweep(ROUNDS, size, halves, emit, _ROUND_SECONDS)
        pairs = ({end: owners} for half in halves[:2] for end, owners in half.items())
        self.sweep(ALONE, size, pairs, emit, _ROUND_SECONDS)
        limit_s = _SUSPICIOUS * statistics.median(seconds.values())
        slow = [
            pair for pair in sorted(seconds, key=seconds.__getitem__) if seconds[pair] > limit_s
        ]
        if judged and slow:
            again = ({end: [owner] * n_blocks} for end, owner in slow[-len(self._members) :])
            self.sweep(AGAIN, size, again, emit, _ROUND_SECONDS)

    def _halves(self, n_blocks: int) -> Iterator[_Group]:
        """Yield the pairs of each round in one direction, then in the other, in random order."""
        members = self._shuffled(self._members)
        for pairs in rounds(len(members)):
            yield {members[one]: [members[other]] * n_blocks for one, other in pairs}
            yield {members[other]: [members[one]] * n_blocks for one, other in pairs}

    def sweep(
        self, channel: str, size: int, groups: Iterable[_Group], emit: Emitter,
        enough_s: float = math.inf,
    ) -> dict[tuple[_Member, _Member], float]:  # fmt: skip
        """Measure the fetches of each group, one group after another.

        A receiver begins no other fetch `enough_s` after its first one began. Return the median
        duration of each receiver and owner.
        """
        cpu_seconds = 0.0
        receivers: dict[_Member, None] = {}
        with emit.region() as keep:
            for group in groups:
                owners = {receiver.address: them for receiver, them in group.items()}
                cpu_seconds += self._run_fetches([*group], in_turn, owners, size, enough_s)
                self._verify([*group])
                receivers |= dict.fromkeys(group)
            spans = [*self._emit_fetches(channel, size, [*receivers], keep)]
            seconds = defaultdict(list)
            for start_s, stop_s, receiver, owner in spans:
                seconds[receiver, owner].append(stop_s - start_s)
            # Slow pairs have fewer fetches.
            mean_s = statistics.fmean(map(statistics.fmean, seconds.values()))
            if channel in FETCHES:
                keep(
                    record_keys.sample(
                        self._launch, self._iteration, channel, size, min(spans)[0], mean_s,
                        cpu_seconds / len(spans),
                    )
                )  # fmt: skip
        return {pair: statistics.median(each) for pair, each in seconds.items()}

    def together(self, size: int, emit: Emitter) -> None:
        """Measure a fetch of one block by each pair, all at once."""
        owners = self._shuffled(self._members)
        cpu_seconds = self._run_fetches(self._members, at_once, owners, size)
        self._verify(self._members)
        with emit.region() as keep:
            spans = list(self._emit_fetches(TOGETHER, size, self._members, keep))
            began_at_s = min(spans)[0]
            keep(
                record_keys.sample(
                    self._launch, self._iteration, TOGETHER, size * self._n_pairs, began_at_s,
                    max(stop_s for _, stop_s, *_ in spans) - began_at_s, cpu_seconds,
                )
            )  # fmt: skip

    def _run_fetches(self, receivers: Sequence[_Member], fetch: Any, *arguments: Any) -> float:
        """Let the receivers fetch, and return the CPU seconds of all processes.

        Several receivers have a common start, from which CPU time counts, because processes that
        poll also use it while they wait. Members on other hosts read their clocks at that time; a
        message would disturb their fetches.
        """
        cluster = self._cluster
        if len(receivers) == 1:
            cpu_began = cluster.cpu_seconds()
            self._run(receivers, fetch, *arguments, time.time(), self._offsets)
            return cluster.cpu_seconds() - cpu_began
        elsewhere = cluster.remote_processes & {member.address for member in self._members}
        begin_at_s = time.time() + self._lead_s
        arguments = (*arguments, begin_at_s, self._offsets)
        with ThreadPoolExecutor(1) as thread:
            answers = thread.submit(self._run, receivers, fetch, *arguments, workers=self._members)
            time.sleep(max(0.0, begin_at_s - time.time()))
            cpu_began = cores.cpu_seconds(cluster.pids)
            others = cluster.remote_processes - elsewhere
            began: dict[str, float] = ask(cluster.client, others, time.process_time)
            at_start = answers.result()
            began |= {name: at_start[name] for name in elsewhere}
        return cluster.cpu_seconds() - cpu_began - sum(began.values())

    def echo(self, in_rounds: bool, emit: Emit) -> None:
        """Measure empty requests of each pair, one pair after another or in rounds."""
        for group in self._halves(_ROUND_BLOCKS) if in_rounds else self.one_by_one():
            asked = {
                receiver.address: [owner.address for owner in owners]
                for receiver, owners in group.items()
            }
            answers = self._run([*group], echo, asked)
            for receiver, owners in group.items():
                emit(
                    parts.table(
                        RoundTrip, **self._common, src=[owner.name for owner in owners],
                        dst=receiver.name, seconds=answers[receiver.address],
                    )
                )  # fmt: skip

    def counts(self) -> Iterator[LogCount]:
        """Yield the number of fetches of each worker, by outcome."""
        for member in self._members:
            yield LogCount(
                **self._common, worker=member.name,
                n_started=self._n_fetched[member] + self._n_busy[member],
                n_logged=self._n_fetched[member], n_busy=self._n_busy[member],
                n_failed=0, n_in_flight=0,
            )  # fmt: skip

    def _shuffled(self, members: Sequence[_Member]) -> list[_Member]:
        return self._order.sample(members, len(members))

    def _run(
        self, receivers: Sequence[_Member], call: Any, *arguments: Any,
        workers: Sequence[_Member] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Call a function on the `workers`, or the receivers, and return the answers by address."""
        addresses = [member.address for member in workers or receivers]
        try:
            answers: dict[str, Any] = self._cluster.client.run(call, *arguments, workers=addresses)
        except OSError as error:
            names = ", ".join(member.name for member in receivers)
            raise LaunchError(f"the request to worker {names} failed: {error!r}") from error
        return answers

    def _verify(self, receivers: Sequence[_Member]) -> None:
        addresses = [member.address for member in receivers]
        self._cluster.client.run(verify_fetched, workers=addresses)

    def _emit_fetches(
        self, channel: str, size: int, receivers: Sequence[_Member], emit: Emit
    ) -> Iterator[tuple[float, float, _Member, _Member]]:
        """Emit the fetches of the `receivers`, and yield each: start, end, receiver and owner."""
        by_number = {member.number: member for member in self._members}
        # In rounds, a receiver has as many as this from each owner.
        most = traffic.CHUNK // (_ROUND_BLOCKS if channel in (ROUNDS, AGAIN) else 1)
        answers = traffic.ask(self._cluster, [member.address for member in receivers], most, take)
        for receiver, (_, answer) in zip(receivers, answers, strict=True):
            fetches = json.loads(answer)
            offset_s = self._offsets.get(receiver.address, 0.0)
            start_s, stop_s = (
                [read_s - offset_s for read_s in fetches[name]] for name in ("start_s", "stop_s")
            )
            self._n_fetched[receiver] += len(start_s)
            self._n_busy[receiver] += sum(fetches["n_busy"])
            emit(
                parts.table(
                    TransferRecord, **self._common, dst=receiver.name, nbytes=size,
                    src=[by_number[owner].name for owner in fetches["owner"]],
                    start_s=start_s, stop_s=stop_s, n_keys=1, channel=channel,
                )
            )  # fmt: skip
            for start, stop, owner in zip(start_s, stop_s, fetches["owner"], strict=True):
                yield start, stop, receiver, by_number[owner]


class Fetcher(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that fetches blocks, and keeps them until they are verified."""

    name = "commbench-fetcher"

    def __init__(self, workload: FetchWorkload) -> None:
        self.workload = workload
        self.fetched: list[tuple[int, int, Any]] = []
        self.log: list[tuple[int, float, float, int]] = []

    def setup(self, worker: Any) -> None:
        """Store the worker, which the fetches need."""
        self._worker = worker

    async def fetch(self, owner: _Member, size: int) -> None:
        """Fetch one block; ask a busy sender again, and time the last request only."""
        n_busy, block = 0, key(owner.number, size)
        device = self.workload.context.device
        try:
            while True:
                answer, began_at_s, seconds = await _get(self._worker, block, owner.address, device)
                if answer["status"] != "busy":
                    break
                n_busy += 1
                await asyncio.sleep(_BUSY_SECONDS)
            self.fetched.append((owner.number, size, answer["data"][block]))
        except (OSError, KeyError) as error:
            ends = f"worker {self._worker.name} can't fetch from worker {owner.name}"
            raise LaunchError(f"{ends}: {error!r}") from error
        self.log.append((owner.number, began_at_s, began_at_s + seconds, n_busy))


def key(owner: int, size: int) -> str:
    """Return the key of a block."""
    return f"commbench-block-{owner}-{size}"


async def in_turn(
    owners: Mapping[str, Sequence[_Member]], size: int, enough_s: float, begin_at_s: float,
    offsets: dict[str, float], dask_worker: Any,
) -> float:  # fmt: skip
    """Fetch a block of each of this worker's `owners`, one after another; runs on a worker.

    Return the CPU seconds of the worker's process at the common start.
    """
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    cpu_seconds = await _until(begin_at_s, offsets, dask_worker)
    began = time.perf_counter()
    for owner in owners.get(dask_worker.address, ()):
        await fetcher.fetch(owner, size)
        if time.perf_counter() - began >= enough_s:
            break
    return cpu_seconds


async def _until(begin_at_s: float, offsets: dict[str, float], dask_worker: Any) -> float:
    """Wait for the common start, and return the process's CPU seconds.

    `offsets` has the seconds by which clocks of remote workers are ahead, by address.
    """
    wait_s = begin_at_s + offsets.get(dask_worker.address, 0.0) - time.time()
    until = time.perf_counter() + wait_s
    # A sleep ends up to a millisecond late, and each worker's by another time.
    await asyncio.sleep(wait_s - _EARLY_S)
    while time.perf_counter() < until:
        await asyncio.sleep(0)
    return time.process_time()


async def at_once(
    owners: Sequence[_Member], size: int, begin_at_s: float, offsets: dict[str, float],
    dask_worker: Any,
) -> float:  # fmt: skip
    """Fetch a block of each of the other `owners`, all at once; runs on a worker.

    Return the CPU seconds of the worker's process at the common start.
    """
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    index = [owner.address for owner in owners].index(dask_worker.address)
    # Each worker starts with the next one, so that not all ask the same sender first.
    others = (*owners[index + 1 :], *owners[:index])
    cpu_seconds = await _until(begin_at_s, offsets, dask_worker)
    await asyncio.gather(*(fetcher.fetch(owner, size) for owner in others))
    return cpu_seconds


async def echo(asked: Mapping[str, Sequence[str]], dask_worker: Any) -> list[float]:
    """Return the seconds of an empty request to each of some workers; runs on a worker.

    `asked` has the addresses to which each worker sends an empty request.
    """
    seconds = []
    for address in asked[dask_worker.address]:
        rpc = dask_worker.rpc(address)
        began = time.perf_counter()
        await rpc.echo(data=None)
        seconds.append(time.perf_counter() - began)
    return seconds


def verify_fetched(dask_worker: Any) -> None:
    """Verify and drop the fetched blocks; runs on a worker."""
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    fetched, fetcher.fetched = fetcher.fetched, []
    for block in fetched:
        fetcher.workload.verify(*block)


def take(dask_worker: Any) -> str:
    """Return the fetches since the last call; runs on a worker.

    Returns
    -------
    JSON of an object of lists, one item per fetch
        ``owner`` (its number), ``start_s`` and ``stop_s`` since the epoch on the worker's clock,
        ``n_busy`` (the answers of a busy sender).
    """
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    log, fetcher.log = fetcher.log, []
    names = ("owner", "start_s", "stop_s", "n_busy")
    return json.dumps(dict(zip(names, zip(*log, strict=True), strict=True)))
