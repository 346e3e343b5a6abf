"""The opening of a report: the verdict, why, how far to trust it, and what to do next.

Each section contributes its ``opening``. All tables follow on request.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, groupby
from typing import Any

from commbench import stats
from commbench.analysis import warnings
from commbench.analysis.findings import untested, without_profile
from commbench.analysis.run import Run
from commbench.harness.options import MAX_REMEDIES
from commbench.model import LAYERS, Comparison, Stopping
from commbench.model.units import format_seconds
from commbench.reports import sentences
from commbench.reports.sections import (
    Table,
    guarded,
    median_time,
    plural,
    scaling_table,
    sections,
    wins_table,
)
from commbench.reports.sections.differences import (
    LARGE,
    design_for_verdict,
    name,
    ranked,
    resolution,
    slowdowns,
    subject,
    task,
    times,
)
from commbench.reports.sections.iteration_tables import DOING
from commbench.reports.sections.pair_tables import no_slow_pair
from commbench.reports.sections.provenance import FAILURES
from commbench.stats.inference import MIN_LAUNCHES
from commbench.store import directory

_MAX_VERDICTS, _MAX_FINDINGS, _MAX_DISTURBANCES = 6, 3, 4
"""The maximum verdicts, findings, and disturbances in the opening."""
_LEAST_SHARE = 0.05
"""The smallest share of the parts of threads' time that sentences name."""
NEXT = "What to do next"
_SETTLE, _GO_ON = "settle the rest", "go on (may not settle all)"
_MAX_MINUTES = 60
"""The longest budget that is suggested, but for twice the one that was too short."""
_PROOF_S, N_CONFIRMING = 300.0, 6
"""The least budget of a proof, and the fewest launches that confirm it."""
_MARGIN = 1.25
"""How much longer than those of the run the launches of a proof may take."""
_DESIGN = {"--launches": 1, "--budget": 1, "--detect": 1, "--rigorous": 0, "--quick": 0}
"""The options that fix the number of launches, or the budget, and the number of their values."""


def opening(run: Run, *, warns: bool = True) -> Iterator[str | Table]:
    """Yield the paragraphs and tables of the opening; without samples, only failures.

    Each line of a paragraph is a statement. Pages with a list of all warnings have none here:
    `warns` is false.
    """
    wins = wins_table.verdict(run)
    answers = [*scaling_table.verdicts(run), wins] if wins else verdicts(run)
    if not answers:
        if failures := [*FAILURES.opening(run)]:
            yield _paragraph(
                ["No launch ended well: there is nothing to report.", *map(str, failures)]
            )
        return
    if not wins and len(answers) > _MAX_VERDICTS:
        rest = f"The tables have {len(answers) - _MAX_VERDICTS} more."
        answers = [*answers[:_MAX_VERDICTS], rest]
    # Of those that are compared, it is the slower ones that need an explanation.
    twins = {case.id for case in run.suite.cases if case.original}
    beaten = {slow for _, slow in slowdowns(run.comparisons)} - twins
    shown = sentences.largest(run, _MAX_FINDINGS, beaten)
    causes = [*(sentences.sentence(run, group) for group in shown), *no_slow_pair(run)]
    # Without a comparison of a computation, the question is which link is slow.
    if run.comparisons or (run.summaries["layer"] == "workload").any():
        yield _paragraph([*answers, *causes])
    else:
        yield _paragraph([*causes, *answers])
    parts: list[str | Table] = []
    for section in sections():
        problems: list[Table] = []
        with guarded(section.title, problems):
            parts += section.opening(run)
        parts += problems
    parts += _trust(run)
    rules = {each.rule for group in shown for each in group if each.effect.is_known}
    # Their sentences name the cases with such a finding, unless there are too many.
    named = [each for each in run.findings if each.rule in rules and each.effect.is_known]
    n_named = Counter(each.rule for each in named)
    named = [each for each in named if n_named[each.rule] <= 1 + sentences.MAX_NAMES]
    explained = {(each.rule, case_id) for each in named for case_id in ("", each.case_id)}
    parts += _warnings(run, explained) if warns else ()
    for is_table, group in groupby(parts, lambda part: isinstance(part, Table)):
        several = list(group)
        yield from several if is_table else [_paragraph(map(str, several))]


