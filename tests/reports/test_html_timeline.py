import builders
import pytest
from builders import launches, sample

from commbench.reports import html
from commbench.reports.html import timeline

CASE = builders.case("tcp", workload="merge")


def task(name, start_s, stop_s, **given):
    return builders.task(CASE, start_s, stop_s, name=name, **given)


@pytest.fixture
def build(recorded):
    """Return a function that makes the time lines of one iteration, from 100 s to 110 s."""

    def run(*records):
        end = launches(CASE, [10.0])[-1]
        whole = sample(CASE, 10.0, started_at_s=builders.EPOCH + 100.0)
        return recorded([CASE], [whole, *records, end])

    return run


def test_bars_are_at_their_times_with_names_and_durations(build):
    (line,) = timeline.timelines(build(task("inner", 101.0, 106.0), task("outer", 106.0, 110.0)))
    ((name, (inner, outer)),) = line.lanes
    assert name == "0"
    assert (inner.left, inner.width, outer.left, outer.width) == (10, 50, 60, 40)
    assert (inner.text, inner.description) == ("inner", "inner\n5.00 s, from 1.00 s on")
    assert inner.fill != outer.fill
    assert [text for _, text in line.ticks] == ["0 s", "2.00 s", "4.00 s", "6.00 s", "8.00 s"]


def test_only_the_longest_bars_are_shown_and_the_others_counted(build, monkeypatch):
    monkeypatch.setattr(timeline, "_MAX_BARS", 2)
    tasks = [task(f"t{number}", 101.0, 101.0 + number) for number in range(1, 6)]
    run = build(*tasks)
    (line,) = timeline.timelines(run)
    ((_, bars),) = line.lanes
    assert {bar.text for bar in bars} == {"t4", "t5"}
    assert line.note.startswith("3 of 5 bars are left out")
    assert "<i " in html.render(run)


def test_a_run_without_tasks_has_no_time_line(build):
    assert timeline.timelines(build()) == []


def test_names_of_tasks_are_no_markup(build):
    page = html.render(build(task('"><script>x', 101.0, 102.0)))
    assert "<script>x" not in page
