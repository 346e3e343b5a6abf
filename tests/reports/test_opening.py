"""The opening says which backend to use, why, and what to do next, in few lines."""

from pathlib import Path

import builders
import pytest
from builders import launches, sample

from commbench.analysis.run import load
from commbench.reports import opening, terminal
from commbench.reports.sections import Section, Table

REFERENCE = Path(__file__).parents[2] / "results/reference/20261123-merge-4-backends"
SAME = [1.0, 1.01, 1.02, 0.99, 1.0, 1.01, 0.98, 1.0]
NOISY = [1.0, 2.0, 0.5, 1.5, 0.7, 1.2, 1.8, 0.9]


def run_of(recorded, medians, **given):
    """Return a run with these medians of launches, a number being one of tight launches."""
    cases = [builders.case(backend) for backend in medians]
    records = [
        record
        for case, some in zip(cases, medians.values(), strict=True)
        for record in launches(
            case, some if isinstance(some, list) else [some * seconds for seconds in SAME]
        )
    ]
    return recorded(cases, records, **given)


@pytest.mark.parametrize(
    ("medians", "verdict"),
    [
        ({"tcp": 1.0}, "merge: tcp takes 1.00 s."),
        ({"tcp": 1.0, "mpi": 1.0}, "merge: tcp and mpi are the same."),
        ({"tcp": 2.0, "mpi": 1.0}, "merge: use mpi; tcp takes 2.00× as long."),
        (
            {"tcp": 1.0, "mpi": 1.0, "ucx": 3.0},
            "merge: use tcp or mpi (the same); ucx takes 3.00× as long.",
        ),
        ({"tcp": 1.0, "mpi": NOISY}, "merge: no difference is shown between tcp and mpi."),
    ],
)
def test_the_verdict_names_the_fastest_and_those_that_are_slower(recorded, medians, verdict):
    assert [*opening.verdicts(run_of(recorded, medians))] == [verdict]


def test_backends_that_moved_other_bytes_have_no_verdict(recorded):
    cases = [builders.case(backend) for backend in ("tcp", "mpi")]
    records = [record for case in cases for record in launches(case, SAME)]
    records += [
        builders.wire(case, nbytes, launch=launch)
        for case, nbytes in zip(cases, (100, 200), strict=True)
        for launch in range(len(SAME))
    ]
    (verdict,) = opening.verdicts(recorded(cases, records))
    assert "moved other bytes than" in verdict


def test_sizes_of_messages_have_a_verdict_for_the_smallest_and_the_largest(recorded):
    cases = [builders.case(backend, workload="pingpong") for backend in ("tcp", "mpi")]
    records = [
        sample(case, factor * seconds, launch=launch, layer="comm", payload_bytes=size)
        for case, factor in zip(cases, (1.0, 2.0), strict=True)
        for launch, seconds in enumerate(SAME)
        for size in (1, 1024, 1 << 20)
    ]
    found = [*opening.verdicts(recorded(cases, builders.ended(records)))]
    assert [verdict.partition(": ")[0] for verdict in found] == [
        "pingpong, comm layer, 1 B", "pingpong, comm layer, 1 MiB",
    ]  # fmt: skip
    assert all("use tcp; mpi takes 2.00× as long" in verdict for verdict in found)


def test_a_run_without_samples_has_no_opening_but_all_tables(recorded):
    run = recorded([builders.case()])
    assert [*opening.opening(run)] == []
    assert terminal.render(run) == terminal.render_all(run)


def test_the_opening_of_four_backends_has_at_most_35_lines_of_80_columns():
    text = terminal.render(load(REFERENCE))
    lines = text.splitlines()
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("merge: use tcp or mpi")


def test_a_section_adds_lines_and_tables(recorded, installed):
    table = Table("Mine", ("one",), (("two",),))
    section = Section(
        title="Mine", position=5, tables=lambda _: (), opening=lambda _: ["a\nb", "c", table]
    )
    installed("section", {"mine": section})
    parts = [*opening.opening(run_of(recorded, {"tcp": 1.0}))]
    assert parts[1:3] == ["a b\nc", table]


def test_a_section_that_fails_is_named_and_the_rest_is_shown(recorded, installed):
    def fail(_):
        raise ZeroDivisionError("no lines")

    installed("section", {"mine": Section(title="Mine", position=5, tables=fail, opening=fail)})
    text = terminal.render(run_of(recorded, {"tcp": 1.0}))
    assert "this section could not be made: ZeroDivisionError" in " ".join(text.split())
    assert "What to do next" in text


def test_a_backend_of_which_no_launch_ended_well_has_no_verdict(recorded):
    tcp, mpi = (builders.case(backend) for backend in ("tcp", "mpi"))
    records = [*launches(tcp, SAME), sample(mpi, 0.1), builders.end(mpi, ok=False)]
    assert [*opening.verdicts(recorded([tcp, mpi], records))] == ["merge: tcp takes 1.00 s."]


def test_failures_are_in_the_opening(recorded):
    case = builders.case()
    records = [*launches(case, SAME), *(builders.failure(case, launch=n) for n in range(4))]
    text = terminal.render(recorded([case], records))
    assert text.count("✗ merge over tcp, launch") == 3
    assert "): it broke" in text
    assert "✗ 1 more failures" in text


@pytest.mark.parametrize(
    ("medians", "command"),
    [
        ({"tcp": 1.0, "mpi": NOISY}, "commbench run merge --backends tcp,mpi --rigorous"),
        ({"tcp": 1.0, "mpi": 2.0}, None),
    ],
)
def test_what_is_open_has_a_command(recorded, medians, command):
    run = run_of(recorded, medians, command="commbench run merge --launches 8 --backends tcp,mpi")
    text = opening.next_steps(run)
    assert (f"settle what is open: {command}" in text) == (command is not None)
    assert f"commbench report -v {run.path}" in text
