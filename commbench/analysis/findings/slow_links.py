"""Slow pairs of workers: a link, a direction, a worker or a host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Effect, Finding
from commbench.model.units import format_bandwidth

_REMEDIES = {
    "worker": "all its links are slow: check what else runs there, its clock, NIC and cable",
    "sender": "only what it sends is slow: check limits of its egress, and its NIC and cable",
    "receiver": "only what it receives is slow: check what else arrives there, its NIC and cable",
    "link": "its ends are fast with others: check the path between the two",
    "direction": "its ends are fast with others, and so is the way back: check routes and shaping",
}
"""The advice for each kind of ``stats.slow_pairs``."""
_DOUBT = "the workers at its ends may have been busy, not the link"
_MAX_CAUSES, _MAX_NAMED = 3, 6
"""The maximum causes with a finding each, and named in the one about the others."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding for each of the slowest causes of slow pairs, and one for the others.

    At ordinary speed, a transfer would end earlier by a share of its duration. What the worst
    receiver saves, the iteration saves at most; at least that which it awaits without a task.
    """
    slow = case.run.slow_pairs
    slow = slow[slow["case_id"] == case.case.id]
    for channel, on_channel in slow.groupby("channel", sort=False):
        causes = [*on_channel.groupby("cause", sort=False)]
        on_way = f" ({channel})" * (channel != "gather")
        for cause, rows in causes[:_MAX_CAUSES]:
            first = rows.iloc[0]
            interval = f" ({first.low:.1f} to {first.high:.1f})" if first.level >= 0 else ""
            yield Finding(
                statement=f"transfers {cause}{on_way} take {first.factor:.1f}{interval} times as "
                f"long as ordinary ones ({format_bandwidth(first.typical_Bps / first.factor)} "
                f"against {format_bandwidth(first.typical_Bps)})",
                evidence=f"pairs: q50_Bps of {len(rows)} pairs against the others'",
                effect=_effect(case, str(channel), rows),
                remedy=_REMEDIES[str(first.kind)],
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


def _effect(case: CaseRecords, channel: str, slow: pd.DataFrame) -> Effect:
    most = _saved(case, channel, slow)
    return case.effect(most, most * case.share("data_s", of="max"))


def _saved(case: CaseRecords, channel: str, slow: pd.DataFrame) -> pd.Series[float]:
    """Return the share of the time that the slow transfers last too long, at the worst receiver."""
    log = case.transfers[case.transfers["channel"] == channel]
    factors = slow.set_index(["src", "dst"])["slowdown"]
    pairs = pd.MultiIndex.from_arrays([log["src"].astype("str"), log["dst"].astype("str")])
    late_s = log["seconds"].to_numpy() * (1 - 1 / factors.reindex(pairs).fillna(1.0).to_numpy())
    by_receiver = pd.Series(np.asarray(late_s)).groupby(
        [log[name].to_numpy() for name in ("launch", "iteration", "dst")]
    )
    worst = by_receiver.sum().groupby(level=[0, 1]).max().rename_axis(["launch", "iteration"])
    shares: pd.Series[float] = (worst / case.wall_s).dropna().clip(upper=1.0)
    return shares


RULE = Rule(
    title="slow links",
    limit="1.5 times the usual time per byte, among at least 4 pairs",
    find=find,
    needs_profile=False,
)
