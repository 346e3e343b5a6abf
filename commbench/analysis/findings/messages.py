"""Waits for data: many small messages, or many bytes."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule, polling, spilling
from commbench.backends import parse
from commbench.backends.base import STAGED
from commbench.model import Finding, registry
from commbench.model.units import format_bandwidth, format_bytes, format_message_size

_SMALL = 64 * 1024
"""Below this size, the duration of a fetch is mostly latency (docs/measurements.md)."""
_MOSTLY = 0.5
_LATENCY_SECONDS = 0.3
"""The time of a small fetch, at most: a round trip between continents."""


def find_latency(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if task threads await data, and most of that time small messages."""
    awaited, small = case.share("data_s"), _small_share(case)
    if not small >= _MOSTLY:
        return
    log = case.transfers
    n_small = (log["nbytes"] < _SMALL).sum() / max(1, len(case.wall_s)) / case.n_workers
    if n_small * _LATENCY_SECONDS < small * awaited.median() * case.wall_s.median():
        return
    yield Finding(
        statement=f"task threads await data {awaited.median():.0%} of the time, {small:.0%} of "
        f"which are messages below 64 KiB: {len(log) / max(1, len(case.wall_s)):.0f} transfers per "
        f"iteration of {format_message_size(int(log['nbytes'].median()))} each",
        evidence="transfers: nbytes, start_s, stop_s; profile: await data",
        effect=case.effect(awaited * small),
        remedy="make fewer and larger pieces: larger chunks or partitions",
        doubt="a worker that is busy answers small requests late, too",
    )


def find_bandwidth(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if task threads await data, and most of that time large messages.

    A backend that this run has compared, and not found faster, is no remedy.
    """
    awaited, small = case.share("data_s"), _small_share(case)
    # Where polling is the finding, fetches wait for the loops.
    if case.findings(polling.RULE) or not small < _MOSTLY:
        return
    log = case.transfers
    moved = log["nbytes"].sum() / max(1, len(case.wall_s))
    large = log[log["nbytes"] >= _SMALL]
    rate = large["nbytes"].sum() / large["seconds"].sum()
    coding = case.activity("serialize", "deserialize", contexts=("gather-dep", "get-data")).median()
    remedy, names = "move less: fewer columns, smaller types, an early filter", list[str]()
    doubt = "a fetch also lasts while sender and receiver are busy with other messages"
    # What a fetch makes a worker spill or read again is serialized, too.
    if coding > awaited.median() / 2 and not case.findings(spilling.RULE):
        remedy = "move Arrow strings or numbers, not Python objects, which are slow to serialize"
    elif names := _faster(case):
        remedy += f"; or try {' or '.join(names)}"
        doubt += "; without RDMA, every backend uses TCP between hosts" * (not case.is_on_one_host)
    yield Finding(
        statement=f"task threads await data {awaited.median():.0%} of the time: "
        f"{format_bytes(int(moved))} per iteration between workers, {format_bandwidth(rate)} in a "
        "large transfer",
        evidence="transfers: nbytes, start_s, stop_s; profile: await data",
        effect=case.effect(awaited, 0 * awaited),
        remedy=remedy,
        doubt=doubt,
        trials=tuple({"backend": name} for name in names),
    )


def _small_share(case: CaseRecords) -> float:
    """Return the share of small messages in the duration of all; nan without any."""
    log = case.transfers
    total_s = log["seconds"].sum()
    return (
        float(log["seconds"][log["nbytes"] < _SMALL].sum() / total_s) if total_s else float("nan")
    )


def _faster(case: CaseRecords) -> list[str]:
    """Return backends that move bytes faster than sockets do.

    They are those that were faster in this run, else those that it has not measured, or that were
    faster in too few launches for a verdict. On one host, and with data in its memory, they have
    their best settings. None of them are settings that the case has, or that would close a way that
    its bytes took. None is an alternative to a backend that encrypts, or
    that moves bytes from GPU to GPU.
    """
    kinds = {name: kind for name, kind in registry.loadable("backend").items() if kind.is_fast}
    if case.backend and case.backend.plain:
        return []
    others = {other.plain_backend for other, _ in case.comparisons} - {case.case.plain_backend}
    gains = {name: case.gain(name) for name in sorted(others) if name.partition(":")[0] in kinds}
    if faster := [name for name, gain in gains.items() if gain and gain.low > 0]:
        return faster
    used, settings = case.rows(case.run.pair_transports), case.rows(case.run.settings)
    # The device of a user's code is not known.
    on_gpu = used["transport"].astype("str").str.contains(f"cuda_|{STAGED}").any()
    use_best = case.is_on_one_host and case.case.cluster.device == "cpu" and not on_gpu
    ways = used["transport"][used["contradiction"] == ""].astype("str").unique()
    if any(way.startswith("cuda_") for way in ways):
        return []
    fast_ways = [way for way in ways if not way.startswith("tcp/")]
    present = {*(settings["name"] + "=" + settings["value"])}
    names = list[str]()
    for kind in kinds.values():
        other = parse(kind().best) if use_best else kind()
        closes_ways = any(map(other.contradiction, fast_ways))
        is_present = present.issuperset(other.settings("cpu").split())
        if not (isinstance(case.backend, kind) and (closes_ways or is_present)):
            names.append(other.name)
    # Of few launches there is no verdict, but a ratio.
    slow = {
        case.run.cases[other].plain_backend
        for c in case.run.comparisons if c.layer == "workload"
        for one, other, ratio in (
            (c.baseline_id, c.candidate_id, c.ratio), (c.candidate_id, c.baseline_id, 1 / c.ratio)
        )
        if one == case.case.id and not ratio < 1
    }  # fmt: skip
    return [name for name in names if name not in {case.case.plain_backend, *others, *slow}]


LATENCY = Rule(
    title="many small messages",
    limit="5 % of the time, in which most fetches are below 64 KiB",
    find=find_latency,
)
BANDWIDTH = Rule(
    title="waits for bytes",
    limit="10 % of the time, in which most fetches are larger than 64 KiB",
    find=find_bandwidth,
)
