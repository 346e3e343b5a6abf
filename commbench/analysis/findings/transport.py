"""Bytes that went over another transport than the backend's name says."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding for each contradiction between the backend and the live connections."""
    used = case.rows(case.run.pair_transports)
    used = used[used["contradiction"] != ""]
    for text, rows in used.groupby("contradiction", sort=False, observed=True):
        statement, _, reason = str(text).partition(": ")
        yield Finding(
            statement=statement,
            evidence=f"{reason}. " * bool(reason) + f"transports: {rows['evidence'].iloc[0]}",
            remedy=f"if you need {case.better.partition(':')[0]}, use {case.better}"
            if case.better
            else "see commbench doctor",
            doubt="faster transports are not always faster in Dask, so measure it",
            trials=({"backend": case.better},) if case.better else (),
        )


RULE = Rule(
    title="another transport than expected",
    limit="any connection of the last iteration",
    find=find,
    needs_profile=False,
)
