import math
import re
from dataclasses import replace

import builders
import pytest
from builders import (
    core_use,
    end,
    failure,
    launches,
    log_count,
    message,
    place,
    sample,
    setting,
    spill,
    transfer,
    transport,
    wire,
)

from commbench import stats
from commbench.analysis import warnings
from commbench.model import ClusterSpec, Stopping
from commbench.model.observed import IdleCost, Sample
from commbench.stats.comparison import COMPRESSION

pytestmark = pytest.mark.usefixtures("no_rules")

CASE = builders.case(launches=8)
DISTURBED = "merge over tcp 0, 1"
QUIET = {
    "cpu": {
        "usable_cores": 4, "cgroup_quota_cores": "unlimited", "turbo": False,
        "governors": {"policy0": "performance", "policy1": "performance"},
    },
    "load_average": [0.3, 2.0, 2.0],
    "clock": {"step_s": 5e-8},
}  # fmt: skip


def clean(case=CASE, medians=()):
    steady = list(medians) or [1.0, 1.02, 0.99, 1.01, 1.0, 0.98, 1.02, 1.0]
    records = launches(case, steady)
    for launch in range(len(steady)):
        records += [
            core_use(case, launch=launch, others=0.05, stolen=0.01),
            setting(case, COMPRESSION, "none", launch=launch),
        ]
    return records


def messages(case, seconds=1e-3, sizes=(1,), spread=lambda _: 0.001, **given):
    """Return eight launches of a ping-pong of four messages of each size."""
    return builders.ended(
        message(
            case, seconds * (1 + slope * i + n % 3 / 1000), size, launch=n, iteration=i, **given
        )
        for size, slope in zip(sizes, map(spread, sizes), strict=True)
        for n in range(8)
        for i in range(4)
    )


def warned(records, *, cases=(CASE,), environment=None, **given):
    """Return the only warning about a run on a quiet machine, or nothing."""
    environment = QUIET | (environment or {})
    warnings = builders.in_memory(cases, records, environment=environment, **given).warnings
    assert len(warnings) <= 1, warnings
    return warnings[0] if warnings else ""


def test_a_clean_run_of_a_quiet_machine_has_no_warning():
    records = [*clean(), transfer(CASE, 0, 1, 100), wire(CASE, 100)]
    assert warned([*records, log_count(CASE, n_started=1), transport(CASE)]) == ""


def test_an_unknown_environment_is_no_warning():
    nothing = dict.fromkeys(QUIET)
    assert warned(launches(CASE, [1.0] * 8), environment=nothing) == ""
    empty = {"cpu": dict.fromkeys(QUIET["cpu"])}
    assert warned(launches(CASE, [1.0] * 8), environment=empty) == ""


def test_cores_used_on_several_hosts_are_counted_by_launch():
    others = [
        core_use(CASE, launch=launch, others=share, host=host)
        for launch in range(8)
        for host, share in (("node1", 0.01 * launch), ("node2", 0.11 * launch))
    ]
    warning = warned([*clean(), *others])
    assert "in 7 of 8 launches" in warning
    assert "most: 77% on node2, launch 7 of merge over" in warning


@pytest.mark.parametrize(("load", "expected"), [(0.5, False), (0.6, True)])
def test_load_average_counts_where_core_use_is_unknown(load, expected):
    loaded = {"load_average": [load, 0.0, 0.0]}
    blind = launches(CASE, [1.0] * 8)
    assert bool(warned(blind, environment=loaded)) == expected
    assert warned(clean(), environment=loaded) == ""
    large = loaded | {"cpu": {"usable_cores": 64}}
    assert warned(blind, environment=large) == ""
    # Others may have all of it.
    part = loaded | {"cpu": {"usable_cores": 4, "logical_cores": 128}}
    assert warned(blind, environment=part) == ""


