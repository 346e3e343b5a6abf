"""Tables of pairs and classes of links: bandwidths, coverage of the logs, and transports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from commbench.analysis.run import Run
from commbench.machine.topology.workers import UNKNOWN
from commbench.model import AGAIN, FETCHES
from commbench.model.units import format_bytes
from commbench.reports.sections import (
    CHANNELS,
    REST,
    Quantity,
    Section,
    Table,
    interval_title,
    labels,
    number,
    percent,
    plural,
    quantities,
    some,
)
from commbench.stats import MIN_LAUNCHES
from commbench.stats.links import moved_workers
from commbench.stats.selection import counts
from commbench.stats.stragglers import (
    ALONE,
    MIN_PAIRS,
    MIN_SLOWDOWN,
    MIN_TRANSFERS,
    ROUNDS,
    comparable,
    without_repeats,
)

if TYPE_CHECKING:
    import pandas as pd

    from commbench.reports.html.pair_matrix import Block

_MAX_OPENING = 6
"""The maximum backends of which the opening shows the transports."""
_MAX_PAIRS = 24
"""The maximum rows of a table of pairs that can't be sorted."""
_OVERLAP = 1.05
"""The average number of fetches under way from which the table shows it."""
_PHASES = (
    "queue: the oldest shard's wait at the sender; handling: at the receiver, until the sender is "
    "answered; medians."
)
_MAX_PAIRS_ON_PAGE = 250
"""The maximum rows of a sortable table, which still prints on a few pages."""


def tables(run: Run, max_pairs: int = _MAX_PAIRS) -> Iterator[Table]:
    """Yield the tables that the run has data for, the slow pairs first.

    If there are more than `max_pairs` pairs of workers, only the slowest are shown, with a note.
    """
    if len(run.slow_pairs):
        yield _slow_pair_table(run, max_pairs)
    n_classes = run.pairs.groupby(["case_id", "channel"], observed=True)["link"].nunique()
    if (n_classes > 1).any():
        for channel, links in run.link_bandwidths.groupby("channel", sort=False, observed=True):
            yield _class_table(run, str(channel), links)
    for channel, pairs in run.pairs.groupby("channel", sort=False, observed=True):
        yield _pair_table(run, str(channel), pairs, max_pairs)
    if len(run.shuffles):
        yield _shuffle_table(run, max_pairs)
    if len(run.coverage):
        yield _coverage_table(run)
    if len(run.pair_transports):
        yield _transport_table(run)


def _slow_pair_table(run: Run, most: int) -> Table:
    causes = run.slow_pairs.groupby(["case_id", "channel", "link", "cause"], sort=False)
    slow = causes.first().reset_index()
    slow = slow.assign(n=causes.size().to_numpy(), q50_Bps=causes["q50_Bps"].median().to_numpy())
    cut = f" The first {most} of {len(slow)}. {REST}" if len(slow) > most else ""
    slow = slow.head(most)
    return Table.from_columns(
        "Slow pairs of workers",
        {
            "backend": labels(run, slow),
            "slow are transfers": slow.cause,
            "when": slow.channel.map(lambda channel: FETCHES.get(channel, channel)),
            "link": slow.link,
            "pairs": quantities(str, slow.n),
            "GB/s": map(number, slow.q50_Bps / 1e9),
            "ordinary or\nexpected GB/s": map(number, slow.typical_Bps / 1e9),
            "times\nas long": quantities("{:.1f}".format, slow.factor),
            "interval": [
                f"{low:.1f}…{high:.1f} ({level:.0%})" if level >= 0 else "—"
                for low, high, level in zip(slow.low, slow.high, slow.level, strict=True)
            ],
        },
        f"What takes at least {MIN_SLOWDOWN:g} times as long as ordinary pairs of the same case "
        "and kind of link, or as --expect says, in most launches: workers whose effect in a median "
        "polish is an outlier by Rosner's test, and other pairs that are outliers. Interval: over "
        "the launches." + cut,
        {"slow are transfers", "when", "link"},
    )


def _quartiles(table: pd.DataFrame) -> dict[str, Iterable[str]]:
    return {
        "25 %\nGB/s": map(number, table.q25_Bps / 1e9),
        "median\nGB/s": map(number, table.q50_Bps / 1e9),
        "75 %\nGB/s": map(number, table.q75_Bps / 1e9),
    }


