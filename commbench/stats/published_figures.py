"""Compare a run with the published figure that its suite reproduces.

The run is reduced to the quantities that papers and posts print. Each published value is compared
with the same quantity of the run, and the reasons not to compare them are listed.
``docs/suites.md`` defines the quantities.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from commbench.model import LAYERS, Manifest, published
from commbench.model.published import Figure, Value
from commbench.model.units import format_message_size
from commbench.stats.inference import CONFIDENCE, launches_interval
from commbench.stats.layer_costs import pingpong_mode
from commbench.stats.links import n_hosts
from commbench.stats.selection import counted, good_launches, in_suite_order
from commbench.stats.worker_profile import worker_times

if TYPE_CHECKING:
    from commbench.analysis.run import Run
_QUANTITY_COLUMNS = [
    "case_id", "quantity", "workload", "backend", "setting", "device", "n_workers", "layer",
    "message_bytes", "low", "mid", "high",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PublishedComparison:
    """A published value and the run's value of the same quantity, or one of them alone.

    ``backend`` to ``n_workers`` describe the measurement (``backend`` with the settings that are
    varied; ``n_workers`` is 0 for a pair of processes, or if it is not a single number). ``here``
    lies between ``here_low`` and ``here_high``; all are nan if nothing was measured. For a ratio,
    ``here`` is the geometric mean over ``n_points`` numbers of workers or message sizes, and the
    limits are the smallest and the largest ratio. ``differences`` are the reasons not to compare
    the two values.
    """

    quantity: str
    unit: str
    workload: str
    backend: str
    layer: str
    device: str
    n_workers: int
    value: Value | None
    here: float = math.nan
    here_low: float = math.nan
    here_high: float = math.nan
    n_points: int = 0
    differences: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether both values are known and no difference but the hardware is."""
        return self.value is not None and not math.isnan(self.here) and not self.differences


def reproduced(run: Run) -> Figure | None:
    """Return the published figure that the run's suite reproduces, or None."""
    name = run.suite.reproduces
    return published.published_figure(name) if name in published.names() else None


def published_comparisons(run: Run) -> list[PublishedComparison]:
    """Compare the run with every value of the figure that its suite reproduces.

    Absolute values of backends that have no published value follow, without a ``value``.
    """
    figure = reproduced(run)
    if figure is None:
        return []
    table = measured_quantities(run, {v.quantity for v in figure.values})
    rows: list[PublishedComparison] = []
    shown: set[int] = set()
    for value in figure.values:
        if value.over:
            comparisons = list(_ratio_comparisons(run, figure, value, table))
        else:
            mine = _matching(value, table)
            shown |= set(mine.index)
            comparisons = [
                _alone(row, value, tuple(_differences(run, figure, value, row.device, row.layer)))
                for row in mine.itertuples()
            ]
        rows += comparisons or [_not_measured(value)]
    quantities_shown = {value.quantity for value in figure.values if not value.over}
    rest = table[table["quantity"].isin(quantities_shown) & ~table.index.isin(shown)]
    return rows + [_alone(row) for row in rest.itertuples()]


def machine(run: Manifest) -> str:
    """Describe the CPU of the machine that a run was measured on, and its GPUs if they were."""
    used = any(case.cluster.device == "gpu" for case in run.suite.cases)
    cpu, gpus = run.environment.get("cpu") or {}, (run.environment.get("gpus") or []) * used
    words = f"{cpu.get('model') or 'unknown CPU'}, {cpu.get('usable_cores') or '?'} cores"
    names = Counter(str(gpu.get("name")) for gpu in gpus)
    counted = [f"{count} × {name}" if count > 1 else name for name, count in names.items()]
    return ", ".join([words, *counted])


def ratios(table: pd.DataFrame, value: Value) -> pd.DataFrame:
    """Return how many times better ``value.backend`` is than ``value.over`` in this run.

    Returns
    -------
    DataFrame
        One row per workload, layer, device, setting, number of workers and message size for which
        both backends have a value above 0, with ``ratio``: below 1, ``value.backend`` is worse.
    """
    key = ["workload", "layer", "device", "setting", "n_workers", "message_bytes"]
    mine = _matching(value, table)
    base = table[(table["quantity"] == value.quantity) & (table["backend"] == value.over)]
    both = mine.merge(base[[*key, "mid"]], on=key, suffixes=("", "_over"))
    better, worse = both["mid"], both["mid_over"]
    if published.UNITS[value.quantity] == "s":
        better, worse = worse, better
    sound = (better > 0) & (worse > 0)
    return both[key].assign(ratio=better / worse)[sound]


