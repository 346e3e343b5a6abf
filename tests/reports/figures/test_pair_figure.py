import itertools
import re
import time

import builders
import matplotlib as mpl
import numpy as np
import pytest
from builders import in_memory
from drawing import caption, misplaced, texts, together, workload
from matplotlib.collections import QuadMesh

from commbench import stats
from commbench.reports.figures import pair_figure, style
from commbench.reports.figures.style import contrast
from commbench.reports.sections import number


def _panel(figure, index=0):
    return [axes for axes in figure.axes if "to worker" in axes.get_xlabel()][index]


def _mesh(axes):
    (mesh,) = [mesh for mesh in axes.collections if isinstance(mesh, QuadMesh)]
    return mesh


def _hatched(axes):
    (hatched,) = [patch for patch in axes.patches if patch.get_hatch()]
    return hatched


def _corners(patch):
    """Return the upper left corners of the cells that a patch outlines."""
    boxes = patch.get_path().vertices.reshape(-1, 5, 2)[:, :4]
    return [tuple(box.min(axis=0).astype(int).tolist()) for box in boxes]


def _bars(figure):
    return [axes for axes in figure.axes if axes.get_ylabel().startswith("× median")]


def _cells(axes):
    """Return what is written in each cell, from top to bottom, by (src, dst)."""
    cells = {}
    for text in sorted(axes.texts, key=lambda text: text.get_position()[1]):
        x, y = text.get_position()
        if text.get_text() and x % 1 == 0.5:
            cells.setdefault((str(int(y)), str(int(x))), []).append(text.get_text())
    return cells


@pytest.mark.parametrize(
    ("n_workers", "quantiles"),
    [(4, ("q25_Bps", "q50_Bps", "q75_Bps")), (9, ("q50_Bps",)), (17, ())],
)
def test_cells_have_as_many_quantiles_as_they_have_room_for(n_workers, quantiles):
    run = together(workload("tcp", n_workers=n_workers, launches=1))
    figure = pair_figure.plot(run)
    expected = {
        (pair.src, pair.dst): [number(getattr(pair, column) / 1e9) for column in quantiles]
        for pair in run.pairs.itertuples()
    }
    assert len(expected) == n_workers * (n_workers - 1)
    assert _cells(_panel(figure)) == (expected if quantiles else {})
    assert ("quantile" in caption(figure)) == (len(quantiles) == 3)


def test_colours_are_medians_by_source_and_destination():
    run = together(workload("tcp", n_workers=3))
    axes = _panel(pair_figure.plot(run))
    values = _mesh(axes).get_array().reshape(3, 3)
    pairs = run.pairs
    typical = pairs.q50_Bps.median()
    for pair in pairs.itertuples():
        assert values[int(pair.src), int(pair.dst)] == pytest.approx(pair.q50_Bps / typical)
    assert np.ma.getmaskarray(values).tolist() == np.eye(3, dtype=bool).tolist()
    assert axes.get_ylim() == (3, 0)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("from worker (src)", "to worker (dst)")


def test_suspected_pairs_alone_are_compared_with_the_others_alone(recorded):
    case = builders.case("tcp", "links", n_workers=4)
    records = [
        builders.transfer(case, 0, 0.1 * (6 if {src, dst} == {"0", "1"} else 1) / share, 10**7,
                          src=src, dst=dst, channel=channel)
        for src, dst in itertools.permutations("0123", 2)
        for channel, share in (("rounds", 0.5), ("alone", 1.0), ("again", 1.0))
        for _ in range(3)
        if channel != "again" or {src, dst} == {"0", "1"}
    ]  # fmt: skip
    run = recorded([case], [*records, builders.end(case)])
    pairs = run.pairs
    assert pair_figure.typical_Bps(pairs, "again") == pytest.approx(1e8)
    assert pair_figure.typical_Bps(pairs[pairs.channel != "alone"], "again") == pytest.approx(5e7)
    figure = pair_figure.plot(run)
    (panel,) = [each for each in figure.axes if "again" in each.get_title(loc="left")]
    assert _mesh(panel).get_array().compressed() == pytest.approx([1 / 6, 1 / 6])


