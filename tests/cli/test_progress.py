"""Progress shows what a launch does, on a terminal and in logs, and is never silent for long."""

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import builders
import pytest
from launching import make_launch

from commbench.cli import progress
from commbench.model import Launch, Manifest, Stopping, Suite
from commbench.model.observed import Phase

CASE = builders.case()
RUN = Manifest(
    id="run", suite=Suite(name="s", cases=(CASE,)), environment={}, seed=0, started_at="now"
)


@pytest.fixture
def shown(monkeypatch):
    """Return a function that passes pairs of a time and a record, and returns the output."""

    def shown(timed, *, run=RUN, terminal=False, stream=None, **given):
        stream, now = stream or io.StringIO(), SimpleNamespace(monotonic=lambda: 0.0)
        stream.isatty = lambda: terminal
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "time", now)
        launches = [Launch(case=CASE, index=n, block=n, position=0) for n in range(2)]
        with progress.display(run, launches, **given) as show:
            for seconds, record in timed:
                now.monotonic = lambda seconds=seconds: seconds
                show(record)
        return stream.getvalue() if isinstance(stream, io.StringIO) else None

    return shown


def phase(name):
    return Phase(case_id=CASE.id, launch=0, name=name)


def test_a_terminal_shows_the_phase_and_its_duration_at_each_tick(shown):
    text = shown([(0, phase("starting")), (3, None), (9, phase("collecting"))], terminal=True)
    for part in ("merge tcp: starting", "merge tcp: starting 3 s", "merge tcp: collecting"):
        assert part in text


def test_a_terminal_shows_the_last_iteration_of_the_launch_that_ended(shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    records = [builders.sample(CASE, 0.25), builders.sample(CASE, 0.5), builders.end(CASE), None]
    text = shown([(0, record) for record in records], terminal=True)
    assert "left · merge tcp 500 ms an iteration" in text
    assert "250 ms" not in text


def test_a_terminal_shows_failures_as_they_are(shown):
    message = "[node1:4711] OSError: no object at [/data/x.parquet] :x:"
    text = shown([(0, builders.failure(CASE, message))], terminal=True)
    assert f"✗ merge tcp: {message}" in " ".join(text.split())


def test_a_log_has_a_line_for_a_phase_and_is_silent_for_ten_seconds_at_most(shown):
    text = shown([(0, phase("starting")), (9, None), (10, None), (19, None), (21, None)])
    assert text == "".join(f"merge tcp: starting …{s}\n" for s in ("", " 10 s", " 21 s"))
    text = shown([(0, phase("starting")), (1, phase("short")), (5, phase("long")), (6, None)])
    assert text == "merge tcp: starting …\nmerge tcp: long …\n"


def test_a_resumed_run_has_spent_a_part_of_its_budget(shown):
    run = replace(RUN, stopping=Stopping(budget_s=600))
    text = shown([(0, builders.end(CASE, seconds=60.0))], run=run, terminal=True, spent_s=300.0)
    assert "4 min of the budget left" in text
    text = shown([(0, builders.end(CASE, seconds=60.0))], run=run, terminal=True, spent_s=600.0)
    assert "up to 4 min left" in text


def test_the_time_left_is_that_of_the_backends_still_to_come():
    slow = replace(CASE, backend="ucx")
    launches = [make_launch(case) for case in (CASE, slow, slow)]
    remaining = progress._Remaining(Suite(name="s", cases=(CASE, slow)), launches)
    assert remaining.after(builders.end(CASE, seconds=10.0)) == "40 s left"
    assert remaining.after(builders.end(slow, seconds=30.0)) == "30 s left"


def test_a_log_has_a_line_per_launch_with_the_time_left(shown):
    ends = [(0, builders.end(CASE, launch=n, seconds=90.0)) for n in range(2)]
    begin = [(0, phase("starting")), (0, builders.sample(CASE, 0.5))]
    _, first, second = shown([*begin, *ends]).splitlines()
    assert first == "[1/2] merge tcp: done in 90.0 s, last iteration 500 ms, 1.5 min left"
    assert second == "[2/2] merge tcp: done in 90.0 s"


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_progress_has_failures_only(shown, terminal):
    records = [phase("starting"), builders.end(CASE), builders.failure(CASE, "it broke"), "note"]
    text = shown([(99, record) for record in records], terminal=terminal, quiet=True)
    assert text == "failed: merge tcp: it broke\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_that_nobody_reads_any_more_is_no_error(shown, terminal):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as stream:
        shown([(0, builders.end(CASE)), (20, builders.failure(CASE))], terminal=terminal,
              stream=stream)  # fmt: skip
        with progress.working("reporting", quiet=False):
            pass
        # What others print to it is no error either.
        assert str(Path(f"/proc/self/fd/{stream.fileno()}").readlink()) == os.devnull
