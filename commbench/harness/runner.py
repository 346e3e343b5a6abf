"""Run a plan: one child process group per launch, with a deadline; no printing.

A launch that crashes, hangs, is killed or writes invalid records becomes a ``Failure``. Its
processes are killed, and the plan goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from commbench import backends, workloads
from commbench.backends.backend import Backend
from commbench.errors import LaunchError, UnwritableError
from commbench.harness.launch import ENDED, LOG, UNWRITABLE
from commbench.launchers.launcher import Launcher, dask_variables
from commbench.launchers.local import nanny_environment
from commbench.machine import gpu, process
from commbench.model import Launch, registry
from commbench.model.observed import Failure, LaunchEnd, Phase, Record
from commbench.store.emitter import PHASE
from commbench.store.records import decode

_TICK_SECONDS = 0.5
_MAX_LINE_BYTES = 1 << 20
_UNDO_SECONDS = 10.0
"""The time in which a launch may cancel jobs and end processes on other hosts."""


def run_plan(plan: Iterable[Launch], run: Path) -> Generator[Record | Phase | None]:
    """Yield records and phases of every launch as they arrive, and None at each quiet interval.

    Records of ``records.BULK`` are not yielded: the launch writes them to `run`, the run's
    directory. The processes' logs are there, too, until the launch succeeds. Each launch ends with
    a ``LaunchEnd``. Closing the iterator kills all processes of the running launch.

    Raises
    ------
    UnwritableError
        If `run` can't be written.
    LaunchError
        If processes of a launch survive SIGKILL, and would disturb the next one.
    """
    # A script may change the directory.
    run = run.absolute()
    for launch in plan:
        began = time.monotonic()
        scratch = scratch_folder(launch, run)
        failed = False
        for record in _stream(launch, run, scratch):
            failed = failed or isinstance(record, Failure)
            yield record
        if not failed:
            shutil.rmtree(scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                scratch.parent.rmdir()
        yield LaunchEnd(
            case_id=launch.case.id, launch=launch.index, block=launch.block,
            position=launch.position, ok=not failed, seconds=time.monotonic() - began,
        )  # fmt: skip


def scratch_folder(launch: Launch, run: Path) -> Path:
    """Return the folder for the logs of a launch."""
    return run / "logs" / f"{launch.case.id}-{launch.index}"


def _stream(launch: Launch, run: Path, scratch: Path) -> Generator[Record | Phase | None]:
    def failure(stage: str, message: str) -> Failure:
        return Failure(case_id=launch.case.id, launch=launch.index, stage=stage, message=message)

    def phase(name: str) -> Phase:
        return Phase(case_id=launch.case.id, launch=launch.index, name=name)

    yield phase("starting")
    mark = uuid.uuid4().hex
    log = scratch / LOG
    # A launch that was killed before its first record has left a scheduler's address.
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        output = log.open("wb")
    except OSError as error:
        raise UnwritableError(
            f"can't write the logs of a launch to {scratch}: {error.strerror}"
        ) from error
    read_end, write_end = os.pipe()
    with output, os.fdopen(read_end, "rb", buffering=0) as records:
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "commbench.harness.launch"],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
                pass_fds=[write_end], start_new_session=True,
                env={
                    **environment(launch, backends.parse(launch.case.backend), scratch),
                    "COMMBENCH_RECORDS_FD": str(write_end),
                    "COMMBENCH_SCRATCH": str(scratch),
                    "COMMBENCH_RUN": str(run),
                    process.MARK: mark,
                },
            )  # fmt: skip
        except OSError as error:
            yield failure("launch", f"the launch can't be started: {error}")
            return
        finally:
            os.close(write_end)
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(dataclasses.asdict(launch)).encode() + b"\n")
                child.stdin.flush()
            reported = ended = False
            for line in _lines(records, child, time.monotonic() + launch.case.timeout_s):
                if line is None:
                    yield None
                    continue
                if line.startswith(PHASE.encode()):
                    name = line[len(PHASE) :].decode(errors="replace")
                    if not (ended := name == ENDED):
                        yield phase(name)
                    continue
                try:
                    record = decode(line)
                except ValueError:
                    yield failure("protocol", f"the launch wrote {line[:80]!r}, not a record")
                    break
                reported = reported or isinstance(record, Failure)
                yield record
                if isinstance(record, Failure) and record.stage == UNWRITABLE:
                    raise UnwritableError(record.message)
            else:
                status = child.wait()
                if not (reported or (ended and status == 0)):
                    early = "" if status else " before it had measured all"
                    yield failure(
                        "launch",
                        f"the launch {process.describe_exit(status)}{early}" + process.tail(log),
                    )
        except TimeoutError:
            yield failure(
                "deadline",
                f"no end after {launch.case.timeout_s:g} s (--timeout)" + process.tail(log),
            )
        finally:
            survivors = _end(child, mark)
        if survivors:
            message = (
                f"processes survive SIGKILL: {', '.join(map(str, survivors))} (a disk or a driver "
                "that doesn't answer?); they would disturb the next launches"
            )
            yield failure("end", message)
            raise LaunchError(f"{message}. When they are gone: --resume {shlex.quote(str(run))}")


def environment(launch: Launch, backend: Backend, scratch: Path) -> dict[str, str]:
    """Return the environment of a launch, including this process's variables."""
    case = launch.case
    given = {**backend.dask_config(), **case.cluster.dask_config, **gpu.dask_config(case.cluster)}
    variables = backend.environment(case.cluster.device, scratch)
    launcher: Launcher = registry.load("launcher", case.cluster.launcher)()
    kind, nannys = workloads.load(case.workload), nanny_environment()
    defaults = launcher.environment(case.cluster) if kind.has_cluster else nannys
    if kind.has_cluster and kind.tool:
        # The launch runs a user's code as the client, which has no nanny.
        defaults = {name: defaults[name] for name in defaults.keys() - nannys.keys()}
    return {
        **defaults,
        **os.environ,
        process.FORWARDED: ",".join([*backend.variables, *variables]),
        **dask_variables(given),
        **variables,
        **gpu.environment(case.cluster, backend.before_cuda),
        **case.cluster.env,
    }


