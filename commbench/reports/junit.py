"""``junit``: whether each case of a run could be measured, for continuous integration.

A test case is a case of the suite. It has an error if one of its launches failed, and is skipped
if it has no launch. Its output has the medians and the findings. ``commbench check --junit``
compares times with references instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from commbench.analysis.run import Run
from commbench.model import Case, Manifest
from commbench.model.units import format_message_size
from commbench.reports.sections import median_time, printable
from commbench.reports.sentences import conclusion


def render(run: Run) -> str:
    """Return the run as a JUnit test suite."""
    return document(run.manifest, [_case(run, case) for case in run.suite.cases])


def document(run: Manifest, cases: Sequence[ElementTree.Element]) -> str:
    """Return the XML of a test suite named after `run`."""
    suite = ElementTree.Element(
        "testsuite", name=printable(f"commbench {run.suite.name}"), tests=str(len(cases))
    )
    suite.extend(cases)
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("timestamp", run.started_at[:19])
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def case(name: str, workload: str, seconds: float = 0) -> ElementTree.Element:
    """Return a test case; `seconds` is the duration of the test."""
    return ElementTree.Element(
        "testcase", name=printable(name), classname=printable(f"commbench.{workload}"),
        time=f"{seconds:g}",
    )  # fmt: skip


def add_element(case: ElementTree.Element, kind: str, text: str, **attributes: str) -> None:
    """Add an element of this `kind` to `case`, with printable text."""
    shown = {name: printable(value) for name, value in attributes.items()}
    ElementTree.SubElement(case, kind, shown).text = printable(text)


def _case(run: Run, measured: Case) -> ElementTree.Element:
    ends, failures, summaries = (
        table[table["case_id"] == measured.id] for table in (run.ends, run.failures, run.costs)
    )
    timed = ends
    if run.is_user_code:
        timed = run.regions[run.regions["case_id"] == measured.id]
    element = case(run.case_names[measured.id], measured.workload, timed["seconds"].sum())
    n_failed = int((~ends["ok"].astype(bool)).sum())
    if n_failed or len(failures):
        first = next(iter(failures["message"]), "no reason was recorded")
        failed = f"{n_failed} of {len(ends)} launches failed: " * (n_failed > 0)
        message = f"{failed}{first}".splitlines()[0]
        lines = (
            f"launch {row.launch}, {row.stage}: {row.message}" for row in failures.itertuples()
        )
        add_element(element, "error", "\n".join(lines), type="launch", message=message)
    elif ends.empty:
        add_element(element, "skipped", "", message="no launch has ended")
    printed = [_median(run, row) for row in summaries.itertuples()]
    printed += [conclusion(each) for each in run.findings if each.case_id == measured.id]
    if printed:
        add_element(element, "system-out", "\n".join(printed))
    return element


def _median(run: Run, row: Any) -> str:
    size = format_message_size(run.message_bytes(row.case_id, row.layer, row.payload_bytes))
    where = "" if row.layer == "workload" else f"{row.layer} {size}: "
    return f"{where}median {median_time(row)} of {row.n_launches} launches, {row.n_samples} samples"
