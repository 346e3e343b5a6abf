"""``make faults``: inject known faults, keep what was found, and write how often that was right.

``docs/diagnosis.md`` has a table of the rules, README the rates of all.

``results/diagnosis/outcomes.jsonl`` has every outcome with commit and machine.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in (".", "faults")]

import outcomes  # noqa: E402
from faults import (  # noqa: E402
    FAULTS,
    NEAR_LIMIT,
    SHARES,
    TRIALS,
    Fault,
    Outcome,
    is_validation,
    possible,
)  # fmt: skip
from outcomes import rate  # noqa: E402

from commbench.model import registry  # noqa: E402

FILE = ROOT / "results" / "diagnosis" / "outcomes.jsonl"
BEGIN, END = "<!-- outcomes: begin -->", "<!-- outcomes: end -->"


def main() -> None:
    """Inject faults until the time is up, and write the table of the page and README's sentence."""
    outcomes.add(FILE, TRIALS, SHARES, _failed, __doc__ or "")
    rows = outcomes.read(FILE)
    for name, write in (("docs/diagnosis.md", tables), ("README.md", summary)):
        page = ROOT / name
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise ValueError(f"{name} lacks {BEGIN} or {END}")
        page.write_text(f"{before}{begin}\n{write(rows)}\n{end}{after}", encoding="utf-8")


def _failed(name: str, seed: int) -> Outcome:
    name = name.removeprefix("prove-").removeprefix(NEAR_LIMIT).removeprefix("healthy")
    rule = FAULTS[name].rule or name if name else ""
    return Outcome(
        rule=rule, right=False, amount=0.0, job="",
        for_validation=is_validation(seed), found=[], false=["failed"],
        proof_runs=int(name == ""),
    )  # fmt: skip


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the rates of hits and of false alarms, as Markdown."""
    lines = [
        "| rule | what it detects | hits (tuning) | hits (validation) | hits near the limit | "
        "false alarms | cured by `prove` | predicted: measured gain |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = [*Outcome.__dataclass_fields__, "trial", "seed", "at", "commit", "machine"]
    every = pd.DataFrame(rows, columns=names)
    is_proof = every["trial"].str.startswith("prove-", na=False)
    is_near = every["trial"].str.startswith(NEAR_LIMIT, na=False)
    table, proofs = every[~is_proof & ~is_near], _valid(every[is_proof])
    near = every[is_near]
    others = every[is_proof & every["rule"].ne("")].drop(proofs.index, errors="ignore")
    left_out = ""
    if len(others):
        left_out = (
            f" Not counted: proofs in jobs that no setting cures ({others['right'].sum()} of "
            f"{len(others)} cured)."
        )
    healthy = table[table["rule"].eq("")]
    runs = table.drop_duplicates(["trial", "seed"])
    for name, rule in registry.loadable("rule").items():
        trials = table[table["rule"] == name]
        without = (
            row.false for row in runs.itertuples()
            if name not in possible(row.trial) and row.false != ["failed"]
            and _is_present(name, row.commit)
        )  # fmt: skip
        false = [name in named for named in without]
        right, validates = trials["right"], _validates(trials)
        lines.append(
            f"| `{name}` | {rule.title}; limit: {rule.limit} | {_rate(right[~validates])} | "
            f"{_rate(right[validates])} | {_near_limit(near[near['rule'] == name])} | "
            f"{_rate(false)} | "
            f"{_proofs(proofs[proofs['rule'] == name])} |"
        )
    if len(every):
        faulty, useless = proofs[proofs["rule"] != ""], proofs[proofs["rule"] == ""]
        known = faulty.dropna(subset=["effect", "gain_low"])
        # Another rule may have the same remedy, and have predicted its gain.
        known = known.assign(rule=known["predicted_by"].fillna(known["rule"]))
        within = known["effect"].between(known["gain_low"], known["gain_high"])
        gain = (known["gain_low"] + known["gain_high"]) / 2
        in_range = gain.between(known["effect_low"], known["effect_high"])
        is_present = _are_present(known)
        ever = table[table["trial"].ne("healthy") & _is_unseen(table)]
        alarms = ~healthy["right"].astype(bool)
        cured, present = faulty["right"].astype(bool), _are_present(faulty)
        # The first proofs did not keep what they said.
        said = useless[useless["statement"].ne("") | useless["proof_runs"].gt(0)]
        says_none, repeats = said["statement"].str.startswith("None"), said["proof_runs"] > 0
        rates = (
            f"Faults detected in validation: {_rate(ever['right'][_validates(ever)])} of the rules "
            f"as they are now, {_rate(ever['right'])} of all versions. "
            f"Near the rules' limits: {_rate(near['right'])}. "
            f"Healthy runs with a finding: {_rate(alarms[_all_are_present(healthy)])} with the "
            f"rules as they are now, {_rate(alarms)} of all versions. Faults that "
            f"`prove` cured: {_rate(cured[present])} with the rules as they are now, "
            f"{_rate(cured[~present])} earlier; useless remedies that it did "
            f"not confirm: {_rate(useless['right'])}. Of those whose words were kept, it said that "
            f"each saves less than 5 % in {_rate(says_none[repeats])} "
            f"({said['proof_runs'].gt(1).sum()} measured twice), and in "
            f"{_rate(says_none[~repeats])} before it could measure undecided ones again. "
            "Predicted effects within the interval of the measured gain: "
            f"{_rate(within[is_present])}, and the middle of that interval within the predicted "
            f"range: {_rate(in_range[is_present])}; earlier estimates: "
            f"{_rate(within[~is_present])} and {_rate(in_range[~is_present])}.{left_out}"
        )
        lines = [rates, "", *lines, "", outcomes.origin(every)]
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the rates of all rules together, as an item of a list in Markdown."""
    table = pd.DataFrame(rows)
    is_proof = table["trial"].str.startswith("prove-")
    proofs = _valid(table[is_proof])
    is_near = table["trial"].str.startswith(NEAR_LIMIT)
    faults = table[~is_proof & ~is_near & ~table["trial"].eq("healthy")]
    healthy = table[table["trial"].eq("healthy") & table["rule"].eq("")]
    cures = proofs[proofs["rule"] != ""]
    ever = faults[_is_unseen(faults)]
    n_ever, n_near, n_healthy, n_cures, n_present = (
        f"{rights.sum()} of {len(rights)}"
        for rights in (
            ever["right"], table["right"][is_near], ~healthy["right"], cures["right"],
            cures["right"][_are_present(cures)],
        )
    )  # fmt: skip
    false = f"{n_healthy} runs whose tasks only sleep had a finding; " * bool(len(healthy))
    near = f", {n_near} near the limits" * bool(is_near.any())
    return (
        f"- **{n_ever} injected faults were detected** in validation ({_n_first(ever)} as the "
        f"largest finding){near};\n  {false}`prove` cured {n_cures} faults ({n_present} now)."
    )


