from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from made_up import misplaced, run_of, texts, together, workload
from matplotlib.collections import QuadMesh

from commbench import model, stats
from commbench.model import Case, ClusterSpec
from commbench.reports.figures import pair_figure, style
from commbench.reports.figures.pair_figure import number
from commbench.reports.figures.style import contrast


def _panel(figure, index=0):
    return [axes for axes in figure.axes if "to worker" in axes.get_xlabel()][index]


def _hatched(axes):
    (hatched,) = [patch for patch in axes.patches if patch.get_hatch()]
    return hatched


def _corners(patch):
    """Return the upper left corners of the cells that a patch outlines."""
    boxes = patch.get_path().vertices.reshape(-1, 5, 2)[:, :4]
    return [tuple(box.min(axis=0).astype(int).tolist()) for box in boxes]


def _bars(figure):
    return [axes for axes in figure.axes if axes.get_ylabel().startswith("median bandwidth")]


def _cells(axes):
    """Return what is written in each cell, from top to bottom, by (src, dst)."""
    cells = {}
    for text in sorted(axes.texts, key=lambda text: text.get_position()[1]):
        x, y = text.get_position()
        if text.get_text() and x % 1 == 0.5:
            cells.setdefault((str(int(y)), str(int(x))), []).append(text.get_text())
    return cells


def test_cells_hold_the_three_quantiles_of_their_pair():
    """Up to eight workers each cell reads 25 %, 50 %, 75 %, from its row to its column."""
    run = together(workload("tcp", n_workers=4))
    quantiles = ("q25_Bps", "q50_Bps", "q75_Bps")
    expected = {
        (pair.src, pair.dst): [number(getattr(pair, column) / 1e9) for column in quantiles]
        for pair in stats.pairs(run).itertuples()
    }
    assert _cells(_panel(pair_figure.plot(run))) == expected
    assert len(expected) == 12


def test_from_nine_workers_on_only_the_median_is_written():
    """Three numbers don't fit any more, one does."""
    run = together(workload("tcp", n_workers=9, launches=1))
    pairs = stats.pairs(run)
    cells = _cells(_panel(pair_figure.plot(run)))
    assert cells == {
        (pair.src, pair.dst): [number(pair.q50_Bps / 1e9)] for pair in pairs.itertuples()
    }
    assert "quantile" not in pair_figure.plot(run).get_supxlabel()


def test_from_seventeen_workers_on_colours_speak_alone():
    """No number is written where none could be read."""
    run = together(workload("tcp", n_workers=17, launches=1))
    assert _cells(_panel(pair_figure.plot(run))) == {}


def test_colours_are_the_medians_in_their_place():
    """Row is the source and column the destination; the diagonal is blank."""
    run = together(workload("tcp", n_workers=3))
    axes = _panel(pair_figure.plot(run))
    (mesh,) = [found for found in axes.collections if isinstance(found, QuadMesh)]
    values = mesh.get_array().reshape(3, 3)
    pairs = stats.pairs(run)
    factor, _ = style.scale(pairs.q50_Bps.max(), "B/s")
    for pair in pairs.itertuples():
        assert values[int(pair.src), int(pair.dst)] == pytest.approx(pair.q50_Bps * factor)
    assert np.ma.getmaskarray(values).tolist() == np.eye(3, dtype=bool).tolist()
    assert axes.get_ylim() == (3, 0)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("from worker (src)", "to worker (dst)")


