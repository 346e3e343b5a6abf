"""Faults of known kinds and amounts, injected into computations, and what is found about them.

Each fault has three amounts: the first two serve to choose thresholds, the last is kept for
validation, as is the last of its jobs. The amounts are above the limit that the rule states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import namespaces
import processes
import pytest

import commbench
from commbench.analysis.run import Run

_FOLDER = Path(__file__).parent
_SHORT = ("--launches", 1, "--iterations", 3, "--warmups", 1)
_JOBS = ("array", "graph", "frame")
_CANNED = ("merge", "transpose-sum", "svd")
_SIZES = {
    "merge": ("--rows", 600_000), "transpose-sum": ("--size", 4000, "--chunk", 1000), "svd": (),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was found about one run."""

    rule: str
    """The rule that has to find the fault; empty for a healthy run."""
    right: bool
    """Whether it did; of a healthy run, whether nothing false was found."""
    amount: float
    job: str
    held_out: bool
    found: list[str]
    """The rules with findings that are not fine."""
    false: list[str]
    """Of these, those whose cause is known to be absent."""
    effect: float | None = None
    effect_low: float | None = None
    effect_high: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and how to inject it."""

    jobs: tuple[str, ...]
    amounts: tuple[float, float, float]
    options: Callable[[float], tuple[object, ...]] = lambda _amount: ()
    """Options of ``run`` for an amount."""
    in_job: bool = True
    """Whether the job injects it."""
    prefix: tuple[str, ...] = ()
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also: tuple[str, ...] = ()
    """Rules whose cause may come with it."""
    hosts: Callable[[float, random.Random], namespaces.Layout] | None = None
    """The hosts and links to run on, for an amount."""


def _two_hosts(rate_Bps: float) -> namespaces.Layout:  # noqa: N803 - the spelling of the unit
    return namespaces.mesh(4, {(a, b): rate_Bps for a in range(4) for b in range(a)})


_FIRST_CPU = str(min(os.sched_getaffinity(0)))
_LOCAL = ("--workers", 2, "--threads", 1)
_WAITS = ("few-cores", "bandwidth", "small-messages", "skew")
"""What may be true of any computation on few cores."""
FAULTS = {
    "gil": Fault(
        jobs=_JOBS, amounts=(1.0, 2.0, 1.5),
        options=lambda _: ("--workers", 1, "--threads", 2),
        # It waits for the GIL, too.
        also=("blocked-loop",),
    ),
    "blocked-loop": Fault(jobs=_JOBS, amounts=(0.3, 0.66, 0.5), also=("scheduler", "connections")),
    "gathered": Fault(jobs=("graph", "array", "frame"), amounts=(100.0, 300.0, 200.0)),
    "small-messages": Fault(jobs=("graph", "array", "array"), amounts=(1.0, 1.0, 1.0),
                            also=("scheduler",)),
    "scheduler": Fault(jobs=("graph",) * 3, amounts=(2.0, 5.0, 3.0), also=("small-messages",)),
    "skew": Fault(jobs=("graph",) * 3, amounts=(3.0, 6.0, 4.0)),
    "unbalanced-p2p": Fault(jobs=("frame",) * 3, amounts=(0.8, 0.95, 0.9), also=("skew",)),
    "encryption": Fault(
        jobs=_CANNED, amounts=(1.0, 1.0, 1.0), in_job=False,
        options=lambda _: ("--backends", "tls"),
    ),
    "transport": Fault(
        jobs=_CANNED, amounts=(1.0, 1.0, 1.0), in_job=False, also=("polling",),
        options=lambda _: ("--backends", "ucx"),
    ),
    "polling": Fault(
        jobs=_CANNED, amounts=(1.0, 1.0, 1.0), in_job=False,
        options=lambda _: ("--backends", "ucx:shm"),
    ),
    "few-cores": Fault(
        jobs=_CANNED, amounts=(1.0, 1.0, 1.0), in_job=False,
        prefix=("taskset", "-c", _FIRST_CPU),
    ),
    "spilling": Fault(
        jobs=("transpose-sum", "svd", "merge"), amounts=(1.0, 1.0, 1.0), in_job=False,
        options=lambda _: ("--memory-limit", "250MB"), also=("memory-pauses",),
    ),
    "memory-pauses": Fault(
        jobs=_JOBS, amounts=(0.4, 0.8, 0.6), also=("scheduler",),
        # The worker would resume at once.
        environ={"DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False"},
    ),
    "compression": Fault(
        jobs=_CANNED, amounts=(1.0, 1.0, 1.0), in_job=False,
        environ={"DASK_DISTRIBUTED__COMM__COMPRESSION": "zlib"},
        # Loops compress messages of less than 10 MB. Within a host nothing is compressed.
        also=("blocked-loop",),
        hosts=lambda _rate, _dice: namespaces.mesh(4, {}),
    ),
    "bandwidth": Fault(
        jobs=_CANNED, amounts=(20e6, 40e6, 30e6), in_job=False,
        hosts=lambda rate, _: _two_hosts(rate),
    ),
    "slow-links": Fault(
        jobs=_CANNED, amounts=(4.0, 10.0, 6.0), in_job=False,
        hosts=lambda times, dice: namespaces.mesh(
            4, {(a, b): 40e6 for a in range(4) for b in range(a)}
            | {tuple(sorted(dice.sample(range(4), 2), reverse=True)): 40e6 / times}
        ),
    ),
}  # fmt: skip


def _trial(name: str) -> Callable[[int, Path], Iterator[Outcome]]:
    fault = FAULTS[name]

    def trial(seed: int, folder: Path) -> Iterator[Outcome]:
        held_out = seed % 3 == 2
        dice = random.Random(f"{name} {seed}")
        job = dice.choice(fault.jobs if held_out else fault.jobs[:-1])
        amount = fault.amounts[-1] if held_out else dice.choice(fault.amounts[:-1])
        options = [*fault.options(amount)]
        if "--workers" not in options:
            options += [*_LOCAL] if fault.hosts is None else ["--workers", 4]
        if fault.in_job:
            options += ["--fault", name, "--amount", amount]
        layout = fault.hosts(amount, dice) if fault.hosts else None
        with pytest.MonkeyPatch.context() as patch:
            for variable, text in fault.environ.items():
                patch.setenv(variable, text)
            run = measured(folder, job, seed, options, fault.prefix, layout)
        found = [finding for finding in run.findings if not finding.is_fine]
        hit = next((finding for finding in found if finding.rule == name), None)
        allowed = {name, *fault.also, *_WAITS}
        yield Outcome(
            rule=name, right=hit is not None, amount=amount, job=job, held_out=held_out,
            found=[finding.rule for finding in found],
            false=[finding.rule for finding in found if finding.rule not in allowed],
            effect=hit and hit.effect.share, effect_low=hit and hit.effect.low,
            effect_high=hit and hit.effect.high,
        )  # fmt: skip

    return trial


def healthy(seed: int, folder: Path) -> Iterator[Outcome]:
    """Run a job whose tasks sleep, on one worker or on two that exchange little."""
    held_out = seed % 3 == 2
    dice = random.Random(f"healthy {seed}")
    job = dice.choice(_JOBS)
    n_workers, backend = dice.choice((1, 2)), dice.choice(("tcp", "mpi"))
    options = ["--workers", n_workers, "--threads", 1, "--backends", backend]
    run = measured(folder, job, seed, options)
    found = [finding.rule for finding in run.findings if not finding.is_fine]
    # There are more processes than cores here, which wait in turns even if each does little.
    false = [rule for rule in found if rule != "few-cores"]
    yield Outcome(
        rule="", right=not false, amount=0.0, job=job, held_out=held_out, found=found, false=false
    )


def measured(
    folder: Path, job: str, seed: int, options: list[object], prefix: tuple[str, ...] = (),
    layout: namespaces.Layout | None = None,
) -> Run:  # fmt: skip
    """Run a job or a workload, and return the run."""
    target = [job, *_SIZES[job]] if job in _SIZES else [f"jobs:{job}"]
    arguments = [*target, *options, *_SHORT, "--seed", seed, "--output", folder / "results"]
    with contextlib.ExitStack() as stack:
        if layout is not None:
            there = stack.enter_context(namespaces.laid_out(layout))
            stack.enter_context(namespaces.launches_on_host_0(folder, there))
            arguments += ["--launcher", "namespaces"]
            printed = processes.invoke("run", *arguments, figures=()).stdout
        else:
            done = subprocess.run(
                [*prefix, sys.executable, "-m", "commbench.cli", "run", *map(str, arguments)],
                env=os.environ | {"PYTHONPATH": str(_FOLDER)}, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            printed = done.stdout
            if done.returncode:
                raise RuntimeError(f"{done.returncode}: {(printed + done.stderr)[-1000:]}")
    return commbench.load(Path(printed.splitlines()[-1]))


TRIALS = {"healthy": healthy, **{name: _trial(name) for name in FAULTS}}
SHARES = {"healthy": 3.0}
"""How often a trial runs for each time of the others."""
