"""What ``commbench check`` says: a table, and JUnit's XML for continuous integration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from commbench.analysis.references import Check
from commbench.model import Manifest
from commbench.reports import junit as junit_xml
from commbench.reports import terminal
from commbench.reports.sections.cells import Table


def text(run: Manifest, checks: Sequence[Check]) -> str:
    """Return the checks for a terminal."""
    n_failed = sum(not check.ok for check in checks)
    names = Counter(check.reference.short_name for check in checks)
    rows = [
        (
            _label(check, names), _quantity(check, check.value),
            _quantity(check, check.reference.value), _limits(check),
            "ok" if check.ok else "FAILED" if not math.isnan(check.value) else "MISSING",
        )
        for check in checks
    ]  # fmt: skip
    table = Table(
        f"{run.id} against its references",
        ("what", "measured", "reference", "allowed", "result"),
        tuple(rows),
        f"{len(checks)} checked, {n_failed} failed. Measured: the median over launches of each "
        "launch's median, or the workload's bytes over it. MISSING: no launch ended well.",
        text_columns=frozenset({"result"}),
    )
    return terminal.page(f"{run.suite.name} · {run.started_at[:16].replace('T', ' ')} UTC", [],
                         [table])  # fmt: skip


def junit(run: Manifest, checks: Sequence[Check]) -> str:
    """Return the checks as a JUnit test suite, one test case a check."""
    cases = []
    for check in checks:
        reference = check.reference
        case = junit_xml.case(reference.name, reference.workload)
        told = f"{_quantity(check, check.value)}, allowed {_limits(check)}"
        if check.ok:
            junit_xml.tell(case, "system-out", told)
        else:
            why = f"{reference.name} in {run.id}: {told}"
            junit_xml.tell(case, "failure", why, message=told, type="reference")
        cases.append(case)
    return junit_xml.document(run, cases)


def _label(check: Check, names: Counter[str]) -> str:
    short = check.reference.short_name
    return short if names[short] == 1 else check.reference.name


def _quantity(check: Check, value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.4g} {check.reference.unit}"


def _limits(check: Check) -> str:
    low, high = check.reference.limits
    if math.isinf(low) and math.isinf(high):
        return "any"
    if math.isinf(low):
        return f"≤ {high:.4g}"
    return f"≥ {low:.4g}" if math.isinf(high) else f"{low:.4g}…{high:.4g}"