@pytest.mark.parametrize(
    ("cpu", "text"),
    [
        ({"governors": {"policy0": "powersave"}}, "the CPU governor is powersave: cores change"),
        ({"governors": {"policy0": "performance", "policy1": "schedutil"}}, "is schedutil: cores"),
        ({"turbo": True}, "turbo is on: cores"),
        ({"turbo": True, "governors": {"p": "ondemand"}}, "ondemand and turbo is on: cores"),
        ({"turbo": None, "governors": None}, ""),
    ],
)
def test_cpu_governor_and_turbo(cpu, text):
    warning = warned(clean(), environment={"cpu": QUIET["cpu"] | cpu})
    assert (text in warning) if text else warning == ""


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "quota", "expected"),
    [
        (2, 1, 4, "unlimited", False), (3, 1, 4, "unlimited", True), (1, 3, 4, "unlimited", True),
        (2, 1, 4, 3.5, True), (2, 1, 8, 4.0, False),
    ],
)  # fmt: skip
def test_more_busy_threads_than_cores(workers, threads, cores, quota, expected):
    cluster = ClusterSpec(n_workers=workers, threads_per_worker=threads)
    case = builders.case(cluster=cluster, launches=8)
    cpu = QUIET["cpu"] | {"usable_cores": cores, "cgroup_quota_cores": quota}
    warning = warned(clean(case), cases=[case], environment={"cpu": cpu})
    assert bool(warning) == expected
    if expected:
        assert f"up to {workers * threads + 2} busy threads" in warning


@pytest.mark.parametrize(("wait_s", "n_busy"), [(3.0, "3.2"), (1.0, None), (0.0, "4")])
def test_busy_threads_are_those_that_were_ready_to_run(wait_s, n_busy):
    """An event loop, tasks and a progress thread of two workers, and a scheduler."""
    times = {"cpu_seconds": 4.0, "wait_seconds": wait_s}
    records = clean() + [
        builders.thread_time(CASE, worker, role, launch=launch, **each)
        for launch in range(8)
        for worker, role, each in (
            ("0", "loop", times), ("1", "loop", times),
            ("0", "tasks", times), ("1", "tasks", times),
            ("1", "native", {"cpu_seconds": 3.0}), ("scheduler", "loop", {"cpu_seconds": 1.0}),
        )
    ]  # fmt: skip
    warning = warned(records, environment={"cpu": QUIET["cpu"] | {"usable_cores": 3}})
    assert (f"up to {n_busy} busy threads share 3 cores" in warning) == bool(n_busy)
    assert bool(warning) == bool(n_busy)


@pytest.mark.parametrize(("cpu_s", "warns"), [(4.1, False), (4.3, True)])
def test_more_cpu_time_than_the_cores_have_is_a_warning(cpu_s, warns):
    records = [
        replace(each, cpu_seconds=cpu_s * each.seconds) if isinstance(each, Sample) else each
        for each in clean()
    ]
    warning = warned(records)
    assert ("CPU s in 24.1 s are more than 4 cores have" in warning) == bool(warning) == warns


def test_the_quota_of_a_control_group_may_be_used_in_bursts():
    records = [
        replace(each, cpu_seconds=2 * each.seconds) if isinstance(each, Sample) else each
        for each in clean()
    ]
    limited = QUIET["cpu"] | {"cgroup_quota_cores": 1.5}
    assert "CPU s in" not in warned(records, environment={"cpu": limited})


def test_threads_of_other_hosts_do_not_count():
    far = builders.case(cluster=ClusterSpec(n_workers=99, launcher="ssh"), launches=8)
    assert warned(clean(far), cases=[far]) == ""
    unknown = builders.case(cluster=ClusterSpec(n_workers=99, launcher="a-plug-in"), launches=8)
    assert warned(clean(unknown), cases=[unknown]) == ""
    ranks = ClusterSpec(n_workers=99, launcher="mpirun")
    for cluster, expected in ((ranks, True), (replace(ranks, hosts=("a", "b")), False)):
        case = builders.case(cluster=cluster, launches=8)
        assert bool(warned(clean(case), cases=[case])) == expected
    pair = builders.case(workload="pingpong", n_workers=99, launches=8)
    assert warned(messages(pair), cases=[pair]) == ""


@pytest.mark.parametrize(
    ("layer", "n_busy"),
    [("raw", 2), ("coroutine", 2), ("comm", 2), ("worker", 2), ("alone", 2), ("together", 3)],
)
def test_busy_threads_of_each_layer(layer, n_busy):
    case = builders.case(workload="pingpong", n_workers=3, launches=8)
    records = messages(case, layer=layer)
    for n_cores in (n_busy - 1, n_busy):
        cpu = QUIET["cpu"] | {"usable_cores": n_cores}
        warning = warned(records, cases=[case], environment={"cpu": cpu})
        assert (f"up to {n_busy} busy threads share {n_cores} core" in warning) == (
            n_cores < n_busy
        )


