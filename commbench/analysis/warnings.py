"""Warnings about a run: its problems and disturbances.

Each warning says in one line what was observed, why it matters and what to do. There is no warning
about what was not recorded.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from commbench import stats
from commbench.analysis.run import Run
from commbench.backends import parse
from commbench.errors import CommbenchError, ResultsError
from commbench.machine import cores
from commbench.machine.environment import recorded
from commbench.model import FETCHES, Case, registry
from commbench.model.observed import GPU_MEMORY, LOCAL
from commbench.model.units import (
    format_bytes,
    format_message_size,
    format_seconds,
)
from commbench.stats.comparison import COMPRESSION, EQUAL_WORK, controls
from commbench.stats.links import is_elsewhere, moved_workers

MAX_STOLEN = 0.02
"""The share of the cores' time that a hypervisor may take, which is also commbench's overhead."""
MAX_SPREAD = 0.1
"""The relative standard deviation from which pyperf calls a benchmark unstable."""
_SPREADS = {
    "between": (
        "medians of launches",
        "between launches",
        "more --launches, and nothing else on the machine",
    ),
    "within": (
        "samples of one launch",
        "within a launch",
        "more --iterations, or find out what disturbs them",
    ),
}
"""The spreading quantity, in full and in short, and the remedy, by column of ``stats.spreads``."""
MAX_CPU_TIME = 1.05
"""The CPU time as a share of cores × time that clocks which are read one by one may have."""
MAX_CHANCE, MIN_DRIFT = 0.01, 0.05
"""The maximum p-value and the minimum relative change of a drift."""
MIN_CLOCK_STEPS = 100
"""The steps of the clock in a duration that is known to 1 %."""
CLOCKED_LAYERS = {"workload": 1, "worker": 1, "comm": 2, "coroutine": 2}
"""The layers whose samples are timed one by one, and the timed duration in samples."""
_ITERATION = ["case_id", "launch", "iteration"]
MESSAGE_BYTES = 1000
"""More than a message about a task has."""
_LEAST_RECORDED = 0.5
_REST_S = 5.0
"""The share of a script's time from which the rest is not named, and the shortest that is."""
_MIN_COVERAGE = 0.95
_TICK_HZ = 250
"""The ticks per second of most distributions' kernels."""
_MAX_TICKS = 10
"""Longer waits are multiples of the tick by chance."""
_NEAR_TICK = 0.05
"""The distance from a multiple of the tick, in ticks."""
_STALLED = 3.0
"""How many times as long as a fetch the message in it takes if it stalls."""
_POLLS = 0.5
"""The share of the cores that an idle cluster of polling processes uses."""


class Disturbance(str):
    """The text of a warning about what may have changed the times.

    Its ``statement`` is what the first screen shows; it is empty if another disturbance says it.
    ``rule`` names the rule whose findings say the same, if there is one, and ``case_id`` the case,
    if it is about a single one.
    """

    statement: str
    rule: str
    case_id: str

    def __new__(
        cls, beginning: str, rest: str, statement: str | None = None, rule: str = "",
        case_id: str = "",
    ) -> Disturbance:  # fmt: skip
        """Return the text of a warning; the statement is its beginning unless it is given."""
        made = super().__new__(cls, beginning + rest)
        made.statement = beginning if statement is None else statement
        made.rule, made.case_id = rule, case_id
        return made

    def __getnewargs__(self) -> tuple[str, str, str, str, str]:  # type: ignore[override]
        """Return the arguments that make a copy."""
        return str(self), "", self.statement, self.rule, self.case_id


def find(run: Run) -> list[str]:
    """Return the warnings about a run; what slows its cases down are ``run.findings``."""
    texts = [*run.notes, *(f"left out by --skip-unavailable: {each}" for each in run.suite.skipped)]
    if run.suite.reproduces and stats.reproduced(run) is None:
        texts.append(
            f"the suite reproduces {run.suite.reproduces}, which this commbench doesn't know; "
            "use the commbench that made the run"
        )
    for check in (
        unobserved, raised, _unequal_work, _modes, _running_clusters, _moved_workers, _clocks,
        _cpu_time, undecided, _imprecise, _launches, _untimed, _coverage,
    ):  # fmt: skip
        texts += guarded(check, run)
    return texts + disturbances(run)


def guarded(check: Callable[[Run], Iterable[str]], run: Run, what: str = "") -> list[str]:
    """Return the warnings of `check`, or one with its error: plug-ins may record anything."""
    try:
        return list(check(run))
    except ResultsError:
        raise
    except Exception as error:  # noqa: BLE001
        what = what or f"the check {check.__name__.strip('_')}"
        return [f"{what} could not be made: {error!r}"]


