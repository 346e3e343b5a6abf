"""Tables of efficiency by number of workers, and up to how many more of them pay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from commbench.analysis.run import Run
from commbench.reports.sections import Section, Table, median_time, percent, plural, quantities
from commbench.reports.sections.iteration_tables import DOING, TASKS
from commbench.stats.efficiency import KNEE

_WORK = {
    "strong": "strong scaling, the same work for all",
    "weak": "weak scaling, the work grows with the workers",
    "mixed": "the work grows, but not in proportion to the workers",
}
_PARTS = ("compute", "data", "queue", "idle", "blocked")
_TITLES = {**TASKS, "idle": "no task"}


def tables(run: Run) -> Iterator[Table]:
    """Yield a table for each series of cases that differ in their number of workers."""
    for title, rows in series(run):
        shares = _shares(run, rows)
        summaries = run.summaries.drop_duplicates("case_id").set_index("case_id")
        yield Table.from_columns(
            f"Scaling of {title}: {_WORK[rows['kind'].iloc[0]]}",
            {
                "workers": quantities(str, rows["n_workers"]),
                "median": map(median_time, summaries.loc[rows["case_id"]].itertuples()),
                "efficiency": quantities(percent, rows["efficiency"]),
                "95 % interval": map(_interval, rows.itertuples()),
                **{_TITLES[part]: quantities(percent, shares[part]) for part in _PARTS[:-1]},
            },
            "Efficiency: work per second and worker, relative to the fewest workers. The other "
            "columns are shares of the time of a task thread.",
        )


def verdicts(run: Run) -> Iterator[str]:
    """Yield up to how many workers each series scales, and what the threads of more do.

    With an interval, all of it has to be above or below the limit.
    """
    for title, rows in series(run):
        pays = rows["ci_low"].fillna(rows["efficiency"]) >= KNEE
        below = rows["ci_high"].fillna(rows["efficiency"]) < KNEE
        sure = "" if rows["ci_high"].notna().all() else "probably "
        n_first = rows["n_workers"].iloc[0]
        end = int(below.argmax()) if below.any() else len(rows)
        before = rows.iloc[:end]
        shown = rows.iloc[min(end, len(rows) - 1)]
        does = f"each does {shown.efficiency:.0%} of the work of " + (
            "a single one" if n_first == 1 else f"each of {n_first}"
        )
        if not below.any():
            most = rows["n_workers"][pays].max()
            least, more = ("", " and perhaps more") if pays.all() else ("at least ", "")
            yield (
                f"{title} {sure}scales to {least}{plural(int(most), 'worker')}{more}: of "
                f"{shown.n_workers}, {does}."
            )
            continue
        shares = _shares(run, rows)
        longer = (shares.iloc[end] - shares.iloc[0]).drop("compute").dropna()
        why = ""
        if len(longer) and longer.max() > 0:
            part = longer.idxmax()
            why = f", and threads are {DOING[part]} for {shares[part].iloc[end]:.0%} of the time"
        limit = int(before["n_workers"].max())
        most = f"at most {plural(limit, 'worker')} for this work"
        if shown.n_workers > limit + 1:
            most = f"fewer than {shown.n_workers} workers for this work"
            if len(before) > 1:
                most += f", and {limit} {'pay' if pays.iloc[end - 1] else 'may pay'}"
        yield f"{title}: {sure}{most}. Of {shown.n_workers}, {does}{why}."


def series(run: Run) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the rows of ``run.scaling`` of each series with several of them."""
    table = run.scaling
    tasks = table["case_id"].map(run.case_labels)
    for (task, name), rows in table.groupby([tasks, "series"], sort=False):
        if len(rows) > 1:
            yield f"{task} over {name}", rows


def _shares(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of a task thread's time for each row, nan if it wasn't profiled."""
    shares = run.profile_shares
    shares = shares[shares["compute"].notna()].drop_duplicates("case_id").set_index("case_id")
    return shares[[*_PARTS]].reindex(rows["case_id"]).set_axis(rows.index)


def _interval(row: Any) -> str:
    return "—" if pd.isna(row.ci_low) else f"{row.ci_low:.1%} to {row.ci_high:.1%}"


SECTION = Section(
    title="Scaling",
    position=25,
    tables=tables,
    figures=("scaling",),
    to_read="A line that stays level has workers that are as productive as the few; where it falls "
    "below 50 %, half of each worker is lost.",
    not_to_conclude="That a cluster of as many hosts scales alike: on one host the workers share "
    "its cores and its memory's bandwidth. With tasks that sleep, only the scheduler and the "
    "messages are measured.",
)
