"""The records of one case, as rules read them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commbench.analysis.findings.rule import MIN_EFFECT, Rule
from commbench.analysis.warnings import core_use
from commbench.backends import parse
from commbench.backends.backend import Backend
from commbench.errors import CommbenchError, UsageError
from commbench.machine import cores
from commbench.model import Case, Comparison, Effect, Finding
from commbench.stats import grouping
from commbench.stats.graphs import line
from commbench.stats.inference import launches_interval
from commbench.stats.worker_profile import idle_demand, is_barrier, is_idle

if TYPE_CHECKING:
    from commbench.analysis.run import Run

WAITS = ("blocked_s", "queue_s", "data_s", "idle_s")
"""The parts of a profile in which task threads run nothing."""
SMALL_BYTES = 64 * 1024
"""Below this size, the duration of a fetch is mostly latency (docs/measurements.md)."""
_TASK_BYTES = 5_000
"""More than most tasks take in a pickled graph."""
_WINDOW = ["launch", "iteration"]
_SCHEDULER_SECONDS = 2e-3
"""The scheduler's time for a task, at most: ten times the 200 µs that Dask documents."""
_POLLS = 0.5
"""The share of an idle period in which a polling event loop wants a core."""
_GIL_WAITS = 0.2
"""Waits for a core that are a smaller share of the time may be waits for the GIL."""
_FULL = 0.2
"""The share of the time that threads wait for a core where cores are full."""
_REMOTE = (
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "panfs", "afs", "9p",
    "fuse.sshfs", "fuse.glusterfs",
)  # fmt: skip
"""File systems whose disks are elsewhere."""