@pytest.mark.parametrize(
    ("n_pairs", "mode"), [(2, "multi-pair"), (3, "multi-pair"), (3, "latency")]
)
def test_more_processes_of_pairs_than_cores(n_pairs, mode):
    params = {"mode": mode, "pairs": n_pairs}
    case = builders.case(workload="pingpong", params=params, launches=8)
    cpu = QUIET["cpu"] | {"usable_cores": 4}
    warning = warned(messages(case), cases=[case], environment={"cpu": cpu})
    assert ("up to 6 busy threads share 4 cores" in warning) == (
        n_pairs == 3 and mode == "multi-pair"
    )


@pytest.mark.parametrize(("spread", "expected"), [(0.07, False), (0.25, True)])
def test_samples_that_spread_within_launches(spread, expected):
    records = [
        sample(CASE, 1 + spread * (iteration - 1), launch=launch, iteration=iteration)
        for launch in range(8)
        for iteration in (0, 1, 2)
    ]
    warning = warned(builders.ended(records))
    assert bool(warning) == expected
    if expected:
        assert warning.startswith("samples of one launch spread by ")
        assert " in merge over tcp: " in warning


def test_a_spread_beyond_tenfold_is_not_called_up_to_that():
    records = [
        sample(CASE, seconds, launch=launch, iteration=iteration)
        for launch in range(8)
        for iteration, seconds in enumerate((1.0, 1.0, 1.0, 50.0, 50.0))
    ]
    (spread,) = warnings.disturbances(builders.in_memory([CASE], builders.ended(records)))
    assert spread.statement == "times spread by more than 1000% within a launch"


def test_medians_that_a_budget_left_unknown_have_one_warning():
    case = builders.case(workload="pingpong", launches=8)
    records = messages(case, sizes=(1, 8192), spread=lambda _: 0.4)
    run = builders.in_memory([case], records, stopping=Stopping(budget_s=0.5, detect=1e-6))
    (text,) = (text for text in run.warnings if text.startswith("the budget of"))
    assert "pingpong over tcp at 1 B, 8 KiB was known within ±0.0001%: it is known within" in text


def test_a_median_of_0_is_below_the_resolution_of_the_clock():
    case = builders.case(workload="pingpong", launches=8)
    rule = Stopping(budget_s=0.5, detect=0.01)
    run = builders.in_memory([case], messages(case, seconds=0.0), stopping=rule)
    (text,) = (text for text in run.warnings if text.startswith("the budget of"))
    assert text.endswith("it is 0, below the resolution of the clock")


def test_sizes_that_spread_are_counted():
    case = builders.case(workload="pingpong", launches=8)
    records = messages(case, sizes=(1, 64, 8192), spread=lambda n: 0.4 if n == 8192 else 0.01)
    warning = warned(records, cases=[case])
    assert " in pingpong over tcp, comm, 8 KiB (1 of 3 sizes)" in warning
    records += messages(case, layer="worker", sizes=(1, 64))
    warning = warned(records, cases=[case])
    assert " in pingpong over tcp, comm, 8 KiB (1 of 5 layers × sizes)" in warning


@pytest.mark.parametrize(("comm_s", "warns"), [(0.5, True), (0.005, True), (0.002, False)])
def test_messages_that_take_longer_than_the_fetch_around_them_stall(comm_s, warns):
    case = builders.case("ucx", workload="pingpong", launches=8)
    records = messages(case, layer="coroutine", seconds=9.0)
    records += messages(case, layer="comm", seconds=comm_s)
    records += messages(case, layer="worker", seconds=0.0015)
    warning = warned(records, cases=[case])
    beginning = "pingpong over ucx: messages of 1 B stall in the layer comm: a quarter takes "
    assert warning.startswith(beginning) == warns
    assert ("or more, a worker's fetch 1.50 ms (1 of 1 sizes)" in warning) == warns


