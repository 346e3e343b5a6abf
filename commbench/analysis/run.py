"""A run: its records as frames, and lazily computed results."""

from __future__ import annotations

import textwrap
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

from commbench import model, stats, workloads
from commbench.errors import ResultsError, UsageError
from commbench.harness.cases import make_workload
from commbench.model import FETCHES, LAYERS, Case, Manifest, Suite, registry
from commbench.model.observed import Record
from commbench.store import directory, records, tables
from commbench.workloads.workload import FetchWorkload, PairWorkload

if TYPE_CHECKING:
    import pandas as pd

    from commbench.stats.worker_pairs import PairBandwidths


def _result(text: str) -> Any:
    """Return a property that caches what the function of its name in `stats` returns for a run."""
    result: Any = cached_property(lambda run: getattr(stats, result.attrname)(run))
    result.__doc__ = text
    return result


class Run:
    """The records of a run, one frame for each kind, and everything derived from them.

    Frames are attributes, named after the ``table`` of their kind of record: ``samples``,
    ``transfers``, ``tasks``, …. Their columns are the fields of the record, ``workload`` and
    ``backend``. The texts of bulk records are categoricals.

    Parameters
    ----------
    path
        The run's directory.
    manifest
        The manifest in its ``run.json``.
    frames
        Frames that replace those of the directory.
    """

    def __init__(self, path: Path, manifest: Manifest, **frames: pd.DataFrame) -> None:
        if unknown := frames.keys() - records.TABLES.keys():
            raise TypeError(f"no frames of a run: {', '.join(sorted(unknown))}")
        self.path = path
        self.manifest = manifest
        self._foreign: dict[str, str] = {}
        self.__dict__.update(frames)

    def replace(self, manifest: Manifest | None = None, **frames: pd.DataFrame) -> Run:
        """Return a run with another manifest, or with other frames."""
        mine = {name: self.__dict__[name] for name in records.TABLES if name in self.__dict__}
        other = Run(self.path, manifest or self.manifest, **(mine | frames))
        other._foreign |= self._foreign
        return other

    @property
    def suite(self) -> Suite:
        """The suite of the run."""
        return self.manifest.suite

    @cached_property
    def cases(self) -> dict[str, Case]:
        """The cases of the suite, by id."""
        return {case.id: case for case in self.suite.cases}

    def __repr__(self) -> str:
        cases = self.suite.cases
        tasks, backends = (
            textwrap.shorten(", ".join(dict.fromkeys(names)), 40, placeholder=" …")
            for names in ((case.workload for case in cases), (case.backend for case in cases))
        )
        return f"<Run {self.manifest.id}: {tasks} over {backends}>"

    def _repr_html_(self) -> str:
        # By name, because reports are made of runs.
        text: str = resolve_name("commbench.reports.notebook_html:render")(self)
        return text

    def summary(self) -> str:
        """Return the verdict, the reasons and the warnings, as ``commbench report`` prints them."""
        text: str = registry.load("report", "terminal")(self)
        return text

    # -- frames: of each kind of record, these for type checkers

    samples: pd.DataFrame
    regions: pd.DataFrame
    transfers: pd.DataFrame
    round_trips: pd.DataFrame
    wire: pd.DataFrame
    log_counts: pd.DataFrame
    tasks: pd.DataFrame
    graphs: pd.DataFrame
    line_times: pd.DataFrame
    transports: pd.DataFrame
    addresses: pd.DataFrame
    places: pd.DataFrame
    network: pd.DataFrame
    idle: pd.DataFrame
    loads: pd.DataFrame
    core_use: pd.DataFrame
    spills: pd.DataFrame
    settings: pd.DataFrame
    threads: pd.DataFrame
    long_turns: pd.DataFrame
    process_use: pd.DataFrame
    activities: pd.DataFrame
    failures: pd.DataFrame
    ends: pd.DataFrame

    @cached_property
    def _lines(self) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """The fields of the records in ``samples.jsonl``, by kind, and notes on invalid lines."""
        notes: list[str] = []
        return tables.rows(self.path, notes), notes

    def _read(self, kind: str) -> pd.DataFrame:
        if not self.path.is_dir():
            raise ResultsError(f"{self.path} is gone; its files are read when they are needed")
        if kind in records.BULK:
            frame = tables.frame_from_parts(self.path, kind)
        else:
            frame = tables.frame_from_rows(self._lines[0].pop(kind), kind)
        if others := {*frame["case_id"].unique()} - self.cases.keys():
            foreign = frame["case_id"].isin(others)
            self._foreign[kind] = (
                f"{foreign.sum()} {kind}s of cases that are not the run's are left out"
            )
            frame = frame[~foreign].reset_index(drop=True)
        for column, values in self.case_columns(frame["case_id"]).items():
            frame[column] = values
        return frame

    def case_columns(self, case_id: pd.Series[Any]) -> dict[str, Any]:
        """Return the columns with what every frame has of its cases."""
        cases = self.suite.cases
        return {
            "workload": tables.renamed(case_id, {case.id: case.workload for case in cases}),
            "backend": tables.renamed(case_id, {case.id: case.variant for case in cases}),
        }

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """All frames, by name."""
        return {table: getattr(self, table) for table in records.TABLES}

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes on unreadable records, and on records of other cases."""
        _ = self.frames
        return (*self._lines[1], *self._foreign.values())

    def launches_begun(self) -> dict[str, int]:
        """Return the first unused launch index per case id."""
        import pandas as pd

        frames = (self.samples, self.transfers, self.tasks, self.idle, self.failures, self.ends)
        used = [frame.groupby("case_id", observed=True)["launch"].max() for frame in frames]
        last = pd.concat([launches.rename(index=str) for launches in used])
        return {str(case_id): int(n) + 1 for case_id, n in last.groupby(level=0).max().items()}

    def last_block(self) -> tuple[int, set[str]]:
        """Return the number of blocks, and the cases without a good launch in the last one."""
        if self.ends.empty:
            return 0, set()
        last = self.ends["block"].max()
        done = self.ends["case_id"][self.ends["ok"] & (self.ends["block"] == last)]
        return int(last) + 1, {*self.cases} - {*done.astype("str")}

    # -- results

    case_labels: dict[str, str] = _result(
        "The workload of each case, with the settings that differ, by id."
    )
    timed = _result("The verified samples of iterations that count, without planned warm-ups.")
    measured = _result("Those of ``timed`` without the ones that were detected as warm-up.")
    moved_bytes = _result("The mean of the serialized bytes that an iteration moved, per case.")
    tasks_per_iteration = _result("The median of the tasks that compute in an iteration, per case.")
    seconds_per_byte = _result("The time of a byte if transfers came one after another, per case.")
    launch_medians = _result("The median of the measured samples of each launch.")
    summaries = _result("A summary of the samples of each case, layer and payload size.")
    additions = _result("The summaries of latency per layer, with the time that each layer adds.")
    idle_cores = _result("The cores that an idle cluster uses, per case.")
    costs = _result("The summaries with their cost in CPU time.")
    comparisons: list[model.Comparison] = _result(
        "Comparisons of the backends of each task, layer and size."
    )
    counting = _result("A mask of the transfers that count for the bandwidth of pairs.")
    pair_bandwidths: PairBandwidths = _result("The bandwidth of each ordered pair of workers.")
    link_bandwidths = _result("The bandwidth of each class of links.")
    coverage = _result("How much of the traffic the transfer logs contain, per case.")
    shuffles = _result("The bytes of each P2P shuffle, and the parts of its time.")
    statements = _result("The statements that sent graphs, by their time within each case.")
    lines = _result("The lines that tasks and the script execute, the longest first.")
    slow_pairs = _result("The slow pairs of ``pairs``, with the cause of each.")
    published_comparisons: list[stats.PublishedComparison] = _result(
        "Comparisons with the published figure that the suite reproduces."
    )
    slow_latencies = _result("The slow pairs of hosts, by the quickest empty requests.")
    worker_profiles = _result("The parts of the wall time of each measured iteration, per process.")
    ended_by: str = _result(
        "Why a run with a budget has ended: ``decided`` or ``time``; else empty."
    )

    @cached_property
    def profile_shares(self) -> pd.DataFrame:
        """The share of each part in the wall time, per case and kind of process."""
        return stats.profile_shares(self.worker_profiles, self)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """The table of ``pair_bandwidths``: a row for each pair of workers."""
        return self.pair_bandwidths.table

    @cached_property
    def scaling(self) -> pd.DataFrame:
        """The efficiency of cases whose number of workers is varied: ``stats.scaling``."""
        table = stats.scaling(self)
        alone = [case.id for case in self.suite.cases if not _scales(case)]
        return table[~table["case_id"].isin(alone)]

    @cached_property
    def case_names(self) -> dict[str, str]:
        """The label and the backend of each case, which together are unique."""
        return {c.id: f"{self.case_labels[c.id]} over {c.variant}" for c in self.suite.cases}

    def message_bytes(self, case_id: str, layer: str, payload_bytes: float) -> int:
        """Return the size of a message; for all pairs at once, the size of a pair's block."""
        n = self.cases[case_id].cluster.n_workers
        return int(payload_bytes) // (n * (n - 1) if layer == "together" else 1)

    @property
    def is_user_code(self) -> bool:
        """Whether a user's code was recorded, whose regions are the cases."""
        return any(case.cluster.launcher == model.USER_CODE for case in self.suite.cases)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of each case: ``pair`` (ping-pong), ``fetch`` (all-to-all) or ``cluster``."""
        layers = self.samples.drop_duplicates("case_id").set_index("case_id")["layer"]
        return {
            case.id: _case_kind(case, str(layers.get(case.id, ""))) for case in self.suite.cases
        }

    @cached_property
    def pair_transports(self) -> pd.DataFrame:
        """The first record of each case, pair, transport and contradiction."""
        return self.transports.sort_values("launch", kind="stable").drop_duplicates(
            ["case_id", "src", "dst", "transport", "contradiction"]
        )

    @cached_property
    def worker_places(self) -> pd.DataFrame:
        """The distinct locations of each worker and case."""
        return self.places.drop_duplicates([c for c in self.places if c not in ("launch", "pid")])

    @cached_property
    def findings(self) -> tuple[model.Finding, ...]:
        """Causes of slowness and their remedies: case by case, the largest effect first."""
        n_times = self.measured["case_id"].value_counts()
        # A script runs once.
        once = {*n_times.index[n_times == 1]} if self.is_user_code else set()
        return tuple(
            replace(each, statement=each.statement.replace(" per iteration", ""))
            if each.case_id in once else each
            for each in self._diagnosis[0]
        )  # fmt: skip

    @property
    def rule_problems(self) -> tuple[str, ...]:
        """Why rules could not be applied."""
        return tuple(self._diagnosis[1])

    @cached_property
    def _diagnosis(self) -> tuple[list[model.Finding], list[str]]:
        from commbench.analysis import findings

        with catch_warnings():
            # Older versions of pandas warn of the median of values that are all unknown.
            filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
            return findings.find(self)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the run."""
        from commbench.analysis import warnings

        return (*warnings.find(self), *self.rule_problems)


