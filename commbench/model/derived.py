"""What reports say of the records; always made anew from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The samples of one case, or of one message size of it.

    Only the ``n_launches`` that ended well count; where it is 0, all is of launches that were cut
    short. ``median_s`` is the median over launches of each launch's median; the interval holds the
    true median with probability ``confidence`` (one launch allows none: nan, nan and 0). The
    percentiles are over all measured samples. ``n_warmup`` more were found to be warm-up.
    ``cpu_s`` is nan where nobody could count it.
    """

    case_id: str
    layer: str
    payload_bytes: int
    n_launches: int
    n_samples: int
    n_warmup: int
    median_s: float
    ci_low_s: float
    ci_high_s: float
    confidence: float
    min_s: float
    p5_s: float
    p25_s: float
    p75_s: float
    p95_s: float
    p99_s: float
    max_s: float
    cpu_s: float
    build_s: float
    submit_s: float

    @property
    def throughput_Bps(self) -> float:  # noqa: N802 - the unit's own spelling
        """Payload bytes per second at the median; without bytes or time there is none."""
        known = self.payload_bytes > 0 and self.median_s > 0
        return self.payload_bytes / self.median_s if known else float("nan")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``ratio`` = ``candidate_s`` / ``baseline_s``, the medians: below 1 the candidate is faster.

    ``effect`` is ``ratio`` − 1. The interval holds the true ratio with 95 %. ``p_value`` is that
    of the rank ``test``, adjusted for all pairs that were tested together; ``delta`` is Cliff's,
    from −1 (the candidate always faster) to 1. ``n_launches`` is the smaller of the two sides'
    numbers. The verdict is ``faster``, ``slower``, ``same`` or ``inconclusive``: see
    ``commbench.stats.comparison``. Two cases of one workload may share a backend's name; the ids
    tell them apart.
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
    effect: float
    ci_low: float
    ci_high: float
    p_value: float
    test: str
    delta: float
    min_effect: float
    verdict: str