def disturbances(run: Run) -> list[Disturbance]:
    """Return the warnings about what may have changed the times of a run."""
    texts = list[str]()
    for check in (
        _other_load, _stolen_time, _unstable_samples, _stalls, _drift, _spilling, _compression,
        _clock_steps, _oversubscription, _frequency_scaling,
    ):  # fmt: skip
        texts += guarded(check, run)
    return [text if isinstance(text, Disturbance) else Disturbance(text, "") for text in texts]


def unobserved(run: Run) -> Iterator[str]:
    """Yield how little of a script was recorded, if it has other clients or much other time."""
    manifest = run.manifest
    seconds = float(run.regions["seconds"][run.regions["parent"] < 0].sum())
    others = manifest.n_other_clients
    is_little = seconds < min(_LEAST_RECORDED * manifest.script_s, manifest.script_s - _REST_S)
    if not (others or is_little):
        return
    text = f"{format_seconds(seconds)} of the script's {format_seconds(manifest.script_s)} are "
    text += "recorded, while its first client was connected"
    if others:
        text += f"; {others} later {'one was' if others == 1 else 'ones were'} not: each Client() "
        text += "takes time, so use one for all, or record the others by commbench.profile(client)"
    else:
        text += "; the rest is what it did before and after, with the start of its cluster"
    yield text


def raised(run: Run) -> Iterator[str]:
    """Yield which regions of a user's code raised, and what; those around them pass it on."""
    inner = {(row.parent, row.error) for row in run.regions.itertuples() if row.error}
    for case_id, rows in run.regions.groupby("case_id", sort=False):
        errors = [
            row.error for row in rows.itertuples()
            if row.error and (row.iteration, row.error) not in inner
        ]  # fmt: skip
        if not errors:
            continue
        what = f"raised {textwrap.shorten(errors[0], 200, placeholder=' …')}"
        if len(errors) == len(rows):
            which, so = f" each of {len(rows)} times" * (len(rows) > 1), "its time is until then"
        else:
            which, so = f" {len(errors)} of {len(rows)} times", "these are left out of its times"
        yield f"{run.case_names[str(case_id)]} {what}{which}: {so}"


def _unequal_work(run: Run) -> Iterator[str]:
    moved, names = dict[tuple[str, int], dict[str, float]](), run.case_names
    for c in run.comparisons:
        if c.verdict == "unequal":
            sizes = {c.baseline_id: c.baseline_moved_bytes, c.candidate_id: c.candidate_moved_bytes}
            task = run.case_labels[c.baseline_id], run.cases[c.baseline_id].cluster.n_workers
            moved.setdefault(task, {}).update(sizes)
    pinned = {case.id for case in run.suite.cases if case.cluster.task_placement == "pinned"}
    for sizes in moved.values():
        n_tasks = {each: run.tasks_per_iteration.get(each, math.nan) for each in sizes}
        few, many = min(n_tasks, key=n_tasks.__getitem__), max(n_tasks, key=n_tasks.__getitem__)
        if n_tasks[many] - n_tasks[few] > EQUAL_WORK * n_tasks[few]:
            yield (
                f"an iteration ran {n_tasks[few]:.0f} tasks in {names[few]} and "
                f"{n_tasks[many]:.0f} in {names[many]}: times of unequal work don't compare "
                "backends; find out what in the code depends on the backend, or on chance"
            )
            continue
        least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        reason = (
            "the tables of pairs show where"
            if pinned.issuperset(sizes)
            else "Dask placed the tasks by chance; measure again with --task-placement pinned"
        )
        yield (
            f"an iteration moved {format_bytes(round(sizes[least]))} in {names[least]} and "
            f"{format_bytes(round(sizes[most]))} in {names[most]}: times of unequal work don't "
            f"compare backends; {reason}"
        )


def _running_clusters(run: Run) -> Iterator[str]:
    settings = run.settings[~run.settings["name"].isin((COMPRESSION, GPU_MEMORY))]
    measured = set(run.samples["case_id"])
    for case in run.suite.cases:
        if not case.cluster.scheduler or case.id not in measured:
            continue
        mine = settings[settings["case_id"] == case.id][["name", "value"]].drop_duplicates()
        listed = ", ".join(f"{row.name}={row.value}" for row in mine.itertuples(index=False))
        known = f"; settings found on its workers: {listed}" if listed else ""
        yield (
            f"{run.case_names[case.id]}: all launches measured one running "
            f"cluster ({case.cluster.scheduler}), not fresh ones: what differs from one start to "
            f"the next is in no interval and no test, and its settings are as found{known}"
        )


