"""Compression that takes longer than the bytes that it saves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule, spilling
from commbench.model import Finding
from commbench.stats.comparison import COMPRESSION

_LABELS = ("compress", "decompress", "background-comms compress")
"""Those of fetches, also of values that are spilled during one, and that of P2P shuffles."""
_SPEEDS = (0.05, 0.5)
"""The shares of the transfers that are faster than the wire may be: others wait for busy loops."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if compressing takes longer than sending the saved bytes would.

    The speed of the wire is at most that of the fastest transfers, without what compression takes
    of them, and at least that of a typical one: between these the effect is not known. A message
    waits for both ends, which compress and decompress; on full cores other threads run meanwhile.
    """
    settings = case.rows(case.run.settings)
    settings = settings[settings["name"] == COMPRESSION]
    names = [str(value) for value in settings["value"].unique() if value != "none"]
    coverage = case.rows(case.run.coverage)
    if not names or coverage.empty:
        return
    spent = case.activity(*_LABELS, contexts=("get-data", "gather-dep", "p2p"))
    row = coverage.iloc[0]
    saved_bytes = max(0.0, row.logged_bytes - row.wire_bytes)
    # Coverage has the iterations that are warm-up, too.
    n_workers, n_windows = case.n_workers, max(1, len(case.rows(case.run.timed)))
    coding_s = float((spent * case.wall_s).sum()) * n_workers
    fetched, total_bytes = case.transfers, case.transfers["nbytes"].sum()
    on_wire_s = fetched["seconds"] - coding_s * fetched["nbytes"] / max(1, total_bytes)
    # Seconds for each byte in memory, of which only a part is on the wire.
    fast_s, typical_s = (on_wire_s.clip(lower=0.0) / fetched["nbytes"]).quantile(_SPEEDS).fillna(0)
    saved_s = saved_bytes / n_workers / n_windows * (row.logged_bytes / max(1, row.wire_bytes))
    unused = case.share("queue_s", "data_s", "idle_s")
    lost, least_lost = (
        np.minimum(spent - saved_s * wire_s / case.wall_s, unused) for wire_s in (fast_s, typical_s)
    )
    if not lost.median() > 0:
        return
    at_ends = np.minimum(spent, unused)
    if not case.has_full_cores:
        at_ends = case.at_both_ends(spent, unused)
    kept = saved_bytes / row.logged_bytes if row.logged_bytes else 0.0
    yield Finding(
        statement=f"workers compress with {', '.join(names)}, which takes "
        f"{spent.median():.0%} of the time and saves {kept:.0%} of the bytes",
        evidence="activities: compress, decompress; coverage: logged against wire bytes",
        effect=case.effect(lost.clip(lower=0.0), least_lost.clip(lower=0.0), at_ends),
        remedy="measure without it: distributed.comm.compression: null",
        doubt="over a slow network it pays, and busy event loops make a fast one look slow"
        + "; what workers spill is compressed, too" * bool(case.findings(spilling.RULE)),
        trials=({"distributed.comm.compression": "null"},),
    )


RULE = Rule(
    title="compression costs more than it saves",
    limit="5 % of the time",
    find=find,
)
