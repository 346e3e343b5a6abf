"""The records of one case, as rules read them."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commbench.machine import cores
from commbench.model import Case, Effect
from commbench.stats.selection import counted, measured
from commbench.stats.summary import launches_interval

if TYPE_CHECKING:
    from commbench.analysis.run import Run

_WINDOW = ["launch", "iteration"]
_POLLS = 0.5
"""The share of an idle period in which a polling event loop wants a core."""


class CaseRecords:
    """The records of one case's measured iterations.

    Shares are of the wall time of an iteration: Series with the levels ``launch`` and
    ``iteration``.
    """

    def __init__(self, run: Run, case: Case) -> None:
        self.run, self.case = run, case
        self.name = case.workload if run.is_user_code else case.variant

    @cached_property
    def profiles(self) -> pd.DataFrame:
        """The rows of ``run.worker_profiles`` of the case, with ``process``.

        This is ``scheduler``, ``client`` or ``workers``.
        """
        table = self._rows(self.run.worker_profiles)
        process = table["worker"].where(table["worker"].isin(["scheduler", "client"]), "workers")
        return table.assign(process=process)

    @cached_property
    def wall_s(self) -> pd.Series[float]:
        """The wall time of each iteration."""
        samples = self._rows(measured(self.run))
        return samples[samples["layer"] == "workload"].set_index(_WINDOW)["seconds"]

    def share(self, *parts: str, process: str = "workers", of: str = "mean") -> pd.Series[float]:
        """Return the share of parts of a profile, over the processes of a kind.

        Parameters
        ----------
        parts
            Columns of ``profiles``, which are added.
        process
            ``workers``, ``scheduler`` or ``client``.
        of
            What to take of several processes: ``mean``, ``max``, ``min`` or ``sum``.
        """
        rows = self.profiles[self.profiles["process"] == process]
        shares = rows[[*parts]].sum(axis=1, min_count=len(parts)) / rows["wall_s"]
        result: pd.Series[float] = shares.groupby([rows[name] for name in _WINDOW]).agg(of)
        return result

    def activity(self, *labels: str, of: str = "mean") -> pd.Series[float]:
        """Return the share of activities of workers with these labels; 0 where none was recorded.

        Activities of several threads add up, so that shares may be above 1.
        """
        rows = self._rows(self.run.activities)
        rows = rows[rows["label"].isin(labels)]
        workers = self.profiles[self.profiles["process"] == "workers"]
        workers = workers.set_index([*_WINDOW, "worker"])
        seconds = rows.groupby([*_WINDOW, "worker"], observed=True)["seconds"].sum()
        shares = seconds.reindex(workers.index, fill_value=0.0) / workers["wall_s"]
        result: pd.Series[float] = shares.groupby(level=_WINDOW).agg(of)
        return result

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """The transfers of measured iterations, with their ``seconds``."""
        table = counted(self._rows(self.run.transfers), self.run)
        return table.assign(seconds=table["stop_s"] - table["start_s"])

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """The computations of measured iterations, with their ``seconds``."""
        table = self._rows(self.run.tasks)
        table = counted(table[table["action"] == "compute"], self.run)
        return table.assign(seconds=table["stop_s"] - table["start_s"])

    @cached_property
    def n_cores(self) -> float:
        """The cores that the processes share, nan if they are on several hosts or unknown ones."""
        places = self._rows(self.run.places)
        if len(set(places["host_id"])) > 1:
            return math.nan
        return cores.usable(self.run.manifest.environment.get("cpu") or {}) or math.nan

    @cached_property
    def polling(self) -> list[str]:
        """The processes whose event loops want a core most of the time, even if they are idle."""
        loops = self._rows(self.run.threads)
        loops = loops[(loops["role"] == "loop") & (loops["idle_seconds"] > 0)]
        demand = (loops["idle_cpu_seconds"] + loops["idle_wait_seconds"]) / loops["idle_seconds"]
        medians = demand.groupby(loops["worker"]).median()
        return [str(name) for name in medians.index[medians > _POLLS]]

    @cached_property
    def polled(self) -> pd.Series[float]:
        """The share of the processes' time on cores in which their event loops poll."""
        loops, tasks = (
            ["serialize_s", "deserialize_s", "messages_s", "poll_s"],
            ["compute_s", "other_cpu_s"],
        )
        rows = self.profiles
        spent = (
            rows[loops].sum(axis=1) + rows[tasks].sum(axis=1) * self.case.cluster.threads_per_worker
        )
        keys = [rows[name] for name in _WINDOW]
        result: pd.Series[float] = rows["poll_s"].groupby(keys).sum() / spent.groupby(keys).sum()
        return result

    @cached_property
    def without_waits(self) -> pd.Series[float]:
        """The share that would be saved if no thread had to wait for a core.

        Threads wait in their own turn, and while they await data or tasks, the event loops do.
        """
        loops = self.profiles[self.profiles["process"] != "client"]
        waits = loops["loop_queue_s"] / loops["wall_s"]
        waits = waits.groupby([loops[name] for name in _WINDOW]).mean()
        return self.share("queue_s") + self.share("data_s", "idle_s") * waits

    @staticmethod
    def effect(*shares: pd.Series[float]) -> Effect:
        """Return the effect of shares: the median over launches, and its interval.

        The effect of several estimates is the mean of their medians, and its interval contains all
        of theirs.
        """
        estimates = [_estimate(each) for each in shares]
        values, lows, highs = map(np.array, zip(*estimates, strict=True))
        known = [*values[~np.isnan(values)]]
        if not known:
            return Effect()
        return Effect(
            share=float(np.mean(known)),
            low=float(np.nanmin([*known, *lows])),
            high=float(np.nanmax([*known, *highs])),
        )

    def _rows(self, table: pd.DataFrame) -> pd.DataFrame:
        return table[table["case_id"] == self.case.id]


def _estimate(shares: pd.Series[float]) -> tuple[float, float, float]:
    """Return the median of the launches, of iterations if there is one launch, and its interval."""
    launches = shares.groupby(level="launch").mean()
    values = (launches if len(launches) > 1 else shares).dropna().clip(0.0, 1.0)
    low, high, _ = launches_interval(values.tolist())
    return float(values.median()), low, high
