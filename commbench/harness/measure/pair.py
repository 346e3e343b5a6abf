"""The timed loop of messages between two processes.

The launch's own process is one end, a peer process the other; each layer has a peer of its own.
What every sample brought back is checked after its clock has stopped, and of every size's last
message each byte.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from commbench.backends.base import Backend, Transport
from commbench.backends.endpoints import Tool
from commbench.harness.measure import gpus, peer, places, worker
from commbench.harness.measure.conditions import measure_idle
from commbench.harness.measure.layers import (
    Conversation,
    Copy,
    DeviceCopy,
    Exchange,
    open_conversation,
)
from commbench.harness.measure.load import under_load
from commbench.harness.measure.pairs import measure_pairs
from commbench.harness.measure.tool import measure_with_tool
from commbench.machine import cores, gpu, process
from commbench.model import Launch, Load, Sample, TransportUsed
from commbench.store.emitter import Emit
from commbench.workloads.base import PairWorkload

_MIN_SAMPLES = 10
_SMALL = 8192
INITIATOR, PEER = "0", "1"


def measure_pair(
    launch: Launch, workload: PairWorkload, backend: Backend, scratch: Path, emit: Emit
) -> None:
    """Sweep the message sizes over one connection per layer; emit a sample for every exchange.

    Raises
    ------
    LaunchError
        Where the peer did not start.
    VerificationError
        Where a reply is not what was sent.
    """
    pair = _Pair(launch, workload, backend, scratch, emit)
    # Before anything of CUDA is in this process, which is one end of the pair.
    os.environ.update(pair.ends[0])
    if workload.mode == "multi-pair":
        for layer in workload.layers:
            used = measure_pairs(launch, workload, backend, layer, scratch, emit)
            for number, transports in enumerate(used):
                pair.report(transports, layer, (str(2 * number), str(2 * number + 1)))
        return
    layers = list(workload.layers)
    if "raw" in layers and isinstance(tool := backend.endpoints("raw"), Tool):
        layers.remove("raw")
        pair.report(measure_with_tool(tool, launch, workload, scratch, emit), "raw")
    # One event loop for all that live in this process: ucxx and mpi:// keep to the first.
    asyncio.run(pair.measure([layer for layer in layers if layer != "worker"]))
    if "worker" in layers:
        worker.measure_worker(launch, workload, backend, scratch, emit)


@dataclass
class _Pair:
    launch: Launch
    workload: PairWorkload
    backend: Backend
    scratch: Path
    emit: Emit
    raw: str = ""
    """What carried the raw layer."""
    idle_known: bool = False
    places_known: bool = False

    @property
    def loaded(self) -> bool:
        return self.workload.mode == "loaded-latency"

    @cached_property
    def ends(self) -> tuple[Mapping[str, str], ...]:
        """What the two processes have in their environment besides."""
        return gpu.of_ends(self.launch.case.cluster, 2, os.environ)

    async def measure(self, layers: list[str]) -> None:
        if layers and self.workload.context.device == "gpu":
            gpu.set_up()
            gpus.tell(self.launch, gpu.told(), emit=self.emit)
        for layer in layers:
            if layer == "memcpy":
                await self._measure_sizes(layer, self._floor(), (os.getpid(),))
            else:
                await self._measure_layer(layer)

    def _floor(self) -> Copy:
        if self.workload.context.device == "gpu":
            # The peer's GPU follows this process's own, if they don't share one.
            return DeviceCopy(peer=1 // self.launch.case.cluster.workers_per_gpu)
        return Copy()

    async def _measure_layer(self, layer: str) -> None:
        log = self.scratch / "peer.log"
        with peer.started(self.backend.name, layer, log, self.ends[1]) as (other, address):
            conversation = None
            try:
                process.watch("peer", other, log)
                conversation = await self._open(layer, address, self.workload.mode)
                pids = (os.getpid(), other.pid)
                # What blocks burns nothing while it waits, or, as MPI does, all there is.
                if layer != "raw" and not self.idle_known:
                    self.idle_known = True
                    # In a thread: what this end's event loop burns while it waits is part of it.
                    self.emit(
                        await asyncio.to_thread(
                            measure_idle, self.launch, lambda: cores.cpu_seconds(pids), len(pids)
                        )
                    )
                if self.loaded:
                    await self._measure_under_load(layer, address, conversation, pids)
                else:
                    await self._measure_sizes(layer, conversation, pids)
                self._tell_places(pids)
                self.report(await conversation.transports(), layer)
                process.unwatch()
                await conversation.close()
            except BaseException:
                process.let_deaths_be_told()
                if conversation is not None:
                    conversation.abort()
                raise
            finally:
                process.unwatch()

    def _tell_places(self, pids: tuple[int, int]) -> None:
        """Emit where both ends are, which is the same for every layer."""
        if not self.places_known:
            self.places_known = True
            ends = dict(zip((INITIATOR, PEER), pids, strict=True))
            for place in places.of_processes(self.launch, ends):
                self.emit(place)

    async def _open(self, layer: str, address: str, mode: str) -> Conversation:
        return await open_conversation(layer, address, self.backend, self.workload, mode)

    async def _measure_under_load(
        self, layer: str, address: str, exchange: Exchange, pids: tuple[int, ...]
    ) -> None:
        beside = await self._open(layer, address, "bandwidth")
        try:
            nbytes, seconds = await under_load(
                lambda: self._measure_sizes(layer, exchange, pids), beside, self.workload
            )
        except BaseException:
            beside.abort()
            raise
        await beside.close()
        self.emit(
            Load(
                case_id=self.launch.case.id,
                launch=self.launch.index,
                layer=layer,
                nbytes=nbytes,
                seconds=seconds,
            )
        )

    async def _measure_sizes(self, layer: str, exchange: Exchange, pids: tuple[int, ...]) -> None:
        for size in self.workload.sizes:
            for sample in await self._measure_size(layer, exchange, size, pids):
                self.emit(sample)

    async def _measure_size(
        self, layer: str, exchange: Exchange, size: int, pids: tuple[int, ...]
    ) -> Iterator[Sample]:
        case, workload = self.launch.case, self.workload
        payload = workload.payload(size)
        limit = workload.seconds_per_size
        n_warmups = workload.n_samples(size, case.warmups)
        n_samples = workload.n_samples(size, case.iterations)
        # Large windows that were announced in vain would take long.
        ahead = _MIN_SAMPLES if workload.one_by_one or size <= _SMALL else 1
        clock = time.perf_counter
        on_gpu = workload.context.device == "gpu"

        timings: list[tuple[int, float, float]] = []
        epoch = time.time() - clock()
        block_began = clock()
        cpu_began = cores.cpu_seconds(pids)
        announced = 0
        for number in range(-n_warmups, n_samples):
            if number == 0:
                block_began, cpu_began = clock(), cores.cpu_seconds(pids)
            elif clock() - block_began > limit:
                if number >= _MIN_SAMPLES:
                    break
                # A warm-up that takes too long ends, too; the messages that count come next.
                if number < 0:
                    continue
            if not announced:
                announced = min(ahead, n_samples - number)
                await exchange.announce(payload, announced)
            announced -= 1
            workload.stamp(payload, number & 0xFFFF_FFFF)
            if on_gpu:
                gpu.synchronize()
            began = clock()
            answer = await exchange.exchange(payload)
            if on_gpu:
                gpu.synchronize()
            ended = clock()
            for sent, found in exchange.checks(payload, answer):
                workload.check(sent, found, whole=False)
            timings.append((number, began, ended))
        cpu_seconds = (cores.cpu_seconds(pids) - cpu_began) / max(1, timings[-1][0] + 1)
        for _ in range(announced):
            # The peer expects them, whatever the time.
            answer = await exchange.exchange(payload)
            exchange.checks(payload, answer)
        for sent, found in await exchange.whole_checks(payload, answer):
            workload.check(sent, found, whole=True)
        n_messages = exchange.messages(size)
        return (
            Sample(
                case_id=case.id,
                launch=self.launch.index,
                iteration=number,
                layer=layer,
                warmup=number < 0,
                started_at_s=epoch + began,
                seconds=(ended - began) / n_messages,
                # Both processes have the load to carry, too: nobody can tell the messages' share.
                cpu_seconds=0.0 if self.loaded else cpu_seconds / n_messages,
                payload_bytes=size,
                verified=True,
            )
            for number, began, ended in timings
        )

    def report(
        self,
        transports: tuple[Transport, Transport],
        layer: str,
        ends: tuple[str, str] = (INITIATOR, PEER),
    ) -> None:
        """Emit what carried a layer, and where that is not what carried the raw one."""
        for (src, dst), used in zip((ends, ends[::-1]), transports, strict=True):
            contradiction = self.backend.contradiction(used.name)
            if layer == "raw":
                self.raw = used.name
            elif self.raw not in ("", used.name):
                contradiction = contradiction or (
                    f"{self.backend.name}: the layer raw moved over {self.raw}, {layer} over "
                    f"{used.name}; what {layer} adds is that difference, too"
                )
            self.emit(
                TransportUsed(
                    case_id=self.launch.case.id,
                    launch=self.launch.index,
                    src=src,
                    dst=dst,
                    transport=used.name,
                    evidence=f"{layer}: {used.evidence}",
                    contradiction=contradiction,
                )
            )
