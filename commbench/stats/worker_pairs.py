"""Bandwidth of every ordered pair of workers, and how much of the traffic that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commbench.machine.topology.workers import rank
from commbench.stats import grouping
from commbench.stats.grouping import Array
from commbench.stats.inference import median_interval
from commbench.stats.links import link_classes
from commbench.stats.selection import counted, counts, good_launches, in_suite_order

if TYPE_CHECKING:
    from commbench.analysis.run import Run

_PAIR = ("case_id", "channel", "src", "dst")
_TIMED = ("nbytes", "start_s", "stop_s")
_PHASES = ("queue_s", "wire_s", "handling_s")
_CLASS_NAMES = ["case_id", "workload", "backend", "channel", "link"]
_COVERAGE = (
    "case_id", "workload", "backend", "logged_bytes", "p2p_bytes", "wire_bytes", "coverage",
    "self_bytes", "loopback_bytes", "n_logged", "n_started", "n_busy", "n_failed", "n_in_flight",
    "n_lost",
)  # fmt: skip


@dataclass(frozen=True)
class PairBandwidths:
    """The bandwidths of pairs, and those of the transfers behind them.

    Attributes
    ----------
    table
        One row per case, channel, source and destination: ``n`` transfers, their ``bytes``; the
        quantiles ``q25_Bps``, ``q50_Bps``, ``q75_Bps`` of bytes / duration over single transfers,
        of fewer than four the median only;
        ``low_Bps`` and ``high_Bps``, the interval of the launches' medians, with its ``confidence``
        (0 and nan for a single launch, and if no launch of the case ended well);
        ``mean_Bps`` = Σ bytes / Σ duration; ``busy_Bps`` = Σ bytes / time in which at least one
        transfer of the pair was under way; ``concurrency`` = Σ duration / that time. ``n_untimed``
        transfers had no positive duration and are in no bandwidth. ``queue_s``, ``wire_s`` and
        ``handling_s`` are the medians over the batches of P2P shuffles, nan for other channels.
        ``link`` is the class of the pair's link. Texts are categoricals.
    single_Bps
        The bandwidth of each transfer that counts, pair after pair in the order of the table; nan
        for a transfer without a duration.
    """

    table: pd.DataFrame
    single_Bps: Array  # noqa: N815 - the spelling of the unit


def pair_bandwidths(run: Run) -> PairBandwidths:
    """Return the bandwidth of every ordered pair of workers, from the transfer logs.

    Only transfers of at least the run's ``least_bytes`` of their channel in measured iterations
    count, because the duration of a small one is latency. Of the sizes of all-to-all, only the
    largest counts.
    """
    # Ten million rows of all columns would take a gigabyte.
    rows = np.flatnonzero(run.counting)
    log = run.transfers[[*_PAIR]].iloc[rows].astype("category")
    workers = log["src"].cat.categories.union(log["dst"].cat.categories)
    # The order in which reports show pairs.
    names = {
        "case_id": pd.Index([case.id for case in run.suite.cases]),
        "channel": log["channel"].cat.categories.sort_values(),
        "src": workers,
        "dst": workers,
    }
    pair = np.zeros(len(log), dtype=np.int64)
    for name, texts in names.items():
        pair *= len(texts)
        pair += log[name].cat.set_categories(texts).cat.codes.to_numpy()
    # Launches may have different clocks, so intervals of different launches are not merged.
    launches, launch = np.unique(run.transfers["launch"].to_numpy()[rows], return_inverse=True)
    window = pair * max(1, len(launches)) + launch
    order = grouping.sort_order(window)
    rows, pair, window = rows[order], pair[order], window[order]
    is_batch = (log["channel"] == "p2p").to_numpy()[order]
    batches, batch_pair = rows[is_batch], pair[is_batch]
    timed = [run.transfers[name].to_numpy()[rows] for name in _TIMED]
    del log, launch, order, rows
    measured, single_Bps = _measured(pair, window, timed)  # noqa: N806 - the spelling of the unit
    phases = _phases(run.transfers.iloc[batches], batch_pair, measured["pair"])
    pair = measured.pop("pair")
    columns: dict[str, Any] = {}
    for name, texts in reversed(names.items()):
        pair, code = np.divmod(pair, max(1, len(texts)))
        columns[name] = pd.Categorical.from_codes(code, texts)
    case_id = pd.Series(columns.pop("case_id"))
    texts = {
        "case_id": case_id,
        **run.case_columns(case_id),
        **{name: columns[name] for name in _PAIR[1:]},
    }
    table = pd.DataFrame(texts | measured | phases, copy=False)
    # Launches that were cut short have no interval.
    is_cut = ~table["case_id"].isin(good_launches(run))
    table.loc[is_cut, ["low_Bps", "high_Bps", "confidence"]] = (np.nan, np.nan, 0.0)
    return PairBandwidths(table.assign(link=link_classes(table, run)), single_Bps)


def _measured(pair: Array, window: Array, timed: list[Array]) -> tuple[dict[str, Array], Array]:
    """Return the columns of the table, by pair number, and the bandwidth of each transfer.

    Parameters
    ----------
    pair, window
        The number of each transfer's pair, and of its pair and launch; both in ascending order.
    timed
        The size, the start and the stop of each transfer, which are taken from the list.
    """
    stop_s, start_s, nbytes = timed.pop(), timed.pop(), timed.pop()
    first = grouping.starts(pair)
    # The pair of each launch with transfers of that pair.
    launches = pair[grouping.starts(window)]
    busy_s = grouping.union_lengths(start_s, stop_s, window)
    busy_s = np.add.reduceat(busy_s, grouping.starts(launches))
    seconds = stop_s - start_s
    del stop_s, start_s
    is_timed = seconds > 0
    seconds[~is_timed] = 0
    single_Bps = np.full(len(nbytes), np.nan)  # noqa: N806 - the spelling of the unit
    np.divide(nbytes, seconds, out=single_Bps, where=is_timed)
    (medians,) = grouping.quantiles(single_Bps, window, [0.5])
    n = np.diff(first, append=len(nbytes))
    n_timed = np.add.reduceat(is_timed, first, dtype=int)
    timed_bytes = np.add.reduceat(nbytes * is_timed, first)
    total_s = np.add.reduceat(seconds, first)
    # If no transfer was timed, the bandwidth is unknown: neither 0 nor infinite.
    total_s, busy_s = (np.where(length > 0, length, np.nan) for length in (total_s, busy_s))
    return {
        "pair": pair[first],
        "n": n,
        "bytes": np.add.reduceat(nbytes, first),
        **_quartiles(single_Bps, pair, n_timed),
        **_intervals(medians, launches),
        "mean_Bps": timed_bytes / total_s,
        "busy_Bps": timed_bytes / busy_s,
        "concurrency": total_s / busy_s,
        "n_untimed": n - n_timed,
    }, single_Bps


def _quartiles(single_Bps: Array, group: Array, n_timed: Array) -> dict[str, Array]:  # noqa: N803
    """Return the median of each group, and the quartiles of those with enough timed transfers."""
    shares = [0.25, 0.5, 0.75]
    quartiles = grouping.quantiles(single_Bps, group, shares)
    quartiles[~grouping.are_within(shares, n_timed)] = np.nan
    return dict(zip(("q25_Bps", "q50_Bps", "q75_Bps"), quartiles, strict=True))


def _phases(batches: pd.DataFrame, pair: Array, pairs: Array) -> dict[str, Array]:
    """Return the medians of the parts of a batch's time for each of `pairs`, else nan."""
    batches = batches.assign(wire_s=batches["stop_s"] - batches["start_s"])
    medians = {name: np.full(len(pairs), np.nan) for name in _PHASES}
    if len(batches):
        which = np.searchsorted(pairs, pair[grouping.starts(pair)])
        for name, column in medians.items():
            (column[which],) = grouping.quantiles(batches[name].to_numpy(), pair, [0.5])
    return medians