def _moved_workers(run: Run) -> Iterator[str]:
    for case_id, workers in moved_workers(run).items():
        yield (
            f"{run.case_names[case_id]}: {len(workers)} of {run.cases[case_id].cluster.n_workers} "
            "workers were on other hosts in other launches, so that medians are of several "
            "clusters, and pairs of workers of several links; see Where the workers were"
        )


def _clocks(run: Run) -> Iterator[str]:
    seconds = run.samples["seconds"]
    if n_negative := int((seconds < 0).sum()):
        yield (
            f"{n_negative} of {len(seconds)} samples ended before they began, by their clock; "
            "they are left out"
        )
    if n_zero := int((seconds == 0).sum()):
        yield (
            f"{n_zero} of {len(seconds)} samples took no time, by their clock: it is too coarse "
            "for them, and a ratio or bandwidth of such a median is not given"
        )


def _cpu_time(run: Run) -> Iterator[str]:
    # A control group's quota may be used in bursts.
    n_cores = recorded(run.manifest.environment, "cpu.usable_cores")
    samples = run.measured[run.measured["layer"] == "workload"]
    sums = samples.groupby("case_id")[["cpu_seconds", "seconds"]].sum()
    for case in run.suite.cases:
        if not n_cores or case.id not in sums.index or _may_be_remote(case):
            continue
        cpu_s, wall_s = sums.loc[case.id]
        if cpu_s > MAX_CPU_TIME * n_cores * wall_s:
            yield (
                f"{run.case_names[case.id]}: {cpu_s:.3g} CPU s in {wall_s:.3g} s are more than "
                f"{n_cores:g} core{'s' if n_cores != 1 else ''} have: don't rely on its CPU "
                "seconds, and report this to commbench"
            )


def _modes(run: Run) -> Iterator[str]:
    table = run.summaries
    known_Hz = recorded(run.manifest.environment, "clock.tick_Hz")  # noqa: N806 - the unit
    tick_s = 1 / (known_Hz or _TICK_HZ)
    tick = f"{1000 * tick_s:.3g} ms" + f" if the kernel ticks at {_TICK_HZ} Hz" * (not known_Hz)
    for case_id, rows in table[table["low_mode_s"].notna()].groupby("case_id", sort=False):
        # A fast and a slow copy of memory say little about the backend.
        row = max(
            rows.itertuples(),
            key=lambda each: (each.layer != "memcpy", each.high_mode_s / each.low_mode_s),
        )
        layer = FETCHES.get(row.layer, f"{row.layer} layer")
        where = "" if row.layer == "workload" else f", {layer} at "
        nbytes = run.message_bytes(row.case_id, row.layer, row.payload_bytes)
        where += format_message_size(nbytes) * bool(where)
        others = f" ({len(rows) - 1} other sizes or layers do, too)" * (len(rows) > 1)
        n_low = round(row.low_mode_share * row.n_launches)
        multiples = [
            f"the {name} is {round(mode_s / tick_s)} × the kernel's tick"
            for name, mode_s in (("faster", row.low_mode_s), ("slower", row.high_mode_s))
            if 1 <= round(mode_s / tick_s) <= _MAX_TICKS
            if abs(mode_s / tick_s - round(mode_s / tick_s)) <= _NEAR_TICK
        ]
        waits = f" ({tick}), for which a process waits that gets no core"
        yield (
            f"{run.case_names[case_id]}{where}: launches split into two modes, {n_low} of "
            f"{row.n_launches} at {format_seconds(row.low_mode_s)} and the others at "
            f"{format_seconds(row.high_mode_s)}{others}: no single number describes them"
            + f"; {' and '.join(multiples)}{waits}"
            * bool(multiples)
        )


def undecided(run: Run) -> Iterator[str]:
    """Yield how many comparisons are undecided at the end of the run's budget."""
    rule = run.manifest.stopping
    if rule and run.ended_by == "time" and (n_open := len(stats.undecided(run))):
        yield (
            f"{n_open} of {len(run.comparisons)} comparisons {'is' if n_open == 1 else 'are'} "
            f"undecided for differences of {100 * rule.detect:g}% after launches of "
            f"{run.ends['seconds'].sum():.0f} s; repeat with a longer --budget or a larger --detect"
        )


