"""Ours and theirs: the same quantity, side by side, with whatever keeps them apart."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import address, end, launches, log_count, message, sample, transfer

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import Case, Record, published
from commbench.stats import PublishedComparison
from commbench.store.directory import RunStore, read_manifest

Recorded = Callable[..., Run]


def beside(
    recorded: Recorded, figure: str, cases: Iterable[Case], records: Iterable[Record],
    scale: float = 1.0,
) -> list[PublishedComparison]:  # fmt: skip
    """Return what a run of a suite that reproduces `figure` has beside it."""
    data = recorded(cases, records)
    suite = dataclasses.replace(data.suite, reproduces=figure, scale=scale)
    data = data.replace(dataclasses.replace(data.manifest, suite=suite))
    return stats.published_comparisons(data, stats.summaries(data), stats.pairs(data))


def on(device: str = "gpu", n_workers: int = 2) -> Any:
    """Return a cluster of that device."""
    return dataclasses.replace(builders.case().cluster, device=device, n_workers=n_workers)


def times(seconds: dict[tuple[str, int], float], **given: Any) -> tuple[list[Case], list[Record]]:
    """Return cases of backends on numbers of workers, each with six launches of this median."""
    cases, records = [], []
    for (backend, n_workers), median in seconds.items():
        case = builders.case(backend, cluster=on(n_workers=n_workers), **given)
        cases.append(case)
        records += launches(case, [median] * 6)
        records += [address(case, str(n), f"tcp://10.0.0.{n}:1") for n in range(n_workers)]
    return cases, records


def test_a_run_that_reproduces_nothing_has_nothing_beside_it(recorded: Recorded) -> None:
    """Ordinary runs are left alone."""
    case = builders.case()
    assert beside(recorded, "", [case], launches(case, [1.0])) == []


def test_a_ratio_is_the_geometric_mean_over_the_numbers_of_workers(recorded: Recorded) -> None:
    """Time of ucx:polling over that of mpi, at each number of workers that both have."""
    seconds = {("mpi", 2): 1.0, ("ucx:polling", 2): 3.0, ("mpi", 3): 1.0, ("ucx:polling", 3): 5.0,
               ("mpi", 4): 1.0, ("tcp", 2): 9.0}  # fmt: skip
    cases, records = times(seconds)
    (found, *_) = beside(recorded, "mpi4dask.merge_ri2", cases, records)
    assert (found.quantity, found.unit, found.value) == (
        "time", "ratio", published.published_figure("mpi4dask.merge_ri2").values[0],
    )  # fmt: skip
    expected = (math.sqrt(15.0), 3.0, 5.0)
    assert (found.here, found.here_low, found.here_high) == pytest.approx(expected)
    assert found.n_points == 2
    assert found.differences == ("without 4, 5 and 6 workers",)


def test_a_run_on_the_published_setting_differs_in_hardware_alone(recorded: Recorded) -> None:
    """All workers, GPU memory, several hosts and full size leave no difference to tell."""
    seconds = {(b, n): 1.0 for b in ("mpi", "ucx:polling") for n in (2, 3, 4, 5, 6)}
    (found, *_) = beside(recorded, "mpi4dask.merge_ri2", *times(seconds))
    assert found.here == pytest.approx(1.0)
    assert found.differences == ()
    assert found.comparable


def test_every_difference_is_told(recorded: Recorded) -> None:
    """Scale, memory, hosts, numbers of workers and what the paper left open."""
    case, over = (builders.case(name, cluster=on("cpu")) for name in ("mpi", "ucx:polling"))
    records = [*launches(case, [1.0]), *launches(over, [2.0])]
    for one in (case, over):
        records += [transfer(one, 0.0, 0.5), log_count(one, "1")]
    found = beside(recorded, "mpi4dask.merge_ri2", [case, over], records, 0.01)
    common = (
        "1 % of the size", "memory of CPUs, not GPUs", "one host, not several",
    )  # fmt: skip
    rest = ("without 3, 4, 5 and 6 workers",)
    assert [row.differences for row in found] == [
        (*common, *rest), (*common, "not defined in the paper", *rest),
        (*common, "not defined in the paper", *rest),
    ]  # fmt: skip


def test_a_ratio_without_its_other_half_is_unknown(recorded: Recorded) -> None:
    """Where one of the two backends was not measured there is no number, and none is made up."""
    found = beside(recorded, "mpi4dask.merge_ri2", *times({("mpi", 2): 1.0}))
    assert [row.quantity for row in found] == [
        "time", "communication time", "transfer throughput",
    ]  # fmt: skip
    assert all(math.isnan(row.here) and row.n_points == 0 for row in found)
    assert not any(row.comparable for row in found)


def test_bandwidth_is_better_where_it_is_larger(recorded: Recorded) -> None:
    """Ratios of times and of bandwidths both grow where mpi gets better."""
    cases = [builders.case(name, "pingpong", cluster=on()) for name in ("mpi", "ucx:polling")]
    records = [
        message(case, seconds, size, launch=launch)
        for case, seconds in zip(cases, (1.0, 4.0), strict=True)
        for size in (1, 4096, 65536, 1 << 20, 2 << 20)
        for launch in range(6)
    ]
    found = beside(recorded, "mpi4dask.pingpong", cases, builders.ended(records))
    assert [row.here for row in found] == pytest.approx([4.0] * 4)
    assert [(row.quantity, row.n_points) for row in found] == [
        ("latency", 1), ("latency", 2), ("latency", 1), ("bandwidth", 2),
    ]  # fmt: skip
    assert "messages up to 64 KiB only" in found[2].differences
    assert "messages up to 2 MiB only" in found[3].differences


def test_layers_are_never_mixed(recorded: Recorded) -> None:
    """A coroutine of one backend is not set against a comm of the other."""
    mpi, ucx = (builders.case(name, "pingpong") for name in ("mpi", "ucx:polling"))
    records = [message(mpi, 1.0, 1, layer="comm"), message(ucx, 2.0, 1, layer="coroutine"),
               message(ucx, 3.0, 1, layer="comm")]  # fmt: skip
    found = beside(recorded, "mpi4dask.pingpong", [mpi, ucx], builders.ended(records))
    assert [row.layer for row in found[:2]] == ["comm", "comm"]
    assert [row.here for row in found[:2]] == pytest.approx([3.0, 3.0])


def test_absolute_numbers_stand_beside_their_backends(recorded: Recorded) -> None:
    """Each published bandwidth meets that of its own backend; others follow, unpublished."""
    seconds = {("tcp", 8): 0.8, ("ucx:tcp", 8): 0.4, ("ucx:shm", 8): 0.2}
    found = beside(recorded, "rapids_blog.merge_dgx1", *times(seconds))
    here = {row.backend: (row.value and row.value.low, row.here) for row in found}
    assert list(here) == ["ucx:nvlink+ib", "ucx:ib", "ucx:tcp+nvlink", "ucx:tcp", "tcp", "ucx:shm"]
    assert here["tcp"] == (0.97e9, pytest.approx(1e9))
    assert here["ucx:tcp"] == (2.8e9, pytest.approx(2e9))
    assert here["ucx:shm"] == (None, pytest.approx(4e9))
    assert here["ucx:ib"][0] == 12.6e9
    assert math.isnan(here["ucx:ib"][1])
    assert found[4].differences == ("the rows per chunk were not published",)
    assert found[5].differences == ()


def test_other_numbers_of_workers_are_not_taken_for_the_published(recorded: Recorded) -> None:
    """Four workers are no answer to what eight did."""
    found = beside(recorded, "rapids_blog.merge_dgx1", *times({("tcp", 4): 0.8}))
    assert [(row.n_workers, row.value is None) for row in found if row.backend == "tcp"] == [
        (8, False), (4, True),
    ]  # fmt: skip


def test_communication_time_is_the_mean_over_workers_of_receiving(recorded: Recorded) -> None:
    """Overlapping fetches count once, a worker without any counts as 0, and launches by median."""
    figures = {}
    for backend, stop in (("mpi", 0.4), ("ucx:polling", 0.8)):
        case = builders.case(backend, "transpose-sum", cluster=on())
        records = []
        for launch in range(3):
            at = 100 * launch
            records += [
                sample(case, 1.0, launch=launch), end(case, launch=launch),
                transfer(case, at + 0.0, at + stop, launch=launch),
                transfer(case, at + 0.1, at + stop, launch=launch),
                *(log_count(case, name, launch=launch) for name in "01"),
            ]  # fmt: skip
        figures[backend] = (case, records)
    cases = [case for case, _ in figures.values()]
    records = [record for _, records in figures.values() for record in records]
    data = recorded(cases, records)
    table = stats.measured_quantities(
        data,
        stats.summaries(data),
        stats.pairs(data),
        ["communication time", "transfer throughput"],
    )
    found = {(row.quantity, row.backend): row.mid for row in table.itertuples()}
    assert found["communication time", "mpi"] == pytest.approx(0.2, rel=1e-5)
    assert found["communication time", "ucx:polling"] == pytest.approx(0.4, rel=1e-5)
    assert found["transfer throughput", "mpi"] == pytest.approx(16e6 / 0.7, rel=1e-5)
    ratios = beside(recorded, "mpi4dask.transpose_ri2", cases, records)
    assert [row.here for row in ratios[1:]] == pytest.approx(
        [2.0, (16 / 0.7) / (16 / 1.5)], rel=1e-5
    )


def test_pairs_and_single_transfers_have_their_ranges(recorded: Recorded) -> None:
    """Pairs: least and largest of their medians; transfers of any size: quartiles of durations."""
    case = builders.case("ucx:nvlink+ib", "svd", cluster=on(n_workers=4))
    records = [sample(case, 10.0), end(case)]
    for number, seconds in enumerate((1.0, 2.0, 3.0, 4.0, 5.0)):
        records.append(transfer(case, 0, seconds, 10_000_000, src=str(number % 2), dst="3"))
    records.append(transfer(case, 0, 3.0, 100, src="0", dst="2"))
    (_, found) = beside(recorded, "ucx_dgx_blog.svd", [case], records)
    numbers = (found.here_low, found.here, found.here_high)
    assert numbers == pytest.approx((2.25, 3.0, 3.75), rel=1e-5)
    found = beside(recorded, "ucx_dgx_blog.transpose", [case], records)
    assert [row.n_workers for row in found if not math.isnan(row.here)] == [4]
    (pair,) = (row for row in found if not math.isnan(row.here))
    assert (pair.here_low, pair.here, pair.here_high) == pytest.approx(
        (10e6 / 3, (10e6 / 3 + 3.75e6) / 2, 3.75e6), rel=1e-5
    )
    assert pair.value is not None
    assert (pair.value.low, pair.value.high) == (5e9, 12e9)


def test_a_median_of_0_s_makes_no_number(recorded: Recorded) -> None:
    """A clock that is too coarse gives no bandwidth and no ratio."""
    found = beside(recorded, "mpi4dask.merge_ri2", *times({("mpi", 2): 0.0, ("ucx:polling", 2): 1}))
    assert math.isnan(found[0].here)


def test_figure_and_scale_survive_the_runs_description(tmp_path: Path) -> None:
    """What was reproduced is read back, and a description from before has nothing of it."""
    run = builders.run([builders.case()])
    suite = dataclasses.replace(run.suite, reproduces="mpi4dask.frontera", scale=0.5)
    path = RunStore.create(tmp_path, dataclasses.replace(run, suite=suite)).path
    assert (read_manifest(path).suite.reproduces, read_manifest(path).suite.scale) == (
        "mpi4dask.frontera", 0.5,
    )  # fmt: skip
    content = json.loads((path / "run.json").read_text())
    del content["suite"]["reproduces"], content["suite"]["scale"]
    (path / "run.json").write_text(json.dumps(content))
    assert (read_manifest(path).suite.reproduces, read_manifest(path).suite.scale) == ("", 1.0)
