from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
import pytest
from made_up import EMPTY, run_of, together, workload

from commbench import model
from commbench.model import Case, ClusterSpec
from commbench.reports.figures import iteration_figures, style


def _run(*backends):
    return run_of([Case(workload="merge", backend=name) for name in backends])


def test_a_backend_looks_the_same_whatever_it_is_shown_with():
    """tcp, mpi and a third party's backend keep their look from one run to the next."""
    alone = style.backend_styles(_run("mine"))
    together_ = style.backend_styles(_run("tcp", "ucx", "mpi", "mine"))
    assert together_["mine"] == alone["mine"]
    assert together_["tcp"] == ("#0072B2", "o")
    assert style.backend_styles(_run("mpi", "tcp"))["mpi"] == together_["mpi"]


def test_no_two_backends_of_a_run_share_a_colour_or_a_marker():
    """Known names and seven unknown ones are told apart by colour alone and by marker alone."""
    names = [*style._KNOWN, *(f"other-{index}" for index in range(7))]
    looks = style.backend_styles(_run(*names))
    assert len({look.colour for look in looks.values()}) == len(names)
    assert len({look.marker for look in looks.values()}) == len(names)


def test_a_fifteenth_backend_still_has_a_look():
    """More unknown backends than there are looks is no error."""
    assert len(style.backend_styles(_run(*(f"other-{index}" for index in range(9))))) == 9


def test_what_workers_do_has_colours_of_its_own():
    """No activity is drawn in the colour of a backend."""
    backends = {look.colour for look in (*style._KNOWN.values(), *style._SPARE)}
    assert backends.isdisjoint(style.ACTIVITIES.values())


def test_cases_are_grouped_under_what_sets_them_apart():
    """Cases that differ in more than the backend are named by the parameters that differ."""
    big = ClusterSpec(n_workers=8)
    cases = [
        Case(workload="merge", backend=backend, cluster=cluster, params={"rows": 5, "shuffle": how})
        for cluster, how in ((ClusterSpec(), "tasks"), (ClusterSpec(), "p2p"), (big, "p2p"))
        for backend in ("tcp", "ucx")
    ]
    groups = style.groups(run_of([*cases, Case(workload="svd", backend="tcp")]))
    assert list(groups) == [
        "merge (shuffle=tasks, workers=2)",
        "merge (shuffle=p2p, workers=2)",
        "merge (shuffle=p2p, workers=8)",
        "svd",
    ]
    assert [case.backend for case in groups["merge (shuffle=p2p, workers=8)"]] == ["tcp", "ucx"]


def test_groups_may_be_of_one_kind():
    """The groups are those of pairs of processes, of clusters, or of everything."""
    assert list(style.groups(EMPTY, "pair")) == ["pingpong"]
    assert list(style.groups(EMPTY, "cluster")) == ["merge"]
    assert list(style.groups(EMPTY)) == ["pingpong", "merge"]


def _end(case, launch, ok):
    return model.LaunchEnd(
        case_id=case.id, launch=launch, block=launch, position=0, ok=ok, seconds=1.0
    )


def test_failed_launches_are_counted():
    """A launch counts as failed where it ended badly, or left a failure and never ended."""
    case = Case(workload="merge", backend="tcp")
    lost = model.Failure(case_id=case.id, launch=2, stage="run", message="lost")
    run = run_of([case], [_end(case, 0, ok=True), _end(case, 1, ok=False), lost])
    assert style.failed(run, case.id) == "2 of 3 launches failed"


def test_a_launch_that_a_resumed_run_repeated_well_is_no_failure():
    """Of several ends of one launch the good one counts."""
    case = Case(workload="merge", backend="tcp")
    run = run_of([case], [_end(case, 0, ok=False), _end(case, 0, ok=True)])
    assert style.failed(run, case.id) == ""


def test_cases_without_data_are_named_with_the_reason():
    """The caption says which cases are missing, and whether they failed."""
    good, bad = workload("tcp"), workload("ucx", launches=1, failing=1)
    run = together(good, bad)
    assert style.not_shown(run, style.groups(run), {good[0].id}) == (
        " Not shown: transpose-sum on ucx (1 of 1 launch failed)."
    )
    assert style.not_shown(run, style.groups(run), {good[0].id, bad[0].id}) == ""
    assert "merge on tcp (no data)" in style.not_shown(EMPTY, style.groups(EMPTY), set())


