"""What disturbed a run is said, with its extent and what to do; a clean run is left in peace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import builders
import pytest
from builders import (
    core_use,
    launches,
    log_count,
    message,
    setting,
    spill,
    transfer,
    transport,
    wire,
)

from commbench.analysis.run import Run
from commbench.analysis.warnings import COMPRESSION
from commbench.model import Case, ClusterSpec, Record

Recorded = Callable[..., Run]
CASE = builders.case(launches=8)
QUIET = {
    "cpu": {
        "usable_cores": 4, "cgroup_quota_cores": "unlimited", "turbo": False,
        "governors": {"policy0": "performance", "policy1": "performance"},
    },
    "load_average": [0.3, 2.0, 2.0],
    "clock": {"step_s": 5e-8},
}  # fmt: skip


def clean(case: Case = CASE, medians: Iterable[float] = ()) -> list[Record]:
    """Return launches of a quiet machine."""
    steady = list(medians) or [1.0, 1.02, 0.99, 1.01, 1.0, 0.98, 1.02, 1.0]
    records = launches(case, steady)
    for launch in range(len(steady)):
        records += [
            core_use(case, launch=launch, others=0.05, stolen=0.01),
            setting(case, COMPRESSION, "none", launch=launch),
        ]
    return records


@pytest.fixture
def warned(recorded: Recorded) -> Callable[..., str]:
    """Return a function that gives the only warning about some records, or nothing."""

    def warnings(records: Iterable[Record], *, cases: Iterable[Case] = (CASE,), **more: Any) -> str:
        environment = QUIET | more.pop("environment", {})
        found = recorded(cases, records, environment=environment, **more).warnings
        assert len(found) <= 1, found
        return found[0] if found else ""

    return warnings


def test_a_clean_run_of_a_quiet_machine_has_no_warning(warned: Callable[..., str]) -> None:
    """All that can be known is known, and nothing of it is worth a word."""
    records = [*clean(), transfer(CASE, 0, 1, 100), wire(CASE, 100)]
    assert warned([*records, log_count(CASE, n_started=1), transport(CASE)]) == ""


def test_nothing_known_makes_no_warning(warned: Callable[..., str]) -> None:
    """A machine that tells nothing of itself is not blamed for it."""
    nothing = dict.fromkeys(QUIET)
    assert warned(launches(CASE, [1.0] * 8), environment=nothing) == ""
    empty = {"cpu": dict.fromkeys(QUIET["cpu"])}
    assert warned(launches(CASE, [1.0] * 8), environment=empty) == ""


# --- the machine -----------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "text"), [(0.1, ""), (0.11, "11%"), (0.6, "60%")])
def test_other_processes_are_told(others: float, text: str, warned: Callable[..., str]) -> None:
    """More than a tenth of the cores' time in a launch is said, with the launch."""
    ninth = [core_use(CASE, launch=8, others=others), *launches(CASE, [1.0])[-1:]]
    warning = warned([*clean(), *ninth])
    pattern = rf"other processes used the cores in 1 of 9 launches .*{text}, launch 8 of merge over"
    assert re.match(pattern, warning) if text else warning == ""


def test_a_launch_on_several_hosts_is_told_once_with_the_worst(warned: Callable[..., str]) -> None:
    """Launches are counted, not hosts; a host other than this one is named."""
    others = [
        core_use(CASE, launch=launch, others=share, host=host)
        for launch in range(8)
        for host, share in (("node1", 0.01 * launch), ("node2", 0.11 * launch))
    ]
    warning = warned([*clean(), *others])
    assert "in 7 of 8 launches" in warning
    assert "most: 77% on node2, launch 7 of merge over" in warning


@pytest.mark.parametrize(("stolen", "text"), [(0.02, ""), (0.03, "most: 3%"), (0.5, "most: 50%")])
def test_stolen_time_is_told(stolen: float, text: str, warned: Callable[..., str]) -> None:
    """More than 2 % of the cores' time that went to other machines is said."""
    warning = warned([*clean(), core_use(CASE, launch=8, stolen=stolen)])
    assert text in warning
    assert bool(text) == warning.startswith("the hypervisor gave the cores to other machines in 1")


def test_a_launch_that_took_no_time_is_no_error(warned: Callable[..., str]) -> None:
    """A record that makes no sense is passed over."""
    assert warned([*clean(), core_use(CASE, seconds=0.0, others=1.0)]) == ""


