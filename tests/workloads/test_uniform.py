"""The random array of which workers make parts."""

import zlib

import numpy as np
import pytest
from scipy import stats

from commbench.workloads.device import uniform_array, uniform_block


@pytest.mark.parametrize(
    ("shape", "start", "part"),
    [
        ((40_000,), (17_000,), (20_000,)), ((50, 60), (7, 20), (43, 11)),
        ((3, 20_000), (1, 5), (2, 19_000)), ((6, 7, 8), (1, 2, 3), (4, 5, 5)),
    ],
)  # fmt: skip
def test_a_part_has_the_numbers_of_the_whole(shape, start, part):
    whole = uniform_block("cpu", 1, (0,) * len(shape), shape)
    inner = tuple(slice(i, i + n) for i, n in zip(start, part, strict=True))
    np.testing.assert_array_equal(uniform_block("cpu", 1, start, part), whole[inner])


def test_the_chunks_make_no_difference():
    one, other = (uniform_array("cpu", 1, (30, 40), chunks).compute() for chunks in ((30, 40), 7))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63])
def test_numbers_are_uniform_and_those_of_neighbours_and_seeds_are_independent(seed):
    x = uniform_block("cpu", seed, (0, 0), (1_000, 1_000))
    assert stats.kstest(x.ravel(), "uniform").pvalue > 1e-3
    other = uniform_block("cpu", seed + 1, (0, 0), x.shape)
    for shifted in (x[1:], x[:, 1:], x[1:, 1:], x[7:], x.T[:-1], other):
        part = x[: shifted.shape[0], : shifted.shape[1]]
        # A million pairs have one of 0.005 with a probability of 1e-6.
        assert abs(np.corrcoef(part.ravel(), shifted.ravel())[0, 1]) < 0.005
    assert len(np.unique(x)) == x.size


def test_bytes_are_as_incompressible_as_those_of_numpys_generator():
    sizes = [
        len(zlib.compress(x.tobytes()))
        for x in (uniform_block("cpu", 1, (0,), (10**5,)), np.random.default_rng(1).random(10**5))
    ]
    assert sizes[0] > 0.999 * sizes[1]
