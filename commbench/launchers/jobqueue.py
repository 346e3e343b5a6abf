"""Workers as jobs of a queue, by the job classes of dask-jobqueue; the scheduler stays here.

The scheduler is a process on this host, as with the launcher ``local``. dask-jobqueue would run it
in the client's process, whose time would then include the scheduler's. The options of a job (queue,
account, walltime, directives) come from Dask's configuration, ``jobqueue.yaml``, and from
``--launcher-option``.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from commbench.errors import LaunchError, UnavailableError, UsageError
from commbench.launchers import members
from commbench.launchers.launcher import (
    Launcher,
    RunningCluster,
    dask_variables,
    preload_environment,
)
from commbench.launchers.local import LocalCluster, nanny_environment
from commbench.launchers.members import SEARCH_PATHS, forwarded_env
from commbench.machine import gpu, process
from commbench.model import ClusterSpec

if TYPE_CHECKING:
    from commbench.backends.backend import Backend

_UNKNOWN_SCHEDULER = "tcp://SCHEDULER:PORT"
_OURS = frozenset(
    {"scheduler", "name", "cores", "processes", "protocol", "security", "nanny", "config_name"}
)
_LISTS = {
    "job_extra_directives": "job_extra",
    "job_script_prologue": "env_extra",
    "worker_extra_args": "extra",
    "job_directives_skip": "header_skip",
}
"""The options that are lists, and their older names."""
_SCHEDULER_OPTIONS = ("host", "interface", "port")
_REFUSED = {"contact_address", "protocol", "security"}
"""Options of the scheduler without which workers may not reach it."""


class JobLauncher(Launcher):
    """Base class of the launchers for job queues."""

    supports = frozenset({"launcher_options"})
    requires = ("dask_jobqueue", "jobqueue")
    shows_variables = True
    job_class: ClassVar[str]
    """The class of dask-jobqueue, as ``module:class``."""
    status_command: ClassVar[str]
    """The command that shows why a job is pending."""
    log_directives: ClassVar[tuple[str, ...]]
    """The directives that write a job's output to the folder ``{logs}``."""

    def validate(self, spec: ClusterSpec, backend: Backend) -> None:  # noqa: D102
        if spec.memory_limit:
            raise UsageError(
                f"the launcher {self.name} takes no --memory-limit: the workers of a job share the "
                "memory that it asks for; say --launcher-option memory=8GB"
            )
        super().validate(spec, backend)
        known = sorted(self._parameters() - _OURS - {*_LISTS.values()})
        renamed = {old: new for new, old in _LISTS.items()}
        for key in spec.launcher_options:
            name = key.replace("-", "_")
            if name == "processes":
                raise UsageError(
                    "a job has one worker, because several need nannies; leave processes out, and "
                    "raise --workers, or the --threads of each"
                )
            if name in renamed:
                raise UsageError(f"dask-jobqueue calls {key} {renamed[name]} now; say that")
            if name not in known:
                raise UsageError(
                    f"the launcher {self.name} has no option {key!r}; known: {', '.join(known)} "
                    "(those of dask-jobqueue)"
                )
        variables = dask_variables(spec.dask_config)
        with _launch_configuration(variables):
            refused = sorted(self.scheduler_options().keys() & _REFUSED)
        if refused:
            raise UsageError(
                f"jobqueue.{self.name}.scheduler-options.{refused[0]} can't be set; remove it from "
                f"Dask's configuration; known: {', '.join(_SCHEDULER_OPTIONS)}"
            )
        self.script(spec, backend.protocol, Path(), variables)

    def unstartable(self) -> UnavailableError | None:  # noqa: D102
        command = shlex.split(resolve_name(self.job_class).submit_command)[0]
        if shutil.which(command):
            return None
        return UnavailableError(
            f"the launcher {self.name}", f"there is no command {command} on this host",
            f"run commbench where {command} submits jobs, as on a login node; --dry-run prints the "
            "job anywhere",
        )  # fmt: skip

    def scheduler_options(self) -> dict[str, Any]:
        """Return the scheduler's options of this queue in Dask's configuration."""
        return dict(self.configured("scheduler-options") or {})

    def script(  # noqa: D102
        self, spec: ClusterSpec, protocol: str, scratch: Path, environ: Mapping[str, str],
        preload: Sequence[str] = (),
    ) -> str:  # fmt: skip
        with _launch_configuration(environ):
            job = self.job(spec, protocol, scratch, environ, _UNKNOWN_SCHEDULER, "0", preload)
        return str(job.job_script())

    def start(  # noqa: D102
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        return JobCluster(self, spec, protocol, scratch, preload)

    def job(
        self, spec: ClusterSpec, protocol: str, scratch: Path, environ: Mapping[str, str],
        scheduler: str, name: str, preload: Sequence[str] = (),
    ) -> Any:  # fmt: skip
        """Return a job of dask-jobqueue without submitting it.

        Raises
        ------
        UsageError
            If dask-jobqueue rejects an option or a key of the configuration.
        """
        options = self._options(spec)
        prologue, extra, arguments = (
            self.configured(key) or self.configured(_LISTS[key]) or []
            if (given := options.pop(key, None)) is None
            else given
            for key in ("job_script_prologue", "job_extra_directives", "worker_extra_args")
        )
        if not self.log_directory(spec):
            # A folder may have blanks in its name.
            logs = (
                shlex.join(word.format(logs=scratch) for word in line.split())
                for line in self.log_directives
            )
            extra = [*logs, *extra]
        variables = forwarded_env(environ, spec.env, nanny_environment())
        if gpu.VISIBLE not in spec.env:
            # The queue assigns GPUs to a job.
            variables.pop(gpu.VISIBLE, None)
        if not self.configured("python"):
            options.setdefault("python", shlex.quote(sys.executable))
        # What the site's prologue exports precedes defaults, and its modules extend search paths.
        defaults = {
            key: variables.pop(key)
            for key in [*variables]
            if key not in spec.env and (key not in environ or key in SEARCH_PATHS)
        }
        variables |= preload_environment(spec, preload)
        try:
            return resolve_name(self.job_class)(
                scheduler=scheduler,
                name=name,
                cores=spec.threads_per_worker,
                processes=1,
                nanny=False,
                protocol=protocol,
                job_extra_directives=list(extra),
                job_script_prologue=[*_exports(defaults), *prologue, *_exports(variables)],
                worker_extra_args=[*arguments, "--no-dashboard"],
                **options,
            )
        except OSError as error:
            raise UsageError(
                f"the folder of the jobs' logs can't be made: {error}; choose another log_directory"
            ) from error
        except (TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(":.")
            reason = reason.removesuffix(", for example")
            raise UsageError(
                f"dask-jobqueue can't make a job for {self.name}: {reason}. Say it "
                f"by --launcher-option, for example memory=8GB, or in jobqueue.yaml"
            ) from error

    def log_directory(self, spec: ClusterSpec) -> str:
        """Return the folder of the jobs' logs in options or configuration, or ""."""
        return str(
            self._options(spec).get("log_directory") or self.configured("log_directory") or ""
        )

    def configured(self, key: str) -> Any:
        """Return the value of a key of this queue in Dask's configuration, or None."""
        import dask
        import dask_jobqueue  # noqa: F401 - it fills in the configuration

        return dask.config.get(f"jobqueue.{self.name}.{key}", None)

    def _options(self, spec: ClusterSpec) -> dict[str, Any]:
        options = {}
        for key, text in spec.launcher_options.items():
            name, value = key.replace("-", "_"), _value(text)
            options[name] = [value] if name in _LISTS and not isinstance(value, list) else value
        return options

    def _parameters(self) -> set[str]:
        named = (
            cls.__init__ for cls in resolve_name(self.job_class).__mro__ if "__init__" in vars(cls)
        )
        return {
            parameter.name
            for function in named
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name != "self"
        }


class JobCluster(LocalCluster):
    """A scheduler on this host, and workers in jobs of the queue."""

    def __init__(
        self, launcher: JobLauncher, spec: ClusterSpec, protocol: str, scratch: Path,
        preload: Sequence[str],
    ) -> None:  # fmt: skip
        self._launcher, self._jobs = launcher, list[Any]()
        self._cancelling, self._is_ending = threading.RLock(), False
        super().__init__(spec, protocol, scratch, preload)

    def _start(self, spec: ClusterSpec, protocol: str, preload: Sequence[str]) -> None:
        contact = self._scratch / "scheduler.json"
        self._start_scheduler(contact, protocol, *self._listens_at(spec))
        self._connect_to_scheduler(contact, preload)
        address = self.client.scheduler.address
        for index in range(spec.n_workers):
            job = self._launcher.job(
                spec, protocol, self._scratch, os.environ, address, str(index), preload
            )
            self._submit(job)
        ids = ", ".join(str(job.job_id) for job in self._jobs)
        logs = self._launcher.log_directory(spec) or self._scratch
        hint = (
            f"; the jobs are {ids} of {self._launcher.name}: {self._launcher.status_command} shows "
            f"why one waits, and their logs are in {logs}"
        )
        members.join(self, spec, protocol, self._deadline, hint)
        children = {child.pid for child in self._processes}
        self.foreign_pids = tuple(pid for pid in self.foreign_pids if pid not in children)
        members.watch_workers(self)

    def _submit(self, job: Any) -> None:
        if not self._jobs:
            process.at_end(self._cancel)
        # A job whose submission is under way has to be known to be cancelled.
        with self._cancelling:
            if self._is_ending:
                raise LaunchError("the launch was ended before all jobs were submitted")
            try:
                asyncio.run(job.start())
            except (OSError, RuntimeError, ValueError) as error:
                raise LaunchError(
                    f"{self._launcher.name} took no job: {' '.join(str(error).split())}"
                ) from error
            self._jobs.append(job)

    def _listens_at(self, spec: ClusterSpec) -> Iterator[str]:
        options = self._launcher.scheduler_options()
        interface = spec.launcher_options.get("interface") or self._launcher.configured("interface")
        options.setdefault("interface", None if "host" in options else interface)
        for key in _SCHEDULER_OPTIONS:
            if options.get(key):
                yield f"--{key}"
                yield str(options[key])

    def _stop(self, timeout_s: float = 0.0) -> None:
        process.unwatch()
        self._cancel()
        super()._stop(timeout_s)

    def _cancel(self) -> None:
        self._is_ending = True

        async def close() -> None:
            jobs, self._jobs[:] = [*self._jobs], []
            await asyncio.gather(*(job.close() for job in jobs), return_exceptions=True)

        def cancel() -> None:
            with contextlib.suppress(Exception):
                asyncio.run(close())

        # The end of the first worker makes another thread call this, too: that of the event loop.
        with self._cancelling:
            cancelling = threading.Thread(target=cancel)
            cancelling.start()
            cancelling.join()


def _launch_configuration(environ: Mapping[str, str]) -> Any:
    """Set Dask's configuration to that of a launch with the environment `environ`."""
    import dask
    import dask_jobqueue  # noqa: F401 - it fills in the configuration, which is replaced here

    given = dask.config.collect_env(environ)
    return dask.config.set(dask.config.merge(dask.config.config, given))


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {key}={shlex.quote(value)}" for key, value in variables.items()]


def _value(text: str) -> Any:
    """Return a list, a whole number, True, False or None; a name, such as 1e5 or 01, is text."""
    with contextlib.suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
        if isinstance(value, list) or (isinstance(value, int | None) and repr(value) == text):
            return value
    return text


class SlurmLauncher(JobLauncher):
    """Submit the workers to Slurm."""

    name = "slurm"
    job_class = "dask_jobqueue.slurm:SLURMJob"
    status_command = "squeue"
    log_directives = ("-o {logs}/job-%j.log",)


class PbsLauncher(JobLauncher):
    """Submit the workers to PBS and Torque."""

    name = "pbs"
    job_class = "dask_jobqueue.pbs:PBSJob"
    status_command = "qstat -s"
    log_directives = ("-j oe", "-o {logs}/")


class LsfLauncher(JobLauncher):
    """Submit the workers to LSF."""

    name = "lsf"
    job_class = "dask_jobqueue.lsf:LSFJob"
    status_command = "bjobs -p"
    log_directives = ("-o {logs}/job-%J.log",)