@pytest.mark.parametrize(("load", "told"), [(0.5, False), (0.6, True)])
def test_the_load_at_the_start_counts_where_nothing_better_is_known(
    load: float, told: bool, warned: Callable[..., str]
) -> None:
    """Above half a core, or a tenth of the cores; what was seen during the launches is better."""
    loaded = {"load_average": [load, 0.0, 0.0]}
    blind = launches(CASE, [1.0] * 8)
    assert bool(warned(blind, environment=loaded)) == told
    assert warned(clean(), environment=loaded) == ""
    large = loaded | {"cpu": {"usable_cores": 64}}
    assert warned(blind, environment=large) == ""


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
def test_clocks_that_change_are_told(
    cpu: dict[str, Any], text: str, warned: Callable[..., str]
) -> None:
    """A governor other than performance, and turbo, are said; what is unknown is not."""
    warning = warned(clean(), environment={"cpu": QUIET["cpu"] | cpu})
    assert (text in warning) if text else warning == ""


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "quota", "told"),
    [
        (2, 1, 4, "unlimited", False), (3, 1, 4, "unlimited", True), (1, 3, 4, "unlimited", True),
        (2, 1, 4, 3.5, True), (2, 1, 8, 4.0, False),
    ],
)  # fmt: skip
def test_more_busy_threads_than_cores_are_told(
    workers: int, threads: int, cores: int, quota: Any, told: bool, warned: Callable[..., str]
) -> None:
    """Workers times threads, with scheduler and client, against the cores that may be used."""
    cluster = ClusterSpec(n_workers=workers, threads_per_worker=threads)
    case = builders.case(cluster=cluster, launches=8)
    cpu = QUIET["cpu"] | {"usable_cores": cores, "cgroup_quota_cores": quota}
    warning = warned(clean(case), cases=[case], environment={"cpu": cpu})
    assert bool(warning) == told
    if told:
        assert f"up to {workers * threads + 2} busy threads" in warning


def test_a_ping_pong_wants_no_cluster_and_other_hosts_have_their_own_cores(
    warned: Callable[..., str],
) -> None:
    """Neither two processes nor workers elsewhere crowd the cores here."""
    far = builders.case(cluster=ClusterSpec(n_workers=99, launcher="ssh"), launches=8)
    assert warned(clean(far), cases=[far]) == ""
    unknown = builders.case(cluster=ClusterSpec(n_workers=99, launcher="a-plug-in"), launches=8)
    assert warned(clean(unknown), cases=[unknown]) == ""
    ranks = ClusterSpec(n_workers=99, launcher="mpirun")
    for cluster, told in ((ranks, True), (replace(ranks, hosts=("a", "b")), False)):
        case = builders.case(cluster=cluster, launches=8)
        assert bool(warned(clean(case), cases=[case])) == told
    pair = builders.case(workload="pingpong", n_workers=99, launches=8)
    records = [
        message(pair, 1e-3 * (1 + 0.001 * (i + n % 3)), 1, launch=n, iteration=i)
        for n in range(8)
        for i in range(4)
    ]
    assert warned(builders.ended(records), cases=[pair]) == ""


@pytest.mark.parametrize(
    ("n_pairs", "mode"), [(2, "multi-pair"), (3, "multi-pair"), (3, "latency")]
)
def test_more_pairs_than_cores_are_told(
    n_pairs: int, mode: str, warned: Callable[..., str]
) -> None:
    """Two processes a pair against the cores, and only where pairs run at once."""
    params = {"mode": mode, "pairs": n_pairs}
    case = builders.case(workload="pingpong", params=params, launches=8)
    records = builders.ended([message(case, 1e-3, 1, launch=n) for n in range(8)])
    cpu = QUIET["cpu"] | {"usable_cores": 4}
    warning = warned(records, cases=[case], environment={"cpu": cpu})
    assert ("6 processes share 4 cores" in warning) == (n_pairs == 3 and mode == "multi-pair")


# --- the samples -----------------------------------------------------------------------------


@pytest.mark.parametrize(("spread", "told"), [(0.07, False), (0.25, True)])
def test_samples_that_spread_within_launches_are_told(
    spread: float, told: bool, warned: Callable[..., str]
) -> None:
    """By their quartiles: two of three samples far from the third are no stable median."""
    records = [
        builders.sample(CASE, 1 + spread * (iteration - 1), launch=launch, iteration=iteration)
        for launch in range(8)
        for iteration in (0, 1, 2)
    ]
    warning = warned(builders.ended(records))
    assert bool(warning) == told
    if told:
        assert warning.startswith("samples of one launch spread by ")
        assert " in merge over tcp: " in warning


