"""The process of one launch: start the cluster, measure, write the records.

The runner starts it as ``python -m commbench.harness.launch``, sends the launch as JSON on standard
input, and keeps this pipe open. Records are written as JSON lines to the file descriptor
``COMMBENCH_RECORDS_FD``, and those in large numbers to the run's directory, ``COMMBENCH_RUN``. The
process leads a new process group, and all its processes have the launch's mark. They are killed
when the runner ends.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from commbench import backends
from commbench.backends.backend import Backend
from commbench.errors import CommbenchError, UnwritableError, VerificationError
from commbench.harness.measure import conditions
from commbench.machine import process
from commbench.model import Launch, registry
from commbench.model.observed import Failure
from commbench.store import emitter, records
from commbench.store.emitter import Emitter
from commbench.workloads.workload import ClusterWorkload, PairWorkload

LOG = "launch.log"
"""The file with the standard output and error, in the launch's scratch folder."""
ENDED = "ended"
"""The last phase of a launch that has measured all that it was to measure."""
UNWRITABLE = "store"
"""The stage of a failure that ends the run: records can't be written."""
_MAX_MESSAGE = 1 << 16


def run_launch(launch: Launch, scratch: Path, emit: Emitter) -> None:
    """Measure `launch` and emit its records."""
    backend = backends.parse(launch.case.backend)
    if (simulated := backend.simulate(launch)) is not None:
        for record in simulated:
            emit(record)
        return
    with conditions.watched(launch, emit) as watched:
        _measure(launch, backend, scratch, watched, emit)


def _measure(
    launch: Launch, backend: Backend, scratch: Path, watched: conditions.Conditions, emit: Emitter
) -> None:
    from commbench.harness import cases

    case, workload = launch.case, cases.make_workload(launch.case)
    if isinstance(workload, PairWorkload):
        from commbench.harness.measure.message_loop import measure_pair

        measure_pair(launch, workload, backend, scratch, emit)
        return
    # Imported before the cluster starts, because a backend that polls slows imports down.
    measure: Any
    if isinstance(workload, ClusterWorkload):
        from commbench.harness.measure.cluster import measure_cluster as measure

        workload.set_up()
    else:
        from commbench.harness.measure.fetches import measure_fetches as measure

    launcher = registry.load("launcher", case.cluster.launcher)()
    running = launcher.start(case.cluster, backend.protocol, scratch, workload.preload)
    with running as cluster, watched.on(cluster):
        conditions.validate_gpus(launch, cluster, emit)
        measure(launch, workload, backend, cluster, emit)
        emit.phase("ending")
    # The exit of a user's code has to collect its objects, such as open files.
    if not (isinstance(workload, ClusterWorkload) and workload.tool):
        # To collect those of all imports takes half a second.
        gc.freeze()


def _end_launch() -> NoReturn:
    process.undo_all()
    if mark := os.environ.get(process.MARK):
        process.kill_marked(mark)
    os.killpg(os.getpgrp(), signal.SIGKILL)
    raise AssertionError("a process survived its own SIGKILL")


def main() -> int:
    """Run the launch on standard input, and return the exit status: 0 or, if it failed, 1."""
    launch = records.from_dict(json.loads(sys.stdin.readline()), Launch)
    descriptor = int(os.environ["COMMBENCH_RECORDS_FD"])
    # Processes that this one starts must not write records.
    os.set_inheritable(descriptor, False)
    scratch = Path(os.environ["COMMBENCH_SCRATCH"])
    name = f"{launch.case.id}-{launch.index}"
    emit = emitter.Recorder(os.fdopen(descriptor, "wb"), Path(os.environ["COMMBENCH_RUN"]), name)

    def fail(stage: str, message: str) -> None:
        # The representation of an object can be longer than a record may be.
        message = message[:_MAX_MESSAGE]
        try:
            emit(Failure(case_id=launch.case.id, launch=launch.index, stage=stage, message=message))
        except BrokenPipeError:
            # The orchestrator is gone: don't exit before everything of this launch is killed.
            _end_launch()

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
        emit.phase(ENDED)
    except CommbenchError as error:
        stage = "verify" if isinstance(error, VerificationError) else "launch"
        fail(UNWRITABLE if isinstance(error, UnwritableError) else stage, str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - all errors must reach the report
        traceback.print_exc()
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        where = f"; the traceback is in {scratch / LOG}"
        fail("launch", f"{type(error).__name__}: {error}{notes}{where}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
