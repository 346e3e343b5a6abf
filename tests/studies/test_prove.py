"""What is measured to prove a remedy, and what is said of the result."""

import dataclasses
import math
import re
import types

import builders
import dask
import numpy as np
import processes
import pytest
from processes import usage_error

import commbench
from commbench.analysis.findings import Rule
from commbench.cli import findings_command, run_command
from commbench.errors import UsageError
from commbench.harness import interrupts
from commbench.launchers.mpirun import MpirunLauncher
from commbench.machine import environment
from commbench.model import (
    USER_CODE,
    ClusterSpec,
    Effect,
    Finding,
    Placement,
    registry,
)
from commbench.reports import opening
from commbench.studies import budget, prove

# The data of other numbers of workers are the same.
MPI, FAKE = (builders.case(name, params={"partitions": 2}) for name in ("mpi", "fake"))


def finding(case, effect=0.5, **trial):
    trials = (trial,) if trial else ()
    return builders.finding(case, effect=Effect(share=effect), trials=trials, rule="luck")


def with_findings(cases, *found):
    run = builders.in_memory(cases)
    run.__dict__["findings"] = found
    return run


def test_the_case_with_the_largest_effect_is_measured_with_its_remedies():
    run = with_findings(
        [FAKE, MPI],
        finding(MPI, 0.3, workers="4"),
        finding(FAKE, 0.5, UCX_TLS="tcp"),
        finding(FAKE, 0.2, **{"distributed.comm.compression": "null"}),
        finding(FAKE, 0.1),
    )
    proof = prove.plan(run, most=3)
    assert proof.present == dataclasses.replace(
        FAKE, varied=("UCX_TLS", "distributed.comm.compression")
    )
    assert [trial.name for trial in proof.trials] == [
        "UCX_TLS=tcp", "distributed.comm.compression=null"
    ]  # fmt: skip
    assert proof.trials[0].case.cluster.env == {"UCX_TLS": "tcp"}
    assert proof.trials[1].case.cluster.dask_config == {"distributed.comm.compression": None}
    assert len(proof.suite.cases) == 3
    assert [trial.name for trial in prove.plan(run, most=1).trials] == ["UCX_TLS=tcp"]
    (trial,) = prove.plan(run, most=3, backend="mpi").trials
    assert trial.case.cluster.n_workers == 4


def test_a_remedy_of_two_findings_is_measured_once_and_its_known_effect_is_the_prediction():
    run = with_findings(
        [FAKE], finding(FAKE, 0.5, backend="tcp"), finding(FAKE, math.nan, backend="tcp")
    )
    (trial,) = prove.plan(run, most=3).trials
    assert (trial.case.backend, trial.finding.effect.share) == ("tcp", 0.5)


def test_the_remedy_with_the_largest_effect_comes_first_if_two_findings_have_it():
    run = with_findings(
        [FAKE], finding(FAKE, 0.5, backend="tcp"), finding(FAKE, 0.3, threads="2"),
        finding(FAKE, math.nan, backend="tcp"),
    )  # fmt: skip
    assert [trial.name for trial in prove.plan(run, most=1).trials] == ["backend=tcp"]


def test_remedies_that_this_machine_lacks_or_that_change_nothing_are_left_out():
    run = with_findings(
        [FAKE], finding(FAKE, backend="ucx:ib"), finding(FAKE, backend="fake"),
        finding(FAKE, workers="2"), finding(FAKE, 0.01, threads="2"),
    )  # fmt: skip
    assert [trial.name for trial in prove.plan(run, most=3).trials] == ["threads=2"]


def test_more_workers_than_are_bound_to_cpus_are_not_compared():
    bound = tuple(Placement(cpus=str(cpu)) for cpu in range(2))
    case = dataclasses.replace(FAKE, cluster=dataclasses.replace(FAKE.cluster, placement=bound))
    run = with_findings([case], finding(case, workers="4"), finding(case, 0.1, threads="2"))
    assert [trial.name for trial in prove.plan(run, most=3).trials] == ["threads=2"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"env": {"UCXPY_PROGRESS_MODE": "polling"}},
            "sets UCXPY_PROGRESS_MODE itself, and the case",
        ),
        ({"env": {"UCXPY_PROGRESS_MODE": "thread"}}, ""),
        ({"env": {"UCX_RNDV_THRESH": "1"}}, ""),
        # Both set it.
        ({"env": {"UCX_LOG_LEVEL": "warn"}}, ""),
    ],
)
def test_a_backend_whose_settings_the_case_contradicts_is_no_remedy(settings, reason, monkeypatch):
    monkeypatch.setattr(prove.cases, "unmet", lambda _: None)
    case = builders.case("ucx", cluster=ClusterSpec(**settings))
    text = prove._obstacle(case, {"backend": "ucx:thread-future"})
    assert reason in text
    assert bool(text) == bool(reason)
    # What the case has is measured with other workers, too.
    assert prove._obstacle(case, {"threads": "2"}) == ""


