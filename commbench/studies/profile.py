"""Record what a cluster does for a user's code: ``with commbench.profile(client) as run:``.

The whole block and its named parts are regions. Each name is a case of the run, and each time that
a region is entered an iteration. Transfers, wire bytes and tasks belong to the innermost region;
times of threads and spilled data include those of regions within.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import runpy
import shlex
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any, BinaryIO, NamedTuple, TypeVar

import cloudpickle

from commbench import backends, errors, harness, machine
from commbench.analysis.run import Run
from commbench.backends.backend import Backend
from commbench.errors import CommbenchError, LaunchError, UnknownNameError, UsageError
from commbench.harness import interrupts, line_times, measure, spill_counters, wire
from commbench.harness.measure import cluster as timing
from commbench.harness.measure import conditions, plugins, record_keys, traffic
from commbench.harness.measure.plugins import Profiler
from commbench.launchers import members
from commbench.launchers.launcher import SCHEDULER, RunningCluster
from commbench.machine import cores, environment
from commbench.model import USER_CODE, Case, ClusterSpec, Launch, Manifest, Suite
from commbench.model.observed import (
    LOCAL,
    CoreUse,
    Failure,
    Graph,
    LaunchEnd,
    LineTime,
    Record,
    Region,
)
from commbench.store import directory, parts
from commbench.store.emitter import Recorder
from commbench.studies.anonymous import AnonymousRecorder, anonymous
from commbench.studies.submissions import Submissions, statement
from commbench.workloads import user_code

_Result = TypeVar("_Result")
_MAX_TASKS = 1_000_000
"""The most tasks that the user's scheduler keeps, which have about 1 kB each."""
_MAX_NAMED = 3
"""The most tasks of lost workers that are named."""
_MIN_CORE_USE_S = 1.0
"""The seconds of a region from which the kernel's ticks of 10 ms tell the use of cores."""
_TOOL = "your code"
"""The ``tool`` of the samples, whose results commbench can't verify."""


def profile(
    client: Any, name: str = "code", *, output: str | Path = "results", anonymize: bool = False
) -> Context:
    """Return a context that records what a cluster does for the code in it.

    Parameters
    ----------
    client
        A connected ``distributed.Client``; for an asynchronous one, use ``async with``.
    name
        The name of the region that is the whole context.
    output
        The folder in which the directory of the run is made.
    anonymize
        Whether to record labels (``task-1``, ``host-1``) for names of tasks, keys, workers and
        hosts, addresses, and messages. Names of regions are kept.

    Returns
    -------
    Context
        A context manager, also an asynchronous one, with a `ProfiledRun` as its value.

    Raises
    ------
    UsageError
        If the client is not connected, or is asynchronous and the context is not.
    LaunchError
        When the context is entered, if a process of the cluster runs another Python (3.x), or
        another commbench is measuring it.

    Examples
    --------
    >>> with commbench.profile(client) as run:  # doctest: +SKIP
    ...     with run.region("load"):
    ...         frame = dask.dataframe.read_parquet("data").persist()
    ...         wait(frame)
    ...     frame.groupby("key").sum().compute()
    >>> run.transfers  # doctest: +SKIP
    """
    if getattr(client, "status", "") != "running":
        raise UsageError(
            f"commbench.profile takes a client that is connected, not {client!r}; "
            "make one with Client(), or await Client(asynchronous=True)"
        )
    folder = Path(output).absolute()
    return Context(
        lambda raised: _Observer(client, folder, anonymize).recorded(name, raised),
        client.asynchronous,
    )


