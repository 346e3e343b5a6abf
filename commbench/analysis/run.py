"""A run: its records as frames, and what is computed of them, each when it is first asked for."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench import stats
from commbench.errors import CommbenchError, ResultsError
from commbench.model import FETCHES, LAYERS, Case, Manifest, Suite, registry
from commbench.store import directory, records, tables
from commbench.workloads.base import FetchWorkload, PairWorkload

if TYPE_CHECKING:
    import pandas as pd

_CASE_COLUMNS = ("workload", "backend")
"""What every frame has of the cases, beside the fields of its records."""


class Run:
    """The records of a run, one frame for each kind, and everything derived from them.

    A frame is an attribute with the name that its kind of record has as ``table``: ``samples``,
    ``transfers``, ``tasks``, …. It has the fields of the record as columns, and ``workload`` and
    ``backend``. The texts of records in large numbers are categoricals.

    Parameters
    ----------
    path
        The run's directory.
    manifest
        What its ``run.json`` says.
    frames
        Frames in the place of those that the directory has.
    """

    def __init__(self, path: Path, manifest: Manifest, **frames: pd.DataFrame) -> None:
        if unknown := frames.keys() - records.TABLES.keys():
            raise TypeError(f"no frames of a run: {', '.join(sorted(unknown))}")
        self.path = path
        self.manifest = manifest
        self._foreign: dict[str, str] = {}
        self.__dict__.update(frames)

    @classmethod
    def read(cls, path: Path) -> Run:
        """Return the run in a directory, also one that was cut short.

        Raises
        ------
        ResultsError
            Where the directory holds no run; later, where a file of it can't be read.
        """
        return cls(path, directory.read_manifest(path))

    def replace(self, manifest: Manifest | None = None, **frames: pd.DataFrame) -> Run:
        """Return a run with another manifest, or with other frames."""
        mine = {name: self.__dict__[name] for name in records.TABLES if name in self.__dict__}
        other = Run(self.path, manifest or self.manifest, **(mine | frames))
        other._foreign |= self._foreign
        return other

    if TYPE_CHECKING:

        def __getattr__(self, table: str) -> pd.DataFrame: ...

    @property
    def suite(self) -> Suite:
        """What was measured."""
        return self.manifest.suite

    # -- frames

    @cached_property
    def _lines(self) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """The fields of the records in lines, by kind, and what is wrong with the others."""
        notes: list[str] = []
        return tables.rows(self.path, notes), notes

    def _frame(self, kind: str) -> pd.DataFrame:
        if not self.path.is_dir():
            raise ResultsError(f"{self.path} is gone; its files are read when they are needed")
        if kind in records.BULK:
            frame = tables.frame_of_parts(self.path, kind)
        else:
            frame = tables.frame_of_rows(self._lines[0].pop(kind), kind)
        cases = {case.id: case for case in self.suite.cases}
        if others := {*frame["case_id"].unique()} - cases.keys():
            foreign = frame["case_id"].isin(others)
            self._foreign[kind] = (
                f"{foreign.sum()} {kind}s of cases that are not the run's are left out"
            )
            frame = frame[~foreign].reset_index(drop=True)
        for column in _CASE_COLUMNS:
            names = {case_id: getattr(case, column) for case_id, case in cases.items()}
            frame[column] = tables.renamed(frame["case_id"], names)
        return frame

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """All frames, by name."""
        return {table: getattr(self, table) for table in records.TABLES}

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was unreadable, or is of another run."""
        _ = self.frames
        return (*self._lines[1], *self._foreign.values())

    def launches_begun(self) -> dict[str, int]:
        """Return by case id how many launch indices are taken, also by launches cut short."""
        import pandas as pd

        frames = (self.samples, self.transfers, self.tasks, self.idle, self.failures, self.ends)
        taken = [frame.groupby("case_id", observed=True)["launch"].max() for frame in frames]
        last = pd.concat([launches.rename(index=str) for launches in taken])
        return {str(case_id): int(n) + 1 for case_id, n in last.groupby(level=0).max().items()}

    # -- what is computed of them

    case_labels = cached_property(stats.case_labels)
    launch_medians = cached_property(stats.launch_medians)
    summaries = cached_property(stats.summaries)
    costs = cached_property(stats.costs)
    comparisons = cached_property(stats.comparisons)
    pair_bandwidths = cached_property(stats.pair_bandwidths)
    coverage = cached_property(stats.coverage)
    worker_profiles = cached_property(stats.worker_profiles)
    ended_by = cached_property(stats.ended_by)

    @property
    def pairs(self) -> pd.DataFrame:
        """What `stats.pairs` returns, its texts as categoricals."""
        return self.pair_bandwidths.table

    @cached_property
    def link_bandwidths(self) -> pd.DataFrame:
        """What `stats.link_bandwidths` returns."""
        return stats.link_bandwidths(self, self.pair_bandwidths)

    @cached_property
    def slow_pairs(self) -> pd.DataFrame:
        """What `stats.slow_pairs` returns."""
        return stats.slow_pairs(self.pairs, self)

    @cached_property
    def profile_shares(self) -> pd.DataFrame:
        """What `stats.profile_shares` returns."""
        return stats.profile_shares(self.worker_profiles, self)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """By case: ``pair`` of processes, ``fetch`` of all workers, or work of a ``cluster``."""
        layers = self.samples.drop_duplicates("case_id").set_index("case_id")["layer"]
        return {
            case.id: _kind_of_case(case, str(layers.get(case.id, ""))) for case in self.suite.cases
        }

    @cached_property
    def pair_transports(self) -> pd.DataFrame:
        """The first of the transports with the same pair, name and contradiction."""
        return self.transports.drop_duplicates(
            ["case_id", "src", "dst", "transport", "contradiction"]
        )

    @cached_property
    def worker_places(self) -> pd.DataFrame:
        """Where each worker was, in the first launch in which it was there."""
        return self.places.drop_duplicates([c for c in self.places if c not in ("launch", "pid")])

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before the numbers."""
        from commbench.analysis import warnings

        return tuple(warnings.find(self))


def _frame_of(kind: str) -> cached_property[pd.DataFrame]:
    def frame(run: Run) -> pd.DataFrame:
        return run._frame(kind)

    frame.__doc__ = records.KINDS[kind].__doc__
    return cached_property(frame)


for _table, _kind in records.TABLES.items():
    _property = _frame_of(_kind)
    _property.__set_name__(Run, _table)
    setattr(Run, _table, _property)


def _kind_of_case(case: Case, layer: str) -> str:
    if not layer:
        # No sample was taken.
        with suppress(CommbenchError):
            workload = registry.load("workload", case.workload)
            if issubclass(workload, PairWorkload):
                return "pair"
            if issubclass(workload, FetchWorkload):
                return "fetch"
    return "pair" if layer in LAYERS else "fetch" if layer in FETCHES else "cluster"