def _paragraph(lines: Iterable[str]) -> str:
    # Names and messages in the records may have several lines.
    return "\n".join(" ".join(line.split()) for line in lines)


def verdicts(run: Run) -> list[str]:
    """Return a sentence per task and layer: which backends to use, and how much slower others are.

    Tasks with several sizes of messages have one for the smallest and one for the largest, those of
    the layer closest to Dask's users first. Records of plug-ins that have none cost the verdict
    only.
    """
    return warnings.guarded(_verdicts, run, "The verdict")


def _verdicts(run: Run) -> Iterator[str]:
    twins = {case.id for case in run.suite.cases if case.original}
    table = run.summaries[run.summaries["layer"] != "memcpy"]
    # The regions of a program that was killed have ended, but it has not.
    if not run.is_user_code:
        table = table[table["n_launches"] > 0]
    table = table[~table["case_id"].isin(twins)]
    depth = {layer: -number for number, layer in enumerate(LAYERS)}
    table = table.sort_values("layer", key=lambda layer: layer.map(depth), kind="stable")
    wrong = run.pair_transports["contradiction"] != ""
    doubtful = set(run.pair_transports["case_id"][wrong].astype("str"))
    tasks = [task(run, case_id) for case_id in table["case_id"]]
    yield from scaling_table.verdicts(run)
    scaled = {case_id for _, points in scaling_table.series(run) for case_id in points["case_id"]}
    advised: dict[str, str] = {}
    for (label, layer), rows in table.groupby([tasks, "layer"], sort=False, observed=True):
        n_cases = rows["case_id"].nunique()
        sizes = rows.groupby("payload_bytes")["case_id"].nunique()
        shared = sizes.index[sizes == n_cases] if (sizes == n_cases).any() else sizes.index
        for size in sorted({shared.min(), shared.max()}):
            group = rows[rows["payload_bytes"] == size].sort_values("median_s", kind="stable")
            what = subject(run, str(label), group["case_id"].iloc[0], str(layer), size)
            names = {case_id: name(run.cases[case_id]) for case_id in group["case_id"]}
            if len(names) == 1:
                (row,) = group.itertuples()
                if row.case_id in scaled:
                    continue
                if run.is_user_code:
                    errors = run.regions["error"][run.regions["case_id"] == row.case_id]
                    all_raised = len(errors) and (errors != "").all()
                    verb = "raised an exception after" if all_raised else "took"
                    yield f"{what} {verb} {median_time(row)}{_waits(run, row)}."
                    continue
                yield f"{what}: {row.backend} takes {median_time(row)}{_each(run, row)}."
                continue
            compared = {
                (c.baseline_id, c.candidate_id): c
                for c in run.comparisons
                if (c.layer, c.payload_bytes) == (layer, size)
                and {c.baseline_id, c.candidate_id} <= names.keys()
            }
            if not compared:
                yield f"{what}: {_listed(names.values())} were not compared."
                continue
            if all(
                c.n_launches < MIN_LAUNCHES and c.verdict != "unequal" for c in compared.values()
            ):
                if scaled >= names.keys():
                    continue
                n_launches = plural(max(c.n_launches for c in compared.values()), "launch")
                yield f"{what}: {n_launches} can't tell {_listed(names.values())} apart."
                continue
            # Nobody can choose a backend per layer.
            advises = layer not in LAYERS or advised.setdefault(label, layer) == layer
            shown = _sentence(
                names, compared, doubtful, advises=advises, intervals=layer != "workload"
            )
            yield f"{what}: {shown}."


def _each(run: Run, row: Any) -> str:
    """Return the time of an operation, if the workload counts several that are not bytes."""
    counts = run.samples[run.samples["case_id"] == row.case_id].iloc[0]
    if counts.n_operations < 2 or counts.operations == "bytes":
        return ""
    n = counts.n_operations
    return f" for {n} {counts.operations}, {median_time(row, n)} for each"


