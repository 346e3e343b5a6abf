"""What is true of every workload that computes on the cluster."""

import itertools

import numpy as np
import pytest
from small import PARAMS, inputs, run, workload

from commbench.errors import UsageError, VerificationError
from commbench.workloads.merge import Merge
from commbench.workloads.svd import Svd
from commbench.workloads.transpose_sum import TransposeSum

KINDS = pytest.mark.parametrize("kind", PARAMS)


@KINDS
def test_the_payload_is_the_size_of_the_input(client, kind):
    # With ragged blocks, and without the indexes of frames.
    work = workload(kind, **{"rows": 997, "partitions": 3} if kind is Merge else {})
    payload_bytes = work.payload_bytes
    work.prepare(client)
    data = [collection.compute() for collection in inputs(work)]
    if kind is Merge:
        data = [column.to_numpy() for frame in data for _, column in frame.items()]
    assert payload_bytes == sum(array.nbytes for array in data)


@KINDS
def test_the_seed_decides_the_input(client, kind):
    arrays = []
    for seed in (1, 1, 2):
        work = workload(kind, seed=seed)
        work.prepare(client)
        data = [collection.compute() for collection in inputs(work)]
        arrays.append(np.array([frame["payload"] for frame in data] if kind is Merge else data))
    assert (arrays[0] == arrays[1]).all()
    # The payloads of a merge are permutations of the same numbers.
    assert (arrays[0] != arrays[2]).mean() > (0.9 if kind is Merge else 0.9999)


SVDS = [(100, 5, 20), (95, 5, 20), (102, 5, 20), (20, 5, 20), (5, 5, 5), (50, 1, 20), (1, 1, 1)]
SUMS = itertools.product([(60, 20), (50, 20), (41, 20), (20, 20), (1, 1)], ["persist", "sum"])


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        *((Svd, {"rows": n, "columns": k, "chunk_rows": chunk}) for n, k, chunk in SVDS),
        *((TransposeSum, {"size": n, "chunk": m, "operation": op}) for (n, m), op in SUMS),
    ],
)
def test_a_right_result_passes(client, kind, params):
    work = workload(kind, **params)
    work.verify(client, run(client, work))


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Merge, "key: expected"), (Svd, "norm of x - u s v"), (TransposeSum, "sum of block")],
)
def test_the_result_of_other_data_is_caught(client, kind, message):
    work = workload(kind)
    work.prepare(client)
    with pytest.raises(VerificationError, match=message):
        work.verify(client, run(client, workload(kind, seed=2)))


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        (Merge, {"rows": 0}, r"rows is 0; it must be at least the number of partitions \(2\)"),
        (Merge, {"rows": 3, "partitions": 4}, r"rows is 3; .* \(4\)"),
        (Merge, {"partitions": -1}, "partitions is -1; it must be at least 1, or 0"),
        (Merge, {"frac_match": 0.0}, "frac_match is 0.0; it must be above 0 and at most 1"),
        (Merge, {"frac_match": float("nan")}, "frac_match is nan"),
        (Svd, {"columns": 0}, r"columns is 0; it must be from 1 to rows \(95\)"),
        (Svd, {"columns": 96}, "columns is 96"),
        (Svd, {"rows": -1}, r"columns is 5; it must be from 1 to rows \(-1\)"),
        (Svd, {"chunk_rows": 4}, r"chunk_rows is 4; it must be from columns \(5\) to rows \(95\)"),
        (Svd, {"chunk_rows": 96}, "chunk_rows is 96"),
        (TransposeSum, {"size": 0}, "size is 0; it must be at least 1"),
        (TransposeSum, {"chunk": 0}, r"chunk is 0; it must be from 1 to size \(50\)"),
        (TransposeSum, {"chunk": 51}, r"chunk is 51; it must be from 1 to size \(50\)"),
    ],
)
def test_parameters_out_of_range_are_refused(kind, params, message):
    with pytest.raises(UsageError, match=message):
        workload(kind, **params)