@pytest.mark.parametrize(
    ("layer", "params", "seconds", "expected"),
    [
        ("comm", {}, 2.4e-6, True), ("comm", {}, 2.6e-6, False), ("worker", {}, 4.9e-6, True),
        ("raw", {}, 1e-7, False), ("comm", {"mode": "bandwidth"}, 1e-7, False),
    ],
)  # fmt: skip
def test_durations_of_a_few_clock_steps(layer, params, seconds, expected):
    case = builders.case(workload="pingpong", launches=8, params=params)
    records = messages(case, seconds, layer=layer)
    warning = warned(records, cases=[case])
    assert bool(warning) == expected
    if expected:
        assert "less than 100 steps of the clock (50.0 ns each)" in warning
        # Who has the best clock already is not expected to take it.
        cpu = QUIET["cpu"] | {"clock_source": "tsc"}
        others = warned(records, cases=[case], environment={"cpu": cpu})
        assert ("clock source tsc" in warning, "clock source tsc" in others) == (True, False)


def test_each_problem_has_one_warning(recorded):
    case = builders.case("ucx:shm")
    records = [
        sample(case, math.nan), sample(case, 1.0), failure(case), end(case, ok=False),
        wire(case, 10**9), log_count(case, n_started=3), transfer(case, 1, 0),
    ]  # fmt: skip
    warnings = recorded([case], records).warnings
    assert len(warnings) == len(set(warnings))
    words = ("samples.jsonl line", "failed", "--resume", "ended well", "clocks", "missing", "saw")
    for word in words:
        assert sum(word in text for text in warnings) == 1, word


@pytest.mark.parametrize(("last", "warns"), [("a", False), ("b", True)])
def test_launches_of_a_running_cluster_on_other_hosts(last, warns):
    cluster = ClusterSpec(launcher="external", scheduler="tcp://10.0.0.1:8786")
    case = builders.case(cluster=cluster, launches=8)
    records = [
        *launches(case, [1.0] * 8),
        *(place(case, host="a" if n < 7 else last, launch=n) for n in range(8)),
    ]
    texts = builders.in_memory([case], records, environment=QUIET).warnings
    assert any("workers were on other hosts in other launches" in text for text in texts) == warns


def test_failed_and_missing_launches_are_counted(recorded):
    case = builders.case(launches=8)
    records = [*launches(case, [1.0] * 6), failure(case, launch=6), end(case, launch=6, ok=False)]
    content = recorded([case], records)
    assert content.warnings == (
        "1 of 8 launches failed; see Failures",
        "only 7 of 8 launches were run; commbench run --resume measures the rest",
    )


def test_failed_launches_that_a_resumed_run_has_not_repeated_are_missing(recorded):
    good, bad = builders.case(), builders.case("ucx")
    records = [
        *launches(good, [1.0] * 6),
        *(failure(bad, launch=launch) for launch in range(6)),
        *(end(bad, launch=launch, ok=False) for launch in range(6)),
        *(each for n in (6, 7) for each in (sample(bad, 1.0, launch=n), end(bad, launch=n))),
    ]
    assert "only 14 of 18 launches were run" in " ".join(recorded([good, bad], records).warnings)


def test_warnings_name_the_case_by_its_distinguishing_parameter(recorded):
    cases = [builders.case(params={"rows": 1, "shuffle": name}) for name in ("tasks", "p2p")]
    records = [*launches(cases, [1.0] * 6), wire(cases[1], 100)]
    (warning,) = recorded(cases, records).warnings
    text = "merge (shuffle=p2p) over tcp: the transfer logs saw none of the 100 B"
    assert warning.startswith(text)


@pytest.mark.parametrize(("n_messages", "n_warnings"), [(100, 1), (1000, 0)])
def test_messages_about_small_data_are_no_bytes_that_the_logs_missed(
    recorded, n_messages, n_warnings
):
    records = [*launches(CASE, [1.0] * 6), wire(CASE, 700_000, n_messages=n_messages)]
    records.append(transfer(CASE, 0, 1, 100_000))
    warnings = recorded([CASE], records).warnings
    assert sum("transfer logs saw" in text for text in warnings) == n_warnings


@pytest.mark.parametrize(("n", "text"), [(1, "1 launch gives no"), (5, "5 launches give no")])
def test_fewer_than_six_launches(n, text):
    case = builders.case(launches=n)
    assert warned(launches(case, [1.0] * n), cases=[case]).startswith(text)


NINTH = launches(CASE, [1.0])[-1:]
SPILLED = [
    spill(CASE, 10**9), spill(CASE, 5 * 10**8, worker="1"), spill(CASE, 5 * 10**8, launch=2),
    spill(CASE, iteration=-1),
]  # fmt: skip
OUTLIERS = [
    sample(CASE, 50.0 if n == 9 else 1.0, launch=launch, iteration=n)
    for launch in range(8)
    for n in range(3, 10)
]