def _matching(value: Value, table: pd.DataFrame) -> pd.DataFrame:
    keep = (table["quantity"] == value.quantity) & (table["backend"] == value.backend)
    if value.workload:
        keep &= table["workload"] == value.workload
    if value.workers:
        keep &= table["n_workers"].isin(value.workers)
    if value.message_bytes:
        keep &= table["message_bytes"].between(*value.message_bytes)
    return table[keep]


def _ratio_comparisons(
    run: Run, figure: Figure, value: Value, table: pd.DataFrame
) -> Iterator[PublishedComparison]:
    measured = ratios(table, value)
    for (workload, layer, device, setting), group in measured.groupby(
        ["workload", "layer", "device", "setting"], sort=False
    ):
        yield PublishedComparison(
            quantity=value.quantity, unit=value.unit, workload=workload,
            backend=f"{value.backend} {setting}".strip(), layer=layer, device=device, n_workers=0,
            value=value,
            here=math.exp(sum(map(math.log, group["ratio"])) / len(group)),
            here_low=float(group["ratio"].min()), here_high=float(group["ratio"].max()),
            n_points=len(group),
            differences=(
                *_differences(run, figure, value, device, layer), *_left_out(value, group),
            ),
        )  # fmt: skip


def _alone(
    row: Any, value: Value | None = None, differences: tuple[str, ...] = ()
) -> PublishedComparison:
    return PublishedComparison(
        quantity=row.quantity, unit=published.UNITS[row.quantity], workload=row.workload,
        backend=f"{row.backend} {row.setting}".strip(), layer=row.layer, device=row.device,
        n_workers=row.n_workers, value=value, here=row.mid, here_low=row.low, here_high=row.high,
        n_points=1, differences=differences,
    )  # fmt: skip


def _not_measured(value: Value) -> PublishedComparison:
    return PublishedComparison(
        quantity=value.quantity, unit=value.unit, workload=value.workload, backend=value.backend,
        layer="", device=value.device, n_workers=value.workers[0] if len(value.workers) == 1 else 0,
        value=value,
    )  # fmt: skip


def _differences(run: Run, figure: Figure, value: Value, device: str, layer: str) -> Iterator[str]:
    scale = run.suite.scale
    if scale < 1:
        yield f"{100 * scale:.3g} % of the size"
    if device != value.device:
        yield "memory of CPUs, not GPUs" if device == "cpu" else "memory of GPUs, not CPUs"
    if value.layer and layer != value.layer:
        yield f"layer {layer}, not {value.layer}"
    if device == "gpu" and any(case.cluster.workers_per_gpu > 1 for case in run.suite.cases):
        yield "processes share a GPU"
    is_spread = n_hosts(run) > 1
    if figure.across_hosts and not is_spread:
        yield "one host, not several"
    elif not figure.across_hosts and is_spread:
        yield "several hosts, not one"
    clusters = [c.cluster for c in run.suite.cases if run.kinds[c.id] == "cluster"]
    if layer == "workload" and any(each.task_placement == "pinned" for each in clusters):
        yield "tasks pinned, not placed by Dask"
    yield from figure.notes
    if value.note:
        yield value.note


def _left_out(value: Value, measured: pd.DataFrame) -> Iterator[str]:
    absent = sorted({*value.workers} - {*measured["n_workers"]})
    if absent:
        *first, last = map(str, absent)
        numbers = f"{', '.join(first)} and {last}" if first else last
        yield f"without {numbers} workers"
    if value.message_bytes:
        largest = int(measured["message_bytes"].max())
        if largest < value.message_bytes[1]:
            yield f"messages up to {format_message_size(largest)} only"


