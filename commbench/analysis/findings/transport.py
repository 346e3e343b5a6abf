"""Bytes that went over another transport than the backend's name says."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.stats.links import link_classes
from commbench.stats.stragglers import MIN_PAIRS

_MOST = 0.75
"""The share of the connections of a class of links whose way is the usual one."""
_MAX_NAMED = 6


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding for each contradiction between the backend and the live connections.

    And one for each way that few pairs of a class of links went, and most others did not.
    """
    used = case.rows(case.run.pair_transports)
    used = used[used["contradiction"] != ""]
    for text, rows in used.groupby("contradiction", sort=False, observed=True):
        statement, _, reason = str(text).partition(": ")
        # Those settings are for workers of one host.
        is_network = (link_classes(rows, case.run).astype("str") == "network").all()
        better = "" if is_network else case.better
        yield Finding(
            statement=statement,
            evidence=f"{reason}. " * bool(reason) + f"transports: {rows['evidence'].iloc[0]}",
            remedy=f"if you need {better.partition(':')[0]}, use {better}"
            if better
            else "see commbench doctor",
            doubt="faster transports are not always faster in Dask, so measure it",
            trials=({"backend": better},) if better else (),
        )
    yield from _odd_ways(case)


def _odd_ways(case: CaseRecords) -> Iterator[Finding]:
    used = case.rows(case.run.pair_transports)
    if used["transport"].nunique() < 2:
        return
    used = used.assign(link=link_classes(used, case.run)).astype({"src": "str", "dst": "str"})
    pairs = used.groupby(["link", "src", "dst"], observed=True)["transport"]
    ways = pairs.agg(lambda names: " and ".join(sorted({*map(str, names)}))).rename("way")
    for link, group in ways.groupby(level="link", observed=True):
        (usual, n_usual), *_ = group.value_counts().items()
        if len(group) < MIN_PAIRS or n_usual < _MOST * len(group):
            continue
        odd = group[group != usual].reset_index()
        for way, rows in odd.groupby("way", sort=False):
            by_sender = rows.groupby("src", sort=False).size()
            names = [f"{src} ({n} connections)" for src, n in by_sender.items()]
            yield Finding(
                statement=f"worker {', '.join(names[:_MAX_NAMED])}"
                + f" and {len(names) - _MAX_NAMED} others" * (len(names) > _MAX_NAMED)
                + f" went over {way}, and {n_usual} of {len(group)} connections of the class "
                f"{link} over {usual}",
                evidence=f"transports: {', '.join(map('→'.join, rows[['src', 'dst']].to_numpy()))}",
                remedy="check which NIC and which route its address has",
                doubt="the same kind of device may have another name on that host",
            )


RULE = Rule(
    title="another transport than expected",
    limit="any connection of the last iteration, or one unlike most of its class of links",
    find=find,
    needs_profile=False,
    concerns_links=True,
)
