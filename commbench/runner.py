"""Run a plan: one child process group per launch, with a deadline; no printing, no files.

A launch that crashes, hangs, is killed or talks rubbish costs that launch alone: it becomes a
``Failure``, its processes end, and the plan goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from commbench import backends, process, store
from commbench.model import Failure, Launch, LaunchEnd, Record

MARK = "COMMBENCH_LAUNCH"
"""An environment variable that every process of a launch carries, so that none is missed."""

_TICK_SECONDS = 0.5
_GRACE_SECONDS = 20.0


def run_plan(plan: Iterable[Launch], logs: Path) -> Generator[Record | None]:
    """Yield every record of every launch as it comes, and None while nothing does.

    Each launch ends with a ``LaunchEnd``. Closing the iterator ends the launch that is running,
    with all its processes.

    Parameters
    ----------
    plan
        What to run, in this order.
    logs
        A directory for the processes' logs; those of good launches are removed.
    """
    for launch in plan:
        yield from _run(launch, logs)


def _run(launch: Launch, logs: Path) -> Generator[Record | None]:
    began = time.monotonic()
    scratch = logs / f"{launch.case.id}-{launch.index}"
    failed = False
    for record in _stream(launch, scratch):
        failed = failed or isinstance(record, Failure)
        yield record
    if not failed:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            logs.rmdir()
    yield LaunchEnd(
        case_id=launch.case.id,
        launch=launch.index,
        block=launch.block,
        position=launch.position,
        ok=not failed,
        seconds=time.monotonic() - began,
    )


def _stream(launch: Launch, scratch: Path) -> Generator[Record | None]:
    def failure(stage: str, message: str) -> Failure:
        return Failure(case_id=launch.case.id, launch=launch.index, stage=stage, message=message)

    mark = uuid.uuid4().hex
    log = scratch / "launch.log"
    scratch.mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    with log.open("wb") as output, os.fdopen(read_end, "rb", buffering=0) as records:
        child = subprocess.Popen(
            [sys.executable, "-m", "commbench.launch"],
            stdin=subprocess.PIPE, stdout=output, stderr=output,
            pass_fds=[write_end], start_new_session=True,
            env=_environment(launch, scratch, mark, write_end),
        )  # fmt: skip
        os.close(write_end)
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(dataclasses.asdict(launch)).encode() + b"\n")
                child.stdin.flush()
            reported = False
            deadline = time.monotonic() + launch.case.timeout_s
            for line in _lines(records, deadline):
                if line is None:
                    yield None
                    continue
                try:
                    record = store.decode(line)
                except ValueError:
                    reported = True
                    yield failure("protocol", f"the launch wrote {line[:80]!r}, not a record")
                    continue
                reported = reported or isinstance(record, Failure)
                yield record
            if time.monotonic() >= deadline:
                yield failure(
                    "deadline",
                    f"no end after {launch.case.timeout_s:g} s (--timeout)" + process.tail(log),
                )
            else:
                status = _reap(child)
                if status != 0 and not reported:
                    yield failure(
                        "launch", f"the launch {process.describe_exit(status)}" + process.tail(log)
                    )
        finally:
            _end(child, mark)


def _environment(launch: Launch, scratch: Path, mark: str, records: int) -> dict[str, str]:
    case = launch.case
    backend = backends.parse(case.backend)
    config = {
        # dask.config reads "__" as a level and treats "_" and "-" alike.
        "DASK_" + key.replace(".", "__").replace("-", "_").upper(): repr(value)
        for key, value in backend.dask_config().items()
    }
    return {
        **os.environ,
        **config,
        **backend.environment(case.cluster.device, scratch),
        **case.cluster.env,
        "COMMBENCH_RECORDS_FD": str(records),
        "COMMBENCH_SCRATCH": str(scratch),
        MARK: mark,
    }


def _lines(pipe: Any, deadline: float) -> Iterator[bytes | None]:
    """Yield each line of `pipe`, None after every quiet tick, until its end or the deadline."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(min(left, _TICK_SECONDS)):
                yield None
                continue
            chunk = pipe.read(1 << 20)
            if not chunk:
                # A last line without its end was cut short by a death that is reported apart.
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines


def _reap(child: subprocess.Popen[bytes]) -> int:
    try:
        return child.wait(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _end(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kill whatever is left of a launch: its group first, then who carries its mark."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    child.wait()
    for survivor in marked_processes(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(survivor, signal.SIGKILL)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end a run in the same orderly way as Ctrl-C."""

    def interrupt(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def marked_processes(mark: str) -> list[int]:
    """Return the ids of the living processes whose environment carries `mark`."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found