def test_workers_come_in_the_order_of_their_numbers():
    """Worker 10 follows worker 9, whether or not there is a word before the number."""
    run = together(workload("tcp", n_workers=11, launches=1))
    assert style.workers(run, [run.suite.cases[0].id]) == [str(n) for n in range(11)]
    assert sorted(["w-10", "w-9", "v"], key=style.natural) == ["v", "w-9", "w-10"]


@pytest.mark.parametrize(
    ("largest", "unit", "expected"),
    [(2.5, "s", "s"), (0.02, "s", "ms"), (5e-6, "s", "µs"), (0.0, "s", "µs"),
     (3.4e9, "B/s", "GB/s"), (5e6, "B/s", "MB/s"), (12.0, "B/s", "B/s")],
)  # fmt: skip
def test_linear_axes_use_the_unit_that_reads_best(largest, unit, expected):
    """The factor takes base units to the unit that is named."""
    factor, name = style.scale(largest, unit)
    assert name == expected
    prefixes = {"G": 1e-9, "M": 1e-6, "m": 1e3, "µ": 1e6}
    assert factor == pytest.approx(prefixes.get(name.removesuffix(unit), 1.0))


def test_long_names_are_broken_where_it_does_not_hurt():
    """A combination of transports is broken after a plus sign and loses no character."""
    label = style.label("ucx:tcp+shm+nvlink+ib", 14)
    assert label == "ucx:tcp+shm+\nnvlink+ib"
    assert style.label("ucx:tcp+shm", 14) == "ucx:tcp+shm"


def test_numbers_of_launches_and_levels_are_put_in_words():
    """One, equal and unequal numbers of launches and confidence levels each have their phrase."""
    import pandas as pd

    assert style.launches(pd.Series([6, 6])) == "6 launches each"
    assert style.launches(pd.Series([4, 6])) == "4 to 6 launches each"
    assert style.launches(pd.Series([1])) == "1 launch each"
    assert style.launches(pd.Series([], dtype=int)) == "no launches each"
    assert style.interval(pd.Series([0.96875])) == "97 % confidence interval of that median"
    assert style.interval(pd.Series([0.5, 0.0, 0.96875])).startswith("50 to 97 %")
    assert style.interval(pd.Series([0.0])) == ""


def test_the_same_data_give_the_same_svg():
    """Drawing and saving twice gives the same bytes, with no date in them."""
    run = together(workload("tcp"), workload("ucx"))
    one, other = (style.encoded(iteration_figures.plot_times(run), "svg") for _ in range(2))
    assert one == other
    assert b"<dc:date>" not in one


def test_a_png_for_a_readme_is_sharp_at_900_pixels():
    """The PNG is twice as wide as a README's column."""
    image = style.encoded(iteration_figures.plot_times(together(workload("tcp"))), "png")
    assert mpl.image.imread(io.BytesIO(image)).shape[1] == 1800


def test_a_users_matplotlibrc_changes_nothing():
    """A user's dark background and huge font leave the figure as it was."""
    run = together(workload("tcp"), workload("ucx"))
    plain = style.encoded(iteration_figures.plot_times(run), "png")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "figure.dpi": 50}):
        dark = style.encoded(iteration_figures.plot_times(run), "png")
    pixels = (mpl.image.imread(io.BytesIO(image)) for image in (plain, dark))
    np.testing.assert_array_equal(*pixels)


def test_a_notebook_shows_a_figure_in_this_style():
    """A cell that ends in a figure shows it 900 pixels wide, whatever the user's own settings."""
    run = together(workload("tcp"), workload("ucx"))
    plain = iteration_figures.plot_times(run)._repr_png_()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "savefig.dpi": 50}):
        dark = iteration_figures.plot_times(run)._repr_png_()
    assert dark == plain
    assert mpl.image.imread(io.BytesIO(plain)).shape[1] == 900
