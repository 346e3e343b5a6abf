"""Where each backend wins, of runs with known times."""

import builders
import pytest
from shown import titled

from commbench.reports.opening import opening, verdicts
from commbench.reports.sections import Table

SPREAD = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02)
TIMES = {"merge": (1.0, 2.0), "svd": (3.0, 1.5), "shuffle": (1.0, 1.0003)}


@pytest.fixture
def run(recorded):
    """Return a run of these tasks over tcp and mpi."""

    def build(tasks, spread=SPREAD, backends=("tcp", "mpi")):
        cases, records = [], []
        for workload, times in tasks.items():
            for backend, seconds in zip(backends, times, strict=True):
                case = builders.case(backend, workload)
                cases.append(case)
                shares = spread[:: 1 if backend == "tcp" else -1]
                records += builders.launches(case, [seconds * share for share in shares])
        return recorded(cases, records)

    return build


def test_each_task_has_its_fastest_backend_and_the_ratios_of_the_others(run):
    measured = run(TIMES)
    assert [row[:3] for row in titled(measured, "Where each backend wins").rows] == [
        ("merge", "tcp", "mpi 2.00×"), ("svd", "mpi", "tcp 2.00×"),
        ("shuffle", "", "all are the same"),
    ]  # fmt: skip
    first, *parts = opening(measured)
    assert first.startswith("Of 3 tasks: tcp won 1, mpi won 1, 1 had no winner.")
    assert "Where each backend wins" in [each.title for each in parts if isinstance(each, Table)]


@pytest.mark.parametrize("growth", [1, 2], ids=["strong", "weak"])
def test_each_number_of_workers_has_a_winner(recorded, growth):
    cases = [
        builders.case(backend, workload, n_workers=n_workers, varied=("backend", "workers"))
        for workload in TIMES
        for n_workers in (2, 4)
        for backend in ("tcp", "mpi")
    ]
    records = [
        record
        for number, case in enumerate(cases)
        for record in builders.launches(
            case, [(1 + number % 2) * share for share in SPREAD[:: 1 - 2 * (number % 2)]],
            payload_bytes=100 * growth ** (case.cluster.n_workers // 2),
        )
    ]  # fmt: skip
    measured = recorded(cases, records)
    assert [row[:3] for row in titled(measured, "Where each backend wins").rows] == [
        (f"{workload}, {n_workers} workers", "tcp", "mpi 2.00×")
        for workload in TIMES
        for n_workers in (2, 4)
    ]
    assert "Of 6 tasks: tcp won 6." in next(opening(measured))
    assert [sentence for sentence in verdicts(measured) if "use" in sentence] == [
        f"{workload}, {n_workers} workers: use tcp; mpi takes 2.00× as long as tcp."
        for workload in TIMES
        for n_workers in (2, 4)
    ]


def test_few_launches_win_nothing(run):
    measured = run(TIMES, spread=(0.99, 1.0, 1.01))
    assert {row[1:3] for row in titled(measured, "Where each backend wins").rows} == {
        ("", "too few launches")
    }


def test_two_tasks_have_sentences_instead(run):
    measured = run({name: TIMES[name] for name in ("merge", "svd")})
    assert [sentence.partition(":")[0] for sentence in verdicts(measured)] == ["merge", "svd"]
    assert "wins" not in " ".join(map(str, opening(measured)))


def without(run, *failed, is_known=True):
    """Return a run in which these cases, as (workload, backend), failed, or are not yet known."""
    ids = [c.id for c in run.suite.cases if (c.workload, c.backend) in failed]
    is_out = run.ends["case_id"].isin(ids)
    ends = run.ends.assign(ok=run.ends["ok"] & ~is_out) if is_known else run.ends[~is_out]
    return run.replace(ends=ends)


def test_a_task_of_which_one_backend_ended_well_has_no_winner(run):
    measured = without(run(TIMES | {"groupby": (1.0, 2.0)}), ("svd", "mpi"))
    rows = titled(measured, "Where each backend wins").rows
    assert [row[:3] for row in rows][-1] == ("svd", "", "only tcp ended well")
    assert next(opening(measured)).startswith(
        "Of 4 tasks: tcp won 2, 2 had no winner; mpi failed in 1."
    )


def test_a_backend_that_failed_is_named_where_others_are_compared(run):
    three = {name: (*values, values[0]) for name, values in TIMES.items()}
    measured = without(run(three, backends=("tcp", "mpi", "ucx")), ("svd", "ucx"))
    row = next(row for row in titled(measured, "Where each backend wins").rows if row[0] == "svd")
    assert row[2].endswith("ucx failed")
    assert "; ucx failed in 1." in next(opening(measured))


def test_tasks_that_were_not_measured_are_not_said_to_have_failed(run):
    both = ("svd", "mpi"), ("svd", "tcp")
    measured = without(run(TIMES | {"groupby": (1.0, 2.0)}), *both, is_known=False)
    assert next(opening(measured)).startswith("Of 3 tasks: tcp won 2, 1 had no winner.")
    every = [(name, backend) for name in TIMES for backend in ("tcp", "mpi")]
    assert "won" not in "".join(map(str, opening(without(run(TIMES), *every))))