def _n_first(trials: pd.DataFrame) -> int:
    """Return of how many trials the fault was the first finding, whose effect is the largest."""
    pairs = zip(trials["found"], trials["rule"], strict=True)
    return sum(found[:1] == [rule] for found, rule in pairs)


def _valid(proofs: pd.DataFrame) -> pd.DataFrame:
    """Return the proofs of faults where a setting can cure them, and those of useless remedies.

    The first healthy runs had no remedy to prove.
    """
    incurable = {
        name: {*fault.jobs} - {*(fault.curable_jobs or fault.jobs)}
        for name, fault in FAULTS.items()
    }
    is_valid = [
        row.job not in incurable[row.rule]
        if row.rule
        else row.false == ["failed"] or "useless" in row.found
        for row in proofs.itertuples()
    ]
    return proofs[np.array(is_valid, dtype=bool)]


@functools.cache
def _is_present(rule: str, commit: str) -> bool:
    """Return whether the code of a rule is as it was at a commit."""
    module = registry.loadable("rule")[rule].find.__module__.rpartition(".")[2]
    any_words = vars(Fault)["named"]
    faults = (each for name, each in FAULTS.items() if rule in (name, each.rule))
    has_words = any(each.named is not any_words for each in faults)
    return _code(module, has_words, commit) == _code(module, has_words)


@functools.cache
def _code(module: str, has_words: bool, commit: str = "") -> str:
    """Return a rule's code, with that of rules it asks and what all share, at a commit or as it is.

    Comments, docstrings, the words of remedies and doubts, the modules of imports, and what these
    modules don't use of `CaseRecords` and of `__init__` are left out, and unless a trial
    `has_words` to look for, those of statements.
    """
    words = {"remedy", "doubt", *["statement"] * (not has_words)}
    trees, asked = dict[str, ast.Module](), {module, "rule", "__init__"}
    while asked:
        trees |= {name: ast.parse(_source(name, commit)) for name in sorted(asked)}
        asked = set().union(*map(_asked, trees.values())) - trees.keys()
    imported = set().union(*map(_asked, trees.values()))
    trees["__init__"] = _reached(trees["__init__"], {"find", *imported})
    records = ast.parse(_source("case_records", commit))
    classes = [part for part in records.body if isinstance(part, ast.ClassDef)]
    members = [each for part in classes for each in part.body]
    methods = {each.name: each for each in members if isinstance(each, ast.FunctionDef)}
    others = [
        part for part in (*records.body, *members) if part not in {*classes, *methods.values()}
    ]
    reached, new = set[str](), {"__init__"}.union(*map(_attributes, (*trees.values(), *others)))
    while new:
        reached |= new
        new = set().union(*(_attributes(methods[name]) for name in new & methods.keys())) - reached
    for part in classes:
        part.body = [each for each in part.body if getattr(each, "name", "__init__") in reached]
    trees["case_records"] = _reached(records, {"CaseRecords", *imported, *reached})
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.Call):
            node.keywords = [word for word in node.keywords if word.arg not in words]
        # What is imported is no part of a rule's code, so where it is defined is not either.
        if isinstance(node, ast.ImportFrom):
            node.module = ""
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [part for part in node.body if not _is_docstring(part)]
    return "".join(map(ast.dump, trees.values()))