def _add_frame(kind: type[Record]) -> None:
    """Let `Run` have the frame of the records of a kind."""
    frame = cached_property(lambda run: run._read(kind.__name__))
    frame.__set_name__(Run, kind.table)
    frame.__doc__ = kind.__doc__
    setattr(Run, kind.table, frame)


for _kind in Record.kinds.values():
    _add_frame(_kind)


def load(run: str | Path) -> Run:
    """Return a run: its records as pandas frames, and everything computed from them.

    Files are read when they are first used.

    Parameters
    ----------
    run
        The run's directory, as ``commbench run`` prints it in its last line; or ``"latest"``, the
        newest run in ``results/``, as in commands.

    Raises
    ------
    UsageError
        If there is no latest run, or `run` is no path.
    ResultsError
        If the directory has no run, or one of another schema version; later, if a file can't be
        read.
    """
    if not isinstance(run, str | Path):
        raise UsageError(f"load takes the directory of a run, or 'latest', and got {run!r}")
    path = Path(run)
    if run == directory.LATEST and not path.exists():
        path = directory.newest_run()
    return Run(path, directory.read_manifest(path))


def _scales(case: Case) -> bool:
    # Runs may have workloads of plug-ins that are not installed, or that fail.
    with suppress(Exception):
        return make_workload(case).scales
    return True


def _case_kind(case: Case, layer: str) -> str:
    if not layer:
        # Without samples, the workload decides.
        with suppress(Exception):
            workload = workloads.load(case.workload)
            if issubclass(workload, PairWorkload):
                return "pair"
            if issubclass(workload, FetchWorkload):
                return "fetch"
    return "pair" if layer in LAYERS else "fetch" if layer in FETCHES else "cluster"
