import io

import builders
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from builders import end, failure, in_memory
from drawing import together, workload

from commbench.model import LAYERS, Case
from commbench.reports.figures import iteration_figures, style
from commbench.reports.sections import natural


def _run(*backends):
    return in_memory([Case(workload="merge", backend=name) for name in backends])


def test_a_backend_has_the_same_look_in_every_run():
    alone = style.backend_styles(_run("mine"))
    together_ = style.backend_styles(_run("tcp", "ucx", "mpi", "mine"))
    assert together_["mine"] == alone["mine"]
    assert together_["tcp"] == ("#0072B2", "o")
    assert style.backend_styles(_run("mpi", "tcp"))["mpi"] == together_["mpi"]


def test_dollars_in_names_are_no_formula():
    figure = iteration_figures.plot_times(together(workload("$A_$B")))
    style.encoded(figure, "svg")
    assert "$A_$B" in [text.get_text() for text in figure.findobj(mpl.text.Text)]


def test_backends_of_a_run_have_different_colours_and_markers():
    names = [*style._KNOWN, *(f"other-{index}" for index in range(7))]
    looks = style.backend_styles(_run(*names))
    assert len({look.colour for look in looks.values()}) == len(names)
    assert len({look.marker for look in looks.values()}) == len(names)
    # Colours and markers are used again where there are more backends than these.
    assert len({*style.backend_styles(_run(*(f"other-{n}" for n in range(30)))).values()}) == 30


def test_each_colour_has_one_meaning():
    colours = [look.colour for look in (*style._KNOWN.values(), *style._SPARE)]
    colours += [*style.ACTIVITIES.values(), *style.LAYERS.values(), style.BAD]
    assert tuple(style.LAYERS) == LAYERS
    rgb = 255 * mpl.colors.to_rgba_array([*colours, style.PUBLISHED["color"]])[:, :3]
    distances = np.linalg.norm(rgb[:, None] - rgb, axis=-1)[np.triu_indices(len(rgb), k=1)]
    assert distances.min() > 20


def test_cases_are_grouped_under_what_sets_them_apart():
    cases = [
        Case(workload="merge", backend=backend, params={"rows": 5, "shuffle": how})
        for how in ("tasks", "p2p")
        for backend in ("tcp", "ucx")
    ]
    groups = style.groups(in_memory([*cases, Case(workload="svd", backend="tcp")]))
    assert list(groups) == ["merge (shuffle=tasks)", "merge (shuffle=p2p)", "svd"]
    assert [case.backend for case in groups["merge (shuffle=p2p)"]] == ["tcp", "ucx"]


def test_numbers_of_workers_are_groups_where_they_vary():
    cases = [
        builders.case(name, n_workers=n, varied=("backend", "workers"))
        for n in (2, 4) for name in ("tcp", "mpi")
    ]  # fmt: skip
    groups = style.groups_by_workers(in_memory(cases, []))
    assert groups == {"merge, 2 workers": cases[:2], "merge, 4 workers": cases[2:]}
    assert [*style.groups_by_workers(in_memory(cases[:2], []))] == ["merge"]


def test_failed_launches_are_counted():
    case = builders.case()
    lost = failure(case, launch=2)
    run = in_memory([case], [end(case), end(case, launch=1, ok=False), lost])
    assert style.failed(run, case.id) == "2 of 3 launches failed"


def test_names_with_numbers_are_sorted_by_number():
    run = together(workload("tcp", n_workers=11, launches=1))
    assert style.workers(run, [run.suite.cases[0].id]) == [str(n) for n in range(11)]
    assert sorted(["w-10", "w-9", "v"], key=natural) == ["v", "w-9", "w-10"]


@pytest.mark.parametrize(
    ("largest", "unit", "expected"),
    [(2.5, "s", "s"), (0.02, "s", "ms"), (5e-6, "s", "µs"), (0.0, "s", "µs"),
     (3.4e9, "B/s", "GB/s"), (5e6, "B/s", "MB/s"), (12.0, "B/s", "B/s")],
)  # fmt: skip
def test_units_of_linear_axes(largest, unit, expected):
    factor, name = style.scale(largest, unit)
    assert name == expected
    prefixes = {"G": 1e-9, "M": 1e-6, "m": 1e3, "µ": 1e6}
    assert factor == pytest.approx(prefixes.get(name.removesuffix(unit), 1.0))


def test_long_names_are_broken_after_a_plus_or_an_underscore():
    assert style.label("tcp MALLOC_TRIM_THRESHOLD_=1") == "tcp MALLOC_TRIM_\nTHRESHOLD_=1"
    label = style.label("ucx:tcp+shm+nvlink+ib", 14)
    assert label == "ucx:tcp+shm+\nnvlink+ib"
    assert style.label("ucx:tcp+shm", 14) == "ucx:tcp+shm"


@pytest.mark.parametrize(
    ("counts", "words"),
    [([6, 6], "6 launches"), ([4, 6], "4 to 6 launches"), ([1], "1 launch"), ([], "no launches")],
)
def test_numbers_of_launches_in_words(counts, words):
    assert style.launches(pd.DataFrame({"n_launches": counts}, dtype=int)) == f"{words} each"


def test_levels_in_words():
    median = "% confidence interval of that median."
    assert style.interval("line", pd.Series([0.96875])) == f"; line = 97 {median}"
    assert style.interval("band", pd.Series([0.5, 0.0, 0.96875])) == f"; band = 50 to 97 {median}"
    assert style.interval("line", pd.Series([0.0])) == " (one launch allows no interval)."


@pytest.mark.parametrize(
    ("encode", "width"),
    [
        (lambda figure: style.encoded(figure, "png"), 1800),
        (lambda figure: figure._repr_png_(), 900),
    ],
    ids=["file", "notebook"],
)
def test_a_matplotlibrc_changes_no_pixel(encode, width):
    run = together(workload("tcp"), workload("ucx"))
    plain = encode(iteration_figures.plot_times(run))
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "savefig.dpi": 50}):
        assert encode(iteration_figures.plot_times(run)) == plain
    assert mpl.image.imread(io.BytesIO(plain)).shape[1] == width
