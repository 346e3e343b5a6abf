"""The timed loop of messages between two processes.

The launch process is one end, a peer process the other; each layer has a separate peer. Every reply
is verified after the clock has stopped, and every byte of the last message of a size.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from commbench.backends.backend import Backend, Transport
from commbench.backends.endpoints import Tool
from commbench.errors import LaunchError
from commbench.harness.measure import conditions, peer, record_keys
from commbench.harness.measure.conditions import measure_idle
from commbench.harness.measure.exchanges import (
    Conversation,
    Copy,
    DeviceCopy,
    Exchange,
    Messages,
    Pace,
    open_conversation,
)
from commbench.harness.measure.streams import measure_pairs, under_load
from commbench.machine import gpu, process
from commbench.machine.topology.workers import worker_location
from commbench.model import Launch
from commbench.model.observed import Load, TransportUsed
from commbench.model.units import format_message_size
from commbench.store.emitter import Emit, Emitter
from commbench.workloads.workload import PairWorkload

_SMALL = 8192
_MESSAGES_PER_SAMPLE = 10
"""The messages that a tool averages per sample of another layer."""
_N_PROBED = 10
_INITIATOR, _PEER = "0", "1"


def measure_pair(
    launch: Launch, workload: PairWorkload, backend: Backend, scratch: Path, emit: Emitter
) -> None:
    """Measure all message sizes over one connection per layer; emit a sample per exchange.

    Raises
    ------
    LaunchError
        If the peer did not start.
    VerificationError
        If a reply differs from the message.
    """
    pair = _Pair(launch, workload, backend, scratch, emit)
    # This process is one end of the pair, and CUDA is not loaded yet.
    os.environ.update(pair.ends[0])
    if workload.mode == "multi-pair":
        for layer in workload.layers:
            emit.phase(f"{layer} layer")
            used = measure_pairs(launch, workload, backend, layer, scratch, emit)
            for number, transports in enumerate(used):
                pair.report(transports, layer, (str(2 * number), str(2 * number + 1)))
        return
    layers = list(workload.layers)
    if "raw" in layers and isinstance(tool := backend.endpoints("raw"), Tool):
        layers.remove("raw")
        emit.phase("raw layer")
        pair.report(measure_with_tool(tool, launch, workload, scratch, emit), "raw")
    # One event loop for all layers, because ucxx and mpi:// only support the first.
    asyncio.run(pair.measure([layer for layer in layers if layer != "worker"]))
    if "worker" in layers:
        # Imported late, because Dask must not be loaded while the raw transport is measured.
        from commbench.harness.measure.fetches import measure_worker

        emit.phase("worker layer")
        measure_worker(launch, workload, backend, scratch, emit)


@dataclass
class _Pair:
    launch: Launch
    workload: PairWorkload
    backend: Backend
    scratch: Path
    emit: Emitter
    raw: str = ""
    """The transport of the raw layer."""
    idle_known: bool = False
    places_known: bool = False

    @cached_property
    def ends(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The further environment variables of the two processes."""
        (ends,) = peer.environs(self.launch.case.cluster, 1, self.workload.peer)
        return ends

    async def measure(self, layers: list[str]) -> None:
        memcpy = Copy()
        if layers and self.workload.context.device == "gpu":
            # The peer's GPU is the second visible one, unless both share the first.
            shared = self.workload.peer or self.launch.case.cluster.workers_per_gpu > 1
            memcpy = DeviceCopy(peer=0 if shared else 1)
            gpu.set_up()
            conditions.emit_gpu_memory(self.launch, gpu.describe(), emit=self.emit)
        for layer in layers:
            if layer == "memcpy":
                await self._measure_sizes(layer, memcpy, time.process_time)
            else:
                await self._measure_layer(layer)

    async def _measure_layer(self, layer: str) -> None:
        log = self.scratch / "peer.log"
        where = self.workload.peer
        with peer.started(self.backend.name, layer, log, self.ends[1], where) as other:
            conversation = None

            def used() -> float:
                return time.process_time() + other.cpu_seconds()

            try:
                process.watch(other.name, other.child, log)
                conversation = await self._connect(layer, other.address, self.workload.mode)
                # Blocking calls use no CPU time while they wait or, with MPI, a whole core.
                if layer != "raw" and not self.idle_known:
                    self.idle_known = True
                    # In a thread, to include the CPU time of this end's waiting event loop.
                    self.emit(await asyncio.to_thread(measure_idle, self.launch, used, 2))
                if self.workload.mode == "loaded-latency":
                    await self._measure_under_load(layer, other.address, conversation)
                else:
                    await self._measure_sizes(layer, conversation, used)
                # The locations are the same for every layer.
                if not self.places_known:
                    self.places_known = True
                    here = worker_location(os.getpid(), device=self.launch.case.cluster.device)
                    conditions.emit_places(self.launch, (here, other.location), self.emit)
                self.report(await conversation.transports(), layer)
                process.unwatch()
                await conversation.close()
            except BaseException:
                process.await_death_report()
                if conversation is not None:
                    conversation.abort()
                raise
            finally:
                process.unwatch()

    async def _connect(self, layer: str, address: str, mode: str) -> Conversation:
        try:
            return await open_conversation(layer, address, self.backend, self.workload, mode)
        except OSError as error:
            raise LaunchError(
                f"no connection to the peer, which listens at {address} ({error or 'timeout'}); is "
                "a firewall in between?"
            ) from error

    async def _measure_under_load(self, layer: str, address: str, exchange: Exchange) -> None:
        stream = await self._connect(layer, address, "bandwidth")
        try:
            nbytes, seconds = await under_load(
                # The messages' share of the CPU time is unknown.
                lambda: self._measure_sizes(layer, exchange, float),
                stream,
                self.workload,
            )
        except BaseException:
            stream.abort()
            raise
        await stream.close()
        self.emit(
            Load(**record_keys.keys(self.launch), layer=layer, nbytes=nbytes, seconds=seconds)
        )

    async def _measure_sizes(
        self, layer: str, exchange: Exchange, used: Callable[[], float]
    ) -> None:
        case, workload = self.launch.case, self.workload
        for size in workload.sizes:
            self.emit.phase(f"{layer} layer, {format_message_size(size)}")
            n_warmups = workload.n_samples(size, case.warmups)
            n_samples = workload.n_samples(size, case.iterations)
            messages = Messages(exchange, workload, size)
            pace = Pace(n_warmups, n_samples, workload.seconds_per_size, used)
            epoch = time.time() - time.perf_counter()
            timings = [(number, await messages.exchange(n_samples - number)) for number in pace]
            cpu_seconds = pace.cpu_seconds()
            await messages.finish()
            n_messages = exchange.messages(size)
            for number, (began, ended) in timings:
                self.emit(
                    record_keys.sample(
                        self.launch, number, layer, size, epoch + began,
                        (ended - began) / n_messages, cpu_seconds / n_messages,
                    )
                )  # fmt: skip

    def report(
        self,
        transports: tuple[Transport, Transport],
        layer: str,
        ends: tuple[str, str] = (_INITIATOR, _PEER),
    ) -> None:
        """Emit the transports of a layer, and whether they contradict the name or the raw layer.

        The peer's host may have other names for its devices, so that only this end is compared.
        """
        for (src, dst), used in zip((ends, ends[::-1]), transports, strict=True):
            contradiction = self.backend.contradiction(used.name)
            if src == ends[0] and layer == "raw":
                self.raw = used.name
            elif src == ends[0] and self.raw not in ("", used.name):
                contradiction = contradiction or (
                    f"{self.backend.name} moved over {self.raw} at the layer raw, and over "
                    f"{used.name} at {layer}: what {layer} adds is that difference, too"
                )
            self.emit(
                TransportUsed(
                    **record_keys.keys(self.launch),
                    src=src,
                    dst=dst,
                    transport=used.name,
                    evidence=f"{layer}: {used.evidence}",
                    contradiction=contradiction,
                )
            )


