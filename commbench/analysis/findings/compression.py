"""Compression that takes longer than the bytes that it saves."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.stats.comparison import COMPRESSION

_LABELS = ("compress", "decompress", "background-comms compress")
"""Those of fetches, and that of P2P shuffles; not those of values that are spilled."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if compressing takes longer than sending the saved bytes would.

    The speed of the wire is that of the bytes on it while a transfer is under way.
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
    seconds = case.transfers["seconds"].sum()
    rate_Bps = row.wire_bytes / seconds if seconds else math.inf  # noqa: N806
    n_workers, n_windows = case.case.cluster.n_workers, max(1, len(case.wall_s))
    saved_s = saved_bytes / rate_Bps / n_workers / n_windows
    lost = spent - saved_s / case.wall_s
    if not lost.median() > 0:
        return
    kept = saved_bytes / row.logged_bytes if row.logged_bytes else 0.0
    yield Finding(
        statement=f"workers compress with {', '.join(names)}, which takes "
        f"{spent.median():.0%} of the time and saves {kept:.0%} of the bytes",
        evidence="activities: compress, decompress; coverage: logged against wire bytes",
        effect=case.effect(spent, lost),
        remedy="turn it off: distributed.comm.compression: null",
        doubt="over a slower network the same compression may pay",
        trials=({"distributed.comm.compression": "null"},),
    )


RULE = Rule(
    title="compression costs more than it saves",
    limit="5 % of the time",
    find=find,
)