def _intervals(medians_Bps: Array, pair: Array) -> dict[str, Array]:  # noqa: N803
    """Return the ``median_interval`` of each pair's launches, which have these medians."""
    first = grouping.starts(pair)
    ordered = grouping.sorted_within(medians_Bps, pair)
    n_launches = np.add.reduceat(~np.isnan(medians_Bps), first, dtype=int)
    distinct, which = np.unique(n_launches, return_inverse=True)
    ranks, levels = np.array([median_interval(int(n)) for n in distinct]).reshape(-1, 2).T
    k, confidence = ranks[which].astype(int), levels[which]
    limits = {"low_Bps": first + k - 1, "high_Bps": first + n_launches - k}
    known = confidence > 0
    return {
        name: np.where(known, ordered[np.where(known, rank, first)], np.nan)
        for name, rank in limits.items()
    } | {"confidence": confidence}


def counting(run: Run) -> Array:
    """Return a mask of the transfers that count for the bandwidth of pairs."""
    log = run.transfers
    manifest, batches = run.manifest, log["channel"] == "p2p"
    large = log["nbytes"] >= manifest.least_bytes("gather")
    keep = counts(log, run) & large.mask(batches, log["nbytes"] >= manifest.least_bytes("p2p"))
    swept = ~batches & (log["channel"] != "gather")
    if swept.any():
        sizes = log["nbytes"][swept].groupby(log["case_id"][swept], observed=True)
        keep &= ~swept | (log["nbytes"] >= sizes.transform("max").reindex(log.index))
    which: Array = keep.to_numpy(dtype=bool)
    return which