def fetched(nbytes, n_started):
    """Return a logged fetch of `nbytes` MB, of which the wire had 100."""
    return [
        transfer(CASE, 0, 1, nbytes * 10**6), wire(CASE, 10**8),
        log_count(CASE, n_started=n_started),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([core_use(CASE, launch=8, others=0.1), *NINTH], ""),
        (
            [core_use(CASE, launch=8, others=0.11), *NINTH],
            r"other processes used the cores in 1 of 9 launches .*11%, launch 8 of merge over",
        ),
        ([core_use(CASE, launch=8, stolen=0.02)], ""),
        (
            [core_use(CASE, launch=8, stolen=0.03)],
            "the hypervisor gave the cores to other machines in 1.*most: 3%",
        ),
        ([core_use(CASE, seconds=0.0, others=1.0)], ""),
        (OUTLIERS, ""),
        ([spill(CASE, iteration=-1)], ""),
        (SPILLED, "merge over tcp: workers wrote 2.00 GB to disk in 2 measured iterations, as"),
        (SPILLED[:1], "merge over tcp: workers wrote 1.00 GB to disk in 1 measured iteration, as"),
        (
            [setting(CASE, COMPRESSION, "lz4", launch=n) for n in range(3)],
            "merge over tcp: workers compressed their messages with lz4",
        ),
        (fetched(0, 1), r".*saw none of the .* so no pair has a bandwidth"),
        (fetched(94, 1), r".*saw 94\.0% of the bytes"),
        (fetched(95, 1), ""),
        (fetched(130, 1), ""),
        (
            fetched(100, 5),
            "merge over tcp: 4 of 5 fetches are missing in the log: the "
            "bandwidths of pairs are of the others; times of iterations are not affected",
        ),
        (fetched(100, 0), "merge over tcp: the logs have 1 fetches that no worker"),
        (
            [transfer(CASE, 1, 0), transfer(CASE, 0, 1), log_count(CASE, n_started=2)],
            "merge over tcp: 1 of 2 transfers",
        ),
        ([sample(CASE, -1.0, iteration=7)], "1 of 33 samples ended before they began"),
        ([sample(CASE, 0.0, iteration=7)], "1 of 33 samples took no time"),
    ],
)
def test_records_of_a_disturbed_run(records, text):
    warning = warned([*clean(), *records])
    assert re.match(text, warning) if text else warning == ""


@pytest.mark.parametrize(
    ("medians", "text"),
    [
        ([1, 1.3] * 4, "medians of launches spread by "),
        ([1, 1.05] * 4, ""),
        ([1 + 0.03 * n for n in range(8)], "merge over tcp: times rose by 19% from the first"),
        ([1 - 0.02 * n for n in range(8)], "merge over tcp: times fell by 15% "),
        ([1 + 0.005 * n for n in range(8)], ""),
        ([1.1, 1.0] * 4, ""),
        ([1.0] * 7 + [1.3], ""),
    ],
    ids=["spread", "little spread", "up", "down", "little drift", "to and fro", "one slow"],
)
def test_spread_and_drift_of_launches(medians, text):
    warning = warned(clean(medians=medians))
    assert warning.startswith(text) if text else warning == ""


@pytest.mark.parametrize(
    ("idle_cores", "n_cores", "warns"),
    [(1.9, 2, True), (0.2, 2, False), (1.9, 4, False), (3.9, 8, False)],
)
def test_processes_that_poll_on_fewer_cores_are_named(idle_cores, n_cores, warns):
    case = builders.case("ucx", launches=8)
    records = [record for record in clean(case) if not isinstance(record, IdleCost)]
    records.append(builders.idle(case, idle_cores, seconds=1.0))
    cpu = QUIET["cpu"] | {"usable_cores": n_cores}
    warning = warned(records, cases=[case], environment={"cpu": cpu})
    expected = "ucx: event loops poll: an idle cluster uses 1.9 of 2 cores, on which 4 processes "
    expected += "take turns (UCXPY_PROGRESS_MODE=blocking, the default)"
    assert warning.startswith(expected) == warns
    assert ("measure ucx:shm+thread-future, whose loops sleep, or take" in warning) == warns


