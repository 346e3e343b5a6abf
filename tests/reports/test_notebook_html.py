import builders

import commbench
from commbench.model import USER_CODE, ClusterSpec


def test_a_run_is_shown_with_its_verdict_and_a_figure(recorded):
    times = [1.0, 1.01, 1.02, 0.99, 1.0, 1.01, 0.98, 1.0]
    medians = {"tcp": times, "mpi": [2 * seconds for seconds in times]}
    run = recorded(*builders.rivals(medians))
    html = run._repr_html_()
    assert html.index("merge: use tcp") < html.index('<img src="data:image/png;base64,')
    assert "merge: use tcp" in run.summary()
    assert repr(run) == f"<Run {run.manifest.id}: merge over tcp, mpi>"


def test_what_raised_is_said(recorded):
    step = builders.case(workload="step", cluster=ClusterSpec(launcher=USER_CODE))
    records = [
        record
        for n, error in enumerate(("", "it broke"))
        for record in (
            builders.region(step, 1.0, iteration=n, error=error, start=100 * n),
            builders.sample(step, 1.0, iteration=n, tool="your code"),
        )
    ]
    html = recorded([step], builders.ended(records))._repr_html_()
    assert "1 of 2 entries raised, and don&#39;t count." in html


def test_texts_of_a_run_are_no_markup(recorded):
    run = recorded([builders.case("tcp", workload="<script>")], ())
    assert "<script>" not in run._repr_html_()


def test_a_run_without_samples_says_so(recorded):
    assert "No launch has ended well" in recorded([builders.case("tcp")])._repr_html_()


def test_the_name_of_a_large_run_is_short(recorded):
    run = recorded([builders.case(f"ucx:{'a' * number}") for number in range(1, 50)])
    assert len(repr(run)) < 200
    assert repr(commbench.load(run.path)) == repr(run)
