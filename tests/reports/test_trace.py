import itertools
import json

import builders
import pytest
from builders import sample, task, transfer

from commbench.errors import UsageError
from commbench.reports import trace

CASE = builders.case(n_workers=2)


def events(run):
    return json.loads(trace.render(run))


@pytest.fixture(scope="module", name="made")
def _made(recorded):
    """Return the events of a run of three iterations, of which the second is the median."""
    records = []
    for iteration, seconds in enumerate((1.0, 2.0, 9.0)):
        at = {"iteration": iteration}
        records += [
            sample(CASE, seconds, **at),
            task(CASE, 0.1, 0.5, worker="0", thread=77, **at),
            task(CASE, 0.5, 0.9, worker="0", thread=77, **at),
            task(CASE, 0.2, 0.4, worker="0", thread=5, **at),
            task(CASE, 0.3, 0.6, worker="0", thread=5, **at),
            task(CASE, 0.2, 0.4, worker="1", action="transfer", **at),
            transfer(CASE, 0.5, 0.8, 10, src="0", dst="1", **at),
            transfer(CASE, 0.6, 0.7, 20, src="0", dst="1", **at),
            transfer(CASE, 0.9, 1.0, 30, src="1", dst="0", **at),
            transfer(CASE, 1.0, 0.9, 99, src="1", dst="0", **at),
        ]
    return events(recorded([CASE], builders.ended(records)))


def test_slices_are_the_tasks_and_both_ends_of_the_fetches_of_one_iteration(made):
    slices = [event for event in made if event["ph"] == "X"]
    assert sum(event["cat"] == "compute" for event in slices) == 4
    fetches = [event for event in slices if event["cat"] == "fetch"]
    assert sorted(event["args"]["nbytes"] for event in fetches) == [10, 10, 20, 20, 30, 30]
    assert {(event["name"], event["pid"]) for event in fetches} == {
        ("0 → 1", 1), ("0 → 1", 2), ("1 → 0", 1), ("1 → 0", 2),
    }  # fmt: skip


def test_a_batch_has_its_shuffle_and_the_parts_of_its_time(recorded):
    parts = {"shuffle": "join-1", "queue_s": 0.5, "handling_s": 0.25}
    records = [sample(CASE, 1.0), transfer(CASE, 0, 1, 10, channel="p2p", **parts)]
    made = events(recorded([CASE], builders.ended(records)))
    both_ends = [event["args"] for event in made if event["ph"] == "X"]
    assert both_ends == [{"nbytes": 10, "keys": 1, "channel": "p2p", **parts}] * 2


def test_times_are_microseconds_since_the_start_of_the_iteration(made):
    (first, *_) = sorted(e["ts"] for e in made if e["ph"] == "X" and e["cat"] == "compute")
    assert first == pytest.approx(1e5, abs=1)


def test_slices_of_a_track_do_not_overlap_and_every_track_has_a_name(made):
    tracks = {}
    for event in made:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for track in tracks.values():
        track.sort(key=lambda event: event["ts"])
        for one, two in itertools.pairwise(track):
            assert one["ts"] + one["dur"] <= two["ts"] + 1e-3
    named = {(e["pid"], e["tid"]) for e in made if e["name"] == "thread_name"}
    assert named == set(tracks)
    assert {e["args"]["name"] for e in made if e["name"] == "process_name"} == {
        "merge over tcp, worker 0", "merge over tcp, worker 1",
    }  # fmt: skip


def test_an_arrow_leads_from_each_sender_to_its_receiver(made):
    arrows = {}
    for event in made:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], {})[event["ph"]] = event
    assert len(arrows) == 3
    slices = [event for event in made if event["ph"] == "X"]
    for arrow in arrows.values():
        for end in arrow.values():
            assert any(
                (e["pid"], e["tid"]) == (end["pid"], end["tid"])
                and e["ts"] <= end["ts"] <= e["ts"] + e["dur"]
                for e in slices
            )
        assert arrow["s"]["pid"] != arrow["f"]["pid"]


