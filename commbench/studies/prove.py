"""Measure whether remedies help: the present state of a case and each remedy, in turns."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commbench import stats
from commbench.analysis.findings import untested
from commbench.analysis.run import Run
from commbench.backends import parse
from commbench.errors import CommbenchError, UsageError
from commbench.harness import cases, vary
from commbench.model import Case, ClusterSpec, Comparison, Finding, Suite, registry
from commbench.reports.opening import N_CONFIRMING
from commbench.stats.inference import CONFIDENCE, SIGNED_RANK, detectable_shift


@dataclass(frozen=True)
class Trial:
    """A case with the remedy of a finding, and the settings that make the difference."""

    case: Case
    finding: Finding
    settings: Mapping[str, str]

    @property
    def name(self) -> str:
        """The settings as text, as for ``--vary``."""
        return _text(self.settings)


@dataclass(frozen=True)
class Proof:
    """The case as it is, and the trials of its remedies, which are compared with it."""

    present: Case
    trials: tuple[Trial, ...]

    @property
    def suite(self) -> Suite:
        """The cases to measure in turns."""
        return cases.make_suite("prove", [self.present, *(trial.case for trial in self.trials)])


def plan(run: Run, most: int, backend: str = "") -> Proof:
    """Return the remedies of a run's case to measure, the largest effect first.

    Remedies that the run has measured are left out, unless it has measured all.

    Parameters
    ----------
    most
        The maximum number of trials.
    backend
        The backend of the case; without one, the case with the largest effect is chosen.

    Raises
    ------
    UsageError
        If no finding has a remedy that can be set from outside, or the run can't be repeated.
    """
    if run.is_user_code:
        raise UsageError(
            f"{run.path} is the record of code that commbench can't start again with other "
            "settings; write it as main(client) in a script, and measure that: commbench run "
            "SCRIPT.py, then commbench prove latest"
        )
    if run.manifest.side:
        raise UsageError(
            f"{run.path} is the {run.manifest.side} of an A/B, measured in another environment; "
            "measure it in this one, and prove that run"
        )
    if any(case.cluster.scheduler for case in run.suite.cases):
        raise UsageError(
            f"{run.path} measured a cluster that was running, which commbench can't start again "
            "with other settings"
        )
    # Of a ping-pong a remedy may help one size and hurt another.
    computing = [case for case in run.suite.cases if run.kinds[case.id] == "cluster"]
    known = {case.id: case for case in computing if backend in ("", case.backend)}
    if not known:
        measured = ", ".join(dict.fromkeys(case.backend for case in computing)) or "none"
        raise UsageError(
            f"{run.path} has no computation over {backend or 'any backend'}; it has {measured}"
        )
    usable, obstacles = [], dict[str, None]()
    for finding in run.findings:
        for settings in finding.trials if finding.case_id in known else ():
            if obstacle := _obstacle(_original(known[finding.case_id]), settings):
                obstacles[f"{_text(settings)}: {obstacle}"] = None
            else:
                usable.append((finding, settings))
    # What the run has measured is measured again only if nothing else is left.
    unknown = untested(run)
    usable = [pair for pair in usable if pair in unknown] or usable
    if not usable:
        why = f" ({'; '.join(obstacles)})" if obstacles else ""
        raise UsageError(
            f"nothing to prove: no finding about {run.path} has a remedy that can be set here{why}"
            "; commbench diagnose shows the findings"
        )
    largest = min(usable, key=lambda pair: pair[0].effect.rank)
    case_id = largest[0].case_id
    # Several findings may have the same remedy; the first has the largest effect.
    chosen: dict[tuple[tuple[str, str], ...], tuple[Finding, Mapping[str, str]]] = {}
    for finding, settings in usable:
        if finding.case_id == case_id:
            chosen.setdefault(tuple(settings.items()), (finding, settings))
    some = [*chosen.values()][:most]
    names = dict.fromkeys(name for _, settings in some for name in settings)
    present = replace(_original(known[case_id]), varied=tuple(names))
    trials = (Trial(_changed(present, settings), f, settings) for f, settings in some)
    return Proof(present, tuple(trials))


def _text(settings: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _original(case: Case) -> Case:
    """Return a case, or that of which it is the twin: twins are compared with nothing else."""
    return replace(case, backend=case.plain_backend)


def _obstacle(case: Case, settings: Mapping[str, str]) -> str:
    """Return why a case can't do the same work with other settings, or ""."""
    try:
        changed = _changed(case, settings)
        launcher = registry.load("launcher", changed.cluster.launcher)()
        launcher.validate(changed.cluster, parse(changed.backend))
        if changed.cluster.n_workers != case.cluster.n_workers and case.cluster.placement:
            return "these workers would have other CPUs"
        made = map(cases.make_workload, (case, changed))
        if len({getattr(workload, "payload_bytes", 0) for workload in made}) > 1:
            return "the size of the data would change"
        cases.make_suite("prove", [case, changed])
    except CommbenchError as error:
        return str(error)
    if lacking := cases.unmet(changed) or cases.unmet(case):
        return f"{lacking.reason}; {lacking.remedy}"
    return _contradiction(case, changed)