def profile_script(
    script: Path, arguments: Sequence[str], output: Path, scheduler: str = "",
    anonymize: bool = False,
) -> tuple[ProfiledRun | None, BaseException | None]:  # fmt: skip
    """Run a script as Python does, and record its first client until it is closed.

    Parameters
    ----------
    arguments
        The arguments of the script.
    output
        The folder in which the directory of the run is made.
    scheduler
        The address of a scheduler for clients that are given none.
    anonymize
        As in ``profile``; the script's name is not recorded either.

    Returns
    -------
    (ProfiledRun or None, BaseException or None)
        The run, unless the script has connected no client, and the exception that ended the script,
        ``SystemExit`` for example.

    Raises
    ------
    UnwritableError
        If the directory of a run can't be made; the script has not run.
    """
    import dask
    from distributed import Client, SpecCluster
    from distributed.deploy import Cluster

    output = output.absolute()
    # Within the script, in Client(), an error would end it.
    existed = output.exists()
    (output / directory.new_run_id("script", output)).rmdir()
    # The script may make a folder of this name.
    if not existed:
        with suppress(OSError):
            output.rmdir()
    name = "script" if anonymize else script.stem
    watch = _FirstClient(name, output=output, anonymize=anonymize)
    sys.argv = [str(script), *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(script.resolve().parent)
    default = {"scheduler-address": scheduler} if scheduler else {}
    error: BaseException | None = None

    def set_variable(event: str, arguments: tuple[Any, ...]) -> None:
        # commbench has imported Dask, which reads its variables when it is imported.
        if event == "os.putenv" and arguments[0].startswith(b"DASK_") and not _has_dask():
            name, value = map(os.fsdecode, arguments)
            is_path = name in ("DASK_CONFIG", "DASK_ROOT_CONFIG")
            files = dask.config.collect_yaml([value]) if is_path else ()
            # Variables, and then options, have precedence over files.
            known = {**os.environ, name: value} if is_path else {name: value}
            for values in (*files, dask.config.collect_env(known), default if is_path else {}):
                dask.config.update(dask.config.config, values)

    sys.addaudithook(set_variable)
    with (
        watch.among(Client, Cluster, SpecCluster),
        dask.config.set(default),
        interrupts.terminated_as_interrupted() as ignore_signals,
    ):
        began = time.perf_counter()
        try:
            # As Python's, __file__ is valid in other directories.
            runpy.run_path(str(script.absolute()), run_name="__main__")
        except BaseException as raised:  # noqa: BLE001 - the caller prints it
            trace = raised.__traceback__
            # Python's traceback begins in the script.
            while trace and trace.tb_frame.f_globals.get("__name__") != "__main__":
                trace = trace.tb_next
            error = raised.with_traceback(trace)
        script_s = time.perf_counter() - began
        ignore_signals()
        # The end of a script is no error of its code.
        watch.end(None if isinstance(error, SystemExit) else error)
    if os.getpid() != watch.pid:
        # A child that the script has forked reports nothing.
        raise error or SystemExit(0)
    if watch.run is not None:
        watch.run.describe(script_s, watch.n_further)
    return watch.run, error


def _has_dask() -> bool:
    """Return whether the running script has imported something from Dask."""
    names = [*vars(sys.modules["__main__"]).values()]
    modules = {each.__name__ for each in names if isinstance(each, ModuleType)}
    modules |= {str(each.__module__) for each in names if isinstance(each, type | FunctionType)}
    return bool({name.partition(".")[0] for name in modules} & {"dask", "distributed"})


class _FirstClient:
    """Profiles the first client that connects, until it is closed or its script ends."""

    def __init__(self, name: str, **options: Any) -> None:
        self._name, self._options, self.pid = name, options, os.getpid()
        self._client: Any = None
        self._scheduler: Any = None
        self._context: Context | None = None
        self._handled: BaseException | None = None
        self.run: ProfiledRun | None = None
        self.n_further = 0
        """The number of clients of other clusters, and of those after the first was closed."""

    @contextmanager
    def among(self, kind: type[Any], *clusters: type[Any]) -> Iterator[None]:
        """Replace the methods with which clients of the class `kind` and `clusters` start and end.

        A client often outlives its cluster.
        """
        names = ("__init__", "_start", "close", "_close", "shutdown", "_shutdown")
        methods = {name: getattr(kind, name) for name in names}
        init, start = methods["__init__"], methods["_start"]
        closes: list[tuple[Any, str, Any]] = []
        watch = self

        async def started(client: Any, *args: Any, **kwargs: Any) -> Any:
            result = await start(client, *args, **kwargs)
            at = client._scheduler_identity.get("id")
            # Tasks of workers in this process, as those of dask-mpi, may connect some, too.
            if client.id.startswith("Client-worker-"):
                return result
            # Children that the script forks have clients of their own.
            if watch._client is None and os.getpid() == watch.pid:
                watch._client, watch._scheduler = client, at
                # The property is true in the loop's thread for any client.
                if client._asynchronous:
                    watch_close(type(client.cluster))
                    watch._handled = sys.exc_info()[1]
                    context = profile(client, watch._name, **watch._options)
                    watch.run = await context.__aenter__()
                    watch._context = context
            elif client is not watch._client:
                watch.n_further += watch._context is None or at != watch._scheduler
            return result

        def made(client: Any, *args: Any, **kwargs: Any) -> None:
            init(client, *args, **kwargs)
            if client is watch._client and not client._asynchronous:
                # Clusters on Kubernetes and of Coiled close in their own way.
                watch_close(type(client.cluster))
                watch._handled = sys.exc_info()[1]
                context = profile(client, watch._name, **watch._options)
                watch.run = context.__enter__()
                watch._context = context

        def before(name: str) -> Any:
            def closed(client: Any, *args: Any, **kwargs: Any) -> Any:
                # Its context may be left by an exception.
                error = watch._error()
                # A client may shut down the cluster of another one.
                first = name == "shutdown" and watch._shares_cluster(client)
                leaving = watch._client if first else client
                if not client._asynchronous:
                    watch._leave(leaving, *error)
                elif context := watch._take(leaving):

                    async def left() -> Any:
                        await context.__aexit__(*error)
                        return await methods[name](client, *args, **kwargs)

                    return left()
                return methods[name](client, *args, **kwargs)

            return closed

        def before_awaiting(name: str) -> Any:
            async def closed(client: Any, *args: Any, **kwargs: Any) -> Any:
                if client._asynchronous and (context := watch._take(client)):
                    await context.__aexit__(*watch._error())
                return await methods[name](client, *args, **kwargs)

            return closed

        def watch_close(made_by: Any) -> None:
            for name, replacement in (("close", before_close), ("_close", before_awaiting_close)):
                close = getattr(made_by, name, None)
                replaced = [getattr(each, other) for each, other, _ in closes if other == name]
                if close and close not in replaced:
                    closes.append((made_by, name, close))
                    setattr(made_by, name, replacement(close))

        def before_close(close: Any) -> Any:
            def closed(cluster: Any, *args: Any, **kwargs: Any) -> Any:
                # In the event loop's thread, waiting for this one would be for ever.
                if watch._is_connected_to(cluster) and not watch._client.asynchronous:
                    watch._leave(watch._client, *watch._error())
                return close(cluster, *args, **kwargs)

            return closed

        def before_awaiting_close(close: Any) -> Any:
            async def closed(cluster: Any, *args: Any, **kwargs: Any) -> Any:
                first = watch._client
                if watch._is_connected_to(cluster) and first._asynchronous:
                    # Another thread may run another loop.
                    is_here = first.loop.asyncio_loop is asyncio.get_running_loop()
                    if is_here and (context := watch._take(first)):
                        await context.__aexit__(*watch._error())
                return await close(cluster, *args, **kwargs)

            return closed

        for each in clusters:
            watch_close(each)
        kind.__init__, kind._start = made, started
        kind.close, kind.shutdown = before("close"), before("shutdown")
        kind._close, kind._shutdown = before_awaiting("_close"), before_awaiting("_shutdown")
        try:
            yield
        finally:
            for made_by, name, close in reversed(closes):
                setattr(made_by, name, close)
            for name, method in methods.items():
                setattr(kind, name, method)

    def end(self, error: BaseException | None) -> None:
        """End the recording of a client that the script has not closed.

        The event loop of an asynchronous client has ended, and so its record.
        """
        if not getattr(self._client, "_asynchronous", True):
            self._leave(self._client, type(error) if error else None, error, None)

    def _is_connected_to(self, cluster: Any) -> bool:
        client = self._client
        if client is None or client.status != "running":
            return False
        # A client may know only the address of its cluster.
        at = getattr(cluster, "scheduler_address", None)
        return client.cluster is cluster or client.scheduler.address == at

    def _shares_cluster(self, client: Any) -> bool:
        """Return whether `client` has the cluster and the event loop of the recorded client."""
        first = self._client
        if first is None or client._scheduler_identity.get("id") != self._scheduler:
            return False
        if first._asynchronous or client._asynchronous:
            return first.loop is client.loop and first._asynchronous == client._asynchronous
        return True

    def _error(self) -> tuple[Any, Any, Any]:
        """Return the exception that leaves the block around the client, unless the script ends.

        The script may handle another one all the time, as ``except ImportError: main()`` does.
        """
        error = sys.exc_info()
        is_end = isinstance(error[1], SystemExit)
        return (None, None, None) if is_end or error[1] is self._handled else error

    def _leave(self, client: Any, *error: Any) -> None:
        """Leave the context of `client`, unless it has been left."""
        if context := self._take(client):
            context.__exit__(*error)

    def _take(self, client: Any) -> Context | None:
        """Remove and return the context of `client`, or None if it is already removed."""
        # A child that the script forks has no event loop.
        if client is not self._client or os.getpid() != self.pid:
            return None
        context, self._context = self._context, None
        return context


@dataclass(eq=False)
class _Raised:
    """The thread or task that has entered a block, the blocks around it, and what it raised."""

    owner: Any
    around: tuple[_Raised, ...] = ()
    error: BaseException | None = None

    def __str__(self) -> str:
        # The end of a script is no error of its code.
        is_end = self.error is None or isinstance(self.error, SystemExit)
        text = "" if is_end else type(self.error).__name__
        with suppress(Exception):
            text += f": {self.error}" * bool(text and str(self.error))
        return text


_around: ContextVar[tuple[_Raised, ...]] = ContextVar("_around", default=())
"""The blocks that the running code has entered; tasks inherit them, threads don't."""


class Context:
    """A context manager that can be entered by ``with``, and by ``async with`` in a thread.

    Parameters
    ----------
    make
        Returns a new context manager for each time. It learns what its block raises from an
        argument: `contextlib` would throw that, and change its traceback.
    only_async
        Whether ``with`` is an error.
    """

    def __init__(self, make: Callable[[_Raised], Any], only_async: bool = False) -> None:
        self._make, self._only_async = make, only_async
        self._entered: list[tuple[Any, _Raised]] = []

    def __enter__(self) -> Any:
        """Enter the context."""
        if self._only_async:
            raise UsageError("the client is asynchronous, so the context has to be: async with …")
        raised = _Raised(threading.get_ident(), _around.get())
        value = self._enter(raised)
        _around.set((*raised.around, raised))
        return value

    def _enter(self, raised: _Raised) -> Any:
        context = self._make(raised)
        value = context.__enter__()
        self._entered.append((context, raised))
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        """Leave the context."""
        del kind, traceback
        raised = self._leave(threading.get_ident(), error)
        _around.set(tuple(each for each in _around.get() if each is not raised))

    def _leave(self, owner: Any, error: BaseException | None) -> _Raised:
        # Another thread may have entered this one meanwhile, or another task may leave it.
        theirs = [each for each in self._entered if each[1].owner == owner]
        context, raised = entered = [*self._entered[-1:], *theirs][-1]
        self._entered.remove(entered)
        raised.error = error
        context.__exit__(None, None, None)
        return raised

    async def __aenter__(self) -> Any:
        """Enter the context without blocking the event loop; leave it if that is cancelled."""
        raised = _Raised(owner := asyncio.current_task(), _around.get())
        entering = asyncio.ensure_future(asyncio.to_thread(self._enter, raised))
        try:
            value = await asyncio.shield(entering)
            _around.set((*raised.around, raised))
            return value
        except asyncio.CancelledError:
            await asyncio.wait([entering])
            if entering.exception() is None:
                await asyncio.to_thread(self._leave, owner, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        """Leave the context without blocking the event loop, also if that is cancelled."""
        del kind, traceback
        owner = asyncio.current_task()
        leaving = asyncio.ensure_future(asyncio.to_thread(self._leave, owner, error))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await asyncio.wait([leaving])
            raise
        finally:
            if leaving.done() and not leaving.cancelled() and not leaving.exception():
                raised = leaving.result()
                _around.set(tuple(each for each in _around.get() if each is not raised))


class ProfiledRun(Run):
    """A run that is recorded; its frames have what was recorded when the last region ended."""

    def __init__(self, observer: _Observer, path: Path, manifest: Manifest) -> None:
        super().__init__(path, manifest)
        self._observer = observer

    def region(self, name: str) -> Context:
        """Return a context for a named part of the code; regions may repeat and nest."""
        observer = self._observer
        return Context(lambda raised: observer.region(name, raised), observer.client.asynchronous)

    def describe(self, script_s: float, n_other_clients: int) -> None:
        """Record for how long the script ran, and how many of its clients were not recorded."""
        # The script has its exit status, even if the disk is full.
        with suppress(OSError, CommbenchError):
            manifest = self._observer.update(script_s=script_s, n_other_clients=n_other_clients)
            self.read_again(manifest)

    def read_again(self, manifest: Manifest) -> None:
        """Forget what was read and computed."""
        self.__dict__ = ProfiledRun(self._observer, self.path, manifest).__dict__


class _UserCluster(RunningCluster):
    """The cluster of a user's client."""

    preexisting = True

    def __init__(self, client: Any) -> None:
        self.client = _Blocking(client)
        self._known: dict[str, str] = {}
        _validate_versions(self.client)
        _send_by_value()
        self.update()

    def update(self) -> None:
        """Ask which workers there are now."""
        workers = members.workers_by_address(self.client)
        self.names = {address: str(info["name"]) for address, info in workers.items()}
        # A worker may have joined and left since the last update.
        self._known |= self.client.run_on_scheduler(plugins.joined) | self.names
        self.n_threads = max((int(info["nthreads"]) for info in workers.values()), default=1)
        members.locate(self)

    @property
    def known_names(self) -> Mapping[str, str]:
        """The names of workers by address, also of those that have left."""
        return self._known

    def close(self) -> None:
        """Leave the cluster as it is."""


class _Blocking:
    """The methods of a client, for other threads than that of its event loop."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not (callable(attribute) and self._client.asynchronous):
            return attribute

        async def result(*args: Any, **kwargs: Any) -> Any:
            answer = attribute(*args, **kwargs)
            return await answer if hasattr(answer, "__await__") else answer

        def call(*args: Any, **kwargs: Any) -> Any:
            loop = self._client.loop.asyncio_loop
            return asyncio.run_coroutine_threadsafe(result(*args, **kwargs), loop).result()

        return call

    def run(self, function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the answers of workers by address, without those that are lost meanwhile."""
        from distributed.comm import CommClosedError

        if "workers" in kwargs:
            # The scheduler would try for 30 s to connect to one that has left.
            known = self.nthreads()
            kwargs["workers"] = [each for each in kwargs["workers"] if each in known]
        lost = (CommClosedError, ConnectionError, TimeoutError)
        answers = self.__getattr__("run")(function, *args, on_error="return", **kwargs)
        kept = {
            each: answer
            for each, answer in answers.items()
            # Dask raises a plain OSError where it can't connect; others are of the function.
            if type(answer) is not OSError and not isinstance(answer, lost)
        }
        for answer in kept.values():
            if isinstance(answer, Exception):
                raise answer
        return kept


@dataclass
class _Open:
    """A region that has begun, and its readings."""

    number: int
    parent: int
    block: _Raised
    launch: Launch
    profiler: Profiler | None
    spilled: dict[str, tuple[int, int]]
    offset_s: float
    """The seconds by which the scheduler's clock is ahead."""
    known: Set[str]
    """The workers that had joined when the region began, by address."""
    cpu_before: dict[int | str, float] = field(default_factory=dict)
    core_numbers: Set[int] = field(default_factory=lambda: os.sched_getaffinity(0))
    cores_before: cores.Times | None = None
    child_cpu_before_s: float = 0.0
    started_at_s: float = 0.0
    began: float = 0.0
    paused_s: float = 0.0
    """The seconds in which other regions were begun and ended."""
    paused_until: float = 0.0
    paused_cpu_s: float = 0.0
    """The CPU seconds of all processes in that time."""


class _End(NamedTuple):
    """What was read when a region ended."""

    elapsed_s: float
    cores: cores.Times | None
    cpu_seconds: dict[int | str, float]
    child_cpu_seconds: float


def _spent(before: Mapping[int | str, float], after: Mapping[int | str, float]) -> float:
    """Return the CPU seconds of processes between two readings, all of those of new ones."""
    return sum(max(0.0, spent - before.get(process, 0.0)) for process, spent in after.items())


class _Observer:
    """Collects the records of regions.

    Nothing that goes wrong in this is raised in the user's code: it is a `Failure` of the run.
    """

    def __init__(self, client: Any, output: Path, anonymize: bool) -> None:
        self.client, self._output, self._anonymize = client, output, anonymize
        self._open: list[_Open] = []
        self._n_regions = 0
        self._n_tasks_before = 0
        self._is_recording = False
        self._submissions = Submissions(client)
        self._script: line_times.LineTimes | None = None
        self._last_loss_s = 0.0
        # Regions of several threads or coroutines may overlap.
        self._lock = threading.RLock()

    @contextmanager
    def recorded(self, name: str, raised: _Raised) -> Iterator[ProfiledRun]:
        """Make the directory of a run, and record the region `name`, which may raise."""
        cluster = self._cluster = _UserCluster(self.client)
        meters = (*plugins.meters(cluster), line_times.LineSampler())
        with plugins.installed(cluster, *meters):
            store = self._store = self._make_store(name)
            self._run = ProfiledRun(self, store.path, store.manifest)
            file = store.file()
            recorder = Recorder(file, store.path, "profile")
            self._emit = AnonymousRecorder(recorder) if self._anonymize else recorder
            try:
                cluster.client.run_on_scheduler(timing.keep_tasks, _MAX_TASKS)
                earlier = self._attempt(timing.lost_workers, cluster.client, 0.0) or ()
                self._last_loss_s = max((at_s for at_s, *_ in earlier), default=0.0)
                began, self._is_recording = time.perf_counter(), True
                script = {self._script_thread(): ""}
                self._script = line_times.LineTimes(lambda: script)
                try:
                    with self._submissions.recorded(), self.region(name, raised):
                        yield self._run
                finally:
                    self._is_recording = False
                    self._script.stop()
                    self._attempt(self._end, time.perf_counter() - began, needs_client=False)
                    self._attempt(self._emit_connections)
            finally:
                self._close(file)
                self._run.read_again(store.manifest)

    def _script_thread(self) -> int:
        """Return the number of the thread that runs the user's code."""
        if self.client._asynchronous:
            return int(getattr(self.client.loop.asyncio_loop, "_thread_id", None) or 0)
        return threading.get_ident()

    def _close(self, file: BinaryIO) -> None:
        """Close the files of the run; that its disk is full is no error of the user's code."""
        with suppress(Exception):
            # The loop of an asynchronous client may have ended.
            self._cluster.client.sync(_stop_counting, callback_timeout=5)
        for close in (self._emit.close, file.flush, self._store.finish):
            try:
                close()
            except (OSError, CommbenchError) as error:
                warnings.warn(f"{self._store.path} is incomplete: {error}", stacklevel=2)

    def update(self, **changes: Any) -> Manifest:
        """Change fields of the run's manifest, and return it."""
        self._store.update(replace(self._store.manifest, **changes))
        return self._store.manifest

    def _make_store(self, name: str) -> directory.RunStore:
        # Its arguments may be secret.
        script = getattr(sys.modules["__main__"], "__file__", None)
        manifest = Manifest(
            id=directory.new_run_id(name, self._output), suite=Suite(name=name, cases=()),
            environment=environment.collect(), seed=0,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.quote(user_code.normalize(script)) if script else "",
        )  # fmt: skip
        if self._anonymize:
            manifest = anonymous(manifest)
        return directory.RunStore.create(self._output, manifest)

    @contextmanager
    def region(self, name: str, raised: _Raised) -> Iterator[None]:
        """Record a region, which may raise."""
        if not self._is_recording:
            raise UsageError(
                f"the region {name} begins when its profile has ended; enter it within the block "
                "of commbench.profile"
            )
        with self._paused(raised, time.perf_counter()):
            self._attempt(self._switch)
            region = self._attempt(self._begin, name, raised)
        if region is not None:
            region.started_at_s = time.time() + region.offset_s
            region.began = time.perf_counter()
        try:
            yield
        finally:
            if region is not None:
                seconds = time.perf_counter() - region.began - region.paused_s
                # Others may be recorded first, and their code goes on meanwhile.
                began = time.perf_counter()
                ended = self._attempt(self._read_end, region)
                with self._paused(raised, began):
                    try:
                        if ended is not None:
                            self._attempt(self._finish, region, seconds, ended, str(raised))
                    finally:
                        self._open.remove(region)
                    self._run.read_again(self._store.manifest)

    @contextmanager
    def _paused(self, block: _Raised, began: float) -> Iterator[None]:
        """Leave the time since this began out of the times of the regions around a block.

        Those of another thread or task may go on meanwhile: while regions that are not around the
        block are open, their times are left as they are.
        """
        with self._lock:
            around = (*(each.block for each in self._open[:1]), *block.around)
            is_alone = all(each.block in (*around, block) for each in self._open)
            left_out = [
                each for each in self._open
                if each.block is not block
                and (each.block.owner == block.owner or (is_alone and each.block in around))
            ]  # fmt: skip
            before = self._cpu() if left_out else {}
            yield
            after = self._cpu() if left_out else {}
            # Without a first reading, the second one says nothing.
            known = {process: spent for process, spent in after.items() if process in before}
            now = time.perf_counter()
            for each in left_out:
                # Waits for others that were recorded first overlap.
                each.paused_s += now - max(began, each.paused_until)
                each.paused_until = now
                each.paused_cpu_s += _spent(before, known)

    def _cpu(self) -> dict[int | str, float]:
        # The user's code may have closed the client.
        with suppress(Exception):
            return self._cluster.cpu_by_process()
        return {}

    def _attempt(
        self, action: Callable[..., _Result], *arguments: Any, needs_client: bool = True
    ) -> _Result | None:
        """Return the result of `action`; record an exception as a failure, and return None."""
        try:
            if needs_client and self.client.status != "running":
                raise LaunchError(
                    "the client was closed in the code that was profiled: what was logged since "
                    "the last region ended is lost; close it after commbench.profile"
                )
            return action(*arguments)
        except Exception as error:  # noqa: BLE001
            message = str(error) if isinstance(error, LaunchError) else repr(error)
            # The client may look closed by then.
            if self.client._asynchronous and self.client.loop.asyncio_loop.is_closed():
                message = (
                    "the asynchronous client was not closed before its event loop ended; write "
                    "async with Client(…, asynchronous=True) as client: …"
                )
            self._fail(message)
            return None

    def _report_losses(self, region: _Open) -> None:
        """Record the workers that were lost since the last call as a failure."""
        losses = timing.lost_workers(self._cluster.client, self._last_loss_s)
        if not losses:
            return
        self._last_loss_s = losses[-1][0]
        names = [*dict.fromkeys(name for _, name, _ in losses if name)]
        n_again = sum(n for *_, n in losses)
        self._fail(
            "a worker was lost"
            + f" {len(losses)} times" * (len(losses) > 1)
            + f", while it had tasks of {', '.join(names[:_MAX_NAMED])}" * bool(names)
            + f", with {n_again} results" * (n_again > 0)
            + ". If its nanny wrote that it exceeded its memory, give workers more, or make "
            "smaller pieces; else its log says why it ended",
            region.launch.case.id,
        )

    def _fail(self, message: str, case_id: str = "") -> None:
        """Record a failure, of the first case unless it is given."""
        cases = self._store.manifest.suite.cases
        case_id = case_id or (cases[0].id if cases else "")
        failure = Failure(case_id=case_id, launch=0, stage="measure", message=message)
        # The user's code goes on, even if the disk is full.
        with suppress(OSError, CommbenchError):
            self._emit(failure)

    def _begin(self, name: str, block: _Raised) -> _Open:
        client = self._cluster.client
        if not client.run_on_scheduler(plugins.is_installed, client.id):
            if not self._store.manifest.suite.cases:
                # The failure has to belong to one.
                self._launch(name)
            raise LaunchError(
                "the client was disconnected in the code that was profiled, which uninstalled what "
                "records it: nothing is recorded from here on"
            )
        launch = self._launch(name)
        profiler = None if self._cluster.shares_processes else Profiler(self._cluster)
        region = _Open(
            number=self._n_regions, parent=self._parent(block), block=block, launch=launch,
            profiler=profiler, spilled=client.run(spill_counters.written),
            offset_s=profiler.offset_s if profiler else conditions.scheduler_offset(self._cluster),
            known={*self._cluster.known_names},
        )  # fmt: skip
        self._n_regions += 1
        if profiler is not None:
            profiler.begin()
        region.cpu_before = self._cluster.cpu_by_process()
        region.cores_before = cores.times(region.core_numbers)
        region.child_cpu_before_s = cores.child_seconds(self._cluster.pids)
        self._open.append(region)
        return region

    def _parent(self, block: _Raised) -> int:
        """Return the number of the innermost region around a block; -1 without any.

        Around those of threads is the innermost one of the code that began the record.
        """
        if not self._open:
            return -1
        first = self._open[0].block
        around = block.around or next(
            (*each.block.around, each.block) for each in reversed(self._open)
            if first in (*each.block.around, each.block) and each.block.owner == first.owner
        )  # fmt: skip
        return [each.number for each in self._open if each.block in (first, *around)][-1]

    def _read_end(self, region: _Open) -> _End:
        elapsed_s = time.perf_counter() - region.began
        return _End(
            elapsed_s, cores.times(region.core_numbers), self._cluster.cpu_by_process(),
            cores.child_seconds(self._cluster.pids) - region.child_cpu_before_s,
        )  # fmt: skip

    def _finish(self, region: _Open, seconds: float, ended: _End, error: str) -> None:
        elapsed_s, used, spent, child_cpu_s = ended
        if region.profiler is not None:
            region.profiler.end()
        with suppress(Exception):
            self._cluster.update()
            if {*self._cluster.pids, *self._cluster.remote_processes} - spent.keys():
                # Workers have joined.
                spent = self._cluster.cpu_by_process() | spent
        cluster_cpu_s = _spent(region.cpu_before, spent)
        cpu_seconds = max(0.0, cluster_cpu_s - region.paused_cpu_s)
        sample = record_keys.sample(
            region.launch, region.number, "workload", 0, region.started_at_s, seconds,
            cpu_seconds, verified=False, tool=_TOOL,
        )  # fmt: skip
        outline = Region(
            **record_keys.keys(region.launch, region.number), parent=region.parent,
            name=region.launch.case.workload, started_at_s=region.started_at_s, seconds=seconds,
            error=error,
        )  # fmt: skip
        # The most important records come first.
        self._emit(outline)
        self._emit(sample)
        # Tasks may start programs.
        if use := self._core_use(region, used, spent, elapsed_s, cluster_cpu_s + child_cpu_s):
            self._emit(use)
        self._switch()
        few: list[Record] = []
        # The sample of an outer region is without the time in which others were recorded.
        few += timing.spills(region.launch, sample, region.spilled, self._cluster, elapsed_s)
        if region.profiler is not None:
            few += region.profiler.records(region.launch, region.number)
        for record in few:
            self._emit(record)

    def _core_use(
        self, region: _Open, used: cores.Times | None, spent: Mapping[int | str, float],
        elapsed_s: float, own_cpu_s: float,
    ) -> CoreUse | None:  # fmt: skip
        """Return the use of the cores by the region's and other processes, None if unknown."""
        before = region.cores_before
        # The CPU time of a process that has ended would seem to be that of others.
        lost = any(spent.get(process, 0.0) < cpu_s for process, cpu_s in region.cpu_before.items())
        joined = self._cluster.known_names.keys() - region.known
        if lost or joined - self._cluster.names.keys() or self._cluster.remote_members:
            return None
        n_cores = len(region.core_numbers)
        began = conditions.Reading(LOCAL, 0.0, n_cores, before, 0.0)
        ended = conditions.Reading(LOCAL, elapsed_s, n_cores, used, own_cpu_s)
        use = conditions.core_use(region.launch, began, ended)
        # Workers may be bound to other cores.
        bound = use is not None and use.busy_cpu_seconds < 0.9 * own_cpu_s
        # Others use the cores in the pauses of the region, too.
        seconds = elapsed_s - region.paused_s
        paused = region.paused_s > cores.MAX_OTHERS * seconds
        return None if bound or paused or seconds < _MIN_CORE_USE_S else use

    def _switch(self) -> None:
        """Collect what was logged since the last switch; it belongs to the innermost region."""
        client = self._cluster.client
        self._cluster.update()
        if not self._open:
            self._n_tasks_before = timing.drain(client)
            self._take_lines()
            return
        region, kept = self._open[-1], timing.tasks_kept(client)
        tasks = range(max(self._n_tasks_before, kept.start), kept.stop)
        if n_lost := tasks.start - self._n_tasks_before:
            self._fail(
                f"{n_lost} tasks of the region {region.launch.case.workload} are not recorded: a "
                f"region has at most {_MAX_TASKS}, which the scheduler keeps in memory"
            )
        with self._emit.region() as keep:
            for record in timing.collect(region.launch, region.number, tasks, self._cluster):
                keep(record)
        self._attempt(self._emit_graphs, region)
        self._attempt(self._emit_lines, region)
        self._attempt(self._report_losses, region)
        self._n_tasks_before = tasks.stop
        client.run_on_scheduler(timing.forget_tasks, tasks.stop)
        # Those are of the collection.
        client.run(wire.forget_others)

    def _emit_graphs(self, region: _Open) -> None:
        """Record the graphs since the last switch."""
        common = record_keys.keys(region.launch, region.number)
        with self._emit.region() as keep:
            for graphs in timing.take_graphs(self._cluster.client):
                number, client_ids, keys, received_s, n_tasks = map(list, zip(*graphs, strict=True))
                sent = map(self._submissions.take, client_ids, keys)
                codes, nbytes, send_s = map(list, zip(*sent, strict=True))
                keep(parts.table(
                    Graph, **common, number=number, received_s=received_s, n_tasks=n_tasks,
                    code=codes, nbytes=nbytes, send_seconds=send_s,
                ))  # fmt: skip

    def _take_lines(self) -> Counter[tuple[str, str, str]]:
        """Return the seconds of roles, names of tasks and statements since the last switch."""
        seconds = Counter[tuple[str, str, str]]()
        answers = [*self._cluster.client.run(line_times.take).values()]
        if self._script is not None:
            answers.append(self._script.take())
        # The sources of one file are parsed once.
        rows = sorted(itertools.chain(*answers), key=lambda row: row[0][2])
        for (role, name, file, line, function), spent_s in rows:
            seconds[role, name, statement(file, line) if file else function] += spent_s
        return seconds

    def _emit_lines(self, region: _Open) -> None:
        """Record the time of lines since the last switch."""
        if seconds := self._take_lines():
            common = record_keys.keys(region.launch, region.number)
            roles, names, codes = map(list, zip(*seconds, strict=True))
            spent_s = [*seconds.values()]
            self._emit(parts.table(
                LineTime, **common, role=roles, name=names, code=codes, seconds=spent_s,
            ))  # fmt: skip

    def _launch(self, name: str) -> Launch:
        """Return the launch of the case for regions of this name; add it to the run if needed."""
        suite = self._store.manifest.suite
        # The workers that came after a region was first entered have a number of threads.
        known = {
            case.workload: case
            for case in suite.cases
            if case.cluster.n_workers or not self._cluster.names
        }
        if name not in known:
            known[name] = Case(
                workload=name, backend=self.client.scheduler.address.partition("://")[0],
                cluster=ClusterSpec(
                    n_workers=len(self._cluster.names), launcher=USER_CODE,
                    threads_per_worker=self._cluster.n_threads, task_placement="dask",
                ),
                launches=1, iterations=1, warmups=0,
            )  # fmt: skip
            suite = replace(suite, cases=(*suite.cases, known[name]))
            self._store.update(replace(self._store.manifest, suite=suite))
        return Launch(case=known[name], index=0, block=0, position=0)

    def _end(self, seconds: float) -> None:
        """Emit the ends of all cases."""
        for launch in self._launches():
            self._emit(
                LaunchEnd(
                    **record_keys.keys(launch), block=0, position=launch.position, ok=True,
                    seconds=seconds,
                )
            )  # fmt: skip

    def _launches(self) -> list[Launch]:
        return [
            Launch(case=case, index=0, block=0, position=position)
            for position, case in enumerate(self._store.manifest.suite.cases)
        ]

    def _emit_connections(self) -> None:
        """Emit the connections of workers."""
        launches = self._launches()
        if not launches:
            return
        # Its protocol may have no backend, which would know its transports.
        backend = None
        with suppress(UnknownNameError):
            backend = backends.parse(launches[0].case.backend)
        if backend is not None and not self._cluster.shares_processes:
            kinds = (kind for kind in type(backend).__mro__ if issubclass(kind, Backend))
            names = sorted({kind.__module__ for kind in kinds})
            missing = self._cluster.client.run(members.missing_modules, names).values()
            # Workers may have another commbench.
            ours = (name for name in names if name.startswith("commbench."))
            for name in {*ours}.union(*missing):
                cloudpickle.register_pickle_by_value(sys.modules[name])
            for launch in launches:
                for record in traffic.links(launch, backend, self._cluster):
                    self._emit(record)


async def _stop_counting() -> None:
    """Stop counting the turns of the client's event loop, in which this runs."""
    plugins.stop()


@cache
def _send_by_value() -> None:
    """Make cloudpickle send what runs on scheduler and workers by value: they may lack commbench.

    Dask looks up the module of what it sends, cloudpickle also the packages around the modules of
    what that refers to.
    """
    observing = filter(inspect.ismodule, (*vars(harness).values(), *vars(measure).values()))
    for module in (*observing, members, machine, errors):
        cloudpickle.register_pickle_by_value(module)


def _validate_versions(client: Any) -> None:
    """Warn once of versions that differ from those here.

    Raises
    ------
    LaunchError
        If a process has another Python, which can't run what this one sends.
    """
    answers = client.get_versions(packages=["commbench"])
    differing: dict[str, list[str]] = {}
    for process, package, version, here in members.differing_versions(answers):
        who = "the scheduler" if process == SCHEDULER else process
        if package == "python":
            raise LaunchError(
                f"{who} runs Python {version}, which can't run the functions of Python {here} "
                "that observe it; use the same for both"
            )
        # A process may lack commbench.
        if version is not None:
            differing.setdefault(f"{package} {version} (here {here})", []).append(who)
    if differing:
        listed = (
            f"{what} on {processes[0]}" + f" and {len(processes) - 1} more" * (len(processes) > 1)
            for what, processes in differing.items()
        )
        warnings.warn(
            f"the cluster has other versions than this process: {'; '.join(listed)}. What it "
            "reports may be incomplete; install the same versions to be sure",
            stacklevel=2,
        )
