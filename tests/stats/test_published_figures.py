import dataclasses
import math

import builders
import pytest
from builders import address, end, launches, log_count, message, messages, place, sample, transfer

from commbench import stats
from commbench.model import published


def compared(recorded, figure, cases, records, scale=1.0):
    """Return the comparisons of a run whose suite reproduces `figure`."""
    run = recorded(cases, records)
    suite = dataclasses.replace(run.suite, reproduces=figure, scale=scale)
    run = run.replace(dataclasses.replace(run.manifest, suite=suite))
    return stats.published_comparisons(run)


def cluster(device="gpu", n_workers=2):
    return dataclasses.replace(
        builders.case().cluster, device=device, n_workers=n_workers, task_placement="dask"
    )


def times(seconds):
    """Return cases by backend and number of workers, each with six launches of this median."""
    cases, records = [], []
    for (backend, n_workers), median in seconds.items():
        case = builders.case(backend, cluster=cluster(n_workers=n_workers))
        cases.append(case)
        records += launches(case, [median] * 6)
        records += [address(case, str(n), f"tcp://10.0.0.{n}:1") for n in range(n_workers)]
    return cases, records


def test_a_run_that_reproduces_no_figure_has_no_comparisons(recorded):
    case = builders.case()
    assert compared(recorded, "", [case], launches(case, [1.0])) == []


def test_a_ratio_is_the_geometric_mean_over_the_numbers_of_workers(recorded):
    seconds = {("mpi", 2): 1.0, ("ucx:polling", 2): 3.0, ("mpi", 3): 1.0, ("ucx:polling", 3): 5.0,
               ("mpi", 4): 1.0, ("tcp", 2): 9.0}  # fmt: skip
    cases, records = times(seconds)
    (row, *_) = compared(recorded, "mpi4dask.merge_ri2", cases, records)
    assert (row.quantity, row.unit, row.value) == (
        "time", "ratio", published.published_figure("mpi4dask.merge_ri2").values[0],
    )  # fmt: skip
    expected = (math.sqrt(15.0), 3.0, 5.0)
    assert (row.here, row.here_low, row.here_high) == pytest.approx(expected)
    assert row.n_points == 2
    assert row.differences == ("without 4, 5 and 6 workers",)


@pytest.mark.parametrize(("n_launches", "has_interval"), [(2, False), (6, True)])
def test_a_time_of_few_launches_has_no_interval(n_launches, has_interval, recorded):
    case = builders.case("tcp", "svd", cluster=cluster(n_workers=4))
    run = recorded([case], launches(case, [1.0, 2.0, 1.5, 1.2, 1.1, 1.6][:n_launches]))
    (row,) = stats.measured_quantities(run, ["time"]).itertuples()
    assert (row.low < row.mid < row.high) == has_interval
    assert math.isnan(row.low) != has_interval


def test_only_equal_settings_have_a_ratio(recorded):
    cases, records = [], []
    for (backend, n_threads), seconds in {
        ("mpi", 1): 1.0, ("ucx:polling", 1): 3.0, ("mpi", 2): 1.0, ("ucx:polling", 2): 5.0,
    }.items():  # fmt: skip
        size = dataclasses.replace(cluster(), threads_per_worker=n_threads)
        cases.append(builders.case(backend, cluster=size, varied=("backend", "threads")))
        records += launches(cases[-1], [seconds] * 6)
    rows = compared(recorded, "mpi4dask.merge_ri2", cases, records)
    assert [(row.backend, row.here, row.n_points) for row in rows[:2]] == [
        ("mpi threads=1", pytest.approx(3.0), 1), ("mpi threads=2", pytest.approx(5.0), 1),
    ]  # fmt: skip
    rows = compared(recorded, "rapids_blog.merge_dgx1", cases, records)
    assert [row.backend for row in rows if not row.value] == [case.variant for case in cases]


def test_a_run_on_the_published_setting_has_no_differences(recorded):
    seconds = {(b, n): 1.0 for b in ("mpi", "ucx:polling") for n in (2, 3, 4, 5, 6)}
    (row, *_) = compared(recorded, "mpi4dask.merge_ri2", *times(seconds))
    assert row.here == pytest.approx(1.0)
    assert row.differences == ()
    assert row.comparable


