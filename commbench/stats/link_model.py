"""A model of the time of a transfer of n bytes by latency and bandwidth: t = α + n / β.

The model is Hockney's. It is fitted to the single transfers of a pair, or of all pairs on one
class of link, with ``scipy.optimize.least_squares`` on ``ln(α + n / β) - ln t``, so that relative
errors have the same weight at 1 KiB as at 16 MiB. Each octave of sizes has the same weight, too,
however many its transfers: few are large, and only these determine β. The loss is soft-l1, linear
for errors beyond 10 %, so that a few delayed transfers don't affect the line; α ≥ 0 and 1 / β > 0.

Each launch is fitted separately. α and 1 / β are the medians over the launches' fits, with the
interval of ``commbench.stats.median_interval``. The error is from cross-validation: each launch's
transfers are predicted by the medians of the other launches. A run of one launch is divided by
iterations instead; since these are not independent, it has an error but no interval.

Source: R. W. Hockney, The communication challenge for MPP: Intel Paragon and Meiko CS-2, Parallel
Computing 20 (1994) 389-398, whose half-performance length n½ = αβ is ``half_bytes`` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from commbench.model import AGAIN
from commbench.stats.inference import launches_interval
from commbench.stats.links import link_classes
from commbench.stats.selection import counted, good_launches, in_suite_order
from commbench.stats.stragglers import MIN_TRANSFERS

if TYPE_CHECKING:
    from commbench.analysis.run import Run

MIN_SIZES = 3
MIN_SPREAD = 10
"""The minimum ratio of the largest to the smallest size, to distinguish α from β."""
MIN_SHARE = 0.5
"""The minimum share of n / β in the time of the largest transfer, to determine β."""
_OUTLIER = 0.1


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """The fit of one pair, or of a class of links if ``src`` and ``dst`` are empty.

    If there is no fit, ``reason`` says why, and α, β and all that follows from them are nan.
    ``n`` transfers were used, ``n_untimed`` had no duration; they are of ``n_parts`` launches or
    iterations (``parts``). ``error_median`` and ``error_p90`` are quantiles of
    |predicted / measured - 1|, from cross-validation, with the weights of the fit. ``misfit`` is
    the median of measured / predicted of the size at which it is farthest from 1, and
    ``misfit_bytes`` that size: a protocol that changes with the size (eager, rendezvous) is no
    straight line. ``largest_misfit`` is that of the largest size. ``round_trip_s`` is that of
    an empty request between the same workers, the median over launches of medians; the rest of α
    is what a fetch of Dask costs by itself. It is nan where it was not measured, and for all
    fetches at once.
    """

    case_id: str
    workload: str
    backend: str
    channel: str
    link: str
    src: str
    dst: str
    n_pairs: int
    n: int
    n_untimed: int
    smallest_bytes: int
    largest_bytes: int
    parts: str
    n_parts: int
    reason: str = ""
    alpha_s: float = float("nan")
    alpha_low_s: float = float("nan")
    alpha_high_s: float = float("nan")
    beta_Bps: float = float("nan")  # noqa: N815 - the spelling of the unit
    beta_low_Bps: float = float("nan")  # noqa: N815
    beta_high_Bps: float = float("nan")  # noqa: N815
    confidence: float = 0.0
    error_median: float = float("nan")
    error_p90: float = float("nan")
    misfit: float = float("nan")
    misfit_bytes: int = 0
    largest_misfit: float = float("nan")
    round_trip_s: float = float("nan")

    @property
    def half_bytes(self) -> float:
        """The size whose time is half latency and half bandwidth: n½ = αβ."""
        return self.alpha_s * self.beta_Bps

    def predict_s(self, nbytes: float) -> float:
        """Return the seconds that a transfer of `nbytes` takes."""
        return self.alpha_s + nbytes / self.beta_Bps


def link_models(run: Run) -> list[LinkModel]:
    """Fit every class of links and every pair of each case and channel.

    Returns
    -------
    list of LinkModel
        In the order of the suite's cases; the classes of a channel precede its pairs.
    """
    log = counted(run.transfers, run)
    # Some pairs fetch the largest size again.
    log = log[log["channel"] != AGAIN]
    log = log.assign(seconds=log["stop_s"] - log["start_s"], link=link_classes(log, run))
    log = in_suite_order(log, run, then=["channel", "link", "src", "dst"])
    trips = counted(run.round_trips, run)
    trips = trips.assign(link=link_classes(trips, run))
    models, good = [], good_launches(run)
    for (case_id, name), channel in log.groupby(["case_id", "channel"], sort=False, observed=True):
        # Requests of other pairs would have to wait for each other.
        mine = trips[(trips["case_id"] == case_id) & (name != "together")]
        for link, group in channel.groupby("link", sort=False, observed=True):
            trip_s = _round_trip_s(mine[mine["link"] == link])
            models.append(_model(group, "", "", trip_s, is_cut=case_id not in good))
        for (src, dst, _), group in channel.groupby(
            ["src", "dst", "link"], sort=False, observed=True
        ):
            trip_s = _round_trip_s(mine[(mine["src"] == src) & (mine["dst"] == dst)])
            models.append(_model(group, src, dst, trip_s, is_cut=case_id not in good))
    return models


def _round_trip_s(trips: pd.DataFrame) -> float:
    return float(trips.groupby("launch")["seconds"].median().median())


def _model(
    log: pd.DataFrame, src: str, dst: str, round_trip_s: float, *, is_cut: bool
) -> LinkModel:
    first = log.iloc[0]
    usable = log[(log["seconds"] > 0) & (log["nbytes"] > 0)]
    parts = "launch" if len(usable["launch"].unique()) > 1 else "iteration"
    nbytes, seconds = usable["nbytes"].to_numpy(float), usable["seconds"].to_numpy()
    known: dict[str, Any] = {
        **{name: first[name] for name in ("case_id", "workload", "backend", "channel", "link")},
        "src": src, "dst": dst, "round_trip_s": round_trip_s,
        "n_pairs": len(log[["src", "dst"]].drop_duplicates()),
        "n": len(usable), "n_untimed": len(log) - len(usable), "parts": parts,
        "smallest_bytes": int(nbytes.min()) if len(usable) else 0,
        "largest_bytes": int(nbytes.max()) if len(usable) else 0,
    }  # fmt: skip
    if not len(usable):
        return LinkModel(**known, n_parts=0, reason=f"none of {len(log)} has a duration")
    if reason := _reason_not_to_fit(nbytes):
        return LinkModel(**known, n_parts=0, reason=reason)
    every = [usable[parts].to_numpy() == part for part in np.unique(usable[parts])]
    members = [member for member in every if not _reason_not_to_fit(nbytes[member])]
    known["n_parts"] = len(members)
    if not members:
        return LinkModel(**known, reason=f"no {parts} by itself has sizes enough")
    fits = np.array([fit(nbytes[member], seconds[member]) for member in members])
    alpha_s, seconds_per_byte = np.median(fits, axis=0)
    longest_s = known["largest_bytes"] * seconds_per_byte
    if longest_s < MIN_SHARE * (alpha_s + longest_s):
        reason = "latency takes most of the time of even the largest size; fetch larger ones"
        return LinkModel(**known, reason=reason)
    # Each part's transfers are predicted by the other parts.
    errors = np.full(len(nbytes), np.nan)
    for number, member in enumerate(members if len(members) > 1 else ()):
        alpha, slope = np.median(np.delete(fits, number, axis=0), axis=0)
        errors[member] = np.abs((alpha + nbytes[member] * slope) / seconds[member] - 1)
    is_known = ~np.isnan(errors)
    if parts == "launch" and not is_cut:
        known |= _interval(fits)
    return LinkModel(
        **known,
        alpha_s=float(alpha_s),
        beta_Bps=float(1 / seconds_per_byte),
        **_error_quantiles(nbytes[is_known], errors[is_known]),
        **_misfit(nbytes, np.log(seconds / (alpha_s + nbytes * seconds_per_byte))),
    )


def _reason_not_to_fit(nbytes: np.ndarray[Any, Any]) -> str:
    """Return why transfers of these sizes can't be fitted, or an empty string."""
    sizes = np.unique(nbytes)
    if len(sizes) < MIN_SIZES:
        number = "one size" if len(sizes) == 1 else f"{len(sizes)} sizes"
        return f"{number} only; at least {MIN_SIZES} are needed"
    if sizes[-1] < MIN_SPREAD * sizes[0]:
        return (
            f"the largest size is only {sizes[-1] / sizes[0]:.3g} times the smallest; latency and "
            f"bandwidth can't be separated below {MIN_SPREAD} times"
        )
    return ""