def test_a_backend_that_the_launcher_refuses_is_no_remedy(monkeypatch):
    monkeypatch.setattr(MpirunLauncher, "unavailable", lambda _: None)
    case = builders.case("tcp", cluster=ClusterSpec(launcher="mpirun"))
    run = with_findings([case], finding(case, backend="ucx:shm"))
    with pytest.raises(UsageError, match=r"\(backend=ucx:shm: .* can't run under mpirun"):
        prove.plan(run, most=3)


def test_what_cannot_be_proved_is_refused_with_the_reason():
    user = builders.case("tcp", cluster=ClusterSpec(launcher=USER_CODE))
    side = with_findings([FAKE], finding(FAKE, workers="4"))
    side.manifest = dataclasses.replace(side.manifest, side="base")
    for run, backend, reason in (
        (side, "", "is the base of an A/B, measured in another environment"),
        (with_findings([user], finding(user, workers="4")), "", "main\\(client\\) in a script"),
        (
            with_findings([FAKE], finding(FAKE, workers="4")),
            "mpi",
            "no computation over mpi; it has fake",
        ),
        (with_findings([FAKE], finding(FAKE)), "", "nothing to prove"),
        (
            with_findings([FAKE], finding(FAKE, backend="ucx:ib")),
            "",
            r"set here \(backend=ucx:ib: no RDMA device",
        ),
        (
            with_findings([own := builders.case("fake")], finding(own, workers="4")),
            "",
            r"\(workers=4: the size of the data would change\)",
        ),
    ):
        with pytest.raises(UsageError, match=reason):
            prove.plan(run, most=3, backend=backend)


def test_the_settings_are_printed_as_variables_yaml_and_code(tmp_path):
    config = {"distributed.comm.compression": "null", "distributed.p2p.storage.disk": "false"}
    found = finding(FAKE, backend="ucx:shm", threads="2", UCX_PROTO_INFO="a b", **config)
    run = with_findings([FAKE], found)
    (trial,) = prove.plan(run, most=1).trials
    variables, where, *config, cluster = prove.lines(trial)
    assert variables == "export UCX_TLS=tcp,sm UCX_MM_ERROR_HANDLING=y UCX_PROTO_INFO='a b'"
    assert where == "# a new file ~/.config/dask/NAME.yaml:"
    (tmp_path / "NAME.yaml").write_text("\n".join(config))
    assert dask.config.collect([str(tmp_path)], env={}) == {
        "distributed": {"comm": {"compression": None}, "p2p": {"storage": {"disk": False}}}
    }
    assert cluster == "LocalCluster(protocol='ucx', threads_per_worker=2)"


def test_the_settings_of_a_backend_are_those_for_the_device():
    case = dataclasses.replace(FAKE, backend="ucx:shm", cluster=ClusterSpec(device="gpu"))
    trial = prove.Trial(case, finding(FAKE), {"backend": "ucx:shm"})
    assert " UCX_TLS=tcp,sm,cuda_copy " in next(prove.lines(trial))


def test_a_backend_without_settings_is_printed_as_its_protocol():
    (trial,) = prove.plan(with_findings([FAKE], finding(FAKE, backend="tcp")), most=1).trials
    assert list(prove.lines(trial)) == [
        "# tcp: nothing: Dask's default", "LocalCluster(protocol='tcp')"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other", [{"launcher": "ssh", "hosts": ("a", "b")}, {"launcher": "mpirun"}], ids=str
)
def test_a_cluster_of_another_launcher_is_not_printed_as_a_local_one(other):
    case = dataclasses.replace(
        FAKE, cluster=dataclasses.replace(FAKE.cluster, n_workers=4, **other)
    )
    trial = prove.Trial(case, finding(FAKE, workers="4"), {"workers": "4"})
    assert list(prove.lines(trial)) == ["# the cluster, however you start it: n_workers=4"]