class CaseRecords:
    """The records of one case's measured iterations.

    Shares are of the wall time of an iteration: Series with the levels ``launch`` and
    ``iteration``.
    """

    def __init__(self, run: Run, case: Case) -> None:
        self.run, self.case = run, case
        self._measured_rows = dict[str, pd.DataFrame]()
        self._findings = dict[Rule, list[Finding]]()

    def findings(self, rule: Rule) -> list[Finding]:
        """Return what a rule finds about the case, with an unknown or a sufficient effect."""
        if rule not in self._findings:
            can_apply = self.has_profile or not rule.needs_profile
            self._findings[rule] = [
                replace(each, case_id=self.case.id)
                for each in (rule.find(self) if can_apply else ())
                if each.is_fine or not each.effect.share < MIN_EFFECT
            ]
        return self._findings[rule]

    @cached_property
    def backend(self) -> Backend | None:
        """The backend of the case, or None if its plug-in is not installed."""
        try:
            return parse(self.case.backend)
        except CommbenchError:
            return None

    @property
    def better(self) -> str:
        """The backend with the settings that its documentation recommends.

        It is "" if the case has these settings, or if they would close a way that its bytes took.
        """
        best = self.backend.best if self.backend else ""
        if best in ("", self.case.plain_backend):
            return ""
        used = self.rows(self.run.pair_transports)
        ways = used["transport"][used["contradiction"] == ""].astype("str").unique()
        return "" if any(map(parse(best).contradiction, ways)) else best

    @property
    def comparisons(self) -> Iterator[tuple[str, Comparison, Effect]]:
        """Yield comparisons with other backends, with the same settings and equal work.

        Each is the name of the other backend, the comparison, and what the other saves.
        """
        for c in self.run.comparisons:
            ids = [c.baseline_id, c.candidate_id]
            if self.case.id not in ids or c.layer != "workload" or c.verdict == "unequal":
                continue
            ratios = (c.ratio, c.ci_high, c.ci_low)
            if self.case.id == c.candidate_id:
                ratios = (1 / c.ratio, 1 / c.ci_low, 1 / c.ci_high)
            other = self.run.cases[ids[ids[0] == self.case.id]]
            is_other = other.plain_backend != self.case.plain_backend
            alike = replace(other, backend=self.case.backend).variant == self.case.variant
            if is_other and alike:
                share, low, high = (1 - ratio for ratio in ratios)
                saved = Effect(share=share, low=low, high=high, is_measured=True)
                yield other.plain_backend, c, saved

    def gain(self, backend: str) -> Effect | None:
        """Return the measured effect of another backend, if the run compared it with a verdict."""
        decided = ("faster", "slower", "same")
        gains = (saved for name, c, saved in self.comparisons
                 if name == backend and c.verdict in decided)  # fmt: skip
        return next(gains, None)

    @cached_property
    def n_workers(self) -> int:
        """The number of workers, the median over iterations: those of a user's code may change."""
        workers = self.profiles[self.profiles["process"] == "workers"]
        if workers.empty:
            return self.case.cluster.n_workers
        return int(workers.groupby(_WINDOW).size().median())

    @cached_property
    def profiles(self) -> pd.DataFrame:
        """The rows of ``run.worker_profiles`` of the case."""
        return self.rows(self.run.worker_profiles)

    @property
    def has_profile(self) -> bool:
        """Whether the times of the workers' threads are known."""
        return bool((self.profiles["process"] == "workers").any())

    @cached_property
    def _samples(self) -> pd.DataFrame:
        samples = self.rows(self.run.measured)
        return samples[samples["layer"] == "workload"].set_index(_WINDOW)

    @property
    def wall_s(self) -> pd.Series[float]:
        """The wall time of each iteration."""
        return self._samples["seconds"]

    @property
    def began_s(self) -> pd.Series[float]:
        """The time at which each iteration began, on the scheduler's clock."""
        return self._samples["started_at_s"]

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a frame of the run that belong to the case."""
        return _where(table, (table["case_id"] == self.case.id).to_numpy())

    def measured_rows(self, name: str) -> pd.DataFrame:
        """Return the rows of a frame of the run that belong to the case's measured iterations.

        Parameters
        ----------
        name
            The attribute of ``Run``.
        """
        if name not in self._measured_rows:
            rows = self.rows(getattr(self.run, name))
            windows = pd.MultiIndex.from_frame(rows[_WINDOW])
            self._measured_rows[name] = _where(rows, windows.isin(self.wall_s.index))
        return self._measured_rows[name]

    def share(self, *parts: str, process: str = "workers", how: str = "mean") -> pd.Series[float]:
        """Return the share of parts of a profile, over the processes of a kind.

        Parameters
        ----------
        parts
            Columns of ``profiles``, which are added.
        process
            ``workers``, ``scheduler`` or ``client``.
        how
            What to take of several processes: ``mean`` or ``max``.
        """
        # Rules ask for many means.
        shares = self._mean_shares if how == "mean" else self._shares
        totals: pd.Series[float] = shares[process][[*parts]].sum(axis=1, min_count=len(parts))
        return totals if how == "mean" else totals.groupby(level=_WINDOW).agg(how)

    def message_work(self, process: str = "workers") -> pd.Series[float]:
        """Return the share of the time that event loops of a kind work for messages."""
        return self.share("serialize_s", "deserialize_s", "messages_s", process=process)

    @property
    def scheduling(self) -> pd.Series[float]:
        """The share of the time that the scheduler works for the tasks, at most."""
        return self.n_tasks * _SCHEDULER_SECONDS / self.wall_s

    @property
    def has_client_process(self) -> bool:
        """Whether the client's threads are known; in the scheduler's process they count as its."""
        return bool((self.measured_rows("threads")["worker"] == "client").any())

    def computing(self, process: str, *roles: str) -> pd.Series[float]:
        """Return the CPU time of the client's or scheduler's threads as a share of the wall time.

        Parameters
        ----------
        roles
            The roles that count; without any, all.
        """
        rows = self.measured_rows("threads")
        rows = rows[rows["worker"] == process]
        if roles:
            rows = rows[rows["role"].isin(roles)]
        spent_s = rows.groupby(_WINDOW)["cpu_seconds"].sum()
        return spent_s.reindex(self.wall_s.index, fill_value=0.0) / self.wall_s

    @property
    def scheduler_prepares(self) -> pd.Series[float]:
        """The share of the time that the scheduler's threads compute that prepare graphs.

        A client in its process does that in other threads than the event loop's, too.
        """
        roles = ["offload", *["other"] * (not self.has_client_process)]
        return self.computing("scheduler", *roles)

    @property
    def offloaded(self) -> pd.Series[float]:
        """The CPU time of a worker's offload threads, that of the busiest one, as a share."""
        rows = self.measured_rows("threads")
        rows = rows[(rows["role"] == "offload") & ~rows["worker"].isin(["client", "scheduler"])]
        spent_s = rows.groupby([*_WINDOW, "worker"], observed=True)["cpu_seconds"].sum()
        most_s = spent_s.groupby(level=_WINDOW).max()
        return most_s.reindex(self.wall_s.index, fill_value=0.0) / self.wall_s

    def at_both_ends(self, spent: pd.Series[float], unused: pd.Series[float]) -> pd.Series[float]:
        """Return the most that is lost if a message waits for what both of its ends spend."""
        return np.minimum(min(2, self.n_workers) * spent, unused)

    @cached_property
    def _shares(self) -> dict[str, pd.DataFrame]:
        """The shares of all parts in each process, by its kind."""
        numbers = self.profiles.set_index(_WINDOW).select_dtypes("number")
        shares = numbers.div(numbers["wall_s"], axis=0)
        kinds = self.profiles["process"].to_numpy()
        return {name: shares[kinds == name] for name in ("workers", "scheduler", "client")}

    @cached_property
    def _mean_shares(self) -> dict[str, pd.DataFrame]:
        return {name: each.groupby(level=_WINDOW).mean() for name, each in self._shares.items()}

    def activity(
        self, *labels: str, contexts: Collection[str] = (), how: str = "mean"
    ) -> pd.Series[float]:
        """Return the share of activities, over workers; 0 where none was recorded.

        Parameters
        ----------
        labels
            Labels of ``Activity``, whose times are added.
        contexts
            The contexts that count; without any, all.
        how
            What to take of several workers: ``mean`` or ``max``.
        """
        rows = self.measured_rows("activities")
        rows = rows[rows["label"].isin(labels)]
        if contexts:
            rows = rows[rows["context"].isin(contexts)]
        workers = self.profiles[self.profiles["process"] == "workers"]
        workers = workers.set_index([*_WINDOW, "worker"])
        seconds = rows.groupby([*_WINDOW, "worker"], observed=True)["seconds"].sum()
        shares = seconds.reindex(workers.index, fill_value=0.0) / workers["wall_s"]
        result: pd.Series[float] = shares.groupby(level=_WINDOW).agg(how)
        return result

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """The transfers of measured iterations that end after they begin, with ``seconds``."""
        layers = set(self.rows(self.run.samples)["layer"])
        has_time = "workload" in layers
        # Fetches of all-to-all have no wall time.
        rows = self.measured_rows("transfers") if has_time else self.rows(self.run.transfers)
        rows = _where(rows, (rows["stop_s"] > rows["start_s"]).to_numpy())
        return rows.assign(seconds=rows["stop_s"] - rows["start_s"])

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """The tasks that compute in measured iterations, with their ``seconds``."""
        rows = self.measured_rows("tasks")
        rows = rows[(rows["action"] == "compute") & ~is_barrier(rows)]
        return rows.assign(seconds=rows["stop_s"] - rows["start_s"])

    @property
    def n_tasks(self) -> float:
        """The number of tasks per iteration."""
        return len(self.tasks) / max(1, len(self.wall_s))

    def in_script(self, *roles: str) -> pd.Series[float]:
        """Return the share of the time in which a user's script has these roles; 0 of others."""
        rows = self.measured_rows("line_times")
        spent_s = rows[rows["role"].isin(roles)].groupby(_WINDOW)["seconds"].sum()
        return (spent_s.reindex(self.wall_s.index, fill_value=0.0) / self.wall_s).clip(upper=1.0)

    @cached_property
    def graph_data(self) -> pd.DataFrame:
        """The graphs of a user's code, with the bytes of the data in each as ``data``."""
        graphs = self.measured_rows("graphs")
        data = (graphs["nbytes"] - _TASK_BYTES * graphs["n_tasks"]).clip(lower=0)
        return graphs.assign(data=data)

    @property
    def sent_data(self) -> pd.Series[int]:
        """The bytes of data in the graphs of each iteration."""
        sent = self.graph_data.groupby(_WINDOW)["data"].sum()
        return sent.reindex(self.wall_s.index, fill_value=0)

    @property
    def n_graphs(self) -> float:
        """The number of graphs of a user's code per iteration; of others 0."""
        return len(self.measured_rows("graphs")) / max(1, len(self.wall_s))

    def longest_line(self, role: str) -> tuple[str, float]:
        """Return the line with most of the time of a role, and its share as in ``run.lines``.

        Without a line that takes as much as a finding needs, it is ("", 0).
        """
        lines = self.rows(self.run.lines)
        is_known = (lines["role"] == role) & (lines["code"] != "") & (lines["share"] >= MIN_EFFECT)
        first = lines[is_known].head(1)
        return next(zip(map(line, first["code"]), first["share"], strict=True), ("", 0.0))

    @property
    def bytes_per_wire_byte(self) -> float:
        """The bytes by Dask's estimate of sizes in memory, for each on the wire; at least 1."""
        coverage = self.rows(self.run.coverage)["coverage"].dropna()
        return max(1.0, float(coverage.max())) if len(coverage) else 1.0

    @property
    def small_share(self) -> float:
        """The share of messages below ``SMALL_BYTES`` in the duration of all; nan without any."""
        log = self.transfers
        total_s = log["seconds"].sum()
        small_s = log["seconds"][log["nbytes"] < SMALL_BYTES].sum()
        return float(small_s / total_s) if total_s else math.nan

    @property
    def file_system(self) -> str:
        """The type of the file system to which all workers spill; "" if it is unknown."""
        kinds = set(self.rows(self.run.places)["file_system"])
        return str(*kinds) if len(kinds) == 1 else ""

    @property
    def disk(self) -> str:
        """The disk to which workers spill, with its file system if that is known."""
        return "disk" + f" ({self.file_system})" * bool(self.file_system)

    @property
    def spills_to_memory(self) -> bool:
        """Whether the files to which workers spill are in memory."""
        return self.file_system in ("tmpfs", "ramfs")

    @property
    def better_disk(self) -> str:
        """What to do about the disk to which workers spill."""
        where = "local_directory of the workers, or temporary-directory in their configuration"
        if self.spills_to_memory:
            return f"take a disk ({where}): {self.file_system} is memory"
        if self.file_system in _REMOTE:
            return f"take a local disk ({where}): {self.file_system} is remote"
        return f"take a faster disk ({where})"

    @property
    def is_on_one_host(self) -> bool:
        """Whether all workers are known to be on the same host."""
        return len(set(self.rows(self.run.places)["host_id"])) == 1

    @cached_property
    def n_cores(self) -> float:
        """The cores that the workers may use; nan if they are on other hosts, or unknown ones."""
        known = self.run.manifest.environment
        here = (known.get("host") or {}).get("name")
        hosts = set(self.rows(self.run.places)["host"])
        if not self.is_on_one_host or (here and hosts != {here}):
            return math.nan
        usable = cores.usable(known.get("cpu") or {}) or math.nan
        return min(usable, len(frozenset().union(*self.cpus)) or usable)

    @cached_property
    def cpus(self) -> list[frozenset[int]]:
        """The different sets of CPUs to which workers are bound, or which all may use."""
        # A results file may have any content.
        with suppress(UsageError):
            return [
                cores.parse(text) for text in self.rows(self.run.places)["cpus"].unique() if text
            ]
        return []

    @cached_property
    def are_apart(self) -> bool:
        """Whether workers have different cores, and one fewer than its task threads and loop."""
        if not self.cpus or math.isnan(self.n_cores):
            return any(each.cpus for each in self.case.cluster.placement)
        least = min(map(len, self.cpus))
        return len(self.cpus) > 1 and least <= self.case.cluster.threads_per_worker

    @cached_property
    def are_bound(self) -> bool:
        """Whether the workers may use some of the cores only that this process may use."""
        usable = cores.usable(self.run.manifest.environment.get("cpu") or {})
        return self.n_cores < (usable or 0)

    @cached_property
    def cores_used(self) -> float:
        """The share of the cores that the case and other programs used; nan if it is unknown."""
        rows = self.measured_rows("threads")
        spent_s = rows.groupby(_WINDOW)["cpu_seconds"].sum()
        used = float((spent_s / self.wall_s / self.n_cores).median())
        # Others may use the cores to which no worker is bound.
        return used + (0.0 if math.isnan(self.others) or self.are_bound else self.others)

    @property
    def has_quota(self) -> bool:
        """Whether a quota of CPU time is below the cores that this process may use."""
        cpu = self.run.manifest.environment.get("cpu") or {}
        return bool(cores.usable(cpu) != cpu.get("usable_cores"))

    @cached_property
    def others(self) -> float:
        """The share of the cores that other programs used, the median over launches; or nan.

        They use nothing of a quota that is below the host's cores.
        """
        if self.has_quota:
            return math.nan
        return float(self.rows(core_use(self.run))["others"].median())

    @cached_property
    def polling(self) -> list[str]:
        """The processes whose event loops want a core most of the time, even if they are idle."""
        rows = self.measured_rows("threads")
        rows = rows[(rows["role"] == "loop") & is_idle(rows)]
        medians = idle_demand(rows).groupby(rows["worker"]).median()
        return [str(name) for name in medians.index[medians > _POLLS]]

    @property
    def polling_takes_cores(self) -> bool:
        """Whether event loops poll, and there may be no core for each of them and each thread."""
        n_threads = self.n_workers * self.case.cluster.threads_per_worker
        enough = self.n_cores >= len(self.polling) + n_threads
        if math.isnan(self.n_cores):
            enough = self.may_wait_for_the_gil
        return bool(self.polling) and (not enough or self.are_apart)

    @cached_property
    def polled(self) -> pd.Series[float]:
        """The share of the processes' time on cores in which their event loops poll."""
        rows, n_threads = self.profiles, self.case.cluster.threads_per_worker
        on_loop = ["serialize_s", "deserialize_s", "messages_s", "poll_s"]
        spent = rows[[*on_loop, "other_threads_s"]].sum(axis=1)
        spent += rows[["compute_s", "other_cpu_s"]].sum(axis=1) * n_threads
        keys = [rows[name] for name in _WINDOW]
        polled_s = rows["poll_s"].groupby(keys).sum(min_count=1)
        result: pd.Series[float] = polled_s / spent.groupby(keys).sum()
        return result

    @cached_property
    def without_waits(self) -> pd.Series[float]:
        """The share that would be saved if no thread had to wait for a core.

        While task threads await data or tasks, event loops may wait for a core, too.
        """
        loops = self.profiles[self.profiles["process"] != "client"]
        waits = loops["loop_queue_s"] / loops["wall_s"]
        waits = waits.groupby([loops[name] for name in _WINDOW]).mean()
        return self.share("queue_s") + self.share("data_s", "idle_s") * waits

    @property
    def has_full_cores(self) -> bool:
        """Whether threads wait for cores so long that any thread's work delays the others."""
        return bool(self.without_waits.median() > _FULL)

    @property
    def may_wait_for_the_gil(self) -> bool:
        """Whether waits for a core are so short that they may be waits for the GIL."""
        return not self.without_waits.median() >= _GIL_WAITS

    @staticmethod
    def effect(*shares: pd.Series[float]) -> Effect:
        """Return the effect of shares: the median over launches, and its interval.

        The effect of several estimates is the mean of their medians, and its interval contains all
        of theirs. Without any value it is 0.
        """
        estimates = [_estimate(each) for each in shares]
        values, lows, highs = map(np.array, zip(*estimates, strict=True))
        known = [*values[~np.isnan(values)]]
        if not known:
            # Nothing of the kind was recorded.
            return Effect(share=0.0, low=0.0, high=0.0)
        return Effect(
            share=float(np.mean(known)),
            low=float(np.nanmin([*known, *lows])),
            high=float(np.nanmax([*known, *highs])),
        )

    @staticmethod
    def busy_s(log: pd.DataFrame, *keys: str) -> pd.Series[float]:
        """Return the time in which at least one transfer of a log is under way, by these keys."""
        windows = log[[*keys]].astype(dict.fromkeys({*keys} - {*_WINDOW}, "str"))
        window = windows.groupby([*keys]).ngroup().to_numpy()
        order = grouping.sort_order(window)
        start_s, stop_s = log[["start_s", "stop_s"]].to_numpy()[order].T
        seconds = grouping.union_lengths(start_s, stop_s, window[order])
        first = windows.iloc[order[grouping.starts(window[order])]]
        return pd.Series(seconds, pd.MultiIndex.from_frame(first))


def _where(table: pd.DataFrame, mask: grouping.Array) -> pd.DataFrame:
    """Return the rows that a mask has, and no copy of millions if it has all."""
    return table if mask.all() else table[mask]


def _estimate(shares: pd.Series[float]) -> tuple[float, float, float]:
    """Return the median of the launches, of iterations if there is one launch, and its interval.

    What happens in few iterations does not change the median time, either.
    """
    launches = shares.groupby(level="launch").median()
    values = (launches if len(launches) > 1 else shares).dropna().clip(0.0, 1.0)
    low, high, _ = launches_interval(values.tolist())
    return float(values.median()), low, high