def _imprecise(run: Run) -> Iterator[str]:
    rule = run.manifest.stopping
    if rule is None or run.ended_by != "time":
        return
    for case_id, rows in stats.imprecise(run).groupby("case_id", sort=False):
        sizes = dict.fromkeys(
            format_message_size(run.message_bytes(str(case_id), row.layer, row.payload_bytes))
            for row in rows.itertuples()
            if row.layer != "workload"
        )
        at, widest = f" at {', '.join(sizes)}", rows["within"].max()
        if widest < math.inf:
            known = f"it is known within ±{100 * widest:.3g}%"
        elif (rows["median_s"] == 0).any():
            known = "it is 0, below the resolution of the clock"
        else:
            known = "too few launches have no 95 % interval"
        yield (
            f"the budget of {rule.budget_s:.0f} s ended before the median of "
            f"{run.case_names[case_id]}{at * bool(sizes)} was known "
            f"within ±{100 * rule.detect:g}%: {known}"
        )


def missing_launches(run: Run) -> int:
    """Return how many launches were not run; a budget may end a run after any complete block."""
    planned = {case.id: case.launches for case in run.suite.cases}
    ends, has_budget = run.ends, run.manifest.stopping is not None
    if has_budget:
        # A resumed run repeats the failed launches of its last block.
        ends = ends.drop_duplicates(["case_id", "block"])
    elif (repeated := ends["block"] >= max(planned.values(), default=0)).any():
        # It repeats all of them, most in later blocks.
        ends = ends[repeated | ends["ok"].astype(bool)]
    counts = ends["case_id"].value_counts().to_dict()
    if has_budget:
        most = max(counts.values(), default=0)
        planned = {name: most if run.ended_by else max(most, n) for name, n in planned.items()}
    return sum(max(0, n - counts.get(name, 0)) for name, n in planned.items())


def _launches(run: Run) -> Iterator[str]:
    summaries = run.summaries
    n_missing = missing_launches(run)
    n_planned = len(run.ends) + n_missing
    if n_failed := int((~run.ends["ok"].astype(bool)).sum()):
        yield f"{n_failed} of {n_planned} launches failed; see Failures"
    if run.is_user_code:
        if n_missing:
            yield "the code was not recorded until its end; what its last region did is missing"
        return
    if n_missing:
        yield f"only {len(run.ends)} of {n_planned} launches were run" + (
            "; commbench run --resume measures the rest" * (not run.manifest.side)
        )
    for case_id in summaries["case_id"][summaries["n_launches"] == 0].unique():
        yield (
            f"{run.case_names[case_id]}: no launch ended well; the median is of "
            "launches that were cut short, and is nothing to quote"
        )
    weak = summaries["confidence"].between(0, stats.CONFIDENCE, inclusive="left")
    weak &= summaries["n_launches"] > 0
    if weak.any():
        n_launches = int(summaries["n_launches"][weak].min())
        yield (
            f"{n_launches} launch{'es give' if n_launches > 1 else ' gives'} no 95 % interval and "
            f"no verdict; {stats.MIN_LAUNCHES} do"
        )


def _untimed(run: Run) -> Iterator[str]:
    for case_id, rows in run.pairs.groupby("case_id", sort=False, observed=True):
        if n_untimed := int(rows["n_untimed"].sum()):
            yield (
                f"{run.case_names[case_id]}: {n_untimed} of {int(rows['n'].sum())} transfers ended "
                "when they began or before, by their clocks; they are in no bandwidth"
            )


def _coverage(run: Run) -> Iterator[str]:
    wire = stats.counted(run.wire, run)
    between = wire[(wire["src"] != wire["dst"]) & (wire["dst"] != "")]
    n_messages = between.groupby("case_id", observed=True)["n_messages"].sum()
    for row in run.coverage.itertuples():
        where = run.case_names[row.case_id]
        if row.n_lost > 0:
            yield (
                f"{where}: {row.n_lost} of {row.n_started} fetches are missing in the log: the "
                "bandwidths of pairs are of the others; times of iterations are not affected"
            )
        elif row.n_lost < 0:
            yield (
                f"{where}: the logs have {-row.n_lost} fetches that no worker began: don't rely on "
                "its coverage"
            )
        if row.coverage < _MIN_COVERAGE and not row.logged_bytes:
            unseen = format_bytes(row.wire_bytes)
            yield (
                f"{where}: the transfer logs saw none of the {unseen} between workers (they see "
                "fetches and P2P shuffles), so no pair has a bandwidth"
            )
        elif (
            row.coverage < _MIN_COVERAGE
            # Of small data, most bytes on the wire are the messages about them.
            and row.wire_bytes - row.logged_bytes > MESSAGE_BYTES * n_messages.get(row.case_id, 0)
        ):
            yield (
                f"{where}: the transfer logs saw {row.coverage:.1%} of the bytes between workers; "
                f"they missed {1 - row.coverage:.1%} (they see fetches and P2P shuffles), so the "
                "pair bandwidths below describe a part of the traffic only"
            )


