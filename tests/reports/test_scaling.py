"""Efficiency of more workers, from launches with known times and payloads."""

import builders
import pytest
from shown import titled

from commbench.reports.figures import scaling_figure
from commbench.reports.opening import verdicts

VARIED = ("backend", "workers")
SPREAD = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02)


@pytest.fixture
def scaled(recorded):
    """Return a run of (backend, workers, seconds, payload)."""

    def build(*points, spread=SPREAD, lost=()):
        cases, records = [], []
        for number, (backend, n_workers, seconds, payload) in enumerate(points):
            case = builders.case(backend, n_workers=n_workers, varied=VARIED)
            cases.append(case)
            # Blocks are paired.
            for launch, share in enumerate(spread[:: (-1) ** number]):
                if (n_workers, launch) == lost:
                    continue
                given = {"launch": launch, "payload_bytes": payload}
                records.append(builders.sample(case, seconds * share, **given))
        return recorded(cases, builders.ended(records))

    return build


@pytest.mark.parametrize(
    ("kind", "times", "payloads", "expected"),
    [
        ("strong", (8.0, 5.0, 4.0), (100, 100, 100), [1, 0.8, 0.5]),
        ("strong", (8.0, 5.0, 4.0), (0, 0, 0), [1, 0.8, 0.5]),
        ("weak", (1.0, 1.25, 4.0), (100, 200, 400), [1, 0.8, 0.25]),
        ("mixed", (1.0, 1.0, 1.0), (100, 100, 400), [1, 0.5, 1]),
    ],
)
def test_efficiency_is_work_per_second_and_worker(scaled, kind, times, payloads, expected):
    points = zip((1, 2, 4), times, payloads, strict=True)
    table = scaled(*(("tcp", *point) for point in points)).scaling
    assert table["efficiency"].tolist() == pytest.approx(expected, rel=0.01)
    assert {*table["kind"]} == {kind}
    assert (table["ci_low"] <= table["efficiency"]).all()
    assert (table["ci_high"] >= table["efficiency"]).all()


def test_each_backend_has_a_series_relative_to_its_fewest_workers(scaled):
    run = scaled(("tcp", 4, 1.0, 9), ("mpi", 2, 9.0, 9), ("tcp", 2, 2.0, 9), ("mpi", 4, 9.0, 9))
    table = run.scaling.set_index(["series", "n_workers"])["efficiency"]
    assert table.to_dict() == {("tcp", 2): 1, ("tcp", 4): 1, ("mpi", 2): 1, ("mpi", 4): 0.5}
    assert titled(run, "Scaling of merge over mpi").rows[1][:3] == ("4", "9.00 s", "50.0%")


def test_a_case_that_lost_a_launch_leaves_others_paired(scaled):
    points = [("tcp", n, 8.0 / n, 9) for n in (1, 2, 4)]
    before, after = scaled(*points), scaled(*points, lost=(4, 3))
    row = before.scaling.iloc[1]
    assert after.scaling.iloc[1].to_dict() == row.to_dict()
    (comparison,) = [c for c in after.comparisons if c.candidate_id == row["case_id"]]
    assert row["ci_low"] == pytest.approx(0.5 * 2 / 2 / comparison.ci_high)


def test_the_verdict_names_the_most_workers_that_pay(scaled):
    sentence, *_ = verdicts(scaled(*(("tcp", n, 8 / min(n, 4), 9) for n in (1, 2, 4, 8, 16))))
    assert sentence == (
        "merge over tcp: fewer than 16 workers for this work, and 8 may pay. Of 16, each does 25% "
        "of the work of a single one."
    )


def test_an_efficiency_that_could_be_above_half_is_not_called_below(scaled):
    points = (("tcp", 2, 8.0, 9), ("tcp", 4, 8.05, 9))
    assert verdicts(scaled(*points))[0] == (
        "merge over tcp scales to at least 2 workers: of 4, each does 50% of the work of each of 2."
    )
    (said, *_) = verdicts(scaled(*points, spread=(1.0,)))
    assert "probably fewer than 4 workers for this work. Of 4," in said


def test_no_number_of_workers_behind_the_first_that_does_not_pay_is_advised(scaled):
    points = (("tcp", 1, 8.0, 9), ("tcp", 2, 9.0, 9), ("tcp", 4, 4.0, 9))
    assert "at most 1 worker for this work. Of 2, each does 44%" in verdicts(scaled(*points))[0]


@pytest.mark.parametrize(
    ("mode", "n_rows"), [("throughput", 2), ("first-result", 0), ("single", 0)]
)
def test_work_that_workers_can_not_share_has_no_efficiency(recorded, mode, n_rows):
    cases = [
        builders.case(workload="tiny-tasks", n_workers=n, varied=VARIED, params={"mode": mode})
        for n in (1, 2)
    ]
    records = builders.launches(cases, [1.0] * 6)
    assert len(recorded(cases, records).scaling) == n_rows


def test_bytes_that_each_but_one_receives_are_no_work_that_workers_share(recorded):
    cases = [
        builders.case(workload="broadcast", n_workers=n, varied=VARIED, params={"size": 8})
        for n in (2, 8)
    ]
    records = builders.launches(cases, [1.0] * 6)
    assert recorded(cases, records).scaling.empty


def test_other_settings_are_no_scaling(recorded):
    case = builders.case(varied=("backend",))
    assert recorded([case], builders.launches(case, [1.0] * 6)).scaling.empty


def test_tasks_have_different_looks_in_the_figure(recorded):
    cases = [
        builders.case(workload=name, n_workers=n, varied=VARIED)
        for name in ("merge", "transpose-sum") for n in (1, 2)
    ]  # fmt: skip
    records = builders.launches(cases, SPREAD)
    (axes,) = scaling_figure.plot(recorded(cases, records)).axes
    bars = axes.containers
    assert [each.get_label() for each in bars] == ["merge tcp", "transpose-sum tcp"]
    assert len({(each[0].get_color(), each[0].get_marker()) for each in bars}) == 2