def test_a_cell_of_several_pairs_shows_the_slowest(monkeypatch):
    monkeypatch.setattr(pair_figure, "CELLS_UP_TO", 4)
    run = together(workload("tcp", n_workers=9, launches=1, silent_pairs=[(0, 8), (1, 8), (2, 8)]))
    figure = pair_figure.plot(run)
    axes = _panel(figure)
    mesh = _mesh(axes)
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0, 3, 6, 9]
    pairs = run.pairs
    cells = pairs.groupby([pairs.src.astype(int) // 3, pairs.dst.astype(int) // 3]).q50_Bps.min()
    assert mesh.get_array().reshape(3, 3).filled() == pytest.approx(
        cells.unstack().to_numpy() / pairs.q50_Bps.median()
    )
    assert "slowest of up to 3 × 3 pairs" in caption(figure)
    assert not any("no transfer" in words for words in texts(figure))


@pytest.mark.parametrize(
    ("n_workers", "most", "silent", "corners"),
    [
        (3, 256, [], []),
        (3, 256, [(0, 2)], [(2, 0)]),
        (4, 2, [(2, 3), (3, 2), (0, 2), (0, 3), (1, 2), (1, 3)], [(2, 0), (2, 2)]),
    ],
)
def test_cells_without_any_transfer_are_hatched(n_workers, most, silent, corners, monkeypatch):
    monkeypatch.setattr(pair_figure, "CELLS_UP_TO", most)
    figure = pair_figure.plot(together(workload("tcp", n_workers=n_workers, silent_pairs=silent)))
    patches = _panel(figure).patches
    assert [sorted(_corners(patch)) for patch in patches] == [corners] * bool(corners)
    assert all(patch.get_hatch() for patch in patches)
    assert ("no transfer ≥ 1 MB" in texts(figure)) == bool(corners)


def test_differences_within_a_slow_backend_are_as_visible_as_within_a_fast_one():
    run = together(workload("tcp", n_workers=3), workload("ucx", n_workers=3, bandwidth=5e7))
    figure = pair_figure.plot(run)
    for index in (0, 1):
        mesh = _mesh(_panel(figure, index))
        assert mesh.norm(1.0) == pytest.approx(0.5)
        assert np.ptp(mesh.norm(mesh.get_array()).compressed()) > 0.1
    (bar,) = _bars(figure)
    assert bar.get_ylabel() == "× median (log scale)"
    assert sum("median pair" in words for words in texts(figure)) == 3


@pytest.mark.parametrize(("ratios", "limit"), [([1.1, 0.9], 2), ([1, 0.1], 10), ([np.nan], 2)])
def test_the_ratio_scale_has_weak_colours_for_small_ones(ratios, limit):
    norm = pair_figure.ratio_scale([np.array(ratios), np.array([])])
    assert (norm.vmin, norm.vmax) == pytest.approx((1 / limit, limit))


def test_a_failed_backend_has_a_hatched_panel():
    run = together(
        workload("tcp", n_workers=3), workload("ucx", n_workers=3, launches=2, failing=2)
    )
    figure = pair_figure.plot(run)
    hatched = _hatched(_panel(figure, 1))
    assert len(_corners(hatched)) == 6
    assert "2 of 2 launches failed" in texts(figure)


def test_the_coverage_of_the_log_is_stated():
    run = together(workload("tcp"))
    share = stats.coverage(run).coverage.item()
    assert any(
        words.endswith(f"{share * 100:.0f} % logged") for words in texts(pair_figure.plot(run))
    )


def test_words_have_a_contrast_of_4_5_to_their_cell():
    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    for colour in mpl.colormaps[pair_figure.MAP](np.linspace(0, 1, 50))[:, :3]:
        words = luminance(mpl.colors.to_rgb(contrast(colour)))
        light, dark = sorted((luminance(colour), words), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def _fetches(slow=1.0, others="together", workload="all-to-all"):
    """Return a run of fetches: alone 2 GB/s, others a third, with one slow pair."""
    case = builders.case(workload=workload, n_workers=3, launches=1)
    records = [builders.end(case)]
    for src, dst in itertools.permutations("012", 2):
        for channel, bandwidth in (("alone", 2e9), (others, 6e8)):
            seconds = 16e6 / bandwidth * (slow if (src, dst) == ("1", "2") else 1)
            pair = {"src": src, "dst": dst, "channel": channel}
            records += 3 * [builders.transfer(case, 0, seconds, 16_000_000, **pair)]
    return in_memory([case], records)


def test_alone_and_together_have_separate_panels():
    figure = pair_figure.plot(_fetches())
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert titles == ["tcp, alone", "tcp, together"]
    alone, together = (_cells(_panel(figure, index)) for index in (0, 1))
    assert set(map(tuple, alone.values())) == {("2",)}
    assert set(map(tuple, together.values())) == {("0.6",)}
    words = "Largest blocks: alone: one pair at a time; together: all pairs at once."
    assert words in caption(figure)
    assert misplaced(figure) == []
    words = caption(pair_figure.plot(_fetches(others="rounds", workload="links")))
    assert "one pair at a time; rounds: in rounds of pairs that share no host." in words
    assert not re.search("all-to-all|together:", words)


@pytest.mark.parametrize(("slow", "framed"), [(1.0, []), (5.0, [[(2, 1)]])])
def test_slow_pairs_are_framed(slow, framed):
    figure = pair_figure.plot(_fetches(slow))
    for index in (0, 1):
        frames = [patch for patch in _panel(figure, index).patches if not patch.get_fill()]
        assert [_corners(frame) for frame in frames] == framed
    assert ("slow pair" in texts(figure)) == bool(framed)
    assert misplaced(figure) == []


# It took minutes when each cell was a patch.
@pytest.mark.slow
def test_many_hatched_cells_are_drawn_as_fast_as_many_full_ones():
    n = 60
    missing = [(src, dst) for src in range(n) for dst in range(n) if (src * n + dst) % 9]

    def cpu_s(silent_pairs):
        run = together(workload("tcp", n_workers=n, silent_pairs=silent_pairs))
        figure = pair_figure.plot(run)
        began = time.process_time()
        style.encoded(figure, "svg")
        return time.process_time() - began

    cpu_s([])
    assert cpu_s(missing) < 5 * cpu_s([])