class Undisturbed(NamedTuple):
    """A run without the launches ``left_out``; disturbed ones that count are ``kept``."""

    run: Run
    left_out: list[str]
    kept: list[str]

    @property
    def notes(self) -> list[str]:
        """What became of the disturbed launches, and why."""
        why = (
            f"others had over {cores.MAX_OTHERS:.0%} or the hypervisor over {MAX_STOLEN:.0%} of "
            "the cores"
        )
        few = f"counted, although {why}, because fewer than {stats.MIN_LAUNCHES} would be left"
        return [
            f"{what}: launches of {'; '.join(names)}"
            for what, names in ((f"left out, because {why}", self.left_out), (few, self.kept))
            if names
        ]


def undisturbed(
    *runs: Run, same: Mapping[str, str] = MappingProxyType({}), control: str = ""
) -> list[Undisturbed]:
    """Return runs without the launches that others disturbed, and the names of these launches.

    Launches are left out in which other processes or the hypervisor had more of the cores' time
    than ``MAX_OTHERS`` or ``MAX_STOLEN``. All launches of a case stay in all runs if too few for a
    verdict would be left in one of them.

    Parameters
    ----------
    same
        The ids of cases in other runs that are the same, by the id in the first.
    control
        The backend with whose launches in the same blocks cases are compared: only blocks that both
        still have are enough for a verdict.
    """
    first = {other: case_id for case_id, other in same.items()}
    ends = [
        run.ends.assign(
            is_out=_is_disturbed(run), case=[first.get(name, name) for name in run.ends["case_id"]]
        )
        for run in runs
    ]
    too_few = set[str]()
    for run, each in zip(runs, ends, strict=True):
        good = each[each["ok"].astype(bool)]
        left = {name: {*rows["block"][~rows["is_out"]]} for name, rows in good.groupby("case_id")}
        others = controls(control, run.suite.cases) if control else {}
        for name in left:
            both = {name, others[name].id} & left.keys() if name in others else {name}
            if len(set.intersection(*(left[each] for each in both))) < stats.MIN_LAUNCHES:
                too_few |= {first.get(each, each) for each in both}
    results = []
    for run, each in zip(runs, ends, strict=True):
        is_disturbed, counts = each.pop("is_out"), each.pop("case").isin(too_few)
        is_out = is_disturbed & ~counts
        left_out, kept = (
            [
                f"{run.case_names[case_id]} {', '.join(map(str, sorted(launches)))}"
                for case_id, launches in each[which].groupby("case_id", sort=False)["launch"]
            ]
            for which in (is_out, is_disturbed & counts)
        )
        is_in = ~pd.MultiIndex.from_frame(run.core_use[["case_id", "launch"]]).isin(
            pd.MultiIndex.from_frame(each.loc[is_out, ["case_id", "launch"]])
        )
        without = run.replace(ends=each[~is_out], core_use=run.core_use[is_in])
        results.append(Undisturbed(without, left_out, kept))
    return results


def _is_disturbed(run: Run) -> list[bool]:
    """Return for each of ``run.ends`` whether it ended well, but others disturbed it."""
    use = core_use(run)
    above = (use["others"] > cores.MAX_OTHERS) | (use["stolen"] > MAX_STOLEN)
    disturbed = {*zip(use["case_id"][above], use["launch"][above], strict=True)}
    ends = zip(run.ends["case_id"], run.ends["launch"], run.ends["ok"], strict=True)
    return [bool(ok) and (case_id, launch) in disturbed for case_id, launch, ok in ends]


def _other_load(run: Run) -> Iterator[Disturbance]:
    use = core_use(run)
    if text := _disturbed(use, "others", cores.MAX_OTHERS, run):
        yield Disturbance(
            f"other processes used the cores in {text}",
            ": their times are long for a reason that is no backend's; end what else runs, and "
            "measure again",
        )
    known = run.manifest.environment
    cpu = known.get("cpu") or {}
    loads, n_cores = known.get("load_average"), cores.usable(cpu)
    # The load is that of the host, of which other cores may have it.
    if not loads or not n_cores or n_cores < (cpu.get("logical_cores") or n_cores):
        return
    if use.empty and cores.is_loaded(loads[0], n_cores):
        yield Disturbance(
            f"the load average was {loads[0]:g} on {n_cores:g} cores when the run began",
            ": others were using the cores; end what else runs, and measure again",
        )


