import functools
import math
from collections import Counter
from pathlib import Path

import builders
import pytest
from builders import launches, log_count, message, sample, transfer, wire
from golden.runs import GENERATED

from commbench import load, stats
from commbench.analysis.run import Run
from commbench.model import registry
from commbench.store import tables
from commbench.store.records import TABLES

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
CASE = builders.case(n_workers=3)


def test_cpu_time_is_per_byte_on_the_wire(recorded):
    records = [sample(CASE, 1.0, iteration=n, cpu_seconds=3.0) for n in range(2)]
    records += [wire(CASE, 500_000_000, iteration=n) for n in range(2)]
    records += [wire(CASE, 9 * 10**9, src="0", dst="0"), wire(CASE, 9 * 10**9, iteration=-1)]
    (cost,) = recorded([CASE], records).costs["cpu_s_per_GB"]
    assert cost == pytest.approx(6.0)


def test_bytes_of_warm_ups_do_not_count_in_the_cost_per_byte(recorded):
    seconds = [3.0] * 10 + [1.0, 1.01, 1.02] * 20
    records = [sample(CASE, s, iteration=n, cpu_seconds=2.0) for n, s in enumerate(seconds)]
    records += [wire(CASE, 10**9, iteration=n) for n in range(len(seconds))]
    (row,) = recorded([CASE], records).costs.itertuples()
    assert row.n_warmup == 10
    assert row.cpu_s_per_GB == pytest.approx(2.0)


@pytest.mark.parametrize("records", [[], [wire(CASE, 5, src="0", dst="0")], [log_count(CASE)]])
def test_no_cost_per_byte_without_bytes_on_the_wire(records, recorded):
    (cost,) = recorded([CASE], [sample(CASE, 1.0), *records]).costs["cpu_s_per_GB"]
    assert math.isnan(cost)


def test_cost_of_a_message_is_per_byte_of_its_payload(recorded):
    pingpong, merge = builders.case(workload="pingpong"), builders.case()
    records = [message(pingpong, 1.0, 10**9, cpu_seconds=4.0), sample(merge, 1.0, cpu_seconds=8.0)]
    costs = recorded([pingpong, merge], [*records, wire(merge, 10**9)]).costs
    assert costs.set_index("workload")["cpu_s_per_GB"].to_dict() == {"pingpong": 4.0, "merge": 8.0}


def test_idle_cores_are_in_every_row_of_their_case(recorded):
    one, two = (builders.case(name, "pingpong") for name in ("tcp", "ucx"))
    records = [message(case, 1.0, size) for case in (one, two) for size in (1, 2)]
    table = recorded([one, two], [*records, builders.idle(one, 3.0)]).costs
    assert table["idle_cores"].tolist() == pytest.approx(
        [1.5, 1.5, math.nan, math.nan], nan_ok=True
    )


FULL = [
    *launches(CASE, [1.0] * 6), builders.idle(CASE), wire(CASE, 100), log_count(CASE),
    *3 * builders.exchanges(CASE, lambda src, dst: 100 if src + dst == "01" else 1),
]  # fmt: skip


@pytest.mark.parametrize("records", [[], [builders.failure(CASE)]], ids=["nothing", "a failure"])
def test_tables_without_rows_have_the_columns_of_others(records, recorded):
    full, empty = recorded([CASE], FULL), recorded([CASE], records)
    for name in ("costs", "coverage", "link_bandwidths", "pairs", "slow_pairs"):
        some, none = (getattr(run, name) for run in (full, empty))
        assert (len(some) > 0, len(none), list(none)) == (True, 0, list(some)), name
    for derive in (stats.launch_medians, stats.idle_cores, stats.spreads, stats.drifts):
        some, none = derive(full), derive(empty)
        assert (len(some) > 0, len(none), list(none)) == (True, 0, list(some)), derive
    assert empty.comparisons == []


COMPUTED = {
    name for name, each in vars(Run).items()
    if isinstance(each, functools.cached_property) and name in stats.__all__
}  # fmt: skip


def test_what_takes_long_is_computed_once():
    assert {"summaries", "pair_bandwidths", "coverage", "worker_profiles", "counting"} <= COMPUTED


@pytest.mark.parametrize("name", ["failures", "20261123-merge-4-backends"])
def test_everything_is_computed_once_for_all_formats_and_figures(name, tmp_path, monkeypatch):
    calls = Counter[str]()

    def counted(name, function):
        def call(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for each in COMPUTED:
        monkeypatch.setattr(stats, each, counted(each, getattr(stats, each)))
    monkeypatch.setattr(Run, "_read", counted("frames", Run._read))
    run = load(GENERATED[name](tmp_path) if name in GENERATED else REFERENCE / name)
    for form in ("terminal", "markdown", "html", "json", "csv"):
        registry.load("report", form)(run)
    assert calls.pop("frames") == len(TABLES)
    # Only comparisons of cases that moved different bytes need that.
    assert COMPUTED - {*calls} <= {"seconds_per_byte"}
    assert {*calls.values()} == {1}


def test_transfers_are_not_read_for_a_summary(recorded, monkeypatch):
    run = recorded([CASE], [*launches(CASE, [1.0] * 6), transfer(CASE, 0, 1, 100)])
    monkeypatch.setattr(tables, "frame_from_parts", None)
    assert len(run.summaries) == 1
    assert run.ended_by == ""


def test_help_describes_each_attribute():
    attributes = {name: each for name, each in vars(Run).items() if not name.startswith("_")}
    assert [name for name, each in attributes.items() if not each.__doc__] == []
