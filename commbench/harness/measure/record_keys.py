"""Fields that the records of a launch share."""

from __future__ import annotations

from typing import Any

from commbench.model import Case, Launch
from commbench.model.observed import Sample


def keys(launch: Launch, iteration: int | None = None) -> dict[str, Any]:
    """Return the fields that identify the launch, and the iteration unless it is None."""
    fields: dict[str, Any] = {"case_id": launch.case.id, "launch": launch.index}
    return fields if iteration is None else {**fields, "iteration": iteration}


def counted(iteration: int, case: Case) -> str:
    """Return the name of the phase of an iteration, which is negative in warm-ups."""
    if iteration < 0:
        return f"warm-up {case.warmups + iteration + 1} of {case.warmups}"
    return f"iteration {iteration + 1} of {case.iterations}"


def sample(
    launch: Launch, iteration: int, layer: str, payload_bytes: int, started_at_s: float,
    seconds: float, cpu_seconds: float, *, verified: bool = True, **more: Any,
) -> Sample:  # fmt: skip
    """Return a sample, with `more` of its fields; `iteration` is negative in warm-ups."""
    return Sample(
        **keys(launch, iteration), layer=layer, warmup=iteration < 0, started_at_s=started_at_s,
        seconds=seconds, cpu_seconds=cpu_seconds, payload_bytes=payload_bytes, verified=verified,
        **more,
    )  # fmt: skip
