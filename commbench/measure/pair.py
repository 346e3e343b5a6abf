"""The timed loop of messages between two processes.

The launch's own process is one end, a peer process the other. Every reply's stamp is checked
after its clock has stopped, and of every size's last message each byte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from commbench import cpu, process
from commbench.backends.base import Backend
from commbench.errors import LaunchError
from commbench.measure.idle import Emit, measure_idle
from commbench.measure.peer import ASK_TRANSPORT
from commbench.model import Launch, Sample, TransportUsed
from commbench.workloads.base import PairWorkload

_MIN_MESSAGES = 10
INITIATOR, PEER = "0", "1"


async def measure_pair(
    launch: Launch, workload: PairWorkload, backend: Backend, scratch: Path, emit: Emit
) -> None:
    """Sweep the message sizes over one connection and emit a sample for every message.

    Raises
    ------
    LaunchError
        Where the peer did not start.
    VerificationError
        Where a reply is not what was sent.
    """
    from distributed.comm import connect

    log = scratch / "peer.log"
    with log.open("wb") as errors:
        peer = subprocess.Popen(
            [sys.executable, "-m", "commbench.measure.peer", backend.name],
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
        comm = await connect(address)
        pids = (os.getpid(), peer.pid)
        emit(measure_idle(launch, pids))
        for size in workload.sizes:
            for sample in await _measure_size(launch, workload, comm, size, pids):
                emit(sample)
        await _report_transports(launch, backend, comm, emit)
        process.unwatch()
        await comm.close()
    except BaseException:
        process.let_deaths_be_told()
        raise
    finally:
        process.unwatch()
        peer.terminate()
        peer.stdout.close()
        peer.wait()


async def _measure_size(
    launch: Launch, workload: PairWorkload, comm: Any, size: int, pids: tuple[int, ...]
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
    for number in range(-n_warmups, n_messages):
        if number == 0:
            block_began, cpu_began = clock(), cpu.seconds(pids)
        elif clock() - block_began > limit:
            if number >= _MIN_MESSAGES:
                break
            # A warm-up that takes too long ends, too; the messages that count come next.
            if number < 0:
                continue
        workload.stamp(payload, number & 0xFFFF_FFFF)
        began = clock()
        reply = await workload.exchange(comm, payload)
        ended = clock()
        workload.check(payload, reply, whole=False)
        timings.append((number, began, ended))
    cpu_seconds = (cpu.seconds(pids) - cpu_began) / max(1, timings[-1][0] + 1)
    workload.check(payload, reply, whole=True)
    return [
        Sample(
            case_id=case.id,
            launch=launch.index,
            iteration=number,
            layer="comm",
            warmup=number < 0,
            started_at_s=epoch + began,
            seconds=(ended - began) / 2,
            cpu_seconds=cpu_seconds,
            payload_bytes=size,
            verified=True,
        )
        for number, began, ended in timings
    ]


async def _report_transports(launch: Launch, backend: Backend, comm: Any, emit: Emit) -> None:
    own = backend.transport(comm)
    await comm.write(ASK_TRANSPORT)
    theirs = await comm.read()
    for src, dst, name, evidence in (
        (INITIATOR, PEER, own.name, own.evidence),
        (PEER, INITIATOR, theirs["name"], theirs["evidence"]),
    ):
        emit(
            TransportUsed(
                case_id=launch.case.id,
                launch=launch.index,
                src=src,
                dst=dst,
                transport=name,
                evidence=evidence,
                contradiction=backend.contradiction(name),
            )
        )
