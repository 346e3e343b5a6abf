"""One launch, inside its own process: start the cluster, measure, stream the records.

Run as ``python -m commbench.harness.launch`` by the runner, which sends the launch as JSON on
standard input and keeps that pipe open for as long as it lives; records leave as JSON lines on the
file descriptor that ``COMMBENCH_RECORDS_FD`` names, and those in large numbers go to the run's
directory, ``COMMBENCH_RUN``. The process leads a new process group, and all that it starts
carries the launch's mark: when the runner goes, so do they.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from commbench import backends
from commbench.backends.base import Backend
from commbench.errors import CommbenchError, UnwritableError, VerificationError
from commbench.harness.measure import conditions
from commbench.machine import process
from commbench.model import Failure, Launch, registry
from commbench.store import directory, emitter
from commbench.store.emitter import Emitter
from commbench.workloads.base import ClusterWorkload, PairWorkload

LOG = "launch.log"
"""The file in the launch's scratch folder that takes its standard output and error."""
UNWRITABLE = "store"
"""The stage of a failure that ends the run: the disk refuses records."""
_STAGES = {UnwritableError: UNWRITABLE, VerificationError: "verify"}


def run_launch(launch: Launch, scratch: Path, emit: Emitter) -> None:
    """Measure what `launch` asks for and emit its records as they come."""
    backend = backends.parse(launch.case.backend)
    if (simulated := backend.simulate(launch)) is not None:
        for record in simulated:
            emit(record)
        return
    with conditions.watched(launch, emit) as found:
        _measure(launch, backend, scratch, found, emit)


def _measure(
    launch: Launch, backend: Backend, scratch: Path, found: conditions.Conditions, emit: Emitter
) -> None:
    from commbench.harness import cases

    case, workload = launch.case, cases.make_workload(launch.case)
    if isinstance(workload, PairWorkload):
        from commbench.harness.measure.pingpong import measure_pair

        measure_pair(launch, workload, backend, scratch, emit)
        return
    # Before a cluster is there: a backend that polls would slow what is imported.
    measure: Any
    preload: tuple[str, ...] = ()
    if isinstance(workload, ClusterWorkload):
        from commbench.harness.measure.cluster import measure_cluster as measure

        preload = workload.preload
    else:
        from commbench.harness.measure.fetches import measure_fetches as measure

    launcher = registry.load("launcher", case.cluster.launcher)()
    running = launcher.start(case.cluster, backend.protocol, scratch, preload)
    with running as cluster, found.on(cluster):
        conditions.check_gpus(launch, cluster, emit)
        measure(launch, workload, backend, cluster, emit)


def _end_launch() -> NoReturn:
    process.undo_all()
    if mark := os.environ.get(process.MARK):
        process.kill_marked(mark)
    os.killpg(os.getpgrp(), signal.SIGKILL)
    raise AssertionError("a process survived its own SIGKILL")


def main() -> int:
    """Run the launch on standard input and return the exit status: 0 good, 1 failed."""
    launch = directory.decode_launch(json.loads(sys.stdin.readline()))
    descriptor = int(os.environ["COMMBENCH_RECORDS_FD"])
    # The runner takes this pipe's end for the launch's: no child may keep it open.
    os.set_inheritable(descriptor, False)
    scratch = Path(os.environ["COMMBENCH_SCRATCH"])
    name = f"{launch.case.id}-{launch.index}"
    emit = emitter.Recorder(descriptor, Path(os.environ["COMMBENCH_RUN"]), name)

    def fail(stage: str, message: str) -> None:
        emit(Failure(case_id=launch.case.id, launch=launch.index, stage=stage, message=message))

    def on_death(message: str) -> None:
        try:
            fail("measure", message)
        finally:
            _end_launch()

    process.on_death(on_death)
    process.watch_parent(sys.stdin.fileno(), _end_launch)
    try:
        run_launch(launch, scratch, emit)
        emit.close()
    except CommbenchError as error:
        fail(_STAGES.get(type(error), "launch"), str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - whatever went wrong must reach the report
        traceback.print_exc()
        where = f"; the traceback is in {scratch / LOG}"
        fail("launch", f"{type(error).__name__}: {error}{where}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
