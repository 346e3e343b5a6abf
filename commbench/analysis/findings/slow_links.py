"""Slow pairs of workers: a link, a direction, a worker or a host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from commbench.analysis.findings import WAITS, CaseRecords, Rule
from commbench.model import FETCHES, Effect, Finding
from commbench.model.units import format_bandwidth, format_seconds
from commbench.stats.inference import CONFIDENCE

_REMEDIES = {
    "all": "check what all links have in common, and whether this backend can do what is expected",
    "worker": "all its links are slow: check what else runs there, its clock, NIC and cable",
    "sender": "only what it sends is slow: check limits of its egress, and its NIC and cable",
    "receiver": "only what it receives is slow: check what else arrives there, its NIC and cable",
    "link": "both are fast with others: check the path between the two",
    "direction": "both are fast with others, and so is the way back: check routes and shaping",
}
"""The advice for each kind of ``stats.slow_pairs``."""
_NO_OTHERS = (
    "no others are compared, so it may be the sender's egress, the receiver's ingress or the path: "
    "check each, or measure a third one"
)
_DOUBT = "the workers at its ends may have been busy, not the link"
_MAX_CAUSES, _MAX_NAMED = 3, 6
"""The maximum causes with a finding each, and named in the one about the others."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding for each of the slowest causes of slow pairs, and one for the others.

    At ordinary speed, a transfer would end earlier by a share of its duration.
    """
    slow = case.rows(case.run.slow_pairs)
    expected_Bps = case.run.manifest.expected_Bps  # noqa: N806 - the spelling of the unit
    for channel, on_channel in slow.groupby("channel", sort=False):
        causes = [*on_channel.groupby("cause", sort=False)]
        how = FETCHES.get(str(channel), str(channel))
        on_way = f", {how}," * (channel != "gather")
        for cause, rows in causes[:_MAX_CAUSES]:
            first = rows.iloc[0]
            is_expected = np.isclose(first.typical_Bps, expected_Bps.get(first.link, np.nan))
            interval = (
                f" ({first.low:.1f} to {first.high:.1f})" if first.level >= CONFIDENCE else ""
            )
            yield Finding(
                statement=f"transfers {cause}{on_way} take {first.factor:.1f}{interval} times as "
                f"long as {'expected' if is_expected else 'ordinary ones'} "
                f"({format_bandwidth(rows['q50_Bps'].median())} "
                f"against {format_bandwidth(first.typical_Bps)})",
                evidence=f"pairs: q50_Bps of {len(rows)} pairs against the others'",
                effect=_effect(case, str(channel), rows),
                remedy=_remedy(case, first),
                doubt=_DOUBT,
            )
        if more := [str(cause) for cause, _ in causes[_MAX_CAUSES:]]:
            others = on_channel[on_channel["cause"].isin(more)]
            yield Finding(
                statement=f"transfers {', '.join(more[:_MAX_NAMED])}{on_way} are slow, too"
                + f", and {len(more) - _MAX_NAMED} others" * (len(more) > _MAX_NAMED),
                evidence=f"pairs: q50_Bps of {len(others)} pairs against the others'",
                effect=_effect(case, str(channel), others),
                remedy="check what these links have in common",
                doubt=_DOUBT,
            )
    for cause, rows in case.rows(case.run.slow_latencies).groupby("cause", sort=False):
        first = rows.iloc[0]
        yield Finding(
            statement=f"round trips {cause} take {first.factor:.1f} times as long as ordinary ones "
            f"({format_seconds(first.typical_s * first.factor)} against "
            f"{format_seconds(first.typical_s)})",
            evidence=f"round_trips of {len(rows)} pairs against the others'",
            remedy=_REMEDIES[str(first.kind)],
            doubt=_DOUBT,
        )


def _remedy(case: CaseRecords, slow: pd.Series[Any]) -> str:
    pairs = case.rows(case.run.pairs)
    pairs = pairs[(pairs["channel"] == slow["channel"]) & (pairs["link"] == slow["link"])]
    has_others = len({*pairs["src"], *pairs["dst"]}) > 2
    return _REMEDIES[str(slow["kind"])] if has_others or slow["kind"] == "all" else _NO_OTHERS


def _effect(case: CaseRecords, channel: str, slow: pd.DataFrame) -> Effect:
    """Return what the receiver saves that waits the longest for slow transfers.

    That is at most a share of the time in which one is under way, at least as much of this as it
    awaits data without a task. Fetches of all-to-all have no wall time, and no effect.
    """
    log = case.transfers
    factors = slow.set_index(["src", "dst"])["slowdown"]
    # Ten million names would take a gigabyte.
    src, dst = (pd.Categorical(log[end]) for end in ("src", "dst"))
    slow_src, slow_dst = (
        ends.categories.astype("str").get_indexer(factors.index.get_level_values(name))
        for name, ends in (("src", src), ("dst", dst))
    )
    is_near = np.isin(src.codes, slow_src) & np.isin(dst.codes, slow_dst)
    rows, n = np.flatnonzero(is_near & (log["channel"] == channel)), len(dst.categories)
    pairs = src.codes[rows].astype(np.int64) * n + dst.codes[rows]
    log = log.iloc[rows[np.isin(pairs, slow_src * n + slow_dst)]]
    if case.wall_s.empty or log.empty:
        return Effect()
    saved_s = case.busy_s(log, "launch", "iteration", "dst") * (1 - 1 / factors.median())
    workers = case.profiles.set_index(["launch", "iteration", "worker"])
    awaited_s = workers["data_s"].reindex(saved_s.index)
    # Tasks that run go on.
    unused_s = workers[[*WAITS]].sum(axis=1, min_count=1)
    saved_s = np.fmin(saved_s, unused_s.reindex(saved_s.index))
    window = ["launch", "iteration"]
    most, least = (
        seconds.groupby(level=window).max().reindex(case.wall_s.index, fill_value=0.0) / case.wall_s
        for seconds in (saved_s, np.minimum(saved_s, awaited_s))
    )
    return case.effect(most, least if len(workers) else 0 * most)


RULE = Rule(
    title="slow links",
    limit="1.5 times the usual time per byte, among at least 4 pairs",
    find=find,
    needs_profile=False,
    concerns_links=True,
)
