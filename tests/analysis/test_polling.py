from __future__ import annotations

import builders
import pytest

from commbench.analysis import warnings


def polling(recorded, idle_cores, n_cores):
    case = builders.case("ucx")
    records = [
        builders.sample(case, 1.0),
        builders.idle(case, idle_cores, seconds=1.0),
    ]
    environment = {"cpu": {"usable_cores": n_cores}}
    run = recorded([case], builders.ended(records), environment=environment)
    return [text for text in warnings.disturbances(run) if "event loops poll" in text]


@pytest.mark.parametrize(
    ("idle_cores", "n_cores", "warns"),
    [(1.9, 2, True), (0.2, 2, False), (1.9, 4, False), (3.9, 8, False)],
)
def test_processes_that_poll_on_fewer_cores_are_named(recorded, idle_cores, n_cores, warns):
    texts = polling(recorded, idle_cores, n_cores)
    assert bool(texts) == warns
    if warns:
        assert texts[0].startswith("ucx: event loops poll: an idle cluster uses 1.9 of 2 cores")
