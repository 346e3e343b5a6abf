"""The raw layer of a backend that has a program for it, such as ``ucx_perftest``.

It exchanges memory that nobody else sees, so its samples can't be verified, and it has one number
for all its messages, so there is one sample per size.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from commbench.backends.base import Transport
from commbench.backends.endpoints import Tool, ToolTimes
from commbench.machine import gpu
from commbench.model import Launch, Sample
from commbench.store.emitter import Emit
from commbench.workloads.base import PairWorkload

_SMALL = 8192
_MORE = 10
"""Messages that it averages for each sample of another layer."""
_PROBED = 10


def measure_with_tool(
    tool: Tool, launch: Launch, workload: PairWorkload, scratch: Path, emit: Emit
) -> tuple[Transport, Transport]:
    """Emit one sample per message size, and return what carried the messages, from either end.

    Raises
    ------
    LaunchError
        Where the tool fails.
    """
    case = launch.case
    latency = workload.mode == "latency"
    environs = gpu.of_ends(case.cluster, 2, os.environ)

    def run(
        size: int, n_messages: int, n_warmups: int
    ) -> tuple[ToolTimes, tuple[Transport, Transport]]:
        return tool.run(
            workload.mode, size, n_messages, n_warmups, window=workload.window,
            device=workload.context.device, scratch=scratch, environs=environs,
        )  # fmt: skip

    used: tuple[Transport, Transport] | None = None
    for size in workload.sizes:
        per_sample = 1 if latency else workload.window
        few = _PROBED * per_sample
        count = _MORE * workload.n_samples(size, case.iterations) * per_sample
        warmups = _MORE * workload.n_samples(size, case.warmups) * per_sample
        if size > _SMALL:
            probe, _ = run(size, few, 0)
            fit = workload.seconds_per_size / max(probe.mean_s, 1e-9)
            count = max(few, min(count, int(fit / (2 if latency else 1))))
            warmups = min(warmups, count // 10)
        started_at_s = time.time()
        times, transports = run(size, count, warmups)
        used = used or transports
        emit(
            Sample(
                case_id=case.id,
                launch=launch.index,
                iteration=0,
                layer="raw",
                warmup=False,
                started_at_s=started_at_s,
                seconds=times.median_s if latency else times.mean_s,
                cpu_seconds=0.0,
                payload_bytes=size,
                verified=False,
                tool=tool.name,
            )
        )
    assert used is not None
    return used