def test_where_pairs_outnumber_cells_the_slowest_is_shown(monkeypatch):
    """Nine workers on four cells: each shows its slowest pair, the rest of the rows included."""
    monkeypatch.setattr(pair_figure, "CELLS_UP_TO", 4)
    run = together(workload("tcp", n_workers=9, launches=1, silent_pairs=[(0, 8), (1, 8), (2, 8)]))
    figure = pair_figure.plot(run)
    axes = _panel(figure)
    (mesh,) = [found for found in axes.collections if isinstance(found, QuadMesh)]
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0, 3, 6, 9]
    pairs = stats.pairs(run)
    cells = pairs.groupby([pairs.src.astype(int) // 3, pairs.dst.astype(int) // 3]).q50_Bps.min()
    assert mesh.get_array().reshape(3, 3).filled() == pytest.approx(
        cells.unstack().to_numpy() / 1e6
    )
    assert "slowest of up to 3 × 3 pairs" in figure.get_supxlabel().replace("\n", " ")
    assert not any("no transfer" in words for words in texts(figure))


def test_a_cell_without_any_transfer_is_hatched_as_a_whole(monkeypatch):
    """Where none of its pairs has a transfer, a cell is missing, on the diagonal too."""
    monkeypatch.setattr(pair_figure, "CELLS_UP_TO", 2)
    silent = [(2, 3), (3, 2), (0, 2), (0, 3), (1, 2), (1, 3)]
    figure = pair_figure.plot(together(workload("tcp", n_workers=4, silent_pairs=silent)))
    hatched = _hatched(_panel(figure))
    assert sorted(_corners(hatched)) == [(2, 0), (2, 2)]


def test_missing_pairs_are_hatched_and_explained():
    """A pair without a transfer is hatched in its own direction only; the diagonal is not."""
    run = together(workload("tcp", n_workers=3, silent_pairs=[(0, 2)]))
    figure = pair_figure.plot(run)
    hatched = _hatched(_panel(figure))
    assert _corners(hatched) == [(2, 0)]
    path = hatched.get_path()
    assert path.vertices.max(axis=0).tolist() == [3, 1]
    assert "no transfer ≥ 1 MB" in texts(figure)


def test_nothing_is_explained_that_is_not_there():
    """Where all pairs have transfers there is neither hatching nor a legend."""
    figure = pair_figure.plot(together(workload("tcp", n_workers=3)))
    assert not any("no transfer" in words for words in texts(figure))
    assert not _panel(figure).patches


def test_backends_share_one_scale_from_zero():
    """The fastest pair of all backends is the top of one colour scale, with its unit."""
    run = together(workload("tcp"), workload("ucx", bandwidth_Bps=5e9))
    figure = pair_figure.plot(run)
    top = pytest.approx(stats.pairs(run).q50_Bps.max() / 1e9)
    for index in (0, 1):
        mesh = next(f for f in _panel(figure, index).collections if isinstance(f, QuadMesh))
        assert (mesh.norm.vmin, mesh.norm.vmax) == (0, top)
    (bar,) = _bars(figure)
    assert bar.get_ylabel() == "median bandwidth (GB/s)"
    assert bar.get_ylim() == (0, top)


def test_workloads_have_scales_of_their_own():
    """A slow workload is not drawn dark because of a fast one."""
    run = together(workload("tcp", "svd"), workload("tcp", "merge", bandwidth_Bps=5e7))
    fast, slow = _bars(pair_figure.plot(run))
    medians = stats.pairs(run).groupby("workload").q50_Bps.max()
    assert fast.get_ylim() == (0, pytest.approx(medians["svd"] / 1e6))
    assert slow.get_ylim() == (0, pytest.approx(medians["merge"] / 1e6))


def test_a_backend_that_failed_keeps_its_panel():
    """All its pairs are hatched, and its title says that the launches failed."""
    run = together(
        workload("tcp", n_workers=3), workload("ucx", n_workers=3, launches=2, failing=2)
    )
    figure = pair_figure.plot(run)
    hatched = _hatched(_panel(figure, 1))
    assert len(_corners(hatched)) == 6
    assert "2 of 2 launches failed" in texts(figure)


def test_a_workload_without_transfers_is_named():
    """A shuffle that leaves no log is not left out in silence."""
    quiet = workload("tcp", "merge", silent_pairs=[(0, 1), (1, 0)])
    caption = pair_figure.plot(together(workload("tcp"), quiet)).get_supxlabel()
    assert "Not shown: merge on tcp (no data)." in caption.replace("\n", " ")


def test_the_logs_coverage_is_stated():
    """Each panel says how much of the traffic the transfer logs saw."""
    run = together(workload("tcp"))
    share = stats.coverage(run).coverage.item()
    assert f"{share * 100:.0f} % logged" in texts(pair_figure.plot(run))


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0042, "0.0042"), (0.1, "0.10"), (3.417, "3.42"), (46.43, "46.4"), (812.3, "812")],
)
def test_numbers_in_cells_have_two_to_three_digits(value, words):
    """Small numbers don't become 0.00, and large ones no longer than their cell."""
    assert number(value) == words