def test_settings_of_a_cluster_on_other_hosts_are_for_every_host():
    hosts = dataclasses.replace(FAKE.cluster, launcher="ssh", hosts=("a", "b"))
    case = dataclasses.replace(FAKE, cluster=hosts)
    compression = "distributed.comm.compression"
    spec = dataclasses.replace(case.cluster, dask_config={compression: None})
    trial = prove.Trial(dataclasses.replace(case, cluster=spec), finding(FAKE), {compression: ""})
    assert list(prove.lines(trial)) == [
        "# a new file ~/.config/dask/NAME.yaml on every host:",
        "distributed:", "  comm:", "    compression: null",
    ]  # fmt: skip
    spec = dataclasses.replace(case.cluster, env={"A": "1"})
    trial = prove.Trial(dataclasses.replace(case, cluster=spec), finding(FAKE), {"A": "1"})
    assert list(prove.lines(trial)) == ["# in the environment of every process:", "export A=1"]


@pytest.fixture(scope="module")
def measured_fake(tmp_path_factory, simulated):
    """Return a run over fake, which no test changes."""
    return processes.measured(
        "merge", "--backends", "fake", "--output", tmp_path_factory.mktemp("runs")
    ).path


@pytest.fixture
def fake_run(measured_fake, installed):
    """Return a run over fake, about which a rule says that it takes twice as long as it has to."""

    def find(case):
        for seconds in ("0.5", "1.0"):
            yield Finding(
                statement="samples take a second", evidence="samples", remedy="wait less",
                doubt="a second is not long", effect=Effect(share=0.4, low=0.3, high=0.6),
                trials=({"FAKE_SECONDS": seconds},),
            )  # fmt: skip

    rule = Rule(title="slow samples", limit="1 s", find=find, needs_profile=False)
    installed("rule", {"slow-samples": rule}, alone=True)
    return measured_fake


def test_a_remedy_that_helps_is_proved_and_confirmed(fake_run, tmp_path):
    out = ("--launches", 6, "--output", tmp_path / "proofs")
    done = processes.invoke("prove", fake_run, *out, figures=())
    assert done.exit_code == 0, done.output
    first, helps, fails, confirmed, *rest = done.stdout.splitlines()
    assert first == "merge over fake, as it is, and with:"
    assert helps.startswith("  FAKE_SECONDS=0.5: 50% less time (")
    assert helps.endswith("; predicted 40% (30 to 60%, estimated)")
    assert fails.startswith("  FAKE_SECONDS=1.0: ")
    assert confirmed.startswith("Confirmed in 6 fresh launches: FAKE_SECONDS=0.5: 50% less time")
    assert rest == ["", "To use it:", "  export FAKE_SECONDS=0.5"]
    runs = sorted((tmp_path / "proofs").iterdir())
    assert [len(commbench.load(run).ends) for run in runs] == [18, 12]


def test_a_gain_is_confirmed_by_the_least_difference_of_the_proof(recorded):
    proof = prove.plan(with_findings([FAKE], finding(FAKE, FAKE_SECONDS="0.97")), most=1)
    records = builders.launches_by_case(proof.suite.cases, ([1.0] * 6, [0.97] * 6))
    again = recorded(proof.suite.cases, records)
    assert prove.winner(prove.results(again, proof)) is None
    assert prove.winner(prove.results(again, proof, 0.01)) == proof.trials[0]


