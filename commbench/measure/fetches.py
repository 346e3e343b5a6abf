"""The timed loop of a workload that fetches blocks between all pairs of workers.

A worker fetches by ``distributed.worker.get_data_from_worker``, as it does for what a task needs,
and reads its clocks at the same two places as Dask's own transfer log, which sees nothing of it.
What it fetched it keeps only until its bytes are checked, which happens after the clocks have
stopped on all workers: no fetch is spared, and none waits for a check.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from commbench import gpu, wire
from commbench.backends.base import Backend
from commbench.errors import LaunchError, VerificationError
from commbench.launchers.base import RunningCluster
from commbench.measure import clocks, instruments, traffic
from commbench.measure.idle import Emit, measure_idle
from commbench.model import Launch, LogCount, Sample, TransferRecord
from commbench.workloads.base import FetchWorkload

ALONE, TOGETHER = "alone", "together"
_LEAD_SECONDS = 0.05
"""How long before all begin together they are told so."""
_BUSY_SECONDS = 0.15
"""How long Dask waits before it asks a busy sender again."""

_Fetch = tuple[int, float, float, int]
"""Number of the owner, start and stop in seconds since the epoch, busy answers before it."""


@dataclass(frozen=True)
class _Member:
    """A worker, by the number that the workload knows it by."""

    number: int
    name: str
    address: str


class Fetcher(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that fetches blocks, and holds them until they are checked."""

    name = "commbench-fetcher"

    def __init__(self, workload: FetchWorkload) -> None:
        self._workload = workload
        self._fetched: list[tuple[int, int, Any]] = []

    def setup(self, worker: Any) -> None:
        """Remember whose fetches these are."""
        self._worker = worker

    async def fetch(self, owner: int, address: str, size: int) -> _Fetch:
        """Fetch one block; a busy sender is asked again, and only the last answer is timed."""
        from distributed.worker import get_data_from_worker

        n_busy = 0
        while True:
            began_at, began = time.time(), time.perf_counter()
            answer = await get_data_from_worker(
                rpc=self._worker.rpc,
                keys=[_key(owner, size)],
                worker=address,
                who=self._worker.address,
            )
            gpu.synchronize(self._workload.context.device)
            seconds = time.perf_counter() - began
            if answer["status"] != "busy":
                break
            n_busy += 1
            await asyncio.sleep(_BUSY_SECONDS)
        self._fetched.append((owner, size, answer["data"][_key(owner, size)]))
        return owner, began_at, began_at + seconds, n_busy

    def check(self) -> str:
        """Check all that was fetched, let go of it, and return what is wrong with it, if it is."""
        fetched, self._fetched = self._fetched, []
        try:
            for block in fetched:
                self._workload.check(*block)
        except VerificationError as error:
            return str(error)
        return ""


def _key(owner: int, size: int) -> str:
    return f"commbench-block-{owner}-{size}"


async def _in_turn(owners: Sequence[tuple[int, str]], size: int, dask_worker: Any) -> list[_Fetch]:
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    return [await fetcher.fetch(owner, address, size) for owner, address in owners]


async def _at_once(
    owners: Sequence[tuple[int, str]], size: int, begin_at_s: float, ahead: dict[str, float],
    dask_worker: Any,
) -> list[_Fetch]:  # fmt: skip
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    own = [address for _, address in owners].index(dask_worker.address)
    # Each begins with its next one: else all would ask the same sender first.
    others = (*owners[own + 1 :], *owners[:own])
    await asyncio.sleep(begin_at_s + ahead.get(dask_worker.address, 0.0) - time.time())
    return await asyncio.gather(*(fetcher.fetch(*owner, size) for owner in others))


def _check(dask_worker: Any) -> str:
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    return fetcher.check()


def measure_fetches(
    launch: Launch,
    workload: FetchWorkload,
    backend: Backend,
    cluster: RunningCluster,
    emit: Emit,
) -> None:
    """Run the warm-ups and iterations of one launch and emit their records as they come.

    Raises
    ------
    LaunchError
        Where a block could not be made or fetched.
    VerificationError
        Where a block did not arrive as it was sent.
    """
    with instruments.installed(cluster, wire.WireMeter(), Fetcher(workload)):
        _measure(launch, workload, backend, cluster, emit)


def _measure(
    launch: Launch,
    workload: FetchWorkload,
    backend: Backend,
    cluster: RunningCluster,
    emit: Emit,
) -> None:
    client, case = cluster.client, launch.case
    members = _members(cluster)
    emit(measure_idle(launch, cluster.cpu_seconds, cluster.n_processes))
    blocks = _make_blocks(client, workload, members)
    order = random.Random(f"{case.seed} {launch.index}")
    for iteration in range(-case.warmups, case.iterations):
        client.run(wire.forget)
        counters = traffic.network_counters()
        exchange = _Exchange(launch, iteration, cluster, members, order)
        for size in workload.sizes:
            exchange.alone(size, emit)
            exchange.together(size, emit)
        exchange.count(emit)
        for record in traffic.wire_bytes(launch, iteration, cluster):
            emit(record)
        for record in traffic.network_bytes(launch, iteration, counters):
            emit(record)
    for record in traffic.links(launch, backend, cluster):
        emit(record)
    del blocks


def _members(cluster: RunningCluster) -> list[_Member]:
    names = sorted((len(name), name, address) for address, name in cluster.names.items())
    return [_Member(number, name, address) for number, (_, name, address) in enumerate(names)]


