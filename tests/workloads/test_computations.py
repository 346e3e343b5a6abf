"""What is true of every workload that computes on the cluster."""

from contextlib import nullcontext
from types import SimpleNamespace

import builders
import dask
import dask.array as da
import numpy as np
import pytest
from small import PARAMS, inputs, persist, run, workload

from commbench.errors import UsageError, VerificationError
from commbench.harness import cases
from commbench.model import ClusterSpec
from commbench.workloads.arrays import ArrayWorkload
from commbench.workloads.groupby import GroupBy
from commbench.workloads.map_overlap import MapOverlap
from commbench.workloads.matmul import MatMul
from commbench.workloads.merge import Merge
from commbench.workloads.one_to_many import Broadcast
from commbench.workloads.rechunk import Rechunk
from commbench.workloads.shuffle import Shuffle
from commbench.workloads.svd import Svd
from commbench.workloads.transpose_sum import TransposeSum
from commbench.workloads.workload import Context

METHODS = ("tasks", "p2p")
KINDS = pytest.mark.parametrize("kind", PARAMS)


def arrays(work):
    """Return the arrays of a workload's input, or the columns of its frames."""
    for collection in inputs(work):
        data = collection.compute()
        if isinstance(data, np.ndarray):
            yield data
        else:
            yield from (column.to_numpy() for _, column in data.items())
            if isinstance(work, Shuffle):
                yield data.index.to_numpy()


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        *((kind, {}) for kind in PARAMS if kind is not Merge),
        (Merge, {"rows": 997, "partitions": 3}), (Merge, {"build_partitions": 1}),
    ],
)  # fmt: skip
def test_the_payload_is_the_size_of_the_input(client, kind, params):
    # With ragged blocks; of frames only the index that is shuffled counts.
    work = workload(kind, **params)
    payload_bytes = work.payload_bytes
    work.prepare(client)
    assert payload_bytes == sum(array.nbytes for array in arrays(work))


@KINDS
def test_the_seed_decides_the_input(client, kind):
    # One that can't have the same numbers by chance, as keys have.
    which = {Merge: 1, GroupBy: 1}.get(kind, 0)
    chosen = []
    for seed in (1, 1, 2):
        work = workload(kind, seed=seed)
        work.prepare(client)
        chosen.append(list(arrays(work))[which])
    assert (chosen[0] == chosen[1]).all()
    assert (chosen[0] != chosen[2]).mean() > 0.9


# The last chunk of the second has fewer rows than columns.
SVDS = [(95, 5, 20), (102, 5, 20), (20, 5, 20), (1, 1, 1)]
SQUARES = [(60, 20), (50, 20), (1, 1)]
SUMS = [*((square, "persist") for square in SQUARES), ((50, 20), "sum")]
GROUPS = [("tasks", 1), ("tasks", 3), ("p2p", 3)]
PATTERNS = [
    ("tiles-to-rows", 20_000, 2_000), ("swap-axes", 20_000, 2_000), ("swap-axes", 32, 16),
    ("adjacent-groups", 4_000_000, 320_000), ("heal-oversplit", 20_000, 200),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        *((Svd, {"rows": n, "columns": k, "chunk_rows": chunk}) for n, k, chunk in SVDS),
        *((TransposeSum, {"size": n, "chunk": m, "operation": op}) for (n, m), op in SUMS),
        *((MatMul, {"size": n, "chunk": m}) for n, m in SQUARES),
        *((MapOverlap, {"size": n, "chunk": m}) for n, m in SQUARES),
        (MapOverlap, {"size": 50, "chunk": 20, "kernel_size": 10}),
        *((GroupBy, {"shuffle": how, "split_out": n, "split_every": 2}) for how, n in GROUPS),
        (GroupBy, {"rows": 1, "partitions": 1}),
        *((Shuffle, {"shuffle": how, "partitions": n}) for how in METHODS for n in (1, 7)),
        # Above 32 partitions tasks shuffle in several stages.
        (Shuffle, {"shuffle": "tasks", "partitions": 40}),
        *(
            (Rechunk, {"pattern": pattern, "size": n, "chunk_size": m, "method": how})
            for pattern, n, m in PATTERNS for how in METHODS
        ),
        *((Merge, {"partitions": 5, "build_partitions": n}) for n in (1, 2, 5)),
        *((Merge, {"rows": 997, "partitions": 4, "frac_match": 0.5, "shuffle": how})
          for how in METHODS),
    ],
)  # fmt: skip
def test_a_right_result_passes(client, kind, params):
    work = workload(kind, **params)
    work.verify(client, run(client, work))


