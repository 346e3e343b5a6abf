"""Find slow pairs of workers, and what they have in common: a worker, its direction, or a link.

The logarithm of the time per byte from worker i to worker j is modelled as the sum of a typical
value, an effect of the sender i, an effect of the receiver j, and a rest for the link. The effects
are fitted by Tukey's median polish, on which a single slow link has no influence. A worker is slow
if its effects are outliers among those of the workers, and if most of its links are slow; a link is
slow if its rest is an outlier among the rests of all pairs. Most launches have to agree, two at
least if there are several.

The test for outliers is Rosner's for several outliers (generalised ESD): each value is only
compared with more ordinary ones, so that slow ones don't mask one another. The n values nearest to
the median have a mean and a spread ::

    s² = (sum((x - mean)²) + PRIOR_PAIRS * PRIOR_NOISE²) / (n - 1 + PRIOR_PAIRS)

and the next one, if it is higher, is an outlier if ::

    (x - mean) / s > sqrt(1 + 1 / n) * t(1 - ALPHA / (n + 1), n - 1 + PRIOR_PAIRS)

with t the quantile of Student's distribution, and if it is at least ``MIN_SLOWDOWN`` times the
median. All that are higher are outliers, too. The smallest such n above half of the values decides:
if half of them are slow, that is typical. Four or five values are a poor estimate of the spread,
and may agree well by chance. The spread is therefore moderated as in Smyth's t, by two further
values with the usual noise. docs/measurements.md gives the error rates with these constants.

Where the run has an expected rate of a class of links (``Manifest.expected_Bps``), a pair is slow,
too, if it takes ``MIN_SLOWDOWN`` times as long as expected, and a worker if most of its pairs do.
If most pairs do, that is one cause, and only outliers are named besides.

Sources: J. W. Tukey, Exploratory Data Analysis, Addison-Wesley 1977, chapter 11; B. Rosner,
Percentage Points for a Generalized ESD Many-Outlier Procedure, Technometrics 25 (1983) 165-172,
one-sided; G. K. Smyth, Linear Models and Empirical Bayes Methods for Assessing Differential
Expression in Microarray Experiments, Statistical Applications in Genetics and Molecular Biology 3
(2004) article 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy

from commbench.model import AGAIN, FETCHES
from commbench.stats import grouping
from commbench.stats.grouping import Array
from commbench.stats.inference import launches_interval
from commbench.stats.links import moved_workers, positions
from commbench.stats.selection import good_launches, in_suite_order

if TYPE_CHECKING:
    from commbench.analysis.run import Run

ALPHA = 0.02
PRIOR_NOISE = 0.15
PRIOR_PAIRS = 2
MIN_SLOWDOWN = 1.5
MIN_TRANSFERS = 3
"""One disturbed transfer spoils the median of fewer."""
MIN_PAIRS = 4
"""Among fewer pairs a test can't say which one is the exception."""
_ALIKE = 2.0
"""How many times as large or small as usual the transfers of a pair may be, on average."""
_MIN_WORKERS = 4
"""With fewer workers a slow worker can't be distinguished from slow links."""
_MOST = 0.75
"""The share of a slow worker's links that have at least half of its effect."""
_N_POLISHES = 10
_MEDIAN_ERROR = 1.2533
"""The ratio of the median's standard error to that of the mean for normal values: sqrt(π / 2)."""
ALONE, _, ROUNDS = FETCHES
_GROUP = ["case_id", "channel", "link"]
_NAMES = ["case_id", "workload", "backend", "channel", "link", "src", "dst", "q50_Bps"]
_ADDED = ["typical_Bps", "n_pairs", "slowdown", "kind", "cause", "factor", "low", "high", "level"]