def _waits(run: Run, row: Any) -> str:
    """Return the number of entries into a region, and the main states of its task threads.

    Of a region with others in it, return these.
    """
    entered = f" (the median of {row.n_samples})" if row.n_samples > 1 else ""
    numbers = run.measured["iteration"][run.measured["case_id"] == row.case_id]
    inner = run.regions[run.regions["parent"].isin(numbers)]
    if len(inner):
        inner_s = inner.groupby("parent")["seconds"].sum().reindex(numbers, fill_value=0.0).median()
        # Those of several threads may last longer together.
        if not 0 < inner_s <= row.median_s:
            return entered
        names = [*inner["name"].unique()]
        listed = _listed([*names[:3], *["others"] * (len(names) > 3)])
        return f"{entered}, {format_seconds(inner_s)} of it in {listed}"
    shares = run.profile_shares[run.profile_shares["process"] == "workers"]
    shares = shares[shares["case_id"] == row.case_id]
    if shares.empty:
        # Those of a region in the middle of which most workers came, for example.
        why = without_profile(run).get(row.case_id, "")
        unknown = f"; most rules were not applied, because {why}" if why else ""
        return entered + unknown * run.is_user_code
    # The little time on a core between tasks has no words.
    shares = shares.assign(compute=shares["compute"] + shares["other_cpu"])
    share = shares.iloc[0][[*DOING]].astype(float).sort_values(ascending=False)
    large = share[share >= _LEAST_SHARE]
    words = DOING | {"blocked": "blocked (by locks, files, services, the GIL …)"}
    named = [f"{words[str(name)]} for {part:.0%} of it" for name, part in large.items()]
    return f"{entered}: its task threads were {_listed(named[:3])}" if named else entered


def _sentence(
    names: Mapping[str, str],
    compared: Mapping[tuple[str, str], Comparison],
    doubtful: Collection[str] = (),
    *,
    advises: bool = True,
    intervals: bool = False,
) -> str:
    """Return the sentence on the cases to use, or if not `advises`, on the fastest ones.

    Parameters
    ----------
    names
        The cases' names by their ids, the lowest median first.
    compared
        The comparisons of pairs of cases.
    doubtful
        The cases whose bytes went another way than they should.
    intervals
        Whether to show those of ratios: tables of messages have none.
    """
    ratios = slowdowns(compared.values())
    shown = {pair: each.with_interval if intervals else str(each) for pair, each in ratios.items()}
    unequal = any(c.verdict == "unequal" for c in compared.values())
    use, beaten, open_ = ranked(names, ratios)
    if unequal or (beaten and not use):
        parts = ["not all did the same work"] * unequal + [
            f"{names[slow]} takes {ratio} as long as {names[fast]}"
            for (fast, slow), ratio in shown.items()
        ]
        return "; ".join(parts)
    same = not open_ and all(
        any(pair in compared and compared[pair].verdict == "same" for pair in ((a, b), (b, a)))
        for a, b in combinations(use, 2)
    )
    if not beaten:
        listed = _listed(names.values())
        return f"{listed} are the same" if same else f"no difference is shown between {listed}"
    kind = "the same" if same else "no difference shown"
    # Tables have the ratios to this one, the first of the suite.
    base = next(case for case in use if not any((other, case) in compared for other in use))
    first, *rest = (shown[base, slow] for slow in names if slow in beaten)
    slow = [names[case] for case in names if case in beaten]
    best = _listed((names[case] + " ✗" * (case in doubtful) for case in use), "or")
    text = f"{'use' if advises else 'fastest:'} {best}{f' ({kind})' * (len(use) > 1)}; "
    text += ", ".join(
        [f"{slow[0]} takes {first}", *map(" ".join, zip(slow[1:], rest, strict=True))]
    )
    # Its launches are too few, or too different.
    fastest = next(iter(names))
    left = [names[case] + " (lowest median)" * (case == fastest) for case in open_]
    return f"{text} as long as {names[base]}" + f"; undecided: {_listed(left)}" * bool(left)


def _listed(names: Iterable[str], last: str = "and") -> str:
    several = list(names)
    return f" {last} ".join(filter(None, [", ".join(several[:-1]), *several[-1:]]))