def measured_quantities(run: Run, wanted: Collection[str]) -> pd.DataFrame:
    """Return the `wanted` quantities, in s or B/s.

    Parameters
    ----------
    wanted
        Names in ``published.UNITS``.

    Returns
    -------
    DataFrame
        One row per quantity and case of which a launch ended well, for a ping-pong also per layer
        and ``message_bytes``, in the order of the suite. ``setting`` is empty if nothing but
        backends and numbers of workers is varied. ``message_bytes`` is 0 for other workloads,
        ``n_workers`` for a ping-pong. ``low``, ``mid`` and ``high`` are: for ``time``,
        ``throughput``, ``communication time``, ``transfer throughput``, ``latency`` and
        ``bandwidth`` the median and its interval, nan without one; for ``pair bandwidth`` the
        median of the medians of the ordered pairs (of those that NVLink joins, if it joins some),
        the smallest and the largest of them; for ``transfer time`` the median and the quartiles of
        single transfers.
    """
    rows, good = [], good_launches(run)
    for quantity in wanted:
        for case_id, layer, message_bytes, limits in _measured(quantity, run):
            if case_id not in good:
                continue
            case = run.cases[str(case_id)]
            n_workers = 0 if run.kinds[case.id] == "pair" else case.cluster.n_workers
            others = tuple(name for name in case.varied if name not in ("backend", "workers"))
            setting = replace(case, varied=others).variant
            what = (case.id, quantity, case.workload, case.backend, setting, case.cluster.device)
            rows.append((*what, n_workers, layer, message_bytes, *limits))
    table = pd.DataFrame(rows, columns=_QUANTITY_COLUMNS)
    return in_suite_order(table, run, ["quantity", "layer", "message_bytes"])


_Measured = tuple[Any, str, int, tuple[float, float, float]]
"""A case, layer and message size with the lower limit, the middle and the upper limit."""


def _measured(quantity: str, run: Run) -> Iterator[_Measured]:
    if quantity in ("time", "throughput", "latency", "bandwidth"):
        yield from _summarized(quantity, run)
    elif quantity == "pair bandwidth":
        medians = run.pairs[(run.pairs["channel"] == "gather") & run.pairs["q50_Bps"].notna()]
        for case_id, pairs in medians.groupby("case_id", observed=True):
            # Published are the pairs that NVLink joins; a DGX-1 has others, too.
            joined = pairs[pairs["link"].astype("str").str.startswith("NV")]
            speed = (pairs if joined.empty else joined)["q50_Bps"]
            yield case_id, "workload", 0, (speed.min(), speed.median(), speed.max())
    elif quantity == "transfer time":
        for case_id, seconds in _transfers(run).groupby("case_id")["seconds"]:
            yield case_id, "workload", 0, tuple(seconds.quantile([0.25, 0.5, 0.75]))
    elif quantity in ("communication time", "transfer throughput"):
        for case_id, medians in _launch_values(quantity, run).groupby(level="case_id"):
            low, high, level = launches_interval(medians.tolist())
            if level < CONFIDENCE:
                low = high = math.nan
            yield case_id, "workload", 0, (low, float(medians.median()), high)
    else:
        raise KeyError(quantity)


def _summarized(quantity: str, run: Run) -> Iterator[_Measured]:
    per_message, summaries = quantity in ("latency", "bandwidth"), run.summaries
    latency_cases = [case.id for case in run.suite.cases if pingpong_mode(case) == "latency"]
    keep = summaries["layer"] == "workload"
    if per_message:
        keep = summaries["layer"].isin(LAYERS) & summaries["case_id"].isin(latency_cases)
    keep &= summaries["median_s"] > 0
    for row in summaries[keep].itertuples():
        low, mid, high = row.ci_low_s, row.median_s, row.ci_high_s
        if row.confidence < CONFIDENCE:
            low = high = math.nan
        if quantity in ("throughput", "bandwidth"):
            low, mid, high = (
                row.payload_bytes / seconds if seconds else math.inf for seconds in (high, mid, low)
            )
        yield row.case_id, row.layer, row.payload_bytes if per_message else 0, (low, mid, high)


def _launch_values(quantity: str, run: Run) -> pd.Series[float]:
    """Return the communication time or the transfer throughput of each launch."""
    if quantity == "communication time":
        times = worker_times(run)
        receiving_s = (times["transfer_only_s"] + times["overlap_s"]).astype("float64")
        each = receiving_s.groupby([times["case_id"], times["launch"], times["iteration"]]).mean()
        return each.groupby(["case_id", "launch"]).median()
    log = _transfers(run)
    log = log[log["nbytes"] >= run.manifest.min_transfer_bytes]
    sums = log.groupby(["case_id", "launch"])[["nbytes", "seconds"]].sum()
    return sums["nbytes"] / sums["seconds"]


def _transfers(run: Run) -> pd.DataFrame:
    log = counted(run.transfers, run)
    # What was published is of fetches.
    log = log[log["channel"] != "p2p"]
    log = log[["launch", "nbytes"]].assign(
        case_id=log["case_id"].astype("str"), seconds=log["stop_s"] - log["start_s"]
    )
    return log[log["seconds"] > 0]