def _stolen_time(run: Run) -> Iterator[Disturbance]:
    if text := _disturbed(core_use(run), "stolen", MAX_STOLEN, run):
        yield Disturbance(
            f"the hypervisor gave the cores to other machines in {text}",
            ": no process here shows that; compare only what was measured in turns, or take a "
            "machine of your own",
        )


def core_use(run: Run) -> pd.DataFrame:
    """Return the shares of the cores' time that others and the hypervisor used, by launch."""
    use = run.core_use[(run.core_use["seconds"] > 0) & (run.core_use["n_cores"] > 0)]
    total_s = use["n_cores"] * use["seconds"]
    others_s = use["busy_cpu_seconds"] - use["own_cpu_seconds"]
    return use.assign(others=others_s / total_s, stolen=use["stolen_cpu_seconds"] / total_s)


def _disturbed(use: pd.DataFrame, share: str, limit: float, run: Run) -> str:
    """Describe the launches that lost more than `limit` of the cores' time, if there are any."""
    use = use.assign(share=use[share])
    # The most disturbed host of a launch counts.
    if not run.is_user_code:
        use = use.sort_values("share").drop_duplicates(["case_id", "launch"], keep="last")
        use = use.sort_index()
    above = use[use["share"] > limit]
    if above.empty:
        return ""
    worst = above.loc[above["share"].idxmax()]
    where = "" if worst["host"] == LOCAL else f" on {worst['host']}"
    name = run.case_names[worst["case_id"]]
    where += f", {name}" if run.is_user_code else f", launch {worst['launch']} of {name}"
    parts = "regions of over a second" if run.is_user_code else "launches"
    return (
        f"{len(above)} of {len(use)} {parts} for over {limit:.0%} of their time (most: "
        f"{worst['share']:.0%}{where})"
    )


def _unstable_samples(run: Run) -> Iterator[Disturbance]:
    if run.is_user_code:
        # Its regions may do something else each time.
        return
    spreads = stats.spreads(run)
    texts, largest, unstable = dict[str, list[str]](), list[str](), set[str]()
    for column, (_, where, _) in _SPREADS.items():
        for case_id, rows in spreads.dropna(subset=column).groupby("case_id", sort=False):
            above = rows[rows[column] > MAX_SPREAD]
            if above.empty:
                continue
            unstable.add(str(case_id))
            worst = above.loc[above[column].idxmax()]
            layer = str(worst["layer"])
            nbytes = run.message_bytes(str(case_id), layer, worst["payload_bytes"])
            size = format_message_size(nbytes)
            each = "layers × sizes" if len({*rows["layer"]}) > 1 else "sizes"
            at = f", {FETCHES.get(layer, layer)}, {size} ({len(above)} of {len(rows)} {each})"
            text = (
                f"by {_share(worst[column], '')} in {run.case_names[case_id]}{at * (len(rows) > 1)}"
            )
            texts.setdefault(column, []).append(text)
        if column in texts:
            before = "up to " * (not largest)
            largest.append(f"{_share(spreads[column].max(), before)} {where}")
    n_cases = spreads["case_id"].nunique()
    statement = f"times spread by {', '.join(largest)}"
    statement += f" ({len(unstable)} of {n_cases} cases)" * (n_cases > 1)
    for column, listed in texts.items():
        what, _, remedy = _SPREADS[column]
        yield Disturbance(
            f"{what} spread {', '.join(listed)}",
            f": a standard deviation, from quartiles, of over {MAX_SPREAD:.0%} is unstable; "
            f"{remedy}",
            statement,
        )
        statement = ""


def _share(spread: float, before: str) -> str:
    """Return a spread in percent, which means nothing beyond tenfold.

    Examples
    --------
    >>> _share(0.21, "up to "), _share(553.15, "up to ")
    ('up to 21%', 'more than 1000%')
    """
    return f"{before}{spread:.0%}" if spread <= 10 else "more than 1000%"


def _drift(run: Run) -> Iterator[Disturbance]:
    for row in stats.drifts(run, MIN_DRIFT).itertuples():
        if row.p_value < MAX_CHANCE:
            yield Disturbance(
                f"{run.case_names[row.case_id]}: times {'rose' if row.change > 0 else 'fell'} by "
                f"{abs(row.change):.0%} from the first to the last of {row.n_launches} launches",
                f" (p = {row.p_value:.1g}): the machine changed meanwhile, by heat or load; its "
                "median is of no one state, so measure again",
            )