@pytest.mark.parametrize(
    ("n_launches", "spread", "gain", "expected"),
    [
        (6, 0.01, 0.3, [6]), (30, 0.01, 0.3, [6]), (30, 0.1, 0.12, range(10, 30)),
        (30, 0.2, 0.12, [30]),
    ],
)  # fmt: skip
def test_a_small_gain_is_confirmed_by_more_launches(n_launches, spread, gain, expected, recorded):
    dice = np.random.default_rng(0)
    proof = prove.plan(with_findings([FAKE], finding(FAKE, FAKE_SECONDS="0.9")), most=1)
    medians = [
        (median * dice.lognormal(0, spread, n_launches)).tolist() for median in (1.0, 1 - gain)
    ]
    records = builders.launches_by_case(proof.suite.cases, medians)
    ((_, compared),) = prove.results(recorded(proof.suite.cases, records), proof)
    assert prove.n_confirming(dataclasses.replace(compared, ratio=1 - gain)) in expected
    for detectable in (math.inf, math.nan):
        unknown = dataclasses.replace(compared, detectable=detectable)
        assert prove.n_confirming(unknown) == n_launches
    # A signed-rank test of nine launches does not reach that level.
    early = dataclasses.replace(compared, n_launches=9, alpha=1e-4, ratio=0.5)
    assert prove.n_confirming(early) == 9


def test_launches_of_the_confirmation_have_the_iterations_that_the_proof_chose(
    fake_run, tmp_path, monkeypatch
):
    monkeypatch.setattr(budget, "last_iterations", lambda _: 7)
    processes.invoke(
        "prove", fake_run, "--launches", 6, "--output", tmp_path / "proofs", figures=()
    )
    counts = [
        {*commbench.load(run).samples.query("not warmup").groupby(["case_id", "launch"]).size()}
        for run in sorted((tmp_path / "proofs").iterdir())
    ]
    assert counts[1] == {7} != counts[0]


def test_predictions_of_another_environment_are_left_out(fake_run, monkeypatch, tmp_path):
    real = environment.collect()
    monkeypatch.setattr(
        environment, "collect", lambda: {**real, "cpu": {**real["cpu"], "model": "another"}}
    )
    done = processes.invoke("prove", fake_run, "--launches", 6, "--output", tmp_path, figures=())
    assert "was measured in another environment, so its predictions are left out" in done.stderr
    assert "FAKE_SECONDS=0.5: 50% less time" in done.stdout
    assert "predicted" not in done.stdout


def test_a_proof_has_time_for_six_launches_of_each_case(fake_run, monkeypatch):
    budgets = []

    def measure(ctx, data, suite, given):
        budgets.append(given["budget"])
        ctx.exit(0)

    monkeypatch.setattr(findings_command, "_measure", measure)
    for launch_s in (1.0, 40.0):
        monkeypatch.setattr(opening, "_launch_s", lambda *_, s=launch_s: s)
        processes.invoke("prove", fake_run)
    # The present state and two remedies.
    assert budgets == [300, 1.25 * 6 * 3 * 40]


def test_an_interrupted_proof_can_begin_again(fake_run, monkeypatch):
    monkeypatch.setattr(run_command, "start", lambda *_: interrupts.STATUS)
    done = processes.invoke("prove", fake_run)
    assert done.exit_code == interrupts.STATUS
    assert f"begin the proof again: commbench prove {fake_run}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--launches", 0), "launches is 0; it must be at least 1"),
        (("--launches", -3), "launches is -3; it must be at least 1"),
        (("--timeout", 0), "timeout is 0.0 s; it must be above 0"),
    ],
)
def test_a_proof_of_no_launches_or_time_is_refused(arguments, message, fake_run):
    assert message in usage_error(processes.invoke("prove", fake_run, *arguments))


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ("", "--budget 30m"),
        ("--budget 9s", "--budget 1m"),
        ("--detect 2%", "--budget 15m --detect 2%"),
        ("--rigorous", "--budget 180m --detect 2%"),
        ("--launches 7", "--launches 21"),
    ],
)
def test_undecided_remedies_have_three_times_as_many_launches(
    arguments, more, fake_run, monkeypatch
):
    undecided = types.SimpleNamespace(
        verdict="inconclusive", n_launches=6, same_low=0.9, min_effect=0.05
    )
    monkeypatch.setattr(findings_command, "_measure", lambda *given: given[1])
    monkeypatch.setattr(prove, "results", lambda _, proof: [(proof.trials[0], undecided)])
    done = processes.invoke("prove", fake_run, *arguments.split())
    assert done.stdout.splitlines()[-1].endswith(f"More launches may decide: {more}")