def slow_pairs(run: Run, *, both_ways: bool = False) -> pd.DataFrame:
    """Return the slow pairs of ``run.pairs``, with the cause of each.

    Pairs with three transfers or more are compared with those of the same case, channel and class
    of link, or with the rate that the run expects of that class, but not those whose transfers have
    another size. Pairs with P2P batches are slow if their batches are, alone and together.
    Where rounds have measured all pairs, those that were measured alone, too, must be slow there,
    too: take ``MIN_SLOWDOWN`` times as long as expected, or as pairs of the class alone. (Where no
    other pair of the class was measured alone, it is as much faster than in rounds as the others.)
    Others had to share something in the round.

    Parameters
    ----------
    both_ways
        Whether the two directions between workers have the same measurements, which count once.

    Returns
    -------
    DataFrame
        The case's and pair's names, ``link``, the pair's ``q50_Bps``, the ``typical_Bps`` of the
        pairs that are not slow, or the expected rate, ``n_pairs`` compared, and ``slowdown`` =
        typical_Bps / q50_Bps. ``kind`` is ``"all"`` if most pairs are slower than expected,
        ``"worker"``, ``"sender"`` or ``"receiver"`` if all of a worker's pairs, or all in one
        direction, are slow, ``"link"`` for both directions between two workers, and
        ``"direction"`` for one; ``cause`` names it in words, with the host if all workers of that
        host are slow. ``factor`` is the median slowdown of the pairs with this cause, and ``low``
        and ``high`` the limits of its interval over the launches, with the probability ``level``;
        one launch has none. In the order of the suite's cases, the slowest cause first.
    """
    # Pairs of workers that were on other hosts in other launches are several links.
    good, moved = good_launches(run), moved_workers(run)
    tables = [
        table
        for (case_id, _, link), group in comparable(run).groupby(_GROUP, sort=False, observed=True)
        if str(case_id) not in moved
        if len(group) >= MIN_PAIRS or link in run.manifest.expected_Bps
        if len(table := _slow_in_group(group, run, both_ways, is_cut=str(case_id) not in good))
    ]
    if not tables:
        return pd.DataFrame(columns=[*_NAMES, *_ADDED])
    table = pd.concat(tables, ignore_index=True).astype(dict.fromkeys(_NAMES[:-1], "str"))
    table = table[_is_slow_again(table, run)]
    table = table.sort_values(["factor", "cause", "slowdown"], ascending=[False, True, False])
    return in_suite_order(table, run, ["channel"])


def comparable(run: Run) -> pd.DataFrame:
    """Return names and ``q50_Bps`` of the pairs that can be compared with others of their group.

    ``q50_Bps`` of pairs with P2P batches is that of all batches under way at a time, and a pair is
    as fast as its batches, each by itself or together, are in comparison with those of others.
    """
    known = run.pairs[[*_NAMES, "n", "n_untimed", "bytes", "busy_Bps"]]
    enough = known["n"] - known["n_untimed"] >= MIN_TRANSFERS
    known = known[(known["q50_Bps"] > 0) & enough]
    # Batches that share a link are slow, and a pair that has one at a time has less at a time.
    batches = known.loc[known["channel"] == "p2p", [*_GROUP, "q50_Bps", "busy_Bps"]]
    usual = batches.groupby(_GROUP, observed=True).transform("median")
    share = (batches[["q50_Bps", "busy_Bps"]] / usual).max(axis=1)
    rates = share * usual["busy_Bps"]
    known = known.assign(q50_Bps=rates.reindex(known.index).fillna(known["q50_Bps"]))
    known = without_repeats(known)
    # A small transfer is mostly latency, so that its rate is lower on the same link.
    size = known["bytes"] / known["n"]
    usual = size.groupby([known[name] for name in _GROUP], observed=True).transform("median")
    return known.loc[size.between(usual / _ALIKE, usual * _ALIKE), _NAMES]