@pytest.mark.parametrize("configured", [None, *METHODS])
@pytest.mark.parametrize("pattern", ["tiles-to-rows", "swap-axes", "adjacent-groups"])
def test_by_default_dask_chooses_how_to_rechunk(client, pattern, configured, monkeypatch):
    monkeypatch.setattr(ArrayWorkload, "prepare", lambda *_: None)
    work = Rechunk(Rechunk.Params(pattern=pattern), Context(n_workers=2, device="cpu", seed=1))
    work.prepare(client)
    work.x = da.zeros(work.shape, chunks=work.chunks)
    with dask.config.set({"array.rechunk.method": configured}):
        names = {dask.utils.key_split(key) for key in work.build().__dask_graph__()}
    assert ("rechunk-transfer" in names) == (pattern == "swap-axes")


def test_what_p2p_and_some_workloads_can_not_do_on_gpus():
    context = Context(n_workers=2, device="gpu", seed=1)
    assert Rechunk(Rechunk.Params(), context)._method == "tasks"
    with pytest.raises(UsageError, match="Dask's P2P takes arrays in host memory"):
        Rechunk(Rechunk.Params(method="p2p"), context)
    for name, limit in (("patterns", ""), ("spill", "500MB")):
        cluster = ClusterSpec(device="gpu", memory_limit=limit)
        case = builders.case("tcp", name, cluster=cluster)
        assert "no data in GPU memory" in cases.unmet(case).reason


def test_oversplit_chunks_are_healed_as_dask_does(client):
    work = workload(Rechunk, pattern="heal-oversplit", size=1 << 20, chunk_size=1 << 13)
    work.prepare(client)
    x = da.zeros(work.shape, chunks=work.chunks)
    assert work._after == x.rechunk("auto", block_size_limit=1 << 17).chunks


def test_nothing_but_the_tasks_of_a_broadcast_is_timed():
    work = Broadcast(Broadcast.Params(), Context(n_workers=2, device="cpu", seed=1))
    work._source, work._addresses = None, ["a", "b"]
    client = SimpleNamespace(submit=lambda *_, key, workers: (key, workers))
    sent = work.compute(client, work.build())
    assert sent == [("broadcast-0", ["a"]), ("broadcast-1", ["b"])]