def test_no_arrow_leads_from_one_case_to_another(recorded):
    cases, records = [builders.case(name, n_workers=2) for name in ("tcp", "mpi")], []
    for case, start_s, stop_s in zip(cases, (0.1, 0.2), (0.5, 0.3), strict=True):
        records += [sample(case, 1.0), task(case, 0, 1), transfer(case, start_s, stop_s)]
    made = events(recorded(cases, builders.ended(records)))
    arrows = {}
    for event in made:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append((event["ph"], event["pid"]))
    assert [*arrows.values()] == [[("s", 1), ("f", 2)], [("s", 3), ("f", 4)]]


def test_a_counter_has_the_bytes_that_each_worker_has_received(made):
    counts = [(e["pid"], e["args"]["bytes received"]) for e in made if e["ph"] == "C"]
    assert sorted(counts) == [(1, 30), (2, 20), (2, 30)]


@pytest.fixture(scope="module", name="profiled")
def _profiled(recorded):
    """Return the events of a run with event loops, of which that of worker 0 was blocked."""
    records = [
        sample(CASE, 2.0),
        task(CASE, 0.1, 0.5, worker="0"),
        *(
            builders.thread_time(
                CASE, worker, "loop", seconds=2.0, cpu_seconds=1.0, n_turns=9, idle_n_turns=1
            )
            for worker in ("0", "1", "scheduler", "client")
        ),
        builders.long_turn(CASE, -0.5, 0.25),
        builders.long_turn(CASE, 1.0, 1.5),
        builders.long_turn(CASE, 2.5, 3.0),
        builders.process_use(CASE, -0.25, 0.5),
        builders.process_use(CASE, 0.25, 1.5),
        builders.process_use(CASE, 0.25, 0.75, worker="scheduler"),
        builders.process_use(CASE, 0.25, 0.25, worker="joined"),
    ]
    return events(recorded([CASE], builders.ended(records)))


def test_every_process_has_the_parts_of_its_loop_and_the_turns_that_blocked_it(profiled):
    loops = [e for e in profiled if e["ph"] == "X" and e["cat"] == "loop"]
    (whole, *blocked) = [e for e in loops if e["pid"] == 1]
    assert whole["ts"] == 0
    assert whole["dur"] == pytest.approx(2e6)
    assert sum(whole["args"].values()) == pytest.approx(2.0)
    spans = [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in blocked]
    assert spans == [
        ("blocked", 0.0, pytest.approx(0.25)),
        ("blocked", pytest.approx(1.0), pytest.approx(0.5)),
    ]
    assert [e["name"] for e in loops if e["pid"] != 1] == ["event loop"] * 3
    assert [e["args"]["name"] for e in profiled if e["name"] == "process_name"] == [
        "merge over tcp, worker 0", "merge over tcp, worker 1", "merge over tcp, worker joined",
        "merge over tcp, scheduler", "merge over tcp, client",
    ]  # fmt: skip


def test_counters_have_the_cores_and_the_memory_that_each_process_used(profiled):
    counters = [e for e in profiled if e["ph"] == "C"]
    cores = [
        (e["pid"], e["ts"] / 1e6, e["args"]["cores in use"])
        for e in counters if e["name"] == "cores in use"
    ]  # fmt: skip
    quarter = pytest.approx(0.25)
    assert cores == [(1, 0.0, 0.5), (1, quarter, 1.5), (4, quarter, 0.75), (3, quarter, 0.25)]
    memory = [
        (e["ts"] / 1e6, e["args"]["memory (bytes)"])
        for e in counters if e["name"] == "memory (bytes)"
    ]  # fmt: skip
    # A reading is of its end.
    assert memory == [(quarter, 10**9), *[(pytest.approx(0.75), 10**9)] * 3]


def test_a_run_without_tasks_is_refused(recorded):
    run = recorded([CASE], builders.ended([sample(CASE, 1.0)]))
    with pytest.raises(UsageError, match=r"has no tasks.*samples\.jsonl has all samples"):
        trace.render(run)


def test_fetches_of_all_pairs_are_no_iteration(recorded):
    case = builders.case(workload="all-to-all")
    records = [sample(case, 1.0, layer="alone"), transfer(case, 0, 1, 10, channel="alone")]
    with pytest.raises(UsageError, match="has no tasks"):
        trace.render(recorded([case], builders.ended(records)))
