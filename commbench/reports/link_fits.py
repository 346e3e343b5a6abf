"""The output of ``commbench model``: fitted latencies and bandwidths as tables and JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from commbench.model import Manifest
from commbench.model.units import format_bytes, format_message_size, format_seconds
from commbench.reports.json import dumps
from commbench.reports.sections import Table, number, percent, plural
from commbench.stats.link_model import LinkModel

_MAX_PAIRS = 24
_MAX_MISFIT = 1.2
"""The misfit from which the table says that a line fits badly."""
_CHANNELS = {
    "alone": "fetches of one pair at a time, with no other under way",
    "gather": "fetches of running computations, concurrent with other fetches and tasks",
    "p2p": "batches of P2P shuffles",
    "rounds": "fetches in rounds of pairs that share no host",
    "together": "fetches of all pairs at once",
}
"""The transfers that a model was fitted to, by channel."""


def tables(
    models: Sequence[LinkModel], tasks: Mapping[str, str], predict: int | None
) -> Iterator[Table]:
    """Yield a table of the link classes and one of the pairs for each case and channel.

    `models` are from ``stats.link_models``, `tasks` are labels of cases by their ids, and `predict`
    is the size in bytes of a transfer whose time is predicted.
    """
    for case_id, channel in dict.fromkeys((model.case_id, model.channel) for model in models):
        mine = [model for model in models if (model.case_id, model.channel) == (case_id, channel)]
        where = f"{tasks[case_id]} over {mine[0].backend}, {channel}"
        classes, pairs = ([m for m in mine if bool(m.src) is one] for one in (False, True))
        meaning = f"From {_CHANNELS.get(channel, channel)}. {_meaning(classes)}"
        yield _table(f"{where}: classes of links", classes, predict, meaning)
        shown = sorted(pairs, key=lambda m: math.inf if m.reason else m.beta_Bps)[:_MAX_PAIRS]
        cut = f"The {_MAX_PAIRS} slowest of {len(pairs)}." if len(pairs) > _MAX_PAIRS else ""
        yield _table(f"{where}: pairs", shown, predict, cut)


def _table(title: str, models: Sequence[LinkModel], predict: int | None, note: str) -> Table:
    refused = {model.reason: model for model in models if model.reason}
    n_refused = Counter(model.reason for model in models)
    missing = "".join(
        f" No model of {_name(model)}{' and others' * (n_refused[reason] > 1)}: {reason}."
        for reason, model in refused.items()
    )
    columns: dict[str, Iterable[str]] = {
        "link": map(_name, models),
        "α": [format_seconds(model.alpha_s) for model in models],
        **_round_trips(models),
        "α\n±": [_within(m.alpha_low_s, m.alpha_s, m.alpha_high_s) for m in models],
        "β\nGB/s": [number(model.beta_Bps / 1e9) for model in models],
        "β\n±": [_within(m.beta_low_Bps, m.beta_Bps, m.beta_high_Bps) for m in models],
        "n½": ["—" if m.reason else format_bytes(round(m.half_bytes)) for m in models],
        "error\nmedian": [percent(model.error_median) for model in models],
        "error\n90 %": [percent(model.error_p90) for model in models],
    }
    if predict is not None:
        columns[f"{format_message_size(predict)}\ntakes"] = [
            _prediction(model, predict) for model in models
        ]
    return Table.from_columns(f"t = α + n / β for {title}", columns, f"{note}{missing}".strip())


def _round_trips(models: Sequence[LinkModel]) -> dict[str, Iterable[str]]:
    """Return the column of round trips, if they were measured."""
    if all(math.isnan(model.round_trip_s) for model in models):
        return {}
    return {"round\ntrip": [format_seconds(model.round_trip_s) for model in models]}


def _name(model: LinkModel) -> str:
    pairs = plural(model.n_pairs, "pair")
    return f"{model.src} → {model.dst}" if model.src else f"{model.link} ({pairs})"


def _prediction(model: LinkModel, nbytes: int) -> str:
    beyond = not model.smallest_bytes <= nbytes <= model.largest_bytes
    return format_seconds(model.predict_s(nbytes)) + " *" * (beyond and not model.reason)


def _within(low: float, value: float, high: float) -> str:
    """Return the distance from `value` to the farther end of its interval, in percent."""
    return percent(max(value - low, high - value) / value if value > 0 else math.nan)


def _meaning(classes: Sequence[LinkModel]) -> str:
    fitted = [model for model in classes if not model.reason]
    if not fitted:
        return ""
    levels = [f"{model.confidence:.0%}" for model in fitted if model.confidence]
    level = " to ".join(dict.fromkeys([min(levels), max(levels)])) if levels else ""
    interval = (
        f"±: the farther end of the {level} interval of the launches' fits"
        if levels
        else "±: one launch gives no interval"
    )
    trip = "round trip: of an empty request, and the rest of α is Dask's fixed cost of a fetch; "
    trip *= bool(_round_trips(fitted))
    smallest = format_message_size(min(model.smallest_bytes for model in fitted))
    largest = format_message_size(max(model.largest_bytes for model in fitted))
    return (
        f"α: the time of a fetch of no bytes; {trip}β: bandwidth; n½ = αβ: the size that is half "
        f"latency; {interval}; error: "
        f"|predicted / measured - 1| of transfers of one {fitted[0].parts}, predicted from the "
        "others. "
        f"Sizes {smallest} to {largest}; a prediction outside them has a *."
        + "".join(
            f" {_name(model)}: a line fits badly, at {format_message_size(model.misfit_bytes)} "
            f"transfers take {model.misfit:.2f} times the predicted time."
            for model in fitted
            if model.misfit < 1 / _MAX_MISFIT or model.misfit > _MAX_MISFIT
        )
    )


def document(run: Manifest, models: Sequence[LinkModel], predict: int | None) -> str:
    """Return the models as a JSON object, in base units; unknown numbers are null."""
    rows = [
        {
            **dataclasses.asdict(model),
            "half_bytes": model.half_bytes,
            **({} if predict is None else {"predicted_s": model.predict_s(predict)}),
        }
        for model in models
    ]
    return dumps({"run": run.id, "predicted_bytes": predict, "models": rows})
