"""Results that are derived from records, and not stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of two cases at one layer and size.

    ``ratio`` is the candidate's time over the baseline's, by Hodges and Lehmann's estimate from the
    launches' medians, of launches in the same block if they are ``paired``, else of each with each:
    below 1, the candidate is faster. ``baseline_s`` and ``candidate_s`` are the medians over
    launches. The interval contains the true ratio with 95 %. ``alpha`` is the level of the verdict,
    which is smaller at the looks of a run with a budget. ``p_value`` is that of the rank ``test``,
    adjusted for all pairs that were tested together. ``n_launches`` is the smaller number of
    launches of the two. A true ratio of ``detectable`` has a verdict with a probability of 90 %; it
    is infinite if no ratio has. Two one-sided tests leave the ratios from ``same_low`` to
    ``same_high``, which differ from 1 by a factor of at most 1 + ``margin``; the verdict ``same``
    rests on them. The bytes are those that an iteration moved between workers, nan where they are
    not counted. The medians of two days with the same software rarely differ by more than the
    factor ``sessions_ratio``; it is nan without a history.
    The verdict is ``faster``, ``slower``, ``same``, ``inconclusive`` or ``unequal``: see
    ``commbench.stats.comparison``. The ids distinguish cases of the same workload and backend.
    """

    workload: str
    layer: str
    payload_bytes: int
    baseline: str
    candidate: str
    baseline_id: str
    candidate_id: str
    baseline_s: float
    candidate_s: float
    n_launches: int
    ratio: float
    ci_low: float
    ci_high: float
    p_value: float
    test: str
    min_effect: float
    detectable: float
    same_low: float
    same_high: float
    margin: float
    baseline_moved_bytes: float
    candidate_moved_bytes: float
    verdict: str
    sessions_ratio: float = float("nan")
    paired: bool = False
    alpha: float = 0.05

    @property
    def slower_id(self) -> str:
        """The id of the case that is significantly slower, or "" if none is."""
        return {"slower": self.candidate_id, "faster": self.baseline_id}.get(self.verdict, "")


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The share of the wall time that a case would save without a cause, from ``low`` to ``high``.

    All are nan if it is unknown. The limits are nan or alike if there is no interval, as of one
    estimate of one iteration. An effect that ``is_measured`` is the difference to the case with the
    remedy, with its 95 % interval; the others are estimates.
    """

    share: float = math.nan
    low: float = math.nan
    high: float = math.nan
    is_measured: bool = False

    @property
    def is_known(self) -> bool:
        """Whether there is an estimate."""
        return not math.isnan(self.share)

    @property
    def has_interval(self) -> bool:
        """Whether the limits differ, or all launches have 0."""
        return self.low < self.high or self.low == self.high == 0

    @property
    def rank(self) -> float:
        """A number to sort by: the largest first, and those that are unknown last."""
        return -self.share if self.is_known else math.inf

    def __str__(self) -> str:
        """Return the share in percent, with its interval.

        Examples
        --------
        >>> str(Effect(share=0.64, low=0.41, high=0.7)), str(Effect(share=0.64))
        ('64% (41 to 70%, estimated)', '64% (no interval, estimated)')

        Of an interval from 0, the middle is no estimate:

        >>> str(Effect(share=0.34, low=0.0, high=0.7))
        'up to 70% (estimated)'
        """
        origin = "measured" if self.is_measured else "estimated"
        if not self.has_interval:
            return f"{self.share:.0%} (no interval, {origin})"
        low, high = (f"{100 * limit:.0f}" for limit in (self.low, self.high))
        if not self.is_measured and low in ("0", "-0") and high != "0":
            return f"up to {high}% ({origin})"
        limits = "" if low == high else f"{low} to {high}%, "
        return f"{self.share:.0%} ({limits}{origin})"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A conclusion about one case that a user can act on.

    ``statement`` is a sentence with its number, and ``evidence`` names the records behind it.
    Effects of several findings overlap, and don't add up. ``remedy`` says what to set or to change,
    and ``doubt`` what else could explain the observation, or limits the advice. ``trials`` are the
    settings with which ``commbench prove`` measures the case again, each by its name: ``backend``,
    or what ``--vary`` takes. ``rule`` is the name of the rule's entry point. A finding that
    ``is_fine`` says that nothing is wrong, and one that ``is_external`` names a cause outside of
    the run, such as other programs on its cores.
    """

    statement: str
    evidence: str
    effect: Effect = Effect()
    remedy: str
    doubt: str
    trials: tuple[Mapping[str, str], ...] = ()
    is_fine: bool = False
    is_external: bool = False
    rule: str = ""
    case_id: str = ""