def _spilling(run: Run) -> Iterator[Disturbance]:
    spills = stats.counted(run.spills[run.spills["nbytes"] > 0], run)
    for case_id, rows in spills.groupby("case_id", sort=False):
        n_iterations = len(rows[["launch", "iteration"]].drop_duplicates())
        yield Disturbance(
            f"{run.case_names[case_id]}: workers wrote {format_bytes(int(rows['nbytes'].sum()))} "
            f"to disk in {n_iterations} measured iteration{'s' * (n_iterations > 1)}",
            ", as their memory was full: the times are the disk's, too; take less data or more "
            "memory",
            rule="spilling",
            case_id=str(case_id),
        )


def _compression(run: Run) -> Iterator[Disturbance]:
    settings = run.settings
    on = settings[(settings["name"] == COMPRESSION) & (settings["value"] != "none")]
    for (case_id, value), _ in on.groupby(["case_id", "value"], sort=False):
        yield Disturbance(
            f"{run.case_names[case_id]}: workers compressed their messages with {value}",
            ": times and bytes on the wire are the compressor's as much as the link's; to measure "
            "the link: DASK_DISTRIBUTED__COMM__COMPRESSION=False",
            rule="compression",
            case_id=str(case_id),
        )


def _latencies(run: Run) -> pd.DataFrame:
    # The other modes of a ping-pong time many messages together.
    alone = {c.id for c in run.suite.cases if stats.pingpong_mode(c) in stats.LATENCY_MODES}
    return run.summaries[run.summaries["case_id"].isin(alone)]


def _stalls(run: Run) -> Iterator[Disturbance]:
    table = _latencies(run).set_index(["case_id", "payload_bytes"])
    # A fetch by a worker sends and receives as the layer comm does.
    fetches = table[table["layer"] == "worker"]
    fetches = fetches["p75_s"].fillna(fetches["median_s"]).rename("fetch_s")
    both = table[table["layer"] == "comm"].join(fetches, how="inner")
    stalled = both[both["p75_s"] > _STALLED * both["fetch_s"]].reset_index()
    for case_id, rows in stalled.groupby("case_id", sort=False):
        row = rows.loc[rows["p75_s"].idxmax()]
        yield Disturbance(
            f"{run.case_names[case_id]}: messages of {format_message_size(row['payload_bytes'])} "
            f"stall in the layer comm: a quarter takes {format_seconds(row['p75_s'])} or more, a "
            f"worker's fetch {format_seconds(row['fetch_s'])}",
            f" ({rows.shape[0]} of {both.loc[case_id].shape[0]} sizes); with UCX, compare its "
            "progress modes (docs/gpu.md)",
        )


def _clock_steps(run: Run) -> Iterator[Disturbance]:
    step_s = recorded(run.manifest.environment, "clock.step_s")
    if not step_s:
        return
    rows = _latencies(run)
    timed_s = rows["median_s"] * rows["layer"].map(CLOCKED_LAYERS).astype(float)
    source = recorded(run.manifest.environment, "cpu.clock_source")
    remedy = "compare larger messages" + ", or use the clock source tsc" * (source != "tsc")
    for case_id, short in rows[timed_s < MIN_CLOCK_STEPS * step_s].groupby("case_id", sort=False):
        yield Disturbance(
            f"{run.case_names[case_id]}: {format_seconds(short['median_s'].min())} is less than "
            f"{MIN_CLOCK_STEPS} steps of the clock ({format_seconds(step_s)} each)",
            f", which blur it by more than 1 %; {remedy}",
        )