def _reached(tree: ast.Module, names: set[str]) -> ast.Module:
    """Return a module without the definitions and imports that those with `names` don't use."""
    parts = list[ast.stmt]()
    for part in tree.body:
        is_import = isinstance(part, ast.ImportFrom)
        parts += (
            [ast.ImportFrom(part.module, [alias], part.level) for alias in part.names]
            if is_import else [part]
        )  # fmt: skip
    reached, new = set[str](), names
    while new:
        reached |= new
        used = (part for part in parts if not _defined(part) or _defined(part) & new)
        nodes = (node for part in used for node in ast.walk(part))
        new = {node.id for node in nodes if isinstance(node, ast.Name)} - reached
    return ast.Module(
        [part for part in parts if not _defined(part) or _defined(part) & reached], []
    )


def _defined(part: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines; others are always executed."""
    if isinstance(part, ast.ClassDef | ast.FunctionDef):
        return {part.name}
    if isinstance(part, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in part.names}
    if isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign):
        names = (node for node in ast.walk(part) if isinstance(node, ast.Name))
        return {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return set()


def _is_docstring(part: ast.AST) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)


def _asked(tree: ast.AST) -> set[str]:
    """Return what a module imports from the package of rules: others, and what all share."""
    package = "commbench.analysis.findings"
    imports = (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom))
    return {alias.name for each in imports if each.module == package for alias in each.names}


def _attributes(tree: ast.AST) -> set[str]:
    return {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}


@functools.cache
def _source(name: str, commit: str) -> str:
    """Return the text of a module of rules; "" where there is none."""
    file = f"commbench/analysis/findings/{name}.py"
    if not commit:
        path = ROOT / file
        return path.read_text(encoding="utf-8") if path.exists() else ""
    # A commit with changes, as 0123abc+, is none.
    command = ["git", "-C", str(ROOT), "show", f"{commit}:{file}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _all_are_present(trials: pd.DataFrame) -> Any:
    """Return whether all rules were as they are now in each trial."""
    commits = trials["commit"].unique()
    present = {c for c in commits if all(_is_present(r, c) for r in registry.loadable("rule"))}
    return trials["commit"].isin(present).to_numpy()


def _are_present(trials: pd.DataFrame) -> Any:
    """Return whether the rule of each trial is as it was."""
    pairs = zip(trials["rule"], trials["commit"], strict=True)
    return np.array([_is_present(*pair) for pair in pairs], dtype=bool)


def _validates(trials: pd.DataFrame) -> Any:
    """Return whether each trial is one of validation, and of its rule as it is now."""
    return _is_unseen(trials) & _are_present(trials)


def _is_unseen(trials: pd.DataFrame) -> Any:
    """Return whether each trial is one of validation; some earlier ones divided them otherwise."""
    is_later = trials["seed"].map(is_validation).astype(bool)
    return (trials["for_validation"].astype(bool) & is_later).to_numpy()


def _near_limit(trials: pd.DataFrame) -> str:
    """Return how often a rule finds its fault near its limit, and the effects that it names."""
    if trials.empty:
        return ""
    named = trials["effect"].astype(float).dropna()
    effects = f", effects of {named.min():.0%} to {named.max():.0%}" * bool(len(named))
    return f"{rate(trials['right'].astype(bool))}{effects}"


def _proofs(proofs: pd.DataFrame) -> str:
    """Return how often a rule's remedies were proved, and each prediction with its gain."""
    if proofs.empty:
        return " | "
    by_itself = proofs["predicted_by"].fillna(proofs["rule"]) == proofs["rule"]
    known = proofs[_are_present(proofs) & by_itself]
    known = known.dropna(subset=["effect", "gain_low"])
    gains = (f"{r.effect:.0%}: {r.gain_low:.0%} to {r.gain_high:.0%}" for r in known.itertuples())
    return f"{rate(proofs['right'].astype(bool))} | {'; '.join(gains)}"


def _rate(flags: Any) -> str:
    return rate(flags) if len(flags) else "not tried"


if __name__ == "__main__":
    main()
