import math

import pytest

from commbench.errors import UnknownNameError
from commbench.model import published
from commbench.model.published import published_figure, show_range

# As the texts have them, typed once more: figure → (quantity, backend, over) → (low, high).
TEXTS = {
    "rapids_blog.merge_dgx1": [
        ("throughput", "ucx:nvlink+ib", "", 18e9, 18e9),
        ("throughput", "ucx:ib", "", 12.6e9, 12.6e9),
        ("throughput", "ucx:tcp+nvlink", "", 4.3e9, 4.3e9),
        ("throughput", "ucx:tcp", "", 2.8e9, 2.8e9), ("throughput", "tcp", "", 970e6, 970e6),
    ],
    "rapids_blog.message_1GB": [
        ("bandwidth", "ucx:nvlink", "", 46.5e9, 46.5e9),
        ("bandwidth", "ucx:ib", "", 11.2e9, 11.2e9),
    ],
    "ucx_dgx_blog.transpose": [
        ("pair bandwidth", "ucx:nvlink+ib", "", 5e9, 10e9),
        ("pair bandwidth", "ucx:nvlink+ib", "", 5e9, 12e9),
        ("pair bandwidth", "ucx:ib", "", 1e9, 2e9), ("bandwidth", "ucx:nvlink+ib", "", 15e9, 15e9),
    ],
    "ucx_dgx_blog.svd": [
        ("transfer time", "tcp", "", 0.5, 1.0), ("transfer time", "ucx:nvlink+ib", "", 0.02, 0.02),
    ],
    "mpi4dask.pingpong": [
        ("latency", "mpi", "ucx:polling", 6, 6), ("latency", "mpi", "ucx:polling", 5, 5),
        ("latency", "mpi", "ucx:polling", 2, 3), ("bandwidth", "mpi", "ucx:polling", 3, 4),
    ],
    "mpi4dask.transpose_ri2": [
        ("time", "mpi", "ucx:polling", 3.47, 3.47),
        ("communication time", "mpi", "ucx:polling", 6.92, 6.92),
        ("transfer throughput", "mpi", "ucx:polling", 5.17, 5.17),
    ],
    "mpi4dask.merge_ri2": [
        ("time", "mpi", "ucx:polling", 3.11, 3.11),
        ("communication time", "mpi", "ucx:polling", 3.22, 3.22),
        ("transfer throughput", "mpi", "ucx:polling", 3.82, 3.82),
    ],
    "mpi4dask.frontera": [
        ("time", "mpi", "ucx:polling", 1.71, 1.71), ("time", "mpi", "ucx:polling", 2.91, 2.91),
    ],
}  # fmt: skip


def test_published_values_are_those_of_the_texts():
    values = {
        name: [
            (v.quantity, v.backend, v.over, v.low, v.high) for v in published_figure(name).values
        ]
        for name in published.names()
    }
    assert values == TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_every_published_figure_has_a_source(name):
    figure = published_figure(name)
    assert 2019 <= figure.source.year <= 2021
    assert str(figure.source.year) in figure.citation
    assert figure.source.title in figure.citation
    assert str(figure.source.year) in figure.setting
    assert figure.hardware in figure.setting
    assert figure.location
    assert {value.unit for value in figure.values} <= {"s", "B/s", "ratio"}


def test_bandwidth_limits_of_the_hardware():
    nvlink, ib = published_figure("rapids_blog.message_1GB").values
    assert (nvlink.limit, ib.limit) == (50e9, 12.5e9)


def test_message_sizes_of_the_published_ping_pong():
    sizes = [value.message_bytes for value in published_figure("mpi4dask.pingpong").values]
    assert sizes == [(1, 1), (1, 4096), (8192, 512 << 10), (1 << 20, 128 << 20)]


def test_an_unknown_published_figure_names_the_known_ones():
    with pytest.raises(UnknownNameError) as error:
        published_figure("mpi4dask.transpose_ri3")
    assert "did you mean 'mpi4dask.transpose_ri2'?" in str(error.value)
    assert all(name in str(error.value) for name in published.names())


@pytest.mark.parametrize(
    ("low", "high", "unit", "text"),
    [
        (0.5, 1.0, "s", "500 ms…1.00 s"), (3.0, 4.0, "ratio", "3…4 ×"), (9.7e8, 9.7e8, "B/s",
         "970 MB/s"), (1.001, 1.002, "ratio", "1 ×"), (9e8, 2e9, "B/s", "900 MB/s…2.00 GB/s"),
        (math.nan, math.nan, "ratio", "—"),
    ],
)  # fmt: skip
def test_a_range_has_one_unit_where_both_ends_share_it(low, high, unit, text):
    assert show_range(low, high, unit) == text
