import dask.array as da
import numpy as np
import pytest
from small import persist, run, workload

from commbench.errors import LaunchError, VerificationError
from commbench.workloads.device import persist_input, uniform_array
from commbench.workloads.transpose_sum import TransposeSum

KIND = TransposeSum


def corrupt(client, result, change):
    """Return `result` after `change(block, index)` on every block, in the workers' memory."""

    def on_block(block, block_info=None):
        return change(block.copy(), tuple(block_info[None]["chunk-location"]))

    return persist(client, result.map_blocks(on_block, dtype=result.dtype, meta=result._meta))


def test_the_result_is_the_array_plus_its_transpose(done):
    work, result = done
    result, x = result.compute(), work.x.compute()
    np.testing.assert_array_equal(result, x + x.T)
    assert len(np.unique(x)) == 2500
    assert 0 <= x.min() < 0.01 < 0.99 < x.max() < 1
    assert abs(x.mean() - 0.5) < 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda block: block * np.nan, "400 numbers are wrong"),
        (lambda block: block.astype("f4"), "float32"),
        (lambda block: block[:-1], r"\(19, 20\)"),
        (lambda block: block.T.copy(), "numbers are wrong"),
        (lambda block: block[:, [1, 0, *range(2, 20)]], "40 numbers are wrong"),
        (lambda block: np.nextafter(block, 3), "numbers are wrong"),
    ],
    ids=["nan", "dtype", "shape", "transposed", "exchanged", "last bit"],
)
def test_a_garbled_block_is_caught(client, change, message):
    work = workload(TransposeSum, size=40, chunk=20)
    other = corrupt(
        client, run(client, work), lambda block, here: change(block) if here == (0, 1) else block
    )
    with pytest.raises(VerificationError, match=message):
        work.verify(client, other)


@pytest.mark.parametrize("wrong", [1.0, -1e-6, float("nan")])
def test_a_wrong_sum_is_caught(client, wrong):
    work = workload(TransposeSum, operation="sum")
    result = run(client, work)
    other = persist(client, result + wrong)
    with pytest.raises(VerificationError, match="sum of x"):
        work.verify(client, other)


def test_a_block_that_is_missing_is_caught(client, done):
    work, result = done
    futures = {key: future for key, future in result.dask.items() if key[1:] != (1, 2)}
    other = da.Array(futures, result.name, result.chunks, meta=result._meta)
    with pytest.raises(VerificationError, match=r"block \(1, 2\) of the result is missing"):
        work.verify(client, other)


def test_input_that_cant_be_created_ends_the_launch(client):
    broken = uniform_array("cpu", "one", (40, 40), (20, 20))
    with pytest.raises(LaunchError, match=r"input can't be created.*OverflowError"):
        persist_input(client, broken)