def _contradiction(case: Case, changed: Case) -> str:
    """Return which setting of another backend the cluster has with another value, or ""."""
    spec = changed.cluster
    present, sets = (
        {**backend.environment(spec.device, Path()), **backend.dask_config()}
        for backend in (parse(case.backend), parse(changed.backend))
    )
    # To Dask, hyphens and underscores are the same.
    given = {
        name.replace("-", "_"): value for name, value in {**spec.env, **spec.dask_config}.items()
    }
    for name, value in sets.items():
        if present.get(name) != value and given.get(name.replace("-", "_"), value) != value:
            return f"{changed.backend} sets {name} itself, and the case has another value"
    return ""


def _changed(case: Case, settings: Mapping[str, str]) -> Case:
    """Return `case` with other settings."""
    spec = case.cluster
    for name, text in settings.items():
        if name != "backend":
            setting = vary.setting(name, text)
            spec = setting.applied(spec, setting.values[0])
    return replace(case, cluster=spec, backend=settings.get("backend", case.backend))


def results(
    run: Run, proof: Proof, min_effect: float | None = None
) -> list[tuple[Trial, Comparison]]:
    """Return each trial with its comparison with the present state, the fastest first.

    ``min_effect`` is the least gain that matters, if it is not that of `run`.
    """
    every = run.comparisons if min_effect is None else stats.comparisons(run, min_effect)
    by_candidate = {c.candidate_id: c for c in every if c.baseline_id == proof.present.id}
    pairs = [(t, by_candidate[t.case.id]) for t in proof.trials if t.case.id in by_candidate]
    return sorted(pairs, key=lambda pair: pair[1].ratio)


def winner(compared: Sequence[tuple[Trial, Comparison]]) -> Trial | None:
    """Return the trial that helps the most, or None if none is faster."""
    return next((trial for trial, c in compared if c.verdict == "faster"), None)


def n_confirming(c: Comparison) -> int:
    """Return the launches that have to confirm a gain: ``N_CONFIRMING`` or, for a small one, more.

    They confirm a gain as large as the measured one with a probability of 90 %, or are as many as
    have measured it.
    """
    unit = detectable_shift(SIGNED_RANK, c.n_launches, c.n_launches, c.alpha)
    # Of few launches, only the test of those that are not paired reaches the level of a look.
    least = N_CONFIRMING if math.isfinite(unit) else c.n_launches
    for n in range(least, c.n_launches):
        times = detectable_shift(SIGNED_RANK, n, n, 1 - CONFIDENCE) / unit
        if abs(math.log(c.ratio)) >= times * math.log(c.detectable):
            return n
    return max(N_CONFIRMING, c.n_launches)


def may_help(c: Comparison) -> bool:
    """Return whether a trial without a verdict may save as much as matters.

    The limit is that of the one-sided test on which the verdict ``same`` rests.
    """
    return c.verdict == "inconclusive" and not c.same_low >= 1 / (1 + c.min_effect)


def lines(trial: Trial) -> Iterator[str]:
    """Yield the lines that apply the settings of a trial in a user's environment and code.

    Keys of Dask's configuration are YAML: unlike ``dask.config.set``, it needs no change of code.
    """
    import dask.config
    import yaml

    backend, spec = parse(trial.case.backend), trial.case.cluster
    is_remote = registry.load("launcher", spec.launcher).remote(spec)
    variables, arguments, notes, config = [], {}, [], dict[str, Any]()
    if "backend" in trial.settings:
        settings = backend.settings(spec.device)
        words = settings.split()
        if all("=" in word for word in words):
            variables += [shlex.quote(word) for word in words]
        else:
            notes.append(f"# {backend.name}: {settings}")
        arguments["protocol"] = repr(backend.protocol)
    for name in trial.settings:
        if (option := name.replace("-", "_")) in vary.OPTIONS:
            field = vary.OPTIONS[option]
            arguments[field] = repr(getattr(spec, field))
        elif "." in name:
            dask.config.set({name: spec.dask_config[name]}, config=config)
        elif name != "backend":
            variables.append(f"{name}={shlex.quote(str(spec.env[name]))}")
    if variables and is_remote:
        yield "# in the environment of every process:"
    if variables:
        yield f"export {' '.join(variables)}"
    yield from notes
    if config:
        yield f"# a new file ~/.config/dask/NAME.yaml{' on every host' * is_remote}:"
        yield from yaml.safe_dump(config).splitlines()
    if arguments:
        given = ", ".join(f"{name}={value}" for name, value in arguments.items())
        if spec.launcher != ClusterSpec.launcher:
            yield f"# the cluster, however you start it: {given}"
        else:
            yield f"LocalCluster({given})"