@pytest.mark.parametrize(
    ("backend", "inherited", "given", "words"),
    [
        ("ucx:polling", {}, {}, " (UCXPY_PROGRESS_MODE=polling)."),
        ("ucx", {"UCXPY_PROGRESS_MODE": "thread"}, {}, " (UCXPY_PROGRESS_MODE=thread)."),
        ("ucx:polling", {}, {"UCXPY_PROGRESS_MODE": "blocking"}, "(UCXPY_PROGRESS_MODE=blocking)."),
        ("ucx:thread-future", {}, {}, " take turns. "),
        ("tcp", {}, {}, " take turns. "),
    ],
)
def test_the_setting_with_which_loops_poll_is_named(backend, inherited, given, words):
    case = builders.case(backend, launches=8, cluster=ClusterSpec(env=given))
    records = [record for record in clean(case) if not isinstance(record, IdleCost)]
    records.append(builders.idle(case, 1.9, seconds=1.0))
    cpu = QUIET["cpu"] | {"usable_cores": 2}
    warning = warned(records, cases=[case], environment={"cpu": cpu, "variables": inherited})
    assert words in warning
    assert ("whose loops sleep" in warning) == ("PROGRESS" in words)


@pytest.mark.parametrize(("n", "n_left"), [(8, 6), (7, 7)])
def test_disturbed_launches_are_left_out_if_enough_for_a_verdict_remain(recorded, n, n_left):
    shares = ({"others": 0.11}, {"stolen": 0.03}, *[{"others": 0.1, "stolen": 0.02}] * n)[:n]
    records = [sample(CASE, 1.0, launch=launch) for launch in range(n)]
    records += [core_use(CASE, launch=launch, **share) for launch, share in enumerate(shares)]
    run = recorded([CASE], builders.ended(records))
    ((left, names, kept),) = warnings.undisturbed(run)
    (row,) = left.summaries.itertuples()
    assert row.n_launches == n_left
    assert names == [DISTURBED] * (n > n_left)
    assert kept == [DISTURBED] * (n == n_left)
    # Otherwise a run with more disturbed launches would be the slower one.
    few = recorded([CASE], builders.ended(sample(CASE, 1.0, launch=launch) for launch in range(5)))
    both, expected = warnings.undisturbed(run, few), [(n, [], [DISTURBED]), (5, [], [])]
    assert [(len(each.ends), *names) for each, *names in both] == expected
    other = builders.case(params={"rows": 7})
    few = recorded([other], builders.ended(sample(other, 1.0, launch=n) for n in range(5)))
    both = warnings.undisturbed(run, few, same={CASE.id: other.id})
    assert [(len(each.ends), *names) for each, *names in both] == expected
    without_ends = recorded([CASE])
    assert [len(each.ends) for each, *_ in warnings.undisturbed(run, without_ends)] == [n_left, 0]


@pytest.mark.parametrize(("n", "n_left"), [(8, 8), (10, 6)])
def test_the_launches_that_are_left_out_leave_blocks_with_a_control(recorded, n, n_left):
    def run_of(factor, *disturbed):
        cases = [builders.case(backend, launches=n) for backend in ("tcp", "ucx")]
        records = [
            record
            for case, each, out in zip(cases, (1.0, factor), disturbed or ((), ()), strict=True)
            for launch in range(n)
            for record in (
                sample(case, each * (1 + launch / 1000), launch=launch),
                core_use(case, launch=launch, others=0.3 * (launch in out)),
            )
        ]
        return recorded(cases, builders.ended(records))

    old, new = run_of(1.0), run_of(1.3, (0, 1), (2, 3))
    same = {case.id: case.id for case in old.suite.cases}
    (old, *_), (new, names, _) = warnings.undisturbed(old, new, same=same, control="tcp")
    assert names == ["merge over tcp 0, 1", "merge over ucx 2, 3"] * (n_left < n)
    (comparison,) = stats.between(old, new, same, control="tcp")
    assert (comparison.verdict, comparison.n_launches) == ("slower", n_left)


def test_a_run_without_core_use_has_no_disturbed_launches(recorded):
    run = recorded([CASE], builders.ended([sample(CASE, 1.0)]))
    ((run, *names),) = warnings.undisturbed(run)
    assert (len(run.samples), names) == (1, [[], []])