def test_words_contrast_with_what_they_stand_on():
    """Every colour of the map has at least the contrast 4.5 that accessibility asks for."""
    import matplotlib as mpl

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    for colour in mpl.colormaps[pair_figure.MAP](np.linspace(0, 1, 50))[:, :3]:
        words = luminance(mpl.colors.to_rgb(contrast(colour)))
        light, dark = sorted((luminance(colour), words), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def _exchange(slow=1.0, n_workers=3):
    """Return a run of all-to-all: alone 2 GB/s, together a third, with one slow pair."""
    case = Case(
        workload="all-to-all", backend="tcp", cluster=ClusterSpec(n_workers=n_workers), launches=1
    )
    records = [model.LaunchEnd(case_id=case.id, launch=0, block=0, position=0, ok=True, seconds=1)]
    for src, dst in itertools.permutations(range(n_workers), 2):
        for channel, bandwidth in (("alone", 2e9), ("together", 6e8)):
            bandwidth /= slow if (src, dst) == (1, 2) else 1
            records += [
                model.TransferRecord(
                    case_id=case.id, launch=0, iteration=0, src=str(src), dst=str(dst),
                    nbytes=16_000_000, start_s=1e9, stop_s=1e9 + 16e6 / bandwidth, n_keys=1,
                    channel=channel,
                )
            ]  # fmt: skip
    return run_of([case], records)


def test_alone_and_together_have_panels_of_their_own():
    """What pairs did by themselves and what they did all at once is never in one matrix."""
    figure = pair_figure.plot(_exchange())
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert titles == ["tcp, alone", "tcp, together"]
    alone, together = (_cells(_panel(figure, index)) for index in (0, 1))
    assert set(map(tuple, alone.values())) == {("2.00",) * 3}
    assert set(map(tuple, together.values())) == {("0.60",) * 3}
    assert "all at once" in figure.get_supxlabel()
    assert misplaced(figure) == []


def test_slow_pairs_are_framed_and_explained():
    """The cell of the slow pair, and no other, is framed in every panel in which it is slow."""
    figure = pair_figure.plot(_exchange(slow=5.0))
    for index in (0, 1):
        frames = [patch for patch in _panel(figure, index).patches if not patch.get_fill()]
        assert [_corners(frame) for frame in frames] == [[(2, 1)]]
    assert "slow pair (an outlier)" in texts(figure)
    assert misplaced(figure) == []


def test_nobody_is_framed_where_nobody_is_slow():
    """Without an outlier there is neither a frame nor its legend."""
    figure = pair_figure.plot(_exchange())
    assert not any("slow pair" in words for words in texts(figure))
    assert not [patch for patch in _panel(figure).patches if not patch.get_fill()]


def test_many_missing_pairs_cost_no_more_than_many_pairs(tmp_path):
    """A figure of hatched cells alone takes no longer than one of full cells; it took minutes."""

    def cpu_s(silent):
        pairs = [(src, dst) for src in range(n) for dst in range(n) if (src * n + dst) % 9]
        run = together(workload("tcp", n_workers=n, silent_pairs=pairs if silent else []))
        figure = pair_figure.plot(run)
        begin = time.process_time()
        style.encoded(figure, "svg")
        return time.process_time() - begin

    n = 60
    cpu_s(silent=False)
    assert cpu_s(silent=True) < 5 * cpu_s(silent=False)