def _trust(run: Run) -> Iterator[str]:
    """Yield how far to trust the run."""
    yield from filter(None, [resolution(run)])
    workloads = run.samples[run.samples["layer"] == "workload"]
    for tool in filter(None, () if run.is_user_code else workloads["tool"].unique()):
        yield f"What {tool} returns is not verified, and not compared between cases."
    twins = {case.id: case for case in run.suite.cases if case.original}
    pairs = dict.fromkeys(f"{case.original} and {case.variant}" for case in twins.values())
    names = " and ".join(pairs)
    controls = [c for c in run.comparisons if {c.baseline_id, c.candidate_id} & twins.keys()]
    copies = [c for c in run.comparisons if c.layer == "memcpy" and c not in controls]
    for what, compared in (
        ("memory copies should take the same time", copies),
        (f"{names} are the same backend", controls),
    ):
        if compared:
            yield f"Control: {what}, and {_differences(compared)}"


def _warnings(run: Run, explained: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yield the warnings; findings of the rules and cases in `explained` are shown already."""
    disturbances = [text for text in run.warnings if isinstance(text, warnings.Disturbance)]
    goes_on = {_SETTLE, _GO_ON} & {what for what, _ in _steps(run)}
    said = [*disturbances, *(warnings.undecided(run) if goes_on else ())]
    yield from (f"⚠ {text}" for text in run.warnings if text not in said)
    left = [each for each in disturbances if (each.rule, each.case_id) not in explained]
    statements = [each.statement for each in left if each.statement]
    yield from (f"! {statement}" for statement in statements[:_MAX_DISTURBANCES])
    if (n_more := len(statements) - _MAX_DISTURBANCES) > 0:
        yield f"! {n_more} more"


def _differences(compared: Sequence[Comparison]) -> str:
    """Return the differences that comparisons of equal backends show, which should be none."""
    if min(c.n_launches for c in compared) < MIN_LAUNCHES:
        return f"it takes {MIN_LAUNCHES} launches to compare them"
    if any(c.verdict == "unequal" for c in compared):
        return "they did unequal work, so that their times can't be compared"
    differ = [c for c in compared if c.verdict in ("faster", "slower")]
    if not differ:
        n, missed = len(compared), [c.detectable for c in compared if c.verdict != "same"]
        text = f"{n} comparisons find no difference" if n > 1 else "no difference is found"
        if not missed:
            return text
        # The farther from 1 a ratio has to be for a verdict, the less their absence says.
        limit = f"one below {max(missed):.3g}×" if max(missed) <= LARGE else "any"
        return f"{text} ({limit} can be missed)"
    worst = max(max(c.ratio, 1 / c.ratio) for c in differ)
    return f"{len(differ)} of {len(compared)} comparisons find a difference, up to {times(worst)}"


def next_steps(run: Run) -> str:
    """Return the next steps, a command per line."""
    return "\n".join([NEXT, *(f"  {what}: {how}" for what, how in _steps(run))])


def _steps(run: Run) -> Iterator[tuple[str, str]]:
    path = shlex.quote(str(run.path))
    rule = run.manifest.stopping
    again = _without_design(run.manifest.command)
    detect = ""
    if rule and rule.detect != Stopping().detect:
        detect = f" --detect {100 * rule.detect:g}%"
    is_open = rule and not run.ended_by and len(stats.unknown(run)) < len(run.cases)
    has_failed = not (run.is_user_code or run.failures.empty or run.ends["ok"].astype(bool).any())
    if has_failed:
        yield "read why", shlex.quote(str(run.path / "logs"))
    is_incomplete = is_open or warnings.missing_launches(run)
    if is_incomplete and not (run.is_user_code or run.manifest.side):
        n_launches, design = design_for_verdict(run)
        has_verdict = rule or n_launches <= max(case.launches for case in run.suite.cases)
        yield (
            "measure the rest",
            f"commbench run --resume {path}" + f" {design}" * (not has_verdict),
        )
    elif has_failed and run.manifest.command:
        yield "measure again, when it is mended", run.manifest.command
    elif again and _by_chance(run):
        yield "move the same bytes", f"{again} --task-placement pinned"
    elif again and run.comparisons and all(math.isinf(c.detectable) for c in run.comparisons):
        quick = " --quick" * bool(rule and rule.quick)
        yield "have a verdict", f"{again}{quick} {design_for_verdict(run)[1]}{detect}"
    elif rule and rule.quick and again:
        yield "measure the full size", again
    elif again and rule and any(warnings.undecided(run)):
        # Launches that are added because nothing was found would be tested once too often.
        spent_s = max(rule.budget_s, run.ends["seconds"].sum())
        needed, least = (math.ceil(n * spent_s / 60) for n in (_more(run), 2))
        minutes = min(needed, max(_MAX_MINUTES, least))
        yield _SETTLE if minutes == needed else _GO_ON, f"{again} --budget {minutes}m{detect}"
    elif again and not rule and any(c.verdict == "inconclusive" for c in run.comparisons):
        yield "settle what is open (up to 1 h)", f"{again} --rigorous"
    wrong = [finding for finding in run.findings if not finding.is_fine]
    can_start = not (
        run.is_user_code
        or run.manifest.side
        or any(case.cluster.scheduler for case in run.suite.cases)
    )
    if can_start and (pairs := untested(run)):
        case_id = min(pairs, key=lambda pair: pair[0].effect.rank)[0].case_id
        remedies = {(*t.items(),) for f, t in pairs if f.case_id == case_id}
        n_cases = 1 + min(MAX_REMEDIES, len(remedies))
        seconds = proof_s(run, case_id, n_cases) + 2 * N_CONFIRMING * _launch_s(run, case_id)
        # Undecided remedies are measured again, and small gains in more launches.
        minutes = math.ceil(seconds / 60)
        yield f"prove what helps ({minutes} min or longer)", f"commbench prove {path}"
    if wrong:
        yield (
            f"all {len(wrong)} findings" if len(wrong) > 1 else "the finding",
            (f"commbench diagnose {path}"),
        )
    if wrong and run.manifest.script_s and run.manifest.command:
        script = run.manifest.command
        yield "after a change", f"commbench profile {script}; commbench compare {path} latest"
    if has_failed:
        return
    if directory.is_current(page := run.path / "report.html"):
        yield "figures, all tables", str(page)
    else:
        yield "all tables", f"commbench report -v {path}"


def proof_s(run: Run, case_id: str, n_cases: int) -> float:
    """Return the seconds in which a proof measures a case and its remedies.

    They are enough for six launches of each that take as long as those of the run.
    """
    return max(_PROOF_S, _MARGIN * N_CONFIRMING * n_cases * _launch_s(run, case_id))


def _launch_s(run: Run, case_id: str) -> float:
    good = run.ends["ok"].astype(bool) & (run.ends["case_id"] == case_id)
    return float(run.ends["seconds"][good].median()) if good.any() else 0.0


def _more(run: Run) -> float:
    """Return how many times the launches may decide what is undecided, twice at least.

    The smallest ratio that a run can find is nearer to 1 by the square root of the launches.
    """
    logs = [
        (math.log(c.detectable), max(abs(math.log(c.ratio)), math.log(1 + c.min_effect)))
        for c in run.comparisons
        if c.verdict == "inconclusive" and c.ratio > 0 and c.detectable < math.inf
    ]
    return max([2.0, *((detectable / true) ** 2 for detectable, true in logs)])


def _by_chance(run: Run) -> bool:
    """Return whether cases moved other bytes because Dask placed their tasks."""
    unequal = {case_id for c in run.comparisons if c.verdict == "unequal"
               for case_id in (c.baseline_id, c.candidate_id)}  # fmt: skip
    return any(
        case.id in unequal and case.cluster.task_placement != "pinned" for case in run.suite.cases
    )


def _without_design(command: str) -> str:
    """Return the command of a run without the options of its design; empty if it made no run.

    Examples
    --------
    >>> _without_design("commbench run merge --launches 6 --backends tcp,mpi --budget=2m")
    'commbench run merge --backends tcp,mpi'
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    if words[:2] != ["commbench", "run"]:
        return ""
    rest, kept = iter(words), []
    for word in rest:
        name, _, value = word.partition("=")
        if name not in _DESIGN:
            kept.append(word)
        elif not value:
            for _ in range(_DESIGN[name]):
                next(rest, None)
    return shlex.join(kept)
