"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.model import Finding

if TYPE_CHECKING:
    from commbench.analysis.findings.case_records import CaseRecords

MIN_EFFECT = 0.05
"""The smallest effect that is worth a finding, as a share of the wall time."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A cause that the records of a case can show: an entry point in ``commbench.rules``.

    Parameters
    ----------
    title
        The cause, in a few words.
    limit
        The smallest magnitude that the rule detects.
    find
        Yields the findings about a case. Those with a known effect below ``MIN_EFFECT`` are
        dropped.
    """

    title: str
    limit: str
    find: Callable[[CaseRecords], Iterable[Finding]]
    needs_profile: bool = True
    """Whether it needs ``CaseRecords.has_profile``."""
    concerns_links: bool = False
    """Whether its findings are faults of links, which ``commbench links`` names."""