def _channel(run: Run, channel: str) -> tuple[str, str]:
    """Return the end of the titles of a channel's tables, and the source of their numbers."""
    when, source = CHANNELS.get(channel, (f", {channel}", "Of that channel"))
    return f"{when} (transfers ≥ {format_bytes(run.manifest.least_bytes(channel))})", source


def _milliseconds(table: pd.DataFrame, names: Iterable[str]) -> dict[str, Iterable[str]]:
    """Return the columns of the parts of a batch's time."""
    return {f"{name}\nms": map(number, table[f"{name}_s"] * 1e3) for name in names}


def _class_table(run: Run, channel: str, links: pd.DataFrame) -> Table:
    which, source = _channel(run, channel)
    return Table.from_columns(
        f"Bandwidth per class of link{which}",
        {
            "backend": labels(run, links),
            "link": links.link,
            "pairs": quantities(str, links.n_pairs),
            "n": quantities(str, links.n),
            "bytes": quantities(format_bytes, links.bytes),
            **_quartiles(links),
            "slowest\npair": map(number, links.slowest_Bps / 1e9),
            "fastest\npair": map(number, links.fastest_Bps / 1e9),
        },
        f"{source}. Quantiles over single {'batches' if channel == 'p2p' else 'fetches'}, of all "
        "pairs of a class; slowest, fastest pair: their medians, in GB/s.",
        {"link"},
    )