def measure_with_tool(
    tool: Tool, launch: Launch, workload: PairWorkload, scratch: Path, emit: Emit
) -> tuple[Transport, Transport]:
    """Emit one sample per message size, and return the transport as seen by each end.

    The tool's messages can't be accessed, so samples are not verified. It reports one number for
    all messages of a size, so there is one sample per size. If it fails, a LaunchError is raised.
    """
    case = launch.case
    latency = workload.mode == "latency"
    environs = gpu.env_for_processes(case.cluster, 2, os.environ)

    run = partial(
        tool.run, workload.mode, window=workload.window, device=workload.context.device,
        scratch=scratch, environs=environs,
    )  # fmt: skip
    used: tuple[Transport, Transport] | None = None
    for size in workload.sizes:
        per_sample = 1 if latency else workload.window
        few = _N_PROBED * per_sample
        count = _MESSAGES_PER_SAMPLE * workload.n_samples(size, case.iterations) * per_sample
        warmups = _MESSAGES_PER_SAMPLE * workload.n_samples(size, case.warmups) * per_sample
        if size > _SMALL:
            probe, _ = run(size, few, 0)
            fit = workload.seconds_per_size / max(probe.mean_s, 1e-9)
            count = max(few, min(count, int(fit / (2 if latency else 1))))
            warmups = min(warmups, count // 10)
        started_at_s = time.time()
        times, transports = run(size, count, warmups)
        used = used or transports
        seconds = times.median_s if latency else times.mean_s
        emit(
            record_keys.sample(
                launch, 0, "raw", size, started_at_s, seconds, 0.0, verified=False, tool=tool.name
            )
        )
    assert used is not None
    return used