def test_chunks_that_stay_as_they_are_are_refused(client):
    with pytest.raises(UsageError, match="an array of 8 B has the same chunks before and after"):
        workload(Rechunk, pattern="swap-axes", size=8, chunk_size=8).prepare(client)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (GroupBy, r"aggregates, sums modulo .* key \* mean: expected"),
        (MapOverlap, r"filtered x, the block from \(0, 0\) on: 400 numbers are wrong"),
        (MatMul, "rows 0 of chunks of x @ x.T: the products of 20 rows"),
        (Merge, "key: expected"), (Rechunk, r"rechunked x, the block from \(0, 0\)"),
        (Shuffle, "data: expected"), (Svd, "norm of x - u s v"),
        (TransposeSum, r"x \+ x.T, the block from"),
    ],
)  # fmt: skip
def test_the_result_of_other_data_is_caught(client, kind, message):
    work = workload(kind)
    work.prepare(client)
    with pytest.raises(VerificationError, match=message):
        work.verify(client, run(client, workload(kind, seed=2)))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Shuffle, lambda work: work.frame, "misplaced rows: expected 0, found"),
        (Shuffle, lambda work: work.build().reset_index(), "expected {'data': 'float64'}, found"),
        (GroupBy, lambda work: work.build().astype("float32"), "found .*float32"),
        (Rechunk, lambda work: work.x, r"expected \(\d+, 1\) blocks"),
        (MapOverlap, lambda work: work.x, "numbers are wrong"),
        (MapOverlap, lambda work: work.build().astype("float32"), "found float32"),
        (MatMul, lambda work: work.x.T @ work.x, "products of 20 rows"),
        (MatMul, lambda work: work.build() * (1 + 1e-14), None),
        (MatMul, lambda work: work.build() * (1 + 1e-13), "products of 20 rows"),
        (MatMul, lambda work: work.build() * np.nan, "products of 20 rows"),
        (MatMul, lambda work: work.build()[:-1], r"chunk of shape \(9, 20\)"),
    ],
)
def test_another_result_of_the_same_data_is_caught(client, kind, change, message):
    work = workload(kind)
    work.prepare(client)
    result = persist(client, change(work))
    with pytest.raises(VerificationError, match=message) if message else nullcontext():
        work.verify(client, result)


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        (GroupBy, {"split_every": 1}, "split_every is 1; it must be at least 2"),
        (GroupBy, {"unique_ratio": 0.0}, "unique_ratio is 0.0; it must be above 0"),
        (MapOverlap, {"kernel_size": 11}, r"is 11; .* side of the smallest chunk \(10\)"),
        (MapOverlap, {"chunk": 51}, r"chunk is 51; it must be at most size \(50\)"),
        (MatMul, {"chunk": 0}, r"chunk is 0; it must be at least 1"),
        (Merge, {"build_partitions": 3}, r"is 3; it must be from 1 to partitions \(2\)"),
        (Rechunk, {"size": 7}, "size is 7 B; it must be at least 8 B"),
        (Rechunk, {"pattern": "adjacent-groups"}, "size is 20000 B; it must be at least 800000 B"),
        (Rechunk, {"chunk_size": 7}, "chunk_size is 7 B; it must be at least 8 B"),
        (Shuffle, {"partitions": 0}, "partitions is 0; it must be at least 1"),
        (Shuffle, {"partition_size": 7}, "partition_size is 7 B; it must be at least 8 B"),
        (Merge, {"rows": 0}, r"rows is 0; it must be at least the number of partitions \(2\)"),
        (Merge, {"rows": 3, "partitions": 4}, r"rows is 3; .* \(4\)"),
        (Merge, {"partitions": -1}, "partitions is -1; it must be at least 0"),
        (Merge, {"frac_match": 0.0}, "frac_match is 0.0; it must be above 0 and at most 1"),
        (Merge, {"frac_match": float("nan")}, "frac_match is nan"),
        (Svd, {"columns": 0}, r"columns is 0; it must be at least 1"),
        (Svd, {"columns": 96}, "columns is 96"),
        (Svd, {"rows": -1}, r"columns is 5; it must be at most rows \(-1\)"),
        (Svd, {"chunk_rows": 4}, r"chunk_rows is 4; it must be from columns \(5\) to rows \(95\)"),
        (Svd, {"chunk_rows": 96}, "chunk_rows is 96"),
        (TransposeSum, {"size": 0}, "size is 0; it must be at least 1"),
        (TransposeSum, {"chunk": 0}, r"chunk is 0; it must be at least 1"),
        (TransposeSum, {"chunk": 51}, r"chunk is 51; it must be at most size \(50\)"),
    ],
)
def test_parameters_out_of_range_are_refused(kind, params, message):
    with pytest.raises(UsageError, match=message):
        workload(kind, **params)