def moved_bytes(run: Run) -> pd.Series[float]:
    """Return the serialized bytes that an iteration moved between workers, per case: the mean.

    Only iterations with a sample that counts. Cases without a cluster of workers, or whose bytes
    were not counted because workers share a process, are not included.
    """
    iteration, samples = ["case_id", "launch", "iteration"], run.timed
    samples = samples[samples["layer"] == "workload"]
    between = run.wire[(run.wire["src"] != run.wire["dst"]) & (run.wire["dst"] != "")]
    between = between.merge(samples[iteration].drop_duplicates(), on=iteration)
    moved = between.groupby("case_id", observed=True)["nbytes"].sum()
    covered = run.coverage["case_id"]
    moved = moved.reindex(pd.Index(covered[covered.isin(run.wire["case_id"])]), fill_value=0)
    return (moved / samples.groupby("case_id").size()).dropna()


def seconds_per_byte(run: Run) -> pd.Series[float]:
    """Return the time of a serialized byte if transfers came one after another, per case."""
    log = counted(run.transfers[["case_id", "launch", "iteration", *_TIMED]], run)
    log = log.assign(seconds=log["stop_s"] - log["start_s"])
    log = log[log["seconds"] > 0]
    sums = log.groupby("case_id", observed=True)[["seconds", "nbytes"]].sum()
    # The log has sizes in memory, of which compression leaves a part on the wire.
    in_memory = run.coverage.set_index("case_id")["coverage"].clip(lower=1)
    return sums["seconds"] / sums["nbytes"] * in_memory.reindex(sums.index).fillna(1)


def coverage(run: Run) -> pd.DataFrame:
    """Return how much of the traffic between workers the transfer logs contain, per case.

    Returns
    -------
    DataFrame
        ``logged_bytes`` (in memory), of which ``p2p_bytes`` in batches of P2P shuffles, and
        ``wire_bytes`` (serialized, counted by the comms, between different workers; nan if workers
        share a process),
        ``coverage`` = logged / wire, ``self_bytes`` that workers sent to
        themselves over a comm, ``loopback_bytes`` that the kernel counted on ``lo`` in that time
        (nan if it was not asked); ``n_started`` fetches, of which ``n_logged``, ``n_busy``
        (postponed by a busy sender), ``n_failed``, ``n_in_flight``, and ``n_lost``, the remainder.
        Complete measured iterations; cases without any of these records have no row.
    """
    iteration = ["case_id", "launch", "iteration"]
    log = counted(run.transfers[[*iteration, "channel", "nbytes"]], run)
    batches = log["channel"] == "p2p"
    log = log.assign(p2p_bytes=log["nbytes"].where(batches, 0), fetched=~batches)
    logged = log.groupby(iteration, observed=True)[["nbytes", "p2p_bytes", "fetched"]].sum()
    # An iteration that was cut short has logs of its first fetches, and no counts.
    complete = pd.MultiIndex.from_frame(run.log_counts[iteration].drop_duplicates())
    uncounted = ~logged.index.isin(complete.levels[0], level="case_id")
    logged = logged[uncounted | logged.index.isin(complete)]
    logged = logged.groupby(level="case_id", observed=True).sum()
    tables = [counted(table, run) for table in (run.wire, run.log_counts, run.network)]
    rows = []
    for case in run.suite.cases:
        wire, fetches, network = (table[table.case_id == case.id] for table in tables)
        seen = case.id in logged.index
        logged_bytes, p2p_bytes, n_logged = map(int, logged.loc[case.id] if seen else (0, 0, 0))
        if wire.empty and fetches.empty and not seen:
            continue
        to_itself = wire.src == wire.dst
        wire_bytes, self_bytes = (
            math.nan if wire.empty else int(wire[which].nbytes.sum())
            for which in (~to_itself & (wire.dst != ""), to_itself)
        )
        ends = fetches[["n_busy", "n_failed", "n_in_flight"]].sum().astype(int)
        n_started = int(fetches["n_started"].sum())
        share = logged_bytes / wire_bytes if wire_bytes else math.nan
        on_lo = int(network[network.interface == "lo"].nbytes.sum()) if len(network) else math.nan
        n_lost = n_started - int(ends.sum()) - n_logged
        names = (case.id, case.workload, case.variant)
        nbytes = (logged_bytes, p2p_bytes, wire_bytes, share, self_bytes, on_lo)
        rows.append((*names, *nbytes, n_logged, n_started, *ends, n_lost))
    return pd.DataFrame(rows, columns=list(_COVERAGE))


