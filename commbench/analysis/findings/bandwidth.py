"""Waits for data: many bytes."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import SMALL_BYTES, CaseRecords, Rule, polling, spilling
from commbench.backends import parse
from commbench.backends.backend import STAGED
from commbench.model import Finding, registry
from commbench.model.units import format_bandwidth, format_bytes
from commbench.stats import MIN_LAUNCHES
from commbench.stats.selection import good_launches

_LESS = 1.1
"""The bytes in memory for each on the wire from which a finding has both."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if task threads await data, and most of that time large messages.

    A backend that was no faster in this run, with the same settings, is no remedy.
    """
    awaited, small = case.share("data_s"), case.small_share
    # Where polling is the finding, fetches wait for the loops.
    if case.findings(polling.RULE) or not small < 0.5:
        return
    log = case.transfers
    moved = log["nbytes"].sum() / max(1, len(case.wall_s))
    large = log[log["nbytes"] >= SMALL_BYTES]
    rate = large["nbytes"].sum() / large["seconds"].sum()
    coding = case.activity("serialize", "deserialize", contexts=("gather-dep", "get-data")).median()
    size = format_bytes(int(moved))
    if case.bytes_per_wire_byte > _LESS:
        size += f" ({format_bytes(int(moved / case.bytes_per_wire_byte))} on the wire)"
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
        f"{size} per iteration between workers, {format_bandwidth(rate)} in a large transfer",
        evidence="transfers: nbytes, start_s, stop_s; profile: await data",
        effect=case.effect(awaited, 0 * awaited),
        remedy=remedy,
        doubt=doubt,
        trials=tuple({"backend": name} for name in names),
    )


def _faster(case: CaseRecords) -> list[str]:
    """Return backends that may move the bytes faster.

    They are those that were faster in this run, else those that it has not compared, or that were
    faster in too few launches for a verdict. On one host, and with data in its memory, backends
    get their best settings. Left out are backends that failed, the settings that the case has, and
    settings that exclude a transport that its bytes used. Nothing replaces encryption, or transfers
    from GPU to GPU.
    """
    kinds = {name: kind for name, kind in registry.loadable("backend").items() if kind.is_fast}
    if case.backend and case.backend.plain:
        return []
    others = {name: (c, saved) for name, c, saved in case.comparisons}
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
    good, runs = good_launches(case.run), case.run.ends["case_id"].unique()
    works = {case.run.cases[each].plain_backend for each in good}
    fails = {case.run.cases[str(each)].plain_backend for each in runs} - works
    # Of few launches there is no verdict, but a ratio.
    known = {
        name for name, (c, saved) in others.items()
        if c.n_launches >= MIN_LAUNCHES or not saved.share > 0
    }  # fmt: skip
    return [name for name in names if name not in {case.case.plain_backend, *known, *fails}]


RULE = Rule(
    title="waits for bytes",
    limit="10 % of the time, in which most fetches are larger than 64 KiB",
    find=find,
)