def test_every_difference_is_named(recorded):
    pinned = dataclasses.replace(cluster("cpu"), task_placement="pinned")
    case, over = (builders.case(name, cluster=pinned) for name in ("mpi", "ucx:polling"))
    records = [*launches(case, [1.0]), *launches(over, [2.0])]
    for one in (case, over):
        records += [transfer(one, 0.0, 0.5), log_count(one, "1")]
    rows = compared(recorded, "mpi4dask.merge_ri2", [case, over], records, 0.01)
    common = (
        "1 % of the size", "memory of CPUs, not GPUs", "one host, not several",
        "tasks pinned, not placed by Dask",
    )  # fmt: skip
    rest = ("without 3, 4, 5 and 6 workers",)
    assert [row.differences for row in rows] == [
        (*common, *rest), (*common, "not defined in the paper", *rest),
        (*common, "not defined in the paper", *rest),
    ]  # fmt: skip


@pytest.mark.parametrize("across", [False, True])
def test_hosts_of_different_launches_are_not_several(across, recorded):
    case, over = (builders.case(name, cluster=cluster()) for name in ("mpi", "ucx:polling"))
    records = [*launches(case, [1.0, 1.0]), *launches(over, [2.0, 2.0])]
    for launch, worker in ((0, 0), (0, 1), (1, 0), (1, 1)):
        host = str(worker if across else launch)
        records.append(place(case, str(worker), launch=launch, host=host, host_id=host))
    (row, *_) = compared(recorded, "mpi4dask.merge_ri2", [case, over], records)
    assert ("one host, not several" in row.differences) is not across


def test_cases_of_which_no_launch_ended_well_are_not_measured(recorded):
    case = builders.case("ucx:nvlink+ib", "svd", cluster=cluster(n_workers=4))
    records = [sample(case, 10.0), transfer(case, 0, 3.0, 10_000_000, src="0", dst="3")]
    for figure in ("ucx_dgx_blog.svd", "ucx_dgx_blog.transpose"):
        rows = compared(recorded, figure, [case], [*records, end(case, ok=False)])
        assert all(math.isnan(row.here) for row in rows)


def test_a_ratio_without_its_other_half_is_unknown(recorded):
    rows = compared(recorded, "mpi4dask.merge_ri2", *times({("mpi", 2): 1.0}))
    assert [row.quantity for row in rows] == [
        "time", "communication time", "transfer throughput",
    ]  # fmt: skip
    assert all(math.isnan(row.here) and row.n_points == 0 for row in rows)
    assert not any(row.comparable for row in rows)


def test_bandwidth_is_better_where_it_is_larger(recorded):
    mpi, ucx = (
        builders.case(name, "pingpong", cluster=cluster()) for name in ("mpi", "ucx:polling")
    )
    sizes = [("comm", size) for size in (1, 4096, 65536, 1 << 20, 2 << 20)]
    records = messages(mpi, dict.fromkeys(sizes, 1.0)) + messages(ucx, dict.fromkeys(sizes, 4.0))
    rows = compared(recorded, "mpi4dask.pingpong", [mpi, ucx], records)
    assert [row.here for row in rows] == pytest.approx([4.0] * 4)
    assert [(row.quantity, row.n_points) for row in rows] == [
        ("latency", 1), ("latency", 2), ("latency", 1), ("bandwidth", 2),
    ]  # fmt: skip
    assert "messages up to 64 KiB only" in rows[2].differences
    assert "messages up to 2 MiB only" in rows[3].differences


def test_only_equal_layers_are_compared(recorded):
    mpi, ucx = (builders.case(name, "pingpong") for name in ("mpi", "ucx:polling"))
    records = [message(mpi, 1.0, 1, layer="comm"), message(ucx, 2.0, 1, layer="coroutine"),
               message(ucx, 3.0, 1, layer="comm")]  # fmt: skip
    rows = compared(recorded, "mpi4dask.pingpong", [mpi, ucx], builders.ended(records))
    assert [row.layer for row in rows[:2]] == ["comm", "comm"]
    assert [row.here for row in rows[:2]] == pytest.approx([3.0, 3.0])


