"""One number makes a suite smaller, in ways that the file spells out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import SuiteError, UsageError
from commbench.harness.suite import read_suite, scaled
from commbench.machine import environment
from commbench.model import Suite
from commbench.workloads import device

MERGE = '[[case]]\nworkload = "merge"\nparams = { rows = 1000 }\n'
SCALED = MERGE + 'scaling = { rows = "linear" }\n'


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Suite]:
    """Return a function that reads a suite with this content."""

    def read(content: str, **overrides: Any) -> Suite:
        path = tmp_path / "my.toml"
        path.write_text(content)
        return read_suite(path, overrides)

    return read


@given(st.floats(1e-6, 1, exclude_min=True))
def test_chunks_stay_in_proportion_at_every_scale(scale: float) -> None:
    """An array keeps its number of chunks, whatever rounding does to their size."""
    rules = {"size": "root", "chunk": "root"}
    found = scaled({"size": 16000, "chunk": 4000, "operation": "sum"}, rules, scale)
    assert found["size"] == 4 * found["chunk"]
    assert found["operation"] == "sum"
    if scale > 1e-4:
        assert (found["size"] / 16000) ** 2 == pytest.approx(scale, rel=0.03)


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 10**9))
def test_what_scales_linearly_has_that_share(scale: float, rows: int) -> None:
    """Rows shrink by the scale, to the nearest whole number, and never to none."""
    found = scaled({"rows": rows}, {"rows": "linear"}, scale)["rows"]
    assert found == max(1, round(rows * scale))


@given(st.lists(st.integers(1, 2**30), min_size=1, max_size=8, unique=True))
def test_at_scale_1_nothing_changes(sizes: list[int]) -> None:
    """The full size is exactly what the file says, by every rule."""
    params = {"a": sizes, "b": sizes, "c": sizes[0], "d": 7.5}
    rules = {"a": "linear", "b": "largest", "c": "root"}
    assert scaled(params, rules, 1.0) == params


def test_the_largest_sizes_are_cut() -> None:
    """Of a list of sizes those remain that are small enough, and the smallest always."""
    sizes = [1, 1024, 1 << 20]
    for scale, kept in ((1.0, 3), (0.999, 2), (1 / 1024, 2), (1e-9, 1)):
        assert scaled({"sizes": sizes}, {"sizes": "largest"}, scale)["sizes"] == sizes[:kept]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"row": "linear"}, "unknown parameter in scaling 'row' (did you mean 'rows'?)"),
        ({"rows": "cubic"}, "unknown rule of scaling for rows 'cubic'"),
        ({"rows": "cubic"}, "known: largest, linear, root"),
        ({"shuffle": "linear"}, "shuffle is 'tasks'; whole numbers"),
        ({"frac": "linear"}, "frac is 0.3; whole numbers"),
        ({"none": "root"}, "none is 0; whole numbers from 1 up"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rules: dict[str, str], says: str) -> None:
    """What can't be scaled, or isn't there, is named with what is known."""
    params = {"rows": 10, "shuffle": "tasks", "frac": 0.3, "none": 0}
    with pytest.raises(UsageError) as error:
        scaled(params, rules, 0.5)
    assert says in str(error.value)


@pytest.mark.parametrize("scale", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_a_scale_is_above_0_and_at_most_1(scale: float, read: Callable[..., Suite]) -> None:
    """No other number is a scale, on the command line or in the file."""
    with pytest.raises(SuiteError, match=r"scale is .*above 0 and at most 1"):
        read(SCALED, scale=scale)
    with pytest.raises(SuiteError, match="scale"):
        read(f"scale = {scale}\n{SCALED}")


def test_the_command_line_wins_over_the_files_scale(read: Callable[..., Suite]) -> None:
    """``--scale`` replaces the file's, and the suite remembers what it was."""
    for suite, scale in (
        (read("scale = 0.1\n" + SCALED), 0.1), (read("scale = 0.1\n" + SCALED, scale=0.5), 0.5),
        (read(SCALED), 1.0), (read(SCALED, scale=None), 1.0),
    ):  # fmt: skip
        assert suite.scale == scale
        assert suite.cases[0].params["rows"] == 1000 * scale


def test_a_case_must_say_what_a_scale_does_to_it(read: Callable[..., Suite]) -> None:
    """A case that would silently stay as large as it is, is refused."""
    assert len(read(MERGE + MERGE.replace("1000", "7")).cases) == 2
    with pytest.raises(SuiteError, match=r"case\[1\].*nothing says.*scaling = "):
        read(SCALED + MERGE.replace("1000", "7"), scale=0.5)


def test_too_small_for_the_workload_is_told_with_the_case(read: Callable[..., Suite]) -> None:
    """A scale at which the workload makes no sense is refused before anything starts."""
    with pytest.raises(SuiteError, match=r"case\[0\]: rows is 1; it must be at least"):
        read(SCALED, scale=0.001)


def test_a_case_may_be_left_out_below_a_scale(read: Callable[..., Suite]) -> None:
    """``from_scale`` itself is large enough."""
    content = SCALED + SCALED.replace("1000", "2000") + "from_scale = 0.5\n"
    assert [len(read(content, scale=scale).cases) for scale in (0.4, 0.5, 1.0)] == [1, 2, 2]


def test_workers_make_a_case_each(read: Callable[..., Suite]) -> None:
    """A list of numbers of workers is a case for each, over each backend."""
    suite = read('backends = ["tcp", "ucx"]\n' + SCALED + "workers = [2, 3]\n")
    found = [(case.backend, case.cluster.n_workers) for case in suite.cases]
    assert found == [("tcp", 2), ("ucx", 2), ("tcp", 3), ("ucx", 3)]
    with pytest.raises(SuiteError, match="workers is empty"):
        read(SCALED + "workers = []\n")
    with pytest.raises(SuiteError, match="at least one worker"):
        read(SCALED + "workers = [0]\n")


def test_threads_scale_with_the_rest(read: Callable[..., Suite]) -> None:
    """The threads of a worker shrink by their own rule, apart from the parameters' proportions."""
    content = (
        "[cluster]\nthreads_per_worker = 28\n" + MERGE
        + 'scaling = { rows = "linear", threads_per_worker = "linear" }\n'
    )  # fmt: skip
    for scale, threads, rows in ((1.0, 28, 1000), (0.25, 7, 250), (0.01, 1, 10)):
        (case,) = read(content, scale=scale).cases
        assert (case.cluster.threads_per_worker, case.params["rows"]) == (threads, rows)


def test_the_device_may_be_whatever_there_is(
    read: Callable[..., Suite], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto`` is the GPU where there is one and CuPy, and is settled before the run is stored."""
    content = '[cluster]\ndevice = "auto"\n' + MERGE
    for found in ("gpu", "cpu"):
        monkeypatch.setattr(device, "detect", lambda found=found: found)
        assert read(content).cases[0].cluster.device == found


def test_a_published_figure_must_be_known(read: Callable[..., Suite]) -> None:
    """A misspelt ``reproduces`` names the file, the nearest name and all of them."""
    assert read('reproduces = "mpi4dask.frontera"\n' + MERGE).reproduces == "mpi4dask.frontera"
    with pytest.raises(SuiteError) as error:
        read('reproduces = "mpi4dask.fronterra"\n' + MERGE)
    for words in ("my.toml", "did you mean 'mpi4dask.frontera'?", "rapids_blog.message_1GB"):
        assert words in str(error.value)


def test_detecting_takes_a_gpu_and_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU there is none, whatever is installed."""
    monkeypatch.setattr(environment, "gpus", list)
    assert device.detect() == "cpu"
