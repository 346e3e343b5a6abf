"""``make faults``: inject known faults, keep what was found, and write ``docs/diagnosis.md``.

``results/diagnosis/outcomes.jsonl`` has every outcome with commit and machine.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in (".", "faults")]

import outcomes  # noqa: E402
from faults import SHARES, TRIALS, Outcome, possible  # noqa: E402
from outcomes import rate  # noqa: E402

from commbench.model import registry  # noqa: E402

FILE = ROOT / "results" / "diagnosis" / "outcomes.jsonl"
PAGE = ROOT / "docs" / "diagnosis.md"
BEGIN, END = "<!-- outcomes: begin -->", "<!-- outcomes: end -->"


def main() -> None:
    """Inject faults until the time is up, and write the page."""
    outcomes.add(FILE, TRIALS, SHARES, _failed, __doc__ or "")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = f"{before}{BEGIN}\n{tables(outcomes.read(FILE))}\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8")


def _failed(name: str) -> Outcome:
    rule = name.removeprefix("prove-").removeprefix("healthy")
    return Outcome(
        rule=rule, right=False, amount=0.0, job="", for_validation=False, found=[], false=["failed"]
    )


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the rates of hits and of false alarms, as Markdown."""
    lines = ["| rule | what it detects | hits while tuning | hits in validation | false alarms |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    names = [*Outcome.__dataclass_fields__, "trial", "seed", "at", "commit", "machine"]
    table = pd.DataFrame(rows, columns=names)
    is_proof = table["trial"].str.startswith("prove-", na=False)
    table, proofs = table[~is_proof], table[is_proof]
    healthy = table[table["rule"] == ""]
    runs = table.drop_duplicates(["trial", "seed"])
    for name, rule in registry.loadable("rule").items():
        trials = table[table["rule"] == name]
        without = (
            row.false for row in runs.itertuples()
            if name not in possible(row.trial) and row.false != ["failed"]
        )  # fmt: skip
        false = [name in rules for rules in without]
        right, validates = trials["right"], trials["for_validation"].astype(bool)
        lines.append(
            f"| `{name}` | {rule.title}; from {rule.limit} | {_rate(right[~validates])} | "
            f"{_rate(right[validates])} | {_rate(false)} |"
        )
    if len(healthy):
        lines.append(
            f"\nOf healthy runs, {rate(~healthy['right'].astype(bool))} had a finding.\n"
            f"\n{outcomes.origin(table)}"
        )
    if len(proofs):
        lines += _proofs(proofs)
    return "\n".join(lines)


def _proofs(proofs: pd.DataFrame) -> Iterator[str]:
    """Yield how often remedies were proved, as Markdown, and how well effects were predicted."""
    yield "\n| fault | cure proved | predicted effect within the measured gain |"
    yield "| --- | --- | --- |"
    for name, rows in proofs.groupby("rule", sort=False):
        known = rows.dropna(subset=["effect", "gain_low"])
        within = known["effect"].between(known["gain_low"], known["gain_high"])
        cured = rate(rows["right"].astype(bool))
        fault = f"`{name}`" if name else "none: nothing was proved"
        yield f"| {fault} | {cured} | {_rate(within) if name else ''} |"


def _rate(flags: Any) -> str:
    return rate(flags) if len(flags) else "not tried"


if __name__ == "__main__":
    main()