def shuffles(run: Run) -> pd.DataFrame:
    """Return the bytes of each P2P shuffle between different workers, and the parts of its time.

    Returns
    -------
    DataFrame
        One row per case and shuffle, in the order of their begin: ``n`` batches in measured
        iterations and their ``bytes``, the medians ``queue_s``, ``wire_s`` and ``handling_s``, and
        ``busy_Bps`` = bytes over the time in which a batch was on the wire.
    """
    log = run.transfers
    log = counted(log[log["channel"] == "p2p"], run)
    log = log.assign(wire_s=log["stop_s"] - log["start_s"])
    key = ["case_id", "workload", "backend", "shuffle"]
    by_shuffle = log.sort_values("start_s").groupby(key, sort=False, observed=True)
    table = by_shuffle.agg(
        n=("nbytes", "size"), bytes=("nbytes", "sum"),
        **{name: (name, "median") for name in _PHASES},
    )  # fmt: skip
    # Names recur in other iterations and launches.
    window = log.groupby([*key, "launch", "iteration"], observed=True).ngroup().to_numpy()
    order = grouping.sort_order(window)
    window, (start_s, stop_s) = window[order], log[["start_s", "stop_s"]].to_numpy()[order].T
    first = log.iloc[order[grouping.starts(window)]][key]
    busy_s = first.assign(busy_s=grouping.union_lengths(start_s, stop_s, window))
    busy_s = busy_s.groupby(key, observed=True)["busy_s"].sum()
    table["busy_Bps"] = table["bytes"] / busy_s.where(busy_s > 0)
    return in_suite_order(table.reset_index().astype(dict.fromkeys(key, "str")), run)


def link_bandwidths(run: Run) -> pd.DataFrame:
    """Return the bandwidth of every class of links, from the transfers of its pairs.

    Returns
    -------
    DataFrame
        One row per case, channel and class, from the nearest to the farthest: ``n_pairs``, their
        ``n`` transfers and ``bytes``, and the quantiles ``q25_Bps``, ``q50_Bps``, ``q75_Bps`` of
        bytes / duration over the single transfers of all pairs, as of pairs. ``slowest_Bps`` and
        ``fastest_Bps`` are the smallest and the largest of the pairs' medians.
    """
    bandwidths, key = run.pair_bandwidths, ["case_id", "channel", "link"]
    by_class = bandwidths.table.groupby(key, sort=False, observed=True)
    table = by_class.agg(
        workload=("workload", "first"),
        backend=("backend", "first"),
        n_pairs=("n", "size"),
        n=("n", "sum"),
        bytes=("bytes", "sum"),
        slowest_Bps=("q50_Bps", "min"),
        fastest_Bps=("q50_Bps", "max"),
    ).reset_index()
    classes = np.repeat(by_class.ngroup().to_numpy(dtype=np.int32), bandwidths.table["n"])
    order = grouping.sort_order(classes)
    classes, single_Bps = classes[order], bandwidths.single_Bps[order]  # noqa: N806 - the unit
    del order
    n_timed = table["n"] - by_class["n_untimed"].sum().to_numpy()
    table = table.assign(**_quartiles(single_Bps, classes, n_timed.to_numpy()))
    table = table[[*_CLASS_NAMES, *table.columns.drop(_CLASS_NAMES)]]
    nearest_first = sorted(range(len(table)), key=lambda row: rank(table["link"].iloc[row]))
    return in_suite_order(table.iloc[nearest_first], run, ["channel"])