def _lines(pipe: Any, child: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes | None]:
    """Yield the lines of `pipe`, and None after each quiet interval, until `child` ends.

    The end of the pipe is not waited for, because a process that the child started may have it. If
    the child runs at the deadline, a TimeoutError is raised.
    """
    rest = b""
    os.set_blocking(pipe.fileno(), False)
    ended = process.open_end(child.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                ready = [key.fileobj for key, _ in selector.select(min(left, _TICK_SECONDS))]
                # If this process was stopped, the child may have ended in time.
                if left <= 0 and ended not in ready:
                    raise TimeoutError
                if not ready:
                    yield None
                elif chunk := pipe.read(1 << 20):
                    block, end, rest = (rest + chunk).rpartition(b"\n")
                    yield from block.split(b"\n") if end else ()
                    if len(rest) > _MAX_LINE_BYTES:
                        yield rest
                elif ended in ready:
                    # An incomplete last line was cut off by a death, which is reported separately.
                    return
                else:
                    selector.unregister(pipe)
    finally:
        os.close(ended)


def _end(child: subprocess.Popen[bytes], mark: str) -> list[int]:
    """Kill the processes of a launch, its group and those with its mark; return those left."""
    try:
        if child.stdin is not None:
            # The launch then ends what it has started on other hosts, and kills itself.
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        if child.returncode is None:
            # Without reaping it, so that its process id and group id are not reused.
            process.await_end(process.open_end(child.pid), _UNDO_SECONDS)
    finally:
        # If this is interrupted, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        survivors = process.kill_marked(mark)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(process.GONE_SECONDS)
    return [*survivors, *([child.pid] if child.returncode is None else [])]