def test_absolute_values_are_matched_by_backend(recorded):
    seconds = {("tcp", 8): 0.8, ("ucx:tcp", 8): 0.4, ("ucx:shm", 8): 0.2}
    rows = compared(recorded, "rapids_blog.merge_dgx1", *times(seconds))
    here = {row.backend: (row.value and row.value.low, row.here) for row in rows}
    assert list(here) == ["ucx:nvlink+ib", "ucx:ib", "ucx:tcp+nvlink", "ucx:tcp", "tcp", "ucx:shm"]
    assert here["tcp"] == (0.97e9, pytest.approx(1e9))
    assert here["ucx:tcp"] == (2.8e9, pytest.approx(2e9))
    assert here["ucx:shm"] == (None, pytest.approx(4e9))
    assert here["ucx:ib"][0] == 12.6e9
    assert math.isnan(here["ucx:ib"][1])
    assert rows[4].differences == (
        "several hosts, not one", "the rows per chunk were not published",
    )  # fmt: skip
    assert rows[5].differences == ()


def test_other_numbers_of_workers_are_not_compared(recorded):
    rows = compared(recorded, "rapids_blog.merge_dgx1", *times({("tcp", 4): 0.8}))
    assert [(row.n_workers, row.value is None) for row in rows if row.backend == "tcp"] == [
        (8, False), (4, True),
    ]  # fmt: skip


def test_communication_time_is_the_mean_over_workers_of_the_receiving_time(recorded):
    figures = {}
    for backend, stop in (("mpi", 0.4), ("ucx:polling", 0.8)):
        case = builders.case(backend, "transpose-sum", cluster=cluster())
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
    table = stats.measured_quantities(data, ["communication time", "transfer throughput"])
    rows = {(row.quantity, row.backend): row.mid for row in table.itertuples()}
    assert rows["communication time", "mpi"] == pytest.approx(0.2, rel=1e-5)
    assert rows["communication time", "ucx:polling"] == pytest.approx(0.4, rel=1e-5)
    assert rows["transfer throughput", "mpi"] == pytest.approx(16e6 / 0.7, rel=1e-5)
    ratios = compared(recorded, "mpi4dask.transpose_ri2", cases, records)
    assert [row.here for row in ratios[1:]] == pytest.approx(
        [2.0, (16 / 0.7) / (16 / 1.5)], rel=1e-5
    )


def test_ranges_of_pairs_and_of_single_transfers(recorded):
    case = builders.case("ucx:nvlink+ib", "svd", cluster=cluster(n_workers=4))
    records = [sample(case, 10.0), end(case)]
    for number, seconds in enumerate((1.0, 2.0, 3.0, 4.0, 5.0)):
        records.append(transfer(case, 0, seconds, 10_000_000, src=str(number % 2), dst="3"))
    records.append(transfer(case, 0, 3.0, 100, src="0", dst="2"))
    (_, row) = compared(recorded, "ucx_dgx_blog.svd", [case], records)
    numbers = (row.here_low, row.here, row.here_high)
    assert numbers == pytest.approx((2.25, 3.0, 3.75), rel=1e-5)
    rows = compared(recorded, "ucx_dgx_blog.transpose", [case], records)
    assert [row.n_workers for row in rows if not math.isnan(row.here)] == [4]
    (pair,) = (row for row in rows if not math.isnan(row.here))
    assert (pair.here_low, pair.here, pair.here_high) == pytest.approx(
        (10e6 / 3, (10e6 / 3 + 3.75e6) / 2, 3.75e6), rel=1e-5
    )
    assert pair.value is not None
    assert (pair.value.low, pair.value.high) == (5e9, 12e9)


def test_the_bandwidth_of_pairs_is_of_those_that_nvlink_joins_if_it_joins_some(recorded):
    case = builders.case("ucx:nvlink+ib", "transpose-sum", cluster=cluster(n_workers=8))
    links = ["GPU1=NV1 GPU2=SYS", "GPU0=NV1 GPU2=SYS", "GPU0=SYS GPU1=SYS"]
    records = [sample(case, 10.0), end(case)]
    records += [transfer(case, 0.0, seconds, dst=dst) for dst, seconds in (("1", 1.0), ("2", 4.0))]
    gpus = [place(case, n, gpu=n, gpu_links=text) for n, text in zip("012", links, strict=True)]
    for places, expected in ((gpus, (8e6,) * 3), ([], (2e6, 5e6, 8e6))):
        (row, *_) = compared(recorded, "ucx_dgx_blog.transpose", [case], [*records, *places])
        assert (row.here_low, row.here, row.here_high) == pytest.approx(expected, rel=1e-5)


def test_a_median_of_0_s_gives_no_ratio(recorded):
    rows = compared(
        recorded, "mpi4dask.merge_ri2", *times({("mpi", 2): 0.0, ("ucx:polling", 2): 1})
    )
    assert math.isnan(rows[0].here)