def fit(nbytes: np.ndarray[Any, Any], seconds: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the latency and the seconds per byte of a robust fit.

    Parameters
    ----------
    nbytes, seconds
        Shape (n,), above 0.

    Examples
    --------
    >>> sizes = np.array([1e3, 1e5, 1e7])
    >>> alpha_s, seconds_per_byte = fit(sizes, 1e-3 + sizes / 1e9)
    >>> round(alpha_s, 9), round(1 / seconds_per_byte)
    (0.001, 1000000000)
    """
    # Scale both parameters to be near 1.
    scale = np.array([np.quantile(seconds, 0.1), np.min(seconds / nbytes)])
    terms = np.column_stack([np.ones_like(nbytes), nbytes]) * scale
    logs, weights = np.log(seconds), _weights(nbytes)
    solution = scipy.optimize.least_squares(
        lambda x: np.log(terms @ x) - logs,
        np.ones(2),
        jac=lambda x: terms / (terms @ x)[:, None],
        bounds=(0, np.inf), loss=lambda squares: weights * _soft_l1(squares), f_scale=_OUTLIER,
        xtol=1e-12, ftol=1e-12,
    )  # fmt: skip
    alpha_s, seconds_per_byte = solution.x * scale
    return float(alpha_s), float(seconds_per_byte)


def _soft_l1(squares: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the loss and its two derivatives, shape (3, n): scipy's has no weights."""
    root = np.sqrt(1 + squares)
    return np.array([2 * (root - 1), 1 / root, -0.5 / root**3])


def _octaves(nbytes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # Serialized sizes differ by some bytes.
    return np.asarray(np.log2(nbytes).round())


def _weights(nbytes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return weights with the mean 1 and the same sum for each octave of sizes."""
    counts: np.ndarray[Any, Any]
    _, octave, counts = np.unique(_octaves(nbytes), return_inverse=True, return_counts=True)
    return len(nbytes) / len(counts) / counts[octave]


def _error_quantiles(nbytes: np.ndarray[Any, Any], errors: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the quantiles of errors of which there are enough."""
    levels = {"error_median": (0.5, 1), "error_p90": (0.9, 10)}
    return {
        name: float(np.quantile(errors, q, weights=_weights(nbytes), method="inverted_cdf"))
        for name, (q, least) in levels.items()
        if len(errors) >= least
    }


def _misfit(nbytes: np.ndarray[Any, Any], rest: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the misfit of transfers whose times are exp(`rest`) times those predicted."""
    octaves = pd.DataFrame({"nbytes": nbytes, "rest": rest}).groupby(_octaves(nbytes))
    medians = octaves.median()[octaves.size() >= MIN_TRANSFERS]
    if medians.empty:
        return {}
    worst = medians.loc[medians["rest"].abs().idxmax()]
    return {
        "misfit": float(np.exp(worst["rest"])), "misfit_bytes": int(worst["nbytes"]),
        "largest_misfit": float(np.exp(medians["rest"].iloc[-1])),
    }  # fmt: skip


def _interval(fits: Any) -> dict[str, float]:
    alphas, slopes = np.reshape(fits, (-1, 2)).T
    low_s, high_s, level = launches_interval(alphas.tolist())
    slowest_Bps, fastest_Bps, _ = launches_interval((1 / slopes).tolist())  # noqa: N806 - the unit
    if not level:
        return {}
    return {
        "alpha_low_s": low_s, "alpha_high_s": high_s, "beta_low_Bps": slowest_Bps,
        "beta_high_Bps": fastest_Bps, "confidence": level,
    }  # fmt: skip