@pytest.mark.parametrize(
    ("medians", "said", "end", "status"),
    [
        ([0.7, 1.3], "undecided after 12 launches: may save up to 29%", "Undecided: ", 0),
        ([0.98, 1.1], "saves at most 1%", "None of these remedies helps here: each saves less ", 0),
        ([1.0, 1.0], "the same", "None of these remedies helps here: each saves less than 5%.", 0),
        ([0.7], "undecided after 1 launches", "Undecided: ", 0),
        ("unequal", "it did other work", "Not comparable: FAKE_SECONDS=0.5.", 1),
    ],
)
def test_that_no_remedy_helps_is_said_if_a_gain_that_matters_is_excluded(
    medians, said, end, status, fake_run, monkeypatch, recorded
):
    def measure(ctx, data, suite, given):
        # A remedy that is undecided is measured again, without the other.
        records = [
            record
            for case, some in zip(suite.cases, ([0.99, 1.01], medians, [2.0]), strict=False)
            for record in builders.launches(case, some * (6 if len(medians) > 1 else 1))
        ]
        return recorded(suite.cases, records)

    if medians == "unequal":
        unequal = types.SimpleNamespace(verdict="unequal")
        monkeypatch.setattr(prove, "results", lambda _, proof: [(proof.trials[0], unequal)])
        medians = [1.0]
    monkeypatch.setattr(findings_command, "_measure", measure)
    done = processes.invoke("prove", fake_run, "--trials", 2)
    assert f"  FAKE_SECONDS=0.5: {said}; predicted" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(end)
    assert done.exit_code == status


@pytest.mark.parametrize(
    ("arguments", "again", "said", "budgets"),
    [
        ("", [1.0, 1.0], "the same; predicted 40%", [300, 600]),
        ("", [0.5, 0.51], "49% less time", [300, 600, None]),
        ("", [], "could not be compared; see ", [300, 600]),
        ("--budget 5m", [], "undecided after 12 launches", [300]),
        ("--launches 12", [], "undecided after 12 launches", [None]),
    ],
)
def test_undecided_remedies_are_measured_again_unless_the_design_is_given(
    arguments, again, said, budgets, fake_run, monkeypatch, recorded
):
    runs = []

    def measure(ctx, data, suite, given):
        remedies = [case.cluster.env["FAKE_SECONDS"] for case in suite.cases if case.cluster.env]
        runs.append((remedies, given["budget"]))
        medians = {"0.5": again if len(runs) > 1 else [0.7, 1.3], "1.0": [2.0, 2.0]}
        given_s = [case.cluster.env.get("FAKE_SECONDS") for case in suite.cases]
        times = [6 * medians.get(each, [0.99, 1.01]) for each in given_s]
        return recorded(suite.cases, builders.launches_by_case(suite.cases, times))

    monkeypatch.setattr(findings_command, "_measure", measure)
    done = processes.invoke("prove", fake_run, "--trials", 2, *arguments.split())
    # The remedy that is decided is measured once.
    expected = [(["0.5", "1.0"], budgets[0]), *((["0.5"], budget) for budget in budgets[1:])]
    assert runs == expected
    first, _, second = done.stdout.partition(
        "The undecided ones are measured again, for about 10 min:"
    )
    assert "  FAKE_SECONDS=0.5: undecided after 12 launches: may save up to 29%" in first
    assert "  FAKE_SECONDS=1.0: 100% more time" in first
    assert bool(second) == (len(budgets) > 1)
    assert f"  FAKE_SECONDS=0.5: {said}" in (second or first)


@pytest.fixture
def proving(fake_run, tmp_path, installed):
    """Return a function that proves the run with another remedy of its rule."""

    def proving(**settings):
        rule = registry.loadable("rule")["slow-samples"]

        def find(case):
            return (dataclasses.replace(each, trials=(settings,)) for each in rule.find(case))

        installed("rule", {"slow-samples": dataclasses.replace(rule, find=find)}, alone=True)
        out = ("--launches", 6, "--output", tmp_path / "proofs")
        return processes.invoke("prove", fake_run, *out, figures=())

    return proving


def test_remedies_that_do_not_help_are_not_proved(proving):
    done = proving(FAKE_SECONDS="1.5")
    assert done.exit_code == 0, done.output
    assert "  FAKE_SECONDS=1.5: 50% more time (" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("None of these remedies helps here: ")


def test_remedies_that_could_not_be_measured_are_no_result(proving):
    done = proving(backend="fake:wrong")
    assert done.exit_code == 1
    assert "backend=fake:wrong: could not be compared; see " in done.stdout
    assert "helps" not in done.stdout