def _oversubscription(run: Run) -> Iterator[Disturbance]:
    n_cores = cores.usable(run.manifest.environment.get("cpu") or {})
    if not n_cores:
        return
    layers = run.samples.groupby("case_id")["layer"].unique()
    local = {case.id: case for case in run.suite.cases if not _may_be_remote(case)}
    idle, ready = run.idle_cores.set_index("case_id"), _ready_threads(run)
    polling, crowded = dict[str, int](), dict[str, float]()
    for case_id, case in local.items():
        if case_id not in layers.index:
            continue
        n_busy = max(
            ready.get(case_id, _n_busy_threads(case, layer))
            if layer == "workload"
            else _n_busy_threads(case, layer)
            for layer in layers[case_id]
        )
        if case_id in idle.index and idle["idle_cores"][case_id] > _POLLS * n_cores:
            # The layer worker of pingpong has a scheduler and a client besides its two workers.
            n_processes = max(idle["n_processes"][case_id], 4 if "worker" in layers[case_id] else 0)
            if n_processes > n_cores:
                polling[case_id] = int(n_processes)
        if round(n_busy, 1) > n_cores and case_id not in polling:
            crowded[case_id] = round(n_busy, 1)
    if polling:
        worst = max(polling, key=polling.__getitem__)
        backends = ", ".join(dict.fromkeys(local[case_id].variant for case_id in polling))
        modes, best = _progress_modes(run, [local[case_id] for case_id in polling])
        yield Disturbance(
            f"{backends}: event loops poll: an idle cluster uses {idle['idle_cores'][worst]:.2g} "
            f"of {n_cores:g} cores",
            f", on which {polling[worst]} processes take turns{modes}. Times "
            "contain the kernel's time slices, which are milliseconds; "
            + f"measure {' or '.join(best)}, whose loops sleep, or " * bool(best)
            + "take more cores",
            rule="polling",
        )
    if crowded:
        who = (
            run.case_names[next(iter(crowded))]
            if len(crowded) == 1
            else f"{len(crowded)} of {len(run.case_names)} cases"
        )
        yield Disturbance(
            f"{who}: up to {max(crowded.values()):g} busy threads share {n_cores:g} "
            f"core{'s' if n_cores != 1 else ''}",
            ": they take turns, and times contain waits for a core; take fewer workers, threads or "
            "pairs, or more cores",
            rule="few-cores",
        )


def _progress_modes(run: Run, cases: Iterable[Case]) -> tuple[str, list[str]]:
    """Return the settings with which event loops poll, in words, and backends whose loops sleep."""
    inherited = recorded(run.manifest.environment, "variables") or {}
    settings, best = dict[str, None](), dict[str, None]()
    for case in cases:
        # Runs may have backends of plug-ins that are not installed.
        with suppress(CommbenchError):
            backend = parse(case.backend)
            given = backend.environment(case.cluster.device, Path())
            if setting := backend.polling({**inherited, **given, **case.cluster.env}):
                settings[setting] = None
                # It may close the way that the bytes of a GPU take.
                if case.cluster.device == "cpu":
                    best[backend.best] = None
    return f" ({'; '.join(settings)})" * bool(settings), list(best)


def _ready_threads(run: Run) -> pd.Series[float]:
    """Return the mean number of threads that were on a core or waited for one, per case.

    Those of the workers, the scheduler and the client, with event loops and progress threads; the
    median over iterations. Cases whose waits were not recorded are not included.
    """
    threads = stats.counted(run.threads[run.threads["seconds"] > 0], run)
    waited = threads.groupby("case_id")["wait_seconds"].transform("sum") > 0
    ready = (threads["cpu_seconds"] + threads["wait_seconds"]) / threads["seconds"]
    by_iteration = ready[waited].groupby([threads[name] for name in _ITERATION]).sum()
    return by_iteration.groupby("case_id").median()


def _n_busy_threads(case: Case, layer: str) -> int:
    """Return how many threads are busy at once while a layer is measured, where nothing shows it.

    Event loops of workers are left out: they are busy while tasks wait for them.
    """
    match layer:
        case "workload":
            # The workers' threads, the scheduler and the client.
            return case.cluster.n_workers * case.cluster.threads_per_worker + 2
        case "together" | "rounds":
            return case.cluster.n_workers
        case "memcpy":
            return 1
    pairs = case.params.get("pairs", 1) if stats.pingpong_mode(case) == "multi-pair" else 1
    return 2 * int(pairs)


def _may_be_remote(case: Case) -> bool:
    """Return whether workers or a peer may be on other hosts, with other cores."""
    if case.peer:
        return True
    try:
        return bool(registry.load("launcher", case.cluster.launcher).remote(case.cluster))
    except CommbenchError:
        # The launcher's package is not installed here.
        return True


def _frequency_scaling(run: Run) -> Iterator[Disturbance]:
    cpu: Mapping[str, Any] = run.manifest.environment.get("cpu") or {}
    governors = {name for name in (cpu.get("governors") or {}).values() if name}
    seen = [f"the CPU governor is {name}" for name in sorted(governors - {"performance"})]
    seen += ["turbo is on"] * bool(cpu.get("turbo"))
    # The hosts of workers may have other settings.
    if seen and not is_elsewhere(run):
        yield Disturbance(
            " and ".join(seen),
            ": cores change their clock with load and heat, and times with it; sudo cpupower "
            "frequency-set -g performance, and turn turbo off in the BIOS or in "
            "/sys/devices/system/cpu",
        )