def _pair_table(run: Run, channel: str, pairs: pd.DataFrame, most: int) -> Table:
    rank = pairs.groupby("case_id", observed=True)["q50_Bps"].rank(method="first")
    n_cases = len(pairs["case_id"].unique())
    each = max(1, most // n_cases)
    shown = pairs[rank <= each].sort_values("q50_Bps") if len(pairs) > most else pairs
    slowest = f"The {each} slowest of {len(pairs)} pairs"
    if n_cases > 1:
        slowest = f"The {each} slowest pairs of each case, of {len(pairs)} in all"
    cut = f" {slowest}. {REST}" if len(pairs) > most else ""
    cut += "".join(f" {text}" for text in _missing_pairs(run, channel, pairs))
    classes = {*pairs["link"].unique()}
    if len(classes) == 1 and UNKNOWN not in classes:
        cut += f" Class of all links: {min(classes)}."
    which, source = _channel(run, channel)
    interval = _interval(shown)
    overlap = bool((shown["concurrency"] >= _OVERLAP).any())
    by_p2p = channel == "p2p"
    numbers = {"median\nGB/s": map(number, shown.q50_Bps / 1e9)} if by_p2p else _quartiles(shown)
    numbers |= {
        **interval,
        "busy\nGB/s": map(number, shown.busy_Bps / 1e9),
        **({"at\nonce": quantities("{:.1f}".format, shown.concurrency)} if overlap else {}),
        **(_milliseconds(shown, ("queue", "handling")) if by_p2p else {}),
    }
    noun = "batch" if by_p2p else "fetch"
    meaning = (
        "batch, from the queue to the answer, without the receiver's handling"
        if by_p2p
        else "fetch, from request to deserialized data"
    )
    return Table.from_columns(
        f"Bandwidth per pair of workers{which}",
        {
            "backend": labels(run, shown),
            "src → dst": shown.src.str.cat(shown.dst, " → "),
            **({"link": shown.link} if len(classes) > 1 else {}),
            "n": quantities(str, shown.n),
            "bytes": quantities(format_bytes, shown.bytes),
            **numbers,
        },
        f"{source}: one {meaning}. "
        + "Interval: over the launches' medians. " * bool(interval)
        + f"busy: Σ bytes over the time in which the pair had a {noun} under way"
        + "; at once: how many, on average" * overlap
        + "."
        + f" {_PHASES}" * by_p2p
        + cut,
        {"src → dst", "link"},
    )


def _interval(pairs: pd.DataFrame) -> dict[str, Iterable[str]]:
    """Return the column of the intervals of medians, if a pair has one."""
    levels = pairs["confidence"][pairs["confidence"] > 0]
    if levels.empty:
        return {}
    limits = zip(pairs.low_Bps / 1e9, pairs.high_Bps / 1e9, strict=True)
    return {
        interval_title(levels): [
            "—" if math.isnan(low) else Quantity(f"{number(low)}…{number(high)}", low)
            for low, high in limits
        ]
    }


def _missing_pairs(run: Run, channel: str, pairs: pd.DataFrame) -> Iterator[str]:
    # Rounds measure some pairs alone, and those again that are slow.
    by_choice = {*run.pairs.loc[run.pairs["channel"] == ROUNDS, "case_id"]}
    n_seen = pairs.groupby("case_id", observed=True).size()
    log, every = run.transfers, run.pairs
    for case in run.suite.cases:
        seen = every[every["case_id"] == case.id]
        # Workers may join the cluster of a user's code, and one per host takes part in rounds.
        n_workers = len({*seen["src"].unique(), *seen["dst"].unique()})
        if case.id not in by_choice:
            n_workers = max(n_workers, case.cluster.n_workers)
        n_pairs = n_workers * (n_workers - 1)
        n_missing = n_pairs - int(n_seen.get(case.id, 0))
        if n_missing == n_pairs and len(seen):
            # Tasks of a P2P shuffle, for example, fetch only what is small.
            continue
        if channel != ROUNDS and case.id in by_choice:
            continue
        if n_missing and ((log["case_id"] == case.id) & (log["channel"] == channel)).any():
            yield f"{case.workload} {case.variant}: {n_missing} of {n_pairs} pairs had none."


def _shuffle_table(run: Run, most: int) -> Table:
    table = run.shuffles
    cut = f" The {most} largest of {len(table)}. {REST}" if len(table) > most else ""
    table = table.loc[table["bytes"].nlargest(most).index.sort_values()]
    return Table.from_columns(
        "P2P shuffles",
        {
            "backend": labels(run, table),
            # Tasks are named shuffle-transfer-TOKEN, with 32 digits.
            "shuffle": table["shuffle"].str.replace(r"-transfer(-\w{6})\w{26}$", r"\1", regex=True),
            "n": quantities(str, table.n),
            "bytes": quantities(format_bytes, table.bytes),
            "busy\nGB/s": map(number, table.busy_Bps / 1e9),
            **_milliseconds(table, ("queue", "wire", "handling")),
        },
        "Sums over the measured iterations of all launches. "
        "All batches to other workers, also of attempts that were repeated; those of workers that "
        "have left are missing. busy: bytes over the time in which a batch was on the wire. "
        + _PHASES
        + cut,
        {"shuffle"},
    )


def _coverage_table(run: Run) -> Table:
    table = run.coverage
    by_p2p = bool(table["p2p_bytes"].any())
    return Table.from_columns(
        "Coverage: what the transfer logs saw of the traffic between workers",
        {
            "backend": labels(run, table),
            "logged": quantities(format_bytes, table.logged_bytes),
            **({"by P2P": quantities(format_bytes, table.p2p_bytes)} if by_p2p else {}),
            "on the\nwire": quantities(format_bytes, table.wire_bytes),
            "cover-\nage": quantities(percent, table.coverage),
            "to self": quantities(format_bytes, table.self_bytes),
            "on lo": quantities(format_bytes, table.loopback_bytes),
            "fetches": quantities(str, table.n_started),
            "re-\nfused": quantities(str, table.n_busy + table.n_failed),
            "lost": quantities(str, table.n_lost),
        },
        "Sums over the measured iterations. on the wire: serialized bytes that workers wrote to "
        "each other's comms; to self: to their own; on lo: what the kernel counted on the loopback "
        "interface meanwhile, all processes; fetches: transfer_incoming_count_total; refused: by "
        "a busy sender, or failed; lost: neither logged nor refused.",
    )


def _transport_table(run: Run) -> Table:
    used = run.pair_transports.groupby(["case_id", "transport"], sort=False, observed=True)
    first = used.head(1)
    pairs = (sorted({*zip(group.src, group.dst, strict=True)}) for _, group in used)
    return Table.from_columns(
        "Transport really used",
        {
            "backend": labels(run, first),
            "transport": (str(transport) or "unknown" for transport in first.transport),
            "src→dst": (some(["→".join(pair) for pair in group], 6) for group in pairs),
            "evidence": first.evidence,
        },
        text_columns={"transport", "src→dst", "evidence"},
    )


def opening(run: Run) -> Iterator[str]:
    """Yield the transports that were really used."""
    used = run.pair_transports.drop_duplicates(["backend", "transport"])
    order = [*dict.fromkeys(case.variant for case in run.suite.cases)]
    texts = {
        str(backend): " and ".join(str(name) or "unknown" for name in rows["transport"])
        + " ✗" * bool((rows["contradiction"] != "").any())
        for backend, rows in used.groupby("backend", sort=False, observed=True)
    }
    if texts:
        ways = [f"{name} over {texts[name]}" for name in order if name in texts]
        odd = " (✗: unexpected)" * any("✗" in way for way in ways)
        yield f"Which way the bytes went{odd}: {some(ways, _MAX_OPENING)}"


def no_slow_pair(run: Run) -> Iterator[str]:
    """Yield that no pair is slow, if there are enough pairs to tell; slow ones are findings."""
    group, pairs = ["case_id", "channel", "link"], without_repeats(run.pairs)
    pairs = pairs.assign(n_timed=pairs["n"] - pairs["n_untimed"])
    groups = pairs.groupby(group, observed=True)
    large = groups.size() >= MIN_PAIRS
    if large.any() and moved_workers(run):
        yield (
            "Pairs of workers are not judged: workers were on other hosts in other launches; "
            "--launches 1 measures one cluster"
        )
    elif large.any() and run.slow_pairs.empty:
        enough = (groups["n_timed"].min() >= MIN_TRANSFERS)[large].all()
        rows = comparable(run)
        rates = rows.groupby(group, observed=True)["q50_Bps"]
        tested = rates.size() >= MIN_PAIRS
        slower = rates.transform("median") / rows["q50_Bps"]
        slower = slower[rates.transform("size") >= MIN_PAIRS]
        ratio = slower.max()
        tested |= tested.index.isin([*run.manifest.expected_Bps], level="link")
        n_left_out = len(pairs) - int(rates.size()[tested].sum())
        left_out = f" ({plural(n_left_out, 'pair')} can't be compared)" * (n_left_out > 0)
        log = run.transfers
        launches = log["launch"][counts(log, run)].groupby(log["case_id"], observed=True).nunique()
        n_launches = launches[tested.index[tested].unique("case_id")].min()
        few = f"a pair with fewer than {MIN_TRANSFERS} transfers is not tested: more --iterations"
        if not enough:
            yield f"No pair of workers is named: {few}"
        elif math.isnan(ratio):
            yield "Pairs of workers can't be compared: batches overlap, or sizes differ too much"
        elif ratio >= MIN_SLOWDOWN and _is_fast_alone(rows.loc[slower.idxmax()], run):
            yield (
                "No pair of workers is slow alone; in rounds of all, a transfer of the slowest one "
                f"takes {ratio:.1f} times as long as that of the median one{left_out}"
            )
        elif n_launches < MIN_LAUNCHES:
            yield (
                f"No pair of workers stands out in {plural(n_launches, 'launch')}{left_out}; one "
                f"that is little slower takes more to be named (--launches {MIN_LAUNCHES})"
            )
        else:
            yield (
                f"No pair of workers is slow ({MIN_SLOWDOWN:g} times the usual time, and beyond "
                f"chance): a transfer of the slowest one takes {ratio:.1f} times as long as that "
                f"of the median one{left_out}"
            )


def _is_fast_alone(pair: pd.Series, run: Run) -> bool:
    """Return whether a pair of ``rounds`` was measured again alone, and as fast as the others."""
    pairs = run.pairs[run.pairs["case_id"] == pair["case_id"]]
    again = pairs[(pairs["src"] == pair["src"]) & (pairs["dst"] == pair["dst"])]
    again = again.loc[again["channel"] == AGAIN, "q50_Bps"]
    ends = [pair["src"], pair["dst"]]
    others = pairs[~(pairs["src"].isin(ends) & pairs["dst"].isin(ends))]
    others = others[others["link"] == pair["link"]].set_index("channel")["q50_Bps"]
    typical = others.loc[others.index == (ALONE if ALONE in others.index else ROUNDS)].median()
    is_fast = typical / again < MIN_SLOWDOWN
    return pair["channel"] == ROUNDS and bool(is_fast.any())


def _matrices(run: Run) -> list[Block]:
    # This imports matplotlib.
    from commbench.reports.html import pair_matrix

    return pair_matrix.blocks(run)


SECTION = Section(
    title="Pairs of workers", position=80, tables=tables,
    page_tables=partial(tables, max_pairs=_MAX_PAIRS_ON_PAGE),
    figures=("pair-bandwidth",), matrices=_matrices, opening=opening,
    to_read="The row is the sender, the column the receiver. A cell has the median of single "
    "transfers, in figures between their quartiles; its colour compares it with the backend's "
    "median pair. Red frames are the pairs that are slow by a test, not by colour.",
    not_to_conclude="That this is what the link can do: a fetch of a computation has the company "
    "of all that the workers do meanwhile. Nor that other differences mean anything: equal links "
    "differ by as much as ordinary cells do.",
)  # fmt: skip
