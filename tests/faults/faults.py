"""Faults of known kinds and amounts, injected into computations, and what is found about them.

Thresholds are chosen by trials with a fault's three amounts and all its jobs but the last.
Validation has that job, and draws amounts between the least and the largest. An amount near the
limit that the rule states has trials and a rate for itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from pathlib import Path

import namespaces
import processes
import pytest

import commbench
from commbench.analysis.run import Run
from commbench.errors import UsageError
from commbench.harness import interrupts
from commbench.harness.options import MAX_REMEDIES
from commbench.model import Effect
from commbench.studies import prove

_FOLDER = Path(__file__).parent
_SHORT = ("--launches", 1, "--iterations", 3, "--warmups", 1)
_PREDICTS = ("--launches", 3, "--iterations", 5, "--warmups", 1)
"""What predicts the gain of a remedy: one launch may be unlike all others."""
_JOBS = ("array", "graph", "frame")
_CANNED = ("merge", "transpose-sum", "svd")
_MOVING = ("merge", "transpose-sum", "shuffle")
"""Those that move enough bytes for faults of the network to cost more than the rules' limits."""
_SIZES = {
    "merge": ("--rows", 600_000), "transpose-sum": ("--size", 4000, "--chunk", 1000), "svd": (),
    "shuffle": (), "matmul": (), "rechunk": (), "groupby": (),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was found about one run."""

    rule: str
    """The rule that has to find the fault; empty for a healthy run."""
    right: bool
    """Whether it did; of a healthy run, whether nothing false was found.

    Of a proof, whether a setting was confirmed that removes the fault; of a healthy run, whether
    none was.
    """
    amount: float
    job: str
    for_validation: bool
    found: list[str]
    """The rules with findings."""
    false: list[str]
    """Of these, those that are not `possible`."""
    statement: str = ""
    """What the finding of the rule says, or ``prove`` of useless remedies."""
    effect: float | None = None
    """The effect of the rule's finding."""
    effect_low: float | None = None
    effect_high: float | None = None
    predicted_by: str = ""
    """The rule that has predicted the gain in a proof: others may have the same remedy."""
    proved: str = ""
    """The settings that ``prove`` has confirmed."""
    gain_low: float | None = None
    gain_high: float | None = None
    """The interval of the share of the time that the rule's first remedy saves, in its last run."""
    proof_runs: int = 0
    """The runs of ``prove`` of useless remedies; 0 before it measured undecided ones again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and how to inject it."""

    jobs: tuple[str, ...]
    amounts: tuple[float, ...]
    """Those with which thresholds are chosen. Validation draws others between them."""
    near_limit: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The amounts whose effects are near the limit of the rule, by job."""
    options: Callable[[float], tuple[object, ...]] = lambda _amount: ()
    """Options of ``run`` for an amount."""
    in_job: bool = True
    """Whether the job injects it."""
    n_cores: int = 0
    """The cores to run on; 0: all."""
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also: tuple[str, ...] = ()
    """Rules whose cause may come with it."""
    hosts: Callable[[float, random.Random], namespaces.Layout] | None = None
    """The hosts and links to run on, for an amount."""
    curable: bool = False
    """Whether a setting removes it."""
    curable_jobs: tuple[str, ...] = ()
    """The jobs in which a setting removes it, unless it does in ``jobs``."""
    rule: str = ""
    """The rule that has to find it, unless that has its name."""
    named: Callable[[random.Random], str] = lambda _dice: ""
    """What a finding has to say for a hit, as a regular expression."""


def _pair(dice: random.Random) -> tuple[int, int]:
    """Return two of four hosts, the higher number first."""
    low, high = sorted(dice.sample(range(4), 2))
    return high, low


def _between(pair: tuple[int, int]) -> str:
    """Return the expression of what a finding says about two workers."""
    return r"worker(s {1} and {0}| {0} to {1}| {1} to {0})\b".format(*pair)


def _mesh(
    rate_Bps: float, slow: Container[tuple[int, int]] = (), times: float = 1.0  # noqa: N803
) -> namespaces.Layout:  # fmt: skip
    """Return four hosts with a link for every pair, some of which are slower."""
    pairs = [(a, b) for a in range(4) for b in range(a)]
    rates = {pair: rate_Bps / (times if pair in slow else 1.0) for pair in pairs}
    return namespaces.mesh(4, rates)


def _links(host: int) -> set[tuple[int, int]]:
    """Return the links of one of four hosts, the higher number first."""
    return {(max(host, other), min(host, other)) for other in range(4) if other != host}


NEAR_LIMIT = "limit-"
"""What the names of trials near the limit of a rule begin with."""
N_TUNING = 20
"""The first trials of each fault, which serve to choose thresholds."""
_USELESS = """
from commbench.analysis.findings import Rule
from commbench.model import Effect, Finding


def find(case):
    yield Finding(
        statement="nothing is wrong", evidence="none", remedy="change what nothing reads",
        doubt="", effect=Effect(share=0.3, low=0.1, high=0.5),
        trials=({"NOTHING_READS_THIS": "1"}, {"distributed.comm.timeouts.connect": "31s"}),
    )


RULE = Rule(title="nothing", limit="none", find=find, needs_profile=False)
"""
"""A rule whose remedies can't help, so that there is something to prove about a healthy run."""
_WAITS = ("few-cores", "bandwidth", "small-messages", "p2p-disk", "page-faults")
"""What may be true of any computation here: there are more processes than cores, and a disk.

Dask lets workers give memory back.
"""
FAULTS = {
    "gil": Fault(
        jobs=_JOBS, amounts=(1.0, 2.0, 1.5),
        options=lambda _: ("--workers", 1, "--threads", 2),
        curable=True,
    ),
    "background-threads": Fault(jobs=_JOBS, amounts=(0.5, 1.0, 0.75),
                                near_limit=dict.fromkeys(_JOBS, 0.3), also=("gil",)),
    "blocked-loop": Fault(jobs=_JOBS, amounts=(0.3, 0.66, 0.5),
                          near_limit=dict.fromkeys(_JOBS, 0.22),
                          also=("scheduler", "connections", "skew", "parallelism")),
    "blocked-scheduler": Fault(rule="blocked-loop", jobs=_JOBS, amounts=(0.5, 0.8, 0.66),
                               near_limit=dict.fromkeys(_JOBS, 0.35),
                               also=("scheduler", "connections", "skew", "parallelism")),
    # The client makes the data of frames.
    "gathered": Fault(jobs=("graph", "array", "frame"), amounts=(100.0, 300.0, 200.0),
                      near_limit=dict.fromkeys(_JOBS, 12.0),
                      also=("preparation",)),
    "small-messages": Fault(jobs=("graph", "array", "stencil"), amounts=(1.0, 1.0, 1.0),
                            also=("scheduler",)),
    "scheduler": Fault(jobs=("graph", "array", "frame"), amounts=(2.0, 4.0, 3.0)),
    "scheduler-data": Fault(jobs=("graph", "array", "frame"), amounts=(400.0, 800.0, 600.0),
                            also=("preparation", "gathered")),
    "recomputed": Fault(jobs=("graph", "array", "frame"), amounts=(2.0, 4.0, 3.0),
                        near_limit={"graph": 1.15}),
    "read-again": Fault(rule="recomputed", jobs=("index", "join", "frame"),
                        amounts=(2.0, 4.0, 3.0)),
    "first-tasks": Fault(jobs=("graph", "array", "frame"), amounts=(1.0, 4.0, 2.0),
                         near_limit=dict.fromkeys(_JOBS, 0.25)),
    "successive": Fault(jobs=("graph", "array", "frame"), amounts=(30.0, 90.0, 60.0),
                        also=("parallelism", "preparation", "scheduler")),
    "skew": Fault(jobs=("graph", "array", "frame"), amounts=(3.0, 6.0, 4.0),
                  near_limit={"graph": 1.6}),
    "one-sided": Fault(rule="skew", jobs=("graph", "array", "frame"), amounts=(32.0, 96.0, 64.0),
                       near_limit=dict.fromkeys(_JOBS, 16.0),
                       named=lambda _: "awaiting data"),
    "parallelism": Fault(
        jobs=("graph", "array", "frame"), amounts=(1.0, 3.0, 2.0), also=("skew",),
        near_limit=dict.fromkeys(_JOBS, 6.0),
        options=lambda _: ("--workers", 2, "--threads", 4),
    ),
    "preparation": Fault(jobs=("graph", "array", "frame"), amounts=(0.5, 2.0, 1.0),
                         near_limit={"graph": 0.15, "array": 0.07, "frame": 0.08}),
    "unbalanced-p2p": Fault(jobs=("frame", "index", "join"), amounts=(0.8, 0.95, 0.9),
                            near_limit={"frame": 0.5, "join": 0.5},
                            also=("skew", "preparation")),
    # The loops that write are blocked.
    "p2p-disk": Fault(jobs=("frame", "index", "join"), amounts=(2.0, 4.0, 3.0),
                      near_limit={"frame": 60.0, "join": 60.0},
                      also=("blocked-loop", "skew"), curable=True,
                      # Dask always writes shuffles of frames.
                      curable_jobs=("blocks", "rows", "columns")),
    # Others move few bytes for the time that they take.
    "encryption": Fault(
        jobs=("transpose-sum", "matmul", "rechunk"), amounts=(2.0, 4.0, 3.0), in_job=False,
        options=lambda n: ("--workers", int(n), "--backends", "tls"), curable=True,
        # matmul loses less than a verdict needs, and rechunk more to its disk.
        curable_jobs=("transpose-sum", "transpose-sum"),
    ),
    "transport": Fault(
        jobs=_CANNED, amounts=(2.0, 4.0, 3.0), in_job=False, also=("polling",),
        options=lambda n: ("--workers", int(n), "--backends", "ucx"), curable=True,
    ),
    "no-shared-memory": Fault(
        rule="transport", jobs=_CANNED, amounts=(2.0, 4.0, 3.0), in_job=False, also=("polling",),
        options=lambda n: ("--workers", int(n), "--backends", "ucx"), environ={"UCX_TLS": "tcp"},
    ),
    "polling": Fault(
        jobs=_CANNED, amounts=(2.0, 4.0, 3.0), in_job=False,
        options=lambda n: ("--workers", int(n), "--backends", "ucx:shm"), curable=True,
    ),
    "few-cores": Fault(
        jobs=_CANNED, amounts=(2.0, 4.0, 3.0), in_job=False,
        options=lambda n: ("--workers", int(n)), n_cores=1,
        named=lambda _: r"share 1 core\b",
    ),
    "spilling": Fault(
        jobs=("transpose-sum", "svd", "matmul"), amounts=(220.0, 280.0, 250.0), in_job=False,
        options=lambda megabytes: ("--memory-limit", f"{megabytes:.0f}MB"), also=("memory-pauses",),
        curable=True,
    ),
    # A connection with TLS takes some milliseconds, as long as the tasks.
    "connections": Fault(
        jobs=("graph", "array", "frame"), amounts=(1.0, 1.0, 1.0),
        also=("encryption", "scheduler", "preparation"),
        options=lambda _: ("--backends", "tls"),
    ),
    "memory-pauses": Fault(
        jobs=_JOBS, amounts=(0.4, 0.8, 0.6), also=("scheduler", "skew"),
        near_limit=dict.fromkeys(_JOBS, 0.06),
        # The worker would resume at once.
        environ={"DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False"},
    ),
    "page-faults": Fault(jobs=_JOBS, amounts=(30.0, 120.0, 60.0), curable=True,
                         near_limit={"graph": 6.0, "array": 11.0, "frame": 3.0}),
    # Dask leaves the random numbers of transpose-sum as they are.
    "compression": Fault(
        jobs=("merge", "groupby", "shuffle"), amounts=(1.0, 1.0, 1.0), in_job=False,
        environ={"DASK_DISTRIBUTED__COMM__COMPRESSION": "zlib"},
        # Loops compress messages of less than 10 MB. Within a host nothing is compressed.
        also=("blocked-loop",),
        hosts=lambda _rate, _dice: namespaces.mesh(4, {}), curable=True,
    ),
    "bandwidth": Fault(
        jobs=_MOVING, amounts=(20e6, 40e6, 30e6), in_job=False,
        near_limit=dict.fromkeys(_MOVING, 200e6),
        hosts=lambda rate, _: _mesh(rate),
        # Other computations here may await data, too, but faster ones.
        named=lambda _: r"\b[1-3]?\d(\.\d+)? MB/s in a large transfer",
    ),
    "slow-links": Fault(
        jobs=_MOVING, amounts=(4.0, 10.0, 6.0), in_job=False, also=("skew",),
        near_limit=dict.fromkeys(_MOVING, 1.7),
        hosts=lambda times, dice: _mesh(40e6, [_pair(dice)], times),
        named=lambda dice: _between(_pair(dice)),
    ),
    "slow-hosts": Fault(
        rule="slow-links", jobs=_MOVING, amounts=(4.0, 10.0, 6.0), in_job=False, also=("skew",),
        near_limit=dict.fromkeys(_MOVING, 1.7),
        hosts=lambda times, dice: _mesh(40e6, _links(dice.randrange(4)), times),
        named=lambda dice: rf"from and to worker {dice.randrange(4)}\b",
    ),
    "slow-ways": Fault(
        rule="slow-links", jobs=_MOVING, amounts=(4.0, 10.0, 6.0), in_job=False, also=("skew",),
        near_limit=dict.fromkeys(_MOVING, 1.7),
        hosts=lambda times, dice: dataclasses.replace(
            _mesh(40e6), back={_pair(dice): 40e6 / times}
        ),
        named=lambda dice: "from worker {1} to {0}\\b".format(*_pair(dice)),
    ),
    "delayed-links": Fault(
        rule="slow-links", jobs=_MOVING, amounts=(0.08, 0.16, 0.12), in_job=False, also=("skew",),
        hosts=lambda seconds, dice: dataclasses.replace(
            _mesh(40e6), delay_s={_pair(dice): seconds}
        ),
        named=lambda dice: _between(_pair(dice)),
    ),
    # TCP slows down with each loss, and recovers by a packet per round trip. With Reno, a link lets
    # pass 1.2 packets per round trip over the root of the share that is lost (Mathis et al., 1997).
    "lossy-links": Fault(
        rule="slow-links", jobs=_MOVING, amounts=(0.003, 0.02, 0.01), in_job=False, also=("skew",),
        hosts=lambda share, dice: dataclasses.replace(
            _mesh(40e6),
            delay_s={(pair := _pair(dice)): 0.001},
            loss=dict.fromkeys((pair, pair[::-1]), share),
        ),
        named=lambda dice: _between(_pair(dice)),
    ),
}  # fmt: skip


def possible(name: str) -> set[str]:
    """Return the rules whose cause may be there in the trials with a name; others are absent."""
    if name == "healthy":
        return {"little-communication"}
    name = name.removeprefix(NEAR_LIMIT)
    return {FAULTS[name].rule or name, *FAULTS[name].also, *_WAITS}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run with a fault, or with none."""

    name: str
    fault: Fault
    job: str
    amount: float
    seed: int
    folder: Path

    @classmethod
    def draw(cls, name: str, seed: int, folder: Path, jobs: tuple[str, ...] = ()) -> Trial:
        """Return the trial of a seed."""
        fault, dice = FAULTS[name], random.Random(f"{name} {seed}")
        jobs = jobs or fault.jobs
        if is_validation(seed):
            job, amount = jobs[-1], dice.uniform(min(fault.amounts), max(fault.amounts))
        else:
            job, amount = dice.choice(jobs[:-1]), dice.choice(fault.amounts)
        return cls(name, fault, job, amount, seed, folder)

    @contextlib.contextmanager
    def injected(self) -> Iterator[list[object]]:
        """Inject the fault into what runs meanwhile; return the options that it takes."""
        fault, options = self.fault, [*self.fault.options(self.amount)]
        if "--workers" not in options:
            options += ["--workers", 4 if fault.hosts else 2, "--threads", 1]
        if fault.in_job:
            options += ["--fault", self.name, "--amount", self.amount]
        with contextlib.ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.syspath_prepend(_FOLDER)
            patch.setenv("PYTHONPATH", str(_FOLDER))
            for variable, text in fault.environ.items():
                patch.setenv(variable, text)
            if fault.hosts:
                layout = fault.hosts(self.amount, random.Random(self.seed))
                there = stack.enter_context(namespaces.laid_out(layout))
                stack.enter_context(namespaces.launches_on_host_0(self.folder, there))
                options += ["--launcher", "namespaces"]
            cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, sorted(cores)[: fault.n_cores or len(cores)])
            stack.callback(os.sched_setaffinity, 0, cores)
            yield options

    def measured(self, options: list[object], design: tuple[object, ...] = _SHORT) -> Run:
        """Run the job, and return the run."""
        target = [self.job, *_SIZES[self.job]] if self.job in _SIZES else [f"jobs:{self.job}"]
        output = ("--output", self.folder / "results")
        done = processes.invoke(
            "run", *target, *options, *design, "--seed", self.seed, *output, figures=()
        )
        _raise_for(done.exit_code, done.output)
        return commbench.load(Path(done.stdout.splitlines()[-1]))

    def outcome(self, run: Run, **given: object) -> Outcome:
        """Return what was found about the run."""
        rule = self.fault.rule or self.name
        words = self.fault.named(random.Random(self.seed))
        hits = (
            finding for finding in run.findings
            if finding.rule == rule and re.search(words, finding.statement)
        )  # fmt: skip
        hit = next(hits, None)
        rules = [finding.rule for finding in run.findings]
        false = [rule for rule in rules if rule not in possible(self.name or "healthy")]
        share, low, high = (
            (hit.effect.share, hit.effect.low, hit.effect.high) if hit else (None,) * 3
        )
        fields = {
            "right": hit is not None if self.name else not false,
            "statement": hit.statement if hit else "",
            "effect": share, "effect_low": low, "effect_high": high, **given,
        }  # fmt: skip
        return Outcome(
            rule=rule,
            amount=self.amount,
            job=self.job,
            for_validation=is_validation(self.seed),
            found=rules,
            false=false,
            **fields,
        )


def _raise_for(status: int, output: str) -> None:
    """Raise an error if a command failed; one that was interrupted is no outcome of its trial."""
    if status == interrupts.STATUS:
        raise KeyboardInterrupt
    if status:
        raise RuntimeError(f"status {status}: {output[-1000:]}")


def is_validation(seed: int) -> bool:
    """Return whether the trial of a seed is one of validation."""
    return seed >= N_TUNING


def diagnosed(name: str, seed: int, folder: Path, near_limit: bool = False) -> Iterator[Outcome]:
    """Inject a fault, of an amount near the limit of its rule or above, and look for it."""
    trial = Trial.draw(name, seed, folder)
    if near_limit:
        job = random.Random(f"{NEAR_LIMIT}{name} {seed}").choice([*trial.fault.near_limit])
        trial = dataclasses.replace(trial, job=job, amount=trial.fault.near_limit[job])
    with trial.injected() as options:
        yield trial.outcome(trial.measured(options))


def healthy(seed: int, folder: Path) -> Iterator[Outcome]:
    """Run a job whose tasks sleep, on one worker or on two that exchange little."""
    trial = _healthy(seed, folder)
    with trial.injected() as options:
        run = trial.measured(options)
    outcome, rule = trial.outcome(run), "little-communication"
    yield outcome
    yield dataclasses.replace(outcome, rule=rule, right=rule in outcome.found)


def _healthy(seed: int, folder: Path) -> Trial:
    dice = random.Random(f"healthy {seed}")
    n_workers, n_threads, job = dice.choice((1, 2)), dice.choice((1, 2, 4)), dice.choice(_JOBS)
    # All threads are in tasks for two seconds or more.
    amount = n_workers * n_threads * {"graph": 1, "array": 3, "frame": 6}[job]
    backend = dice.choice(("tcp", "tls", "mpi"))
    options = (
        "--workers", n_workers, "--threads", n_threads, "--amount", amount, "--backends", backend,
    )  # fmt: skip
    nothing = Fault(jobs=_JOBS, amounts=(0.0,), options=lambda _: options, in_job=False)
    if backend != "tls" and dice.random() < 0.5:
        # Within a host nothing is compressed; between these, TLS has no keys.
        nothing = dataclasses.replace(
            nothing, hosts=lambda *_: namespaces.mesh(2, {}),
            environ={"DASK_DISTRIBUTED__COMM__COMPRESSION": "zlib"},
        )  # fmt: skip
    return Trial("", nothing, job, 0.0, seed, folder)


def proved(name: str, seed: int, folder: Path) -> Iterator[Outcome]:
    """Prove the remedies of a run with a fault that a setting cures, or useless ones."""
    trial, rule = _healthy(seed, folder), "useless"
    if name:
        trial, rule = Trial.draw(name, seed, folder, FAULTS[name].curable_jobs), name
    with trial.injected() as options, pytest.MonkeyPatch.context() as patch:
        if not name:
            rules = {"rules": {rule: "RULE"}}
            plugged = processes.plug_in(folder / "plugged", "useless_rule", _USELESS, **rules)
            patch.syspath_prepend(plugged)
        run = trial.measured(options, _PREDICTS)
        try:
            proof = prove.plan(run, most=MAX_REMEDIES)
        except UsageError:
            yield trial.outcome(run, right=not name)
            return
        output = folder / "proofs"
        command = ("prove", run.path, "--output", output)
        done = processes.invoke(*command, figures=())
        if done.exit_code != 1:
            _raise_for(done.exit_code, done.output)
    # Other findings may have the same remedy.
    cures = [settings for f in run.findings if f.rule == rule for settings in f.trials]
    # Users read the effect of the first of these.
    first = next((trial for trial in proof.trials if trial.settings in cures), None)
    predicted = first.finding.effect if first else Effect()
    gains: dict[str, object] = {
        "effect": predicted.share, "effect_low": predicted.low, "effect_high": predicted.high,
        "predicted_by": first.finding.rule if first else "",
    }  # fmt: skip
    best, faulty = None, set[str]()
    paths = sorted(output.iterdir())
    if not name:
        gains |= {"statement": done.stdout.splitlines()[-1], "proof_runs": len(paths)}
    for path in paths:
        last = commbench.load(path)
        compared = prove.results(last, proof)
        best = prove.winner(compared) if len(paths) > 1 else None
        for remedy, c in compared:
            if remedy is first:
                gains |= {"gain_low": 1 - c.ci_high, "gain_high": 1 - c.ci_low}
        faulty = {f.case_id for f in last.findings if f.rule == name}
    cured = best is not None and proof.present.id in faulty and best.case.id not in faulty
    right = cured if name else best is None
    yield trial.outcome(run, right=right, proved=best.name if best else "", **gains)


_CURABLE = [name for name, fault in FAULTS.items() if fault.curable]
TRIALS: dict[str, Callable[[int, Path], Iterator[Outcome]]] = {
    "healthy": healthy,
    **{name: partial(diagnosed, name) for name in FAULTS},
    **{
        NEAR_LIMIT + name: partial(diagnosed, name, near_limit=True)
        for name, fault in FAULTS.items()
        if fault.near_limit
    },
    "prove-healthy": partial(proved, ""),
    **{f"prove-{name}": partial(proved, name) for name in _CURABLE},
}
SHARES = {
    "healthy": 3.0,
    **dict.fromkeys(["prove-healthy", *(f"prove-{n}" for n in _CURABLE)], 0.1),
}
"""How often a trial runs for each time of the others."""