def _make_blocks(client: Any, workload: FetchWorkload, members: Iterable[_Member]) -> list[Any]:
    from distributed import wait

    futures = [
        client.submit(
            workload.block, member.number, size, key=_key(member.number, size),
            workers=[member.address], allow_other_workers=False,
        )
        for member in members
        for size in workload.sizes
    ]  # fmt: skip
    wait(futures)
    for future in futures:
        if future.status != "finished":
            error = future.exception() if future.status == "error" else future.status
            raise LaunchError(f"the block {future.key!r} can't be made: {error!r}")
    return futures


class _Exchange:
    """One iteration."""

    def __init__(
        self, launch: Launch, iteration: int, cluster: RunningCluster, members: list[_Member],
        order: random.Random,
    ) -> None:  # fmt: skip
        self._launch, self._iteration = launch, iteration
        self._cluster, self._members, self._order = cluster, members, order
        self._ahead = clocks.ahead(cluster)
        self._n_pairs = len(members) * (len(members) - 1)
        self._n_fetched = dict.fromkeys(members, 0)
        self._n_busy = dict.fromkeys(members, 0)

    def alone(self, size: int, emit: Emit) -> None:
        """Let every pair fetch a block of that size, one after another."""
        fetches, cpu_seconds = [], 0.0
        for receiver in self._shuffled(self._members):
            others = [member for member in self._members if member != receiver]
            owners = _addresses(self._shuffled(others))
            cpu_began = self._cluster.cpu_seconds()
            fetches += self._run([receiver], _in_turn, owners, size)
            cpu_seconds += self._cluster.cpu_seconds() - cpu_began
            self._check([receiver])
        mean_seconds = sum(stop - start for _, (_, start, stop, _) in fetches) / self._n_pairs
        self._emit(ALONE, size, size, mean_seconds, cpu_seconds / self._n_pairs, fetches, emit)

    def together(self, size: int, emit: Emit) -> None:
        """Let every pair fetch a block of that size, all at once."""
        owners = _addresses(self._shuffled(self._members))
        cpu_began = self._cluster.cpu_seconds()
        begin_at_s = time.time() + _LEAD_SECONDS
        fetches = self._run(self._members, _at_once, owners, size, begin_at_s, self._ahead)
        cpu_seconds = self._cluster.cpu_seconds() - cpu_began
        self._check(self._members)
        starts, stops = zip(*((start, stop) for _, (_, start, stop, _) in fetches), strict=True)
        seconds = max(stops) - min(starts)
        self._emit(TOGETHER, size, size * self._n_pairs, seconds, cpu_seconds, fetches, emit)

    def count(self, emit: Emit) -> None:
        """Tell how many fetches every worker began, and how they ended."""
        for member in self._members:
            emit(
                LogCount(
                    case_id=self._launch.case.id, launch=self._launch.index,
                    iteration=self._iteration, worker=member.name,
                    n_started=self._n_fetched[member] + self._n_busy[member],
                    n_logged=self._n_fetched[member], n_busy=self._n_busy[member],
                    n_failed=0, n_in_flight=0,
                )
            )  # fmt: skip

    def _shuffled(self, members: Sequence[_Member]) -> list[_Member]:
        return self._order.sample(members, len(members))

    def _run(
        self, receivers: Sequence[_Member], ask: Any, *arguments: Any
    ) -> list[tuple[_Member, _Fetch]]:
        addresses = [member.address for member in receivers]
        try:
            answers = self._cluster.client.run(ask, *arguments, workers=addresses)
        except (OSError, KeyError) as error:
            names = ", ".join(member.name for member in receivers)
            raise LaunchError(f"a fetch of worker {names} failed: {error!r}") from error
        found: list[tuple[_Member, _Fetch]] = []
        for receiver in receivers:
            ahead_s = self._ahead.get(receiver.address, 0.0)
            for owner, start, stop, n_busy in answers[receiver.address]:
                found.append((receiver, (owner, start - ahead_s, stop - ahead_s, n_busy)))
        return found

    def _check(self, receivers: Sequence[_Member]) -> None:
        addresses = [member.address for member in receivers]
        for wrong in self._cluster.client.run(_check, workers=addresses).values():
            if wrong:
                raise VerificationError(wrong)

    def _emit(
        self, channel: str, size: int, payload_bytes: int, seconds: float, cpu_seconds: float,
        fetches: Iterable[tuple[_Member, _Fetch]], emit: Emit,
    ) -> None:  # fmt: skip
        place: dict[str, Any] = {
            "case_id": self._launch.case.id,
            "launch": self._launch.index,
            "iteration": self._iteration,
        }
        first = float("inf")
        for receiver, (owner, start, stop, n_busy) in fetches:
            self._n_fetched[receiver] += 1
            self._n_busy[receiver] += n_busy
            first = min(first, start)
            emit(
                TransferRecord(
                    **place, src=self._members[owner].name, dst=receiver.name, nbytes=size,
                    start_s=start, stop_s=stop, n_keys=1, channel=channel,
                )
            )  # fmt: skip
        emit(
            Sample(
                **place, layer=channel, warmup=self._iteration < 0, started_at_s=first,
                seconds=seconds, cpu_seconds=cpu_seconds, payload_bytes=payload_bytes,
                verified=True,
            )
        )  # fmt: skip


def _addresses(members: Iterable[_Member]) -> list[tuple[int, str]]:
    return [(member.number, member.address) for member in members]
