"""The output of ``commbench model``: fitted latencies and bandwidths as tables and JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add

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
) -> Iterator[Table | str]:
    """Yield a table of the link classes and one of the pairs for each case and channel.

    A sentence says why there is no table. `models` are from ``stats.link_models``, `tasks` are
    labels of cases by their ids, and `predict` is the size in bytes of a transfer whose time is
    predicted.
    """
    for case_id, channel in dict.fromkeys((model.case_id, model.channel) for model in models):
        mine = [model for model in models if (model.case_id, model.channel) == (case_id, channel)]
        where = f"{tasks[case_id]} over {mine[0].backend}, {channel}"
        classes, pairs = ([m for m in mine if bool(m.src) is one] for one in (False, True))
        pairs.sort(key=lambda m: math.inf if m.reason else m.beta_Bps)
        without: list[LinkModel] = []
        for kind, every in (("classes of links", classes), ("pairs", pairs)):
            fitted = [model for model in every if not model.reason]
            if not fitted:
                # The reason of a class is that of its pairs.
                without = without or every
                continue
            note = f"From {_CHANNELS.get(channel, channel)}. {_meaning(fitted)} "
            if every is pairs:
                cut = f"The {_MAX_PAIRS} slowest of {len(fitted)}. "
                note, fitted = cut * (len(fitted) > _MAX_PAIRS), fitted[:_MAX_PAIRS]
            yield _table(f"{where}: {kind}", fitted, predict, note + _refused(every))
        if without:
            yield f"{where}. {_refused(without)}"


def _refused(models: Sequence[LinkModel]) -> str:
    """Return sentences on why some have no model, one for each reason."""
    first = {model.reason: model for model in reversed(models)}
    return " ".join(
        f"No model of {_name(first[reason])}{' and others' * (n > 1)}: {reason}."
        for reason, n in Counter(model.reason for model in models).items()
        if reason
    )


def _table(title: str, models: Sequence[LinkModel], predict: int | None, note: str) -> Table:
    marks = [" !" * _is_misfit(model.largest_misfit) for model in models]
    betas = [number(model.beta_Bps / 1e9) for model in models]
    columns: dict[str, Iterable[str]] = {
        "link": map(_name, models),
        "α": [format_seconds(model.alpha_s) for model in models],
        **_round_trips(models),
        "α\n±": [_within(m.alpha_low_s, m.alpha_s, m.alpha_high_s) for m in models],
        "β\nGB/s": map(add, betas, marks),
        "β\n±": [_within(m.beta_low_Bps, m.beta_Bps, m.beta_high_Bps) for m in models],
        "n½": [format_bytes(round(model.half_bytes)) for model in models],
        "error\nmedian": [percent(model.error_median) for model in models],
        "error\n90 %": [percent(model.error_p90) for model in models],
    }
    if predict is not None:
        columns[f"{format_message_size(predict)}\ntakes"] = [
            _prediction(model, predict) + mark for model, mark in zip(models, marks, strict=True)
        ]
    if any(marks):
        differs = f"over {_MAX_MISFIT:g} times as long as α and β say, or as much less"
        note = f"!: the largest size takes {differs}. {note}"
    return Table.from_columns(f"t = α + n / β for {title}", columns, note.strip())


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
    return format_seconds(model.predict_s(nbytes)) + " *" * beyond


def _is_misfit(misfit: float) -> bool:
    return misfit < 1 / _MAX_MISFIT or misfit > _MAX_MISFIT


def _within(low: float, value: float, high: float) -> str:
    """Return the distance from `value` to the farther end of its interval, in percent."""
    return percent(max(value - low, high - value) / value if value > 0 else math.nan)


def _meaning(fitted: Sequence[LinkModel]) -> str:
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
            if _is_misfit(model.misfit)
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
