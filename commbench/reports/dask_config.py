"""What Dask can be told of the bandwidth of its workers, as a configuration file.

Of the keys in ``distributed.yaml`` one is a bandwidth: ``distributed.scheduler.bandwidth``, from
which the scheduler and work stealing estimate how long a worker would wait for data. They take no
latency from the configuration, and no pair or class of links has a bandwidth of its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commbench.stats.link_model import LinkModel

CHANNELS = {
    "alone": "fetches with no other under way (all-to-all, one pair at a time)",
    "gather": "fetches of running computations, with other fetches and tasks beside them",
    "together": "fetches of all pairs at once (all-to-all)",
}
"""What a model was fitted to, by channel; Dask is told of the first one that a run has."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What one case says: the median over ``n_pairs`` of their β, and of their median errors."""

    case_id: str
    workload: str
    backend: str
    channel: str
    n_pairs: int
    bandwidth_Bps: int  # noqa: N815 - the unit's own spelling
    error_median: float


def advise(models: Sequence[LinkModel]) -> Iterator[Advice]:
    """Yield what Dask can be told, for each case of which a pair has a model."""
    fitted = [model for model in models if model.src and not model.reason]
    for case_id in dict.fromkeys(model.case_id for model in fitted):
        own = [model for model in fitted if model.case_id == case_id]
        channel = next(name for name in CHANNELS if any(m.channel == name for m in own))
        used = [model for model in own if model.channel == channel]
        yield Advice(
            case_id=case_id,
            workload=used[0].workload,
            backend=used[0].backend,
            channel=channel,
            n_pairs=len(used),
            bandwidth_Bps=round(statistics.median(model.beta_Bps for model in used)),
            error_median=statistics.median(model.error_median for model in used),
        )


def render(advice: Advice, run_id: str) -> str:
    """Return a YAML file for Dask, which says where its number comes from."""
    known = not math.isnan(advice.error_median)
    error = f"{advice.error_median:.1%}" if known else "unknown"
    return f"""\
# Made of the run {run_id} by commbench model: {advice.workload} over {advice.backend}.
# The median over {advice.n_pairs} ordered pairs of workers of β in t = α + n / β, from
# {CHANNELS[advice.channel]}.
# Median error of predictions of held-out transfers: {error}.
#
# Put it into ~/.config/dask/, or name it in DASK_CONFIG. Scheduler and workers begin with this
# estimate, and correct it by the transfers that they see.
distributed:
  scheduler:
    bandwidth: {advice.bandwidth_Bps}  # bytes per second
"""