def without_repeats(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return `pairs` without the few that were measured alone where rounds have measured all."""
    complete = pairs["case_id"][pairs["channel"] == ROUNDS]
    return pairs[(pairs["channel"] == ROUNDS) | ~pairs["case_id"].isin(complete)]


def _is_slow_again(table: pd.DataFrame, run: Run) -> pd.Series[bool]:
    """Return a mask of the rows whose cause is slow alone, too, or was not measured alone."""
    names = [*_GROUP, "src", "dst", "q50_Bps"]
    rates = run.pairs.loc[run.pairs["channel"].isin([ALONE, AGAIN, ROUNDS]), names]
    rates = rates.astype(dict.fromkeys(names[:-1], "str"))
    slow = pd.MultiIndex.from_frame(table.loc[table["kind"] != "all", ["case_id", "src", "dst"]])
    ordinary = ~pd.MultiIndex.from_frame(rates[["case_id", "src", "dst"]]).isin(slow)
    usual = rates[ordinary].groupby(["channel", "case_id", "link"])["q50_Bps"].median()
    alone, together = (usual[usual.index.get_level_values(0) == each] for each in (ALONE, ROUNDS))
    alone, together = alone.droplevel(0), together.droplevel(0)
    # Few pairs are measured alone in each iteration.
    alone = alone.reindex(together.index.union(alone.index))
    faster = (alone / together).groupby(level="case_id").transform("median")
    alone = alone.fillna(together * faster)
    again = rates[rates["channel"] == AGAIN].set_index(["case_id", "src", "dst"])["q50_Bps"]
    rows = table.join(alone.rename("alone"), ["case_id", "link"])
    rows = rows.join(again.rename("again"), ["case_id", "src", "dst"])
    expected = rows["link"].map(run.manifest.expected_Bps).astype(float)
    limit = rows["alone"].fillna(rows["typical_Bps"])
    limit = limit.mask(np.isclose(rows["typical_Bps"], expected), expected)
    slower = limit / rows["again"].mask(rows["kind"] == "all", rows["alone"])
    slower = slower.groupby([rows[name] for name in (*_GROUP, "cause")])
    is_slow: pd.Series[bool] = ~(slower.transform("median") < MIN_SLOWDOWN)
    return is_slow


def quickest_round_trips(run: Run) -> pd.DataFrame:
    """Return ``run.round_trips`` with the quickest one of each iteration and two workers.

    It counts for both directions: messages go both ways in each, and what else the ends do can only
    delay them.
    """
    trips = run.round_trips.astype({"src": "str", "dst": "str"})
    ends = np.sort(trips[["src", "dst"]].to_numpy(dtype=object), axis=1).T
    iteration = [trips[name] for name in ("case_id", "launch", "iteration")]
    quickest = trips.groupby([*iteration, *ends], observed=True)["seconds"].transform("min")
    trips = trips.assign(seconds=quickest)
    return trips.drop_duplicates(["case_id", "launch", "iteration", "src", "dst"])


def slow_latencies(run: Run) -> pd.DataFrame:
    """Return the ``slow_pairs`` of empty requests between hosts, by ``quickest_round_trips``.

    Returns
    -------
    DataFrame
        The columns of ``slow_pairs``, with ``q50_s`` and ``typical_s``, in seconds, for rates. All
        requests are compared with each other, not with an expectation.
    """
    complete = run.pairs["case_id"][run.pairs["channel"] == ROUNDS]
    if complete.empty or run.round_trips.empty:
        return pd.DataFrame(columns=[*_NAMES[:-1], "q50_s", "typical_s", *_ADDED[1:]])
    trips = quickest_round_trips(run)
    trips = trips[trips["case_id"].isin(complete)]
    # The time per byte of a transfer of one byte is its time.
    ones = trips.assign(
        channel=ROUNDS, nbytes=1, start_s=0.0, stop_s=trips["seconds"], queue_s=np.nan,
        handling_s=np.nan,
    )  # fmt: skip
    manifest = replace(run.manifest, min_transfer_bytes=1, expected_Bps={})
    table = slow_pairs(run.replace(manifest, transfers=ones), both_ways=True)
    times = {f"{name}_s": 1 / table.pop(f"{name}_Bps").astype(float) for name in ("q50", "typical")}
    return table.assign(**times)


def _slow_in_group(group: pd.DataFrame, run: Run, both_ways: bool, *, is_cut: bool) -> pd.DataFrame:
    """Return the rows of ``slow_pairs`` for the pairs of one case, channel and class of link."""
    ends = [group[end] for end in ("src", "dst")]
    workers = pd.Index(pd.unique(pd.concat(ends)).astype("str"))
    src, dst = (positions(end, workers) for end in ends)
    logs = -np.log(group["q50_Bps"].to_numpy())
    sends = receives = np.zeros(len(workers), dtype=bool)
    rest, slow = logs - np.median(logs), np.zeros(len(logs), dtype=bool)
    counts = np.ones(len(group), dtype=bool)
    if both_ways:
        counts = ~pd.DataFrame(np.sort([src, dst], axis=0).T).duplicated().to_numpy()
    if counts.sum() >= MIN_PAIRS:
        sends, receives, rest = slow_parts(src, dst, logs)
        slow = sends[src] | receives[dst] | outliers(rest, counts)
    typical = np.median(logs[~slow])
    common = below = np.zeros_like(slow)
    if expected_Bps := run.manifest.expected_Bps.get(str(group["link"].iloc[0])):  # noqa: N806
        expected = -np.log(expected_Bps)
        below = logs - expected >= np.log(MIN_SLOWDOWN)
        if 2 * below[~slow].sum() > (~slow).sum():
            common, below = ~slow, np.zeros_like(slow)
        else:
            # Those that are as fast as expected keep their slowdown against others.
            rest, slow = np.maximum(rest, logs - expected), slow | below
            sends, receives = (_mostly(slow, end, len(workers)) for end in (src, dst))
    if not (slow | common).any():
        return group.iloc[:0]
    by_launch = _logs_by_launch(group, run, src, dst, workers)
    ordinary = by_launch.loc[:, ~slow].median(axis="columns")
    n_launches = by_launch.notna().any(axis="columns").sum()
    hosts = _host_names(group, run, workers)
    # Those that are as fast as expected may still be slower than others.
    causes = [
        (*cause, expected if below[cause[2]].all() else None)
        for cause in _causes(sends, receives, src, dst, slow, rest, workers, hosts)
    ]
    if common.any():
        causes.append(
            ("all", f"of all {'other ' * bool(causes)}pairs", np.flatnonzero(common), expected)
        )
    tables = []
    for kind, cause, members, limit in causes:
        slower = by_launch[members].sub(ordinary if limit is None else limit, axis="index")
        # A launch may have transfers of slow pairs only.
        effects = slower.median(axis="columns").dropna().to_numpy()
        reference = typical if limit is None else limit
        factor = np.exp(np.median(effects if len(effects) else logs[members] - reference))
        # Of one of several launches, or of two that differ, the median is that of a hiccup.
        n_slow = (effects >= np.log(MIN_SLOWDOWN)).sum()
        if len(effects) < min(2, n_launches) or 2 * n_slow <= len(effects) > 0:
            continue
        low, high, level = launches_interval([] if is_cut else np.exp(effects).tolist())
        if factor < MIN_SLOWDOWN or low <= 1:
            continue
        typical_Bps = np.exp(-reference)  # noqa: N806 - the spelling of the unit
        table = group.iloc[members]
        table = table.assign(
            typical_Bps=typical_Bps, n_pairs=len(group),
            slowdown=typical_Bps / table["q50_Bps"], kind=kind, cause=cause,
            factor=factor, low=low, high=high, level=level or np.nan,
        )  # fmt: skip
        tables.append(table)
    return pd.concat(tables) if tables else group.iloc[:0]


def slow_parts(src: Array, dst: Array, logs: Array) -> tuple[Array, Array, Array]:
    """Return masks of slow senders and of slow receivers, and the remaining time of each pair.

    Parameters
    ----------
    src, dst
        The number of the sender and of the receiver of each pair, from 0; shape (n_pairs,).
    logs
        The logarithm of each pair's time per byte.

    Returns
    -------
    sends, receives
        Booleans, of shape (n_workers,).
    rest
        The logarithm of each pair's slowdown that slow workers don't explain, of shape (n_pairs,).

    Examples
    --------
    >>> src, dst = np.array([(i, j) for i in range(5) for j in range(5) if i != j]).T
    >>> logs = np.where(src == 2, 1.0, 0.0) + np.where((src == 0) & (dst == 1), 2.0, 0.0)
    >>> sends, receives, rest = slow_parts(src, dst, logs)
    >>> np.flatnonzero(sends), np.flatnonzero(receives), np.flatnonzero(outliers(rest))
    (array([2]), array([], dtype=int64), array([0]))
    """
    n_workers = int(max(src.max(), dst.max())) + 1
    sends = receives = np.zeros(n_workers, dtype=bool)
    fitted = np.full_like(logs, np.median(logs))
    if min(len(np.unique(src)), len(np.unique(dst))) >= _MIN_WORKERS:
        typical, sender, receiver = _polished(src, dst, logs, n_workers)
        both = outliers((sender + receiver) / 2)
        both &= 2 * np.minimum(sender, receiver) >= np.maximum(sender, receiver)
        rest = logs - typical
        error = rest - sender[src] - receiver[dst]
        error = error[~outliers(error)]
        noise = np.sqrt(np.sum(error**2) / max(1, len(error) - 2 * n_workers + 1))
        sends = (both | outliers(sender)) & _is_real(sender, src, rest, noise)
        receives = (both | outliers(receiver)) & _is_real(receiver, dst, rest, noise)
        fitted = typical + (sends * sender)[src] + (receives * receiver)[dst]
    return sends, receives, logs - fitted


def _mostly(slow: Array, worker: Array, n_workers: int) -> Array:
    """Return the workers with two pairs or more, most of which are slow; shape (n_workers,)."""
    n_pairs, n_slow = (np.bincount(worker, each, n_workers) for each in (None, slow))
    is_slow: Array = n_slow >= np.maximum(2, _MOST * n_pairs)
    return is_slow


def _polished(src: Array, dst: Array, logs: Array, n_workers: int) -> tuple[float, Array, Array]:
    """Return the typical value, the senders' and the receivers' effects, by median polish."""
    ends = [(end[order], order) for end in (src, dst) for order in [grouping.sort_order(end)]]
    effects = np.full((2, n_workers), np.nan)
    effects[1, dst] = 0.0
    for number in range(2 * _N_POLISHES):
        (group, order), other = ends[number % 2], (dst, src)[number % 2]
        values = (logs - effects[1 - number % 2][other])[order]
        effects[number % 2][np.unique(group)] = grouping.quantiles(values, group, [0.5])[0]
    middle = np.nanmedian(effects, axis=1)
    # A worker that never sends, or never receives, counts as ordinary.
    sender, receiver = np.nan_to_num(effects - middle[:, None])
    return float(middle.sum()), sender, receiver


def _is_real(effect: Array, worker: Array, rest: Array, noise: float) -> Array:
    """Return the workers whose effect is shown by most of their pairs, and is beyond their noise.

    Parameters
    ----------
    effect
        The effect of each worker, shape (n_workers,).
    worker, rest
        The worker of each pair, and its distance from the typical value; shape (n_pairs,).
    noise
        The standard deviation of pairs.
    """
    n_pairs = np.bincount(worker, minlength=len(effect))
    n_shown = np.bincount(worker, rest >= effect[worker] / 2, minlength=len(effect))
    error = _MEDIAN_ERROR * noise / np.sqrt(np.maximum(1, n_pairs))
    real: Array = n_shown >= np.maximum(2, _MOST * n_pairs)
    real &= effect > -scipy.special.ndtri(ALPHA / (2 * len(effect))) * error
    return real


def outliers(values: Array, counts: Array | None = None) -> Array:
    """Return a mask of the values, logarithms of times, that are too large for chance; shape (n,).

    Parameters
    ----------
    counts
        The values that are measurements; others repeat one. By default all are.
    """
    measured = values if counts is None else values[counts]
    middle = np.median(measured)
    ordered = measured - middle
    ordered = ordered[np.argsort(np.abs(ordered), kind="stable")]
    n = np.arange(len(ordered) // 2 + 1, len(ordered))
    n = n[ordered[n] >= np.log(MIN_SLOWDOWN)]
    mean, square = (np.cumsum(ordered**power)[n - 1] / n for power in (1, 2))
    squares = np.maximum(square - mean**2, 0) * n + PRIOR_PAIRS * PRIOR_NOISE**2
    freedom = n - 1 + PRIOR_PAIRS
    limit = -np.sqrt(1 + 1 / n) * scipy.special.stdtrit(freedom, ALPHA / (n + 1))
    far = (ordered[n] - mean) / np.sqrt(squares / freedom) > limit
    least = ordered[n[np.argmax(far)]] if far.any() else np.inf
    is_outlier: Array = values - middle >= least
    return is_outlier


def _logs_by_launch(
    group: pd.DataFrame, run: Run, src: Array, dst: Array, workers: pd.Index[str]
) -> pd.DataFrame:
    """Return the logarithm of each pair's time per byte in each launch.

    Shape (n_launches, n_pairs); nan where a launch has no transfer of the pair.
    """
    case_id, channel = group.iloc[0][["case_id", "channel"]]
    log, n = run.transfers, len(workers) + 1
    counts = run.counting & (log["stop_s"] > log["start_s"])
    counts &= (log["case_id"] == case_id) & (log["channel"] == channel)
    # Workers of other classes have the number 0.
    numbers = np.full(n * n, -1, dtype=np.int32)
    numbers[(src + 1) * n + dst + 1] = np.arange(len(group))
    launches = log["launch"].unique()
    logs = np.full((len(launches), len(group)), np.nan)
    for number, launch in enumerate(launches):
        rows = np.flatnonzero(counts & (log["launch"] == launch))
        sender, receiver = (positions(log[end].array[rows], workers) + 1 for end in ("src", "dst"))
        pair = numbers[sender * n + receiver]
        in_group = np.flatnonzero(pair >= 0)
        in_group = in_group[grouping.sort_order(pair[in_group])]
        rows, pair = rows[in_group], pair[in_group]
        del sender, receiver, in_group
        start_s, stop_s, nbytes = (
            log[name].to_numpy()[rows] for name in ("start_s", "stop_s", "nbytes")
        )
        del rows
        first = grouping.starts(pair)
        (values,) = grouping.quantiles(np.log((stop_s - start_s) / nbytes), pair, [0.5])
        if channel == "p2p" and len(first):
            busy_s = grouping.union_lengths(start_s, stop_s, pair)
            together = np.log(busy_s / np.add.reduceat(nbytes, first))
            usual, usual_together = np.median(values), np.median(together)
            values = np.minimum(values - usual, together - usual_together) + usual_together
        logs[number, pair[first]] = values
    return pd.DataFrame(logs)


def _causes(
    sends: Array,
    receives: Array,
    src: Array,
    dst: Array,
    slow: Array,
    rest: Array,
    workers: pd.Index[str],
    hosts: Array,
) -> Iterator[tuple[str, str, Array]]:
    """Yield the kind and the name of each cause, and the indices of the pairs that have it.

    A pair has one cause: that of its worker precedes that of its link.
    """
    left = slow.copy()
    for kind, flags, word in (
        ("worker", sends & receives, "from and to"),
        ("sender", sends & ~receives, "from"),
        ("receiver", receives & ~sends, "to"),
    ):
        for name, chosen in _named(flags, hosts, workers):
            members = left & (
                (chosen[src] & (kind != "receiver")) | (chosen[dst] & (kind != "sender"))
            )
            left &= ~members
            if members.any():
                yield kind, f"{word} {name}", np.flatnonzero(members)
    pairs = pd.Index(src * len(workers) + dst)
    for pair in np.flatnonzero(left):
        i, j = src[pair], dst[pair]
        (back,) = pairs.get_indexer([j * len(workers) + i])
        # A way back with half of the slowdown may be slow, too, and have missed the test by chance.
        if back < 0 or (not left[back] and rest[back] < rest[pair] / 2):
            ends = _ends(i, j, workers, hosts)
            yield "direction", "from worker {} to {}".format(*ends), np.array([pair])
        elif not left[back] or i < j:
            ends = _ends(min(i, j), max(i, j), workers, hosts)
            both = np.array([pair, back])
            yield "link", "between workers {} and {}".format(*ends), both[left[both]]


def _named(flags: Array, hosts: Array, workers: pd.Index[str]) -> Iterator[tuple[str, Array]]:
    """Yield the name and the members of each host whose workers have a flag, or of one worker."""
    for host in dict.fromkeys(hosts[flags]):
        members = hosts == host
        if host and members.sum() > 1 and flags[members].all():
            yield f"host {host}", members
            continue
        where = f" on {host}" if host and len(set(hosts)) > 1 else ""
        for i in np.flatnonzero(flags & members):
            yield f"worker {workers[i]}{where}", np.arange(len(flags)) == i


def _ends(i: int, j: int, workers: pd.Index[str], hosts: Array) -> Iterator[str]:
    """Yield the names of two workers, with their hosts if these differ."""
    for end in (i, j):
        is_apart = hosts[i] != hosts[j] and hosts[end]
        yield f"{workers[end]} on {hosts[end]}" if is_apart else workers[end]


def _host_names(group: pd.DataFrame, run: Run, workers: pd.Index[str]) -> Array:
    """Return the name of each worker's host; empty if it was not recorded or is not unique."""
    places = run.places[run.places["case_id"] == str(group["case_id"].iloc[0])]
    # A host that was rebooted has another id.
    ids = places.groupby(["launch", "host"])["host_id"].nunique().groupby("host").max()
    places = places[["worker", "host"]].drop_duplicates()
    unique = places["host"].map(ids) == 1
    unique &= places.groupby("worker")["host"].transform("size") == 1
    names = places["host"].where(unique, "").set_axis(places["worker"])
    hosts: Array = names[~names.index.duplicated()].reindex(workers).fillna("").to_numpy(object)
    return hosts