def test_diagnose_says_what_was_found_and_why(fake_run):
    done = processes.invoke("diagnose", fake_run)
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    could = "could take 40% (30 to 60%, estimated) less time"
    assert f"[slow-samples] {could}: samples take a second. Wait less." in text
    assert "evidence: samples" in text
    assert "but: a second is not long" in text


@pytest.mark.parametrize(("rules", "status"), [("slow-samples", 3), ("any", 3), (None, 0)])
def test_diagnose_fails_on_the_rules_that_it_is_asked_to(fake_run, rules, status):
    done = processes.invoke("diagnose", fake_run, *(["--fail-on", rules] if rules else []))
    assert done.exit_code == status
    assert ("findings of: slow-samples" in done.stderr) == (status == 3)


@pytest.mark.parametrize("rules", ["gil", "any"])
def test_rules_that_cannot_be_applied_do_not_pass(tmp_path, rules):
    failed = builders.written(tmp_path / "failed", [FAKE], [builders.failure(FAKE)]).path
    timeless = builders.written(tmp_path / "timeless", [FAKE], [builders.sample(FAKE, 1.0)]).path
    for path, lacks in ((failed, "measurements"), (timeless, "times of threads")):
        done = processes.invoke("diagnose", path, "--fail-on", rules)
        assert done.exit_code == 1
        assert re.search(rf"not applied: .*gil.*; the run has no {lacks}", done.stderr)
        assert ("Nothing was measured" in done.stdout) == (path == failed)


@pytest.mark.parametrize(
    ("rules", "lacks"),
    [
        ("gil", ["tcp, which has no times of threads", "mpi, which has no measurements"]),
        ("slow-links", ["mpi, which has no measurements"]),
        ("any", ["tcp, which has no times of threads", "mpi, which has no measurements"]),
    ],
)
def test_a_case_to_which_rules_were_not_applied_does_not_pass(tmp_path, rules, lacks):
    tcp = builders.case("tcp")
    records = [builders.sample(tcp, 10.0), builders.sample(FAKE, 10.0)]
    threads = [builders.thread_time(FAKE), builders.failure(MPI)]
    ended = builders.ended([*records, *threads])
    path = builders.written(tmp_path, [FAKE, tcp, MPI], ended).path
    done = processes.invoke("diagnose", path, "--fail-on", rules)
    assert done.exit_code == 1
    assert done.stderr.count("not applied to ") == len(lacks)
    assert [lack for lack in lacks if lack not in done.stderr] == []


def test_rules_apply_to_the_inner_ones_of_nested_regions(tmp_path):
    cases = [builders.case(workload=name) for name in ("outer", "inner")]
    records = [
        record
        for n, case in enumerate(cases)
        for record in (
            builders.region(case, 10.0, iteration=n, parent=n - 1),
            builders.sample(case, 10.0, iteration=n), builders.end(case),
            builders.thread_time(case, iteration=n),
        )
    ]  # fmt: skip
    path = builders.written(tmp_path, cases, records).path
    assert processes.invoke("diagnose", path, "--fail-on", "any").exit_code == 0


def test_a_rule_is_failed_on_that_says_that_nothing_is_wrong_only_if_it_is_named(
    installed, tmp_path
):
    fine = builders.finding(FAKE, is_fine=True)
    rule = Rule(title="calm", limit="", find=lambda _: [fine], needs_profile=False)
    installed("rule", {"calm": rule}, alone=True)
    path = builders.written(tmp_path, [FAKE], builders.ended([builders.sample(FAKE, 1.0)])).path
    statuses = [
        processes.invoke("diagnose", path, "--fail-on", rules).exit_code
        for rules in ("any", "calm")
    ]
    assert statuses == [0, 3]


def test_a_run_is_diagnosed_without_arguments(fake_run):
    message = usage_error(processes.invoke("diagnose", fake_run, "other", "--fail-on", "any"))
    assert "is no script, and takes no arguments: other" in message


def test_diagnose_does_not_know_other_rules(fake_run):
    done = processes.invoke("diagnose", fake_run, "--fail-on", "slow-sample")
    assert "did you mean 'slow-samples'?" in usage_error(done)
