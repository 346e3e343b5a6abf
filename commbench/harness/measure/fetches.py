"""The timed loop of a workload that fetches blocks between all pairs of workers.

What was fetched is checked after the clocks have stopped on all workers: none waits for a check.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from commbench.backends.base import Backend
from commbench.errors import LaunchError, VerificationError
from commbench.harness import wire
from commbench.harness.measure import clocks, fetcher, instruments, traffic
from commbench.harness.measure.conditions import measure_idle
from commbench.launchers.base import RunningCluster
from commbench.model import Launch, LogCount, Sample, TransferRecord
from commbench.store.emitter import Emit, Emitter
from commbench.store.parts import Batch
from commbench.workloads.base import FetchWorkload

ALONE, TOGETHER = "alone", "together"
_LEAD_SECONDS = 0.05
"""How long before all begin together they are told so."""


@dataclass(frozen=True)
class _Member:
    """A worker, by the number that the workload knows it by."""

    number: int
    name: str
    address: str


class _Span(NamedTuple):
    """From the first to the last of the fetches of one worker, and their time in all."""

    start_s: float
    stop_s: float
    total_s: float


def measure_fetches(
    launch: Launch,
    workload: FetchWorkload,
    backend: Backend,
    cluster: RunningCluster,
    emit: Emitter,
) -> None:
    """Run the warm-ups and iterations of one launch and emit their records as they come.

    Raises
    ------
    LaunchError
        Where a block could not be made or fetched.
    VerificationError
        Where a block did not arrive as it was sent.
    """
    with instruments.installed(cluster, wire.WireMeter(), fetcher.Fetcher(workload)):
        _measure(launch, workload, backend, cluster, emit)


def _measure(
    launch: Launch,
    workload: FetchWorkload,
    backend: Backend,
    cluster: RunningCluster,
    emit: Emitter,
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
        for sent in traffic.wire_bytes(launch, iteration, cluster):
            emit(sent)
        for record in traffic.network_bytes(launch, iteration, counters):
            emit(record)
    for found in traffic.links(launch, backend, cluster):
        emit(found)
    del blocks


def _members(cluster: RunningCluster) -> list[_Member]:
    names = sorted((len(name), name, address) for address, name in cluster.names.items())
    return [_Member(number, name, address) for number, (_, name, address) in enumerate(names)]


def _make_blocks(client: Any, workload: FetchWorkload, members: Iterable[_Member]) -> list[Any]:
    from distributed import wait

    futures = [
        client.submit(
            workload.block, member.number, size, key=fetcher.key(member.number, size),
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
        self._iteration = iteration
        self._cluster, self._members, self._order = cluster, members, order
        self._ahead = clocks.ahead(cluster)
        self._n_pairs = len(members) * (len(members) - 1)
        self._n_fetched = dict.fromkeys(members, 0)
        self._n_busy = dict.fromkeys(members, 0)
        self._place: dict[str, Any] = {
            "case_id": launch.case.id, "launch": launch.index, "iteration": iteration,
        }  # fmt: skip

    def alone(self, size: int, emit: Emitter) -> None:
        """Let every pair fetch a block of that size, one after another."""
        cpu_seconds = 0.0
        spans: list[_Span] = []
        with emit.region() as keep:
            for receiver in self._shuffled(self._members):
                others = [member for member in self._members if member != receiver]
                owners = _addresses(self._shuffled(others))
                cpu_began = self._cluster.cpu_seconds()
                self._run([receiver], fetcher.in_turn, owners, size)
                cpu_seconds += self._cluster.cpu_seconds() - cpu_began
                self._check([receiver])
                spans += self._emit_fetches(ALONE, size, [receiver], keep)
            mean_seconds = sum(span.total_s for span in spans) / self._n_pairs
            self._emit_sample(ALONE, size, mean_seconds, cpu_seconds / self._n_pairs, spans, keep)

    def together(self, size: int, emit: Emitter) -> None:
        """Let every pair fetch a block of that size, all at once."""
        owners = _addresses(self._shuffled(self._members))
        cpu_began = self._cluster.cpu_seconds()
        begin_at_s = time.time() + _LEAD_SECONDS
        self._run(self._members, fetcher.at_once, owners, size, begin_at_s, self._ahead)
        cpu_seconds = self._cluster.cpu_seconds() - cpu_began
        self._check(self._members)
        with emit.region() as keep:
            spans = list(self._emit_fetches(TOGETHER, size, self._members, keep))
            seconds = max(span.stop_s for span in spans) - min(span.start_s for span in spans)
            payload_bytes = size * self._n_pairs
            self._emit_sample(TOGETHER, payload_bytes, seconds, cpu_seconds, spans, keep)

    def count(self, emit: Emit) -> None:
        """Tell how many fetches every worker began, and how they ended."""
        for member in self._members:
            emit(
                LogCount(
                    **self._place, worker=member.name,
                    n_started=self._n_fetched[member] + self._n_busy[member],
                    n_logged=self._n_fetched[member], n_busy=self._n_busy[member],
                    n_failed=0, n_in_flight=0,
                )
            )  # fmt: skip

    def _shuffled(self, members: Sequence[_Member]) -> list[_Member]:
        return self._order.sample(members, len(members))

    def _run(self, receivers: Sequence[_Member], ask: Any, *arguments: Any) -> None:
        addresses = [member.address for member in receivers]
        try:
            self._cluster.client.run(ask, *arguments, workers=addresses)
        except (OSError, KeyError) as error:
            names = ", ".join(member.name for member in receivers)
            raise LaunchError(f"a fetch of worker {names} failed: {error!r}") from error

    def _check(self, receivers: Sequence[_Member]) -> None:
        addresses = [member.address for member in receivers]
        for wrong in self._cluster.client.run(fetcher.check, workers=addresses).values():
            if wrong:
                raise VerificationError(wrong)

    def _emit_fetches(
        self, channel: str, size: int, receivers: Sequence[_Member], emit: Emit
    ) -> Iterator[_Span]:
        """Emit what the `receivers` fetched, and yield when each of them did."""
        for receiver, fetches in self._taken(receivers):
            ahead_s = self._ahead.get(receiver.address, 0.0)
            start_s, stop_s = (
                [read_s - ahead_s for read_s in fetches[name]] for name in ("start_s", "stop_s")
            )
            self._n_fetched[receiver] += len(start_s)
            self._n_busy[receiver] += sum(fetches["n_busy"])
            emit(
                Batch.of(
                    TransferRecord, **self._place, dst=receiver.name, nbytes=size,
                    src=[self._members[owner].name for owner in fetches["owner"]],
                    start_s=start_s, stop_s=stop_s, n_keys=1, channel=channel,
                )
            )  # fmt: skip
            total_s = sum(stop - start for start, stop in zip(start_s, stop_s, strict=True))
            yield _Span(min(start_s), max(stop_s), total_s)

    def _taken(
        self, receivers: Sequence[_Member]
    ) -> Iterator[tuple[_Member, dict[str, list[Any]]]]:
        """Yield what each of the `receivers` fetched, which comes in messages of bounded size."""
        n_at_once = max(1, traffic.CHUNK // len(self._members))
        for first in range(0, len(receivers), n_at_once):
            some = receivers[first : first + n_at_once]
            addresses = [member.address for member in some]
            answers = self._cluster.client.run(fetcher.take, workers=addresses)
            for receiver in some:
                yield receiver, json.loads(answers[receiver.address])

    def _emit_sample(
        self, channel: str, payload_bytes: int, seconds: float, cpu_seconds: float,
        spans: Iterable[_Span], emit: Emit,
    ) -> None:  # fmt: skip
        emit(
            Sample(
                **self._place, layer=channel, warmup=self._iteration < 0,
                started_at_s=min(span.start_s for span in spans), seconds=seconds,
                cpu_seconds=cpu_seconds, payload_bytes=payload_bytes, verified=True,
            )
        )  # fmt: skip


def _addresses(members: Iterable[_Member]) -> list[tuple[int, str]]:
    return [(member.number, member.address) for member in members]
