import builders
from builders import sample

from commbench.reports import csv


def test_an_empty_run_has_a_header_only(recorded):
    case = builders.case()
    empty, full = (csv.render(recorded([case], records)) for records in ([], [sample(case, 1.0)]))
    assert empty.splitlines() == full.splitlines()[:1]
