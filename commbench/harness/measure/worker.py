"""The worker layer: one worker of a live cluster fetches keys from another, again and again.

What is timed is ``distributed.worker.get_data_from_worker`` on the fetching worker, which is what
its own ``gather_dep`` calls: a comm from the pool, the request, the sender's answer with the data,
and its deserialization. Two keys of different content take turns, so that what was fetched last
can't pass for what is fetched now.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from commbench.backends.base import Backend
from commbench.errors import LaunchError
from commbench.harness.measure import gpus, places
from commbench.harness.measure.conditions import measure_idle
from commbench.launchers.local import LocalLauncher
from commbench.machine import cores, gpu
from commbench.model import Launch, Sample
from commbench.store.emitter import Emit
from commbench.workloads.base import PairWorkload

_MIN_FETCHES = 10
_N_KEYS = 2
SENDER, FETCHER = "0", "1"

Timing = tuple[int, float, float]
"""The number of a fetch, when it began, seconds since the epoch, and how long it took."""


def measure_worker(
    launch: Launch, workload: PairWorkload, backend: Backend, scratch: Path, emit: Emit
) -> None:
    """Start two workers, sweep the message sizes, and emit a sample for every fetch.

    Raises
    ------
    LaunchError
        Where the cluster does not start, or the sending worker refuses.
    VerificationError
        Where what was fetched is not what the key stands for.
    """
    spec = replace(launch.case.cluster, n_workers=2, threads_per_worker=1)
    with LocalLauncher().start(spec, backend.protocol, scratch) as cluster:
        gpus.check(launch, cluster, emit)
        client, case = cluster.client, launch.case
        address = {name: address for address, name in cluster.names.items()}
        if workload.layers == ("worker",):
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
                    Sample(
                        case_id=launch.case.id,
                        launch=launch.index,
                        iteration=number,
                        layer="worker",
                        warmup=number < 0,
                        started_at_s=started_at_s,
                        seconds=seconds,
                        cpu_seconds=cpu_seconds,
                        payload_bytes=size,
                        verified=True,
                    )
                )
        if workload.layers == ("worker",):
            for place in places.of_workers(launch, cluster):
                emit(place)


def _put(client: Any, workload: PairWorkload, size: int, sender: str) -> list[Any]:
    from distributed import wait

    keys = [
        client.submit(
            _payload, workload, size, number, key=f"payload-{size}-{number}", workers=[sender]
        )
        for number in range(_N_KEYS)
    ]
    wait(keys)
    for future in keys:
        if future.status != "finished":
            raise LaunchError(f"the payload of {size} B can't be made: {future.exception()!r}")
    return keys


def _payload(workload: PairWorkload, size: int, number: int) -> Any:
    payload = workload.payload(size)
    # Another content of the same size, in its first byte and all others.
    payload ^= 0x55 * number
    workload.stamp(payload, number)
    gpu.synchronize(workload.context.device)
    return payload


async def _fetch(
    workload: PairWorkload, size: int, keys: list[str], sender: str, n_warmups: int,
    n_samples: int, pids: tuple[int, ...], dask_worker: Any,
) -> tuple[list[Timing], float]:  # fmt: skip
    """Run on the fetching worker: fetch the keys in turn, check each answer outside the timing."""
    from distributed.worker import get_data_from_worker

    expected = [_payload(workload, size, number) for number in range(len(keys))]
    limit, clock = workload.seconds_per_size, time.perf_counter
    timings: list[Timing] = []
    epoch = time.time() - clock()
    block_began, cpu_began = clock(), cores.cpu_seconds(pids)
    for number in range(-n_warmups, n_samples):
        if number == 0:
            block_began, cpu_began = clock(), cores.cpu_seconds(pids)
        elif clock() - block_began > limit:
            if number >= _MIN_FETCHES:
                break
            if number < 0:
                continue
        key = keys[number % len(keys)]
        began = clock()
        answer = await get_data_from_worker(
            rpc=dask_worker.rpc, keys=[key], worker=sender, who=dask_worker.address
        )
        gpu.synchronize(workload.context.device)
        ended = clock()
        if answer["status"] != "OK":
            raise LaunchError(f"the worker that holds {key} answered {answer['status']!r}")
        workload.check(expected[number % len(keys)], answer["data"][key], whole=False)
        timings.append((number, epoch + began, ended - began))
    cpu_seconds = (cores.cpu_seconds(pids) - cpu_began) / max(1, timings[-1][0] + 1)
    workload.check(expected[timings[-1][0] % len(keys)], answer["data"][key], whole=True)
    return timings, cpu_seconds
