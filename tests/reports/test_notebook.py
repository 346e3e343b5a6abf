import builders

import commbench


def test_a_run_is_shown_with_its_verdict_and_a_figure(recorded):
    times = [1.0, 1.01, 1.02, 0.99, 1.0, 1.01, 0.98, 1.0]
    medians = {"tcp": times, "mpi": [2 * seconds for seconds in times]}
    run = recorded(*builders.rivals(medians))
    html = run._repr_html_()
    assert html.index("merge: use tcp") < html.index('<img src="data:image/png;base64,')
    assert "merge: use tcp" in run.summary()
    assert repr(run) == f"<Run {run.manifest.id}: merge over tcp, mpi>"


def test_texts_of_a_run_are_no_markup(recorded):
    run = recorded([builders.case("tcp", workload="<script>")], ())
    assert "<script>" not in run._repr_html_()


def test_a_run_without_samples_says_so(recorded):
    assert "No launch has ended well" in recorded([builders.case("tcp")])._repr_html_()


def test_the_name_of_a_large_run_is_short(recorded):
    run = recorded([builders.case(f"ucx:{'a' * number}") for number in range(1, 50)])
    assert len(repr(run)) < 200
    assert repr(commbench.load(run.path)) == repr(run)