def test_one_slow_sample_is_no_instability(warned: Callable[..., str]) -> None:
    """An outlier in every launch moves no quartile."""
    records = clean()
    for launch in range(8):
        records += [builders.sample(CASE, 1.0, launch=launch, iteration=n) for n in range(3, 9)]
        records.append(builders.sample(CASE, 50.0, launch=launch, iteration=9))
    assert warned(records) == ""


@pytest.mark.parametrize(("medians", "told"), [([1, 1.3] * 4, True), ([1, 1.05] * 4, False)])
def test_launches_that_spread_are_told(
    medians: list[float], told: bool, warned: Callable[..., str]
) -> None:
    """Launches that disagree by far more than a tenth are said to."""
    warning = warned(clean(medians=medians))
    assert warning.startswith("medians of launches spread by ") == told
    assert bool(warning) == told


def test_unstable_sizes_are_counted_in_one_line(warned: Callable[..., str]) -> None:
    """Of a ping-pong the worst size is named, and how many of how many there are."""
    case = builders.case(workload="pingpong", launches=8)
    records = [
        message(case, 1e-3 * (1 + (0.4 if size == 8192 else 0.01) * i), size, launch=n, iteration=i)
        for size in (1, 64, 8192)
        for n in range(8)
        for i in range(4)
    ]
    warning = warned(builders.ended(records), cases=[case])
    assert " in pingpong over tcp at 8 KiB (1 of 3 sizes)" in warning


@pytest.mark.parametrize(
    ("medians", "text"),
    [
        ([1 + 0.03 * n for n in range(8)], "merge over tcp: times rose by 19% from the first"),
        ([1 - 0.02 * n for n in range(8)], "merge over tcp: times fell by 15% "),
        ([1 + 0.005 * n for n in range(8)], ""),
        ([1.1, 1.0, 1.1, 1.0, 1.1, 1.0, 1.1, 1.0], ""),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.3], ""),
    ],
    ids=["up", "down", "little", "to and fro", "one slow"],
)
def test_drift_over_the_run_is_told(
    medians: list[float], text: str, warned: Callable[..., str]
) -> None:
    """A steady change of more than 5 % is said; a small one, or no trend, is not."""
    warning = warned(clean(medians=medians))
    assert warning.startswith(text) if text else warning == ""


@pytest.mark.parametrize(
    ("layer", "params", "seconds", "told"),
    [
        ("comm", {}, 2.4e-6, True), ("comm", {}, 2.6e-6, False), ("worker", {}, 4.9e-6, True),
        ("raw", {}, 1e-7, False), ("comm", {"mode": "bandwidth"}, 1e-7, False),
    ],
)  # fmt: skip
def test_durations_of_a_few_clock_steps_are_told(
    layer: str, params: dict[str, Any], seconds: float, told: bool, warned: Callable[..., str]
) -> None:
    """A round trip below 100 steps is; what is timed many at a time can't be blurred like that."""
    case = builders.case(workload="pingpong", launches=8, params=params)
    records = [
        message(case, seconds * (1 + 0.001 * ((i + n) % 3)), 1, launch=n, iteration=i, layer=layer)
        for n in range(8)
        for i in range(4)
    ]
    warning = warned(builders.ended(records), cases=[case])
    assert bool(warning) == told
    if told:
        assert "less than 100 steps of the clock (50.0 ns each)" in warning
        # Who has the best clock already is not told to take it.
        others = warned(
            builders.ended(records), cases=[case],
            environment={"cpu": QUIET["cpu"] | {"clock_source": "tsc"}},
        )  # fmt: skip
        assert ("clock source tsc" in warning, "clock source tsc" in others) == (True, False)


# --- Dask ------------------------------------------------------------------------------------


def test_spilling_in_measured_iterations_is_told(warned: Callable[..., str]) -> None:
    """Bytes and iterations are summed over workers; a warm-up's are not in them."""
    assert warned([*clean(), spill(CASE, iteration=-1)]) == ""
    records = [
        *clean(), spill(CASE, 10**9), spill(CASE, 5 * 10**8, worker="1"),
        spill(CASE, 5 * 10**8, launch=2), spill(CASE, iteration=-1),
    ]  # fmt: skip
    warning = warned(records)
    assert warning.startswith("merge over tcp: workers wrote 2.00 GB to disk in 2 measured")


def test_compression_is_told(warned: Callable[..., str]) -> None:
    """A compressor that connections agreed on is named, once."""
    records = [*clean(), *(setting(CASE, COMPRESSION, "lz4", launch=n) for n in range(3))]
    assert warned(records).startswith("merge over tcp: workers compressed their messages with lz4")
