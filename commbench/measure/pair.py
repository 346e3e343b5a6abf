"""The timed loop of messages between two processes.

The launch's own process is one end, a peer process the other; each layer has a peer of its own.
Every reply's stamp is checked after its clock has stopped, and of every size's last message each
byte.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from commbench import cpu, process
from commbench.backends.base import Backend
from commbench.errors import LaunchError
from commbench.measure.idle import Emit, measure_idle
from commbench.measure.layers import Conversation, open_conversation
from commbench.model import Launch, Sample, TransportUsed
from commbench.workloads.base import PairWorkload

_MIN_MESSAGES = 10
INITIATOR, PEER = "0", "1"


async def measure_pair(
    launch: Launch, workload: PairWorkload, backend: Backend, scratch: Path, emit: Emit
) -> None:
    """Sweep the message sizes over one connection per layer; emit a sample for every message.

    Raises
    ------
    LaunchError
        Where the peer did not start.
    VerificationError
        Where a reply is not what was sent.
    """
    for layer in workload.layers:
        await _measure_layer(launch, workload, layer, backend, scratch, emit)


async def _measure_layer(
    launch: Launch,
    workload: PairWorkload,
    layer: str,
    backend: Backend,
    scratch: Path,
    emit: Emit,
) -> None:
    log = scratch / "peer.log"
    with log.open("ab") as errors:
        peer = subprocess.Popen(
            [sys.executable, "-m", "commbench.measure.peer", backend.name, layer],
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert peer.stdout is not None
    try:
        address = peer.stdout.readline().decode().strip()
        if not address:
            raise LaunchError(
                f"the peer {process.describe_exit(peer.wait())} before it listened"
                + process.tail(log)
            )
        process.watch("peer", peer, log)
        conversation = await open_conversation(layer, address, backend, workload)
        pids = (os.getpid(), peer.pid)
        if layer == workload.layers[0]:
            # In a thread: what this end's event loop burns while it waits is part of the cost.
            emit(await asyncio.to_thread(measure_idle, launch, pids))
        for size in workload.sizes:
            for sample in await _measure_size(launch, workload, layer, conversation, size, pids):
                emit(sample)
        if layer == workload.layers[0]:
            await _report_transports(launch, backend, conversation, emit)
        process.unwatch()
        await conversation.close()
    except BaseException:
        process.let_deaths_be_told()
        raise
    finally:
        process.unwatch()
        peer.terminate()
        peer.stdout.close()
        peer.wait()


async def _measure_size(
    launch: Launch,
    workload: PairWorkload,
    layer: str,
    conversation: Conversation,
    size: int,
    pids: tuple[int, ...],
) -> list[Sample]:
    case = launch.case
    payload = workload.payload(size)
    limit = workload.params.seconds_per_size
    n_warmups = workload.n_messages(size, case.warmups)
    n_messages = workload.n_messages(size, case.iterations)
    clock = time.perf_counter

    timings: list[tuple[int, float, float]] = []
    epoch = time.time() - clock()
    block_began = clock()
    cpu_began = cpu.seconds(pids)
    announced = 0
    for number in range(-n_warmups, n_messages):
        if number == 0:
            block_began, cpu_began = clock(), cpu.seconds(pids)
        elif clock() - block_began > limit:
            if number >= _MIN_MESSAGES:
                break
            # A warm-up that takes too long ends, too; the messages that count come next.
            if number < 0:
                continue
        if not announced:
            announced = min(_MIN_MESSAGES, n_messages - number)
            await conversation.announce(size, announced)
        announced -= 1
        workload.stamp(payload, number & 0xFFFF_FFFF)
        began = clock()
        reply = await conversation.exchange(payload)
        ended = clock()
        workload.check(payload, reply, whole=False)
        timings.append((number, began, ended))
    cpu_seconds = (cpu.seconds(pids) - cpu_began) / max(1, timings[-1][0] + 1)
    for _ in range(announced):
        # The peer expects them, whatever the time.
        await conversation.exchange(payload)
    workload.check(payload, reply, whole=True)
    return [
        Sample(
            case_id=case.id,
            launch=launch.index,
            iteration=number,
            layer=layer,
            warmup=number < 0,
            started_at_s=epoch + began,
            seconds=(ended - began) / 2,
            cpu_seconds=cpu_seconds,
            payload_bytes=size,
            verified=True,
        )
        for number, began, ended in timings
    ]


async def _report_transports(
    launch: Launch, backend: Backend, conversation: Conversation, emit: Emit
) -> None:
    own, theirs = await conversation.transports()
    for src, dst, used in ((INITIATOR, PEER, own), (PEER, INITIATOR, theirs)):
        emit(
            TransportUsed(
                case_id=launch.case.id,
                launch=launch.index,
                src=src,
                dst=dst,
                transport=used.name,
                evidence=used.evidence,
                contradiction=backend.contradiction(used.name),
            )
        )
