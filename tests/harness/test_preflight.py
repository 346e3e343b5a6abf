"""The duration of a launch is estimated roughly, and what can't end well is named beforehand."""

import math
import os
from dataclasses import replace
from pathlib import Path

import builders
import pytest

from commbench import load
from commbench.harness import preflight
from commbench.harness.cases import cases_for
from commbench.model import ClusterSpec, Stopping, Suite, registry

REFERENCE = Path(__file__).parents[2] / "results/reference"


def case(workload="merge", **cluster):
    (one,) = cases_for(workload, ["tcp"], {}, ClusterSpec(**cluster))
    return one


def described(one, stopping=None):
    return list(preflight.describe(Suite(name="s", cases=(one,)), stopping))


@pytest.mark.parametrize("name", sorted(path.parent.name for path in REFERENCE.glob("*/run.json")))
def test_the_estimate_is_right_within_a_factor_of_three(name):
    run = load(REFERENCE / name)
    # One run has a launcher of the tests.
    known = [one for one in run.suite.cases if one.cluster.launcher in registry.names("launcher")]
    for one in known:
        seconds = run.ends[run.ends["case_id"] == one.id]["seconds"].median()
        if math.isnan(seconds):
            continue
        assert 1 / 3 < preflight.launch_seconds(one) / seconds < 3


def test_a_default_budget_is_five_minutes_or_twice_six_launches_of_each_case():
    cases = [case(), case(n_workers=4)]
    assert preflight.default_budget_s(cases) == 300
    enough_s = 12 * sum(map(preflight.launch_seconds, 9 * cases))
    assert enough_s > 300
    assert 0 <= preflight.default_budget_s(9 * cases) - enough_s < 60


def test_jobs_that_may_wait_in_queues_have_no_default_budget():
    assert preflight.can_choose([case(), case(threads_per_worker=2)])
    job = case(launcher="slurm", launcher_options={"memory": "1GB"})
    assert not preflight.can_choose([job, case()])


def test_only_modes_with_a_window_send_windows():
    times = {
        mode: preflight.launch_seconds(
            cases_for("pingpong", ["tcp"], {"sizes": (8,), "mode": mode}, ClusterSpec())[0]
        )
        for mode in ("latency", "loaded-latency", "bandwidth")
    }
    assert times["latency"] == times["loaded-latency"] < times["bandwidth"]


@pytest.mark.parametrize("workload", registry.names("workload"))
def test_the_problem_of_a_quick_run_takes_a_few_seconds(workload):
    kind = registry.load("workload", workload)
    (one,) = cases_for(workload, ["tcp"], dict(kind.quick), ClusterSpec(memory_limit="10MB"))
    assert preflight.launch_seconds(one) < 8 < 2 * preflight.launch_seconds(one)


def test_a_launch_that_exceeds_its_deadline_is_named():
    assert len(described(case())) == 1
    late = replace(case("all-to-all"), iterations=1000)
    (warning,) = described(late)[1:]
    assert "a launch of all-to-all over tcp takes about" in warning
    assert "its deadline is 5 min: --timeout" in warning
    assert described(replace(late, timeout_s=1e6))[1:] == []
    (warning,) = described(replace(late, iterations=10**30))[1:]
    assert "about 10,000 h or more, and its deadline is 5 min: take less data" in warning


@pytest.mark.parametrize(
    ("launcher", "n_more", "words"),
    [
        ("local", 2, ["{n} workers share"]), ("slurm", 0, []), ("local", -1000, []),
        ("local", -1, ["the {n_processes} processes of {n} workers share"]),
    ],
)  # fmt: skip
def test_workers_that_crowd_the_cores_of_this_host_are_named(launcher, n_more, words):
    n = 5 * len(os.sched_getaffinity(0))
    n_processes = max(1, n + n_more)
    options = {"processes": str(n_processes)} if launcher == "local" else {}
    spec = ClusterSpec(n_workers=n, launcher=launcher, launcher_options=options)
    one = builders.case(cluster=spec)
    one = replace(one, params={"rows": 10_000}, timeout_s=1e6)
    warnings = described(one)[1:]
    assert len(warnings) == len(words)
    for text, warning in zip(words, warnings, strict=True):
        assert warning.startswith(f"warning: {text.format(n=n, n_processes=n_processes)}")


def test_a_quota_of_cores_crowds_workers_too(monkeypatch):
    cpu = {"usable_cores": 64, "cgroup_quota_cores": 1.5}
    monkeypatch.setattr(preflight.environment, "cpu", lambda _: cpu)
    (_, warning) = described(
        replace(builders.case(n_workers=20), params={"rows": 10_000}, timeout_s=1e6)
    )
    assert warning.startswith("warning: 20 workers share 1.5 cores")


def test_a_budget_may_be_exceeded_for_a_verdict_or_by_one_block():
    (line,) = described(case(), Stopping(budget_s=90.0))
    assert line == "about 1.5 min of launches, or less, up to 2.2 min for a verdict"
    quick = Stopping(budget_s=90.0, quick=True)
    assert described(case(), quick) == ["about 1.5 min of launches, or less"]
    least_s = preflight.launch_seconds(case())
    assert described(case(), Stopping(budget_s=1.0)) == [
        f"about {least_s:.0f} s of launches, or less"
    ]
