import dask
import numpy as np
import pandas as pd
import pytest
from distributed import futures_of
from small import persist, workload

from commbench.errors import VerificationError
from commbench.workloads.frames import column_sums, shuffle_method, total
from commbench.workloads.merge import JoinData, Merge

KIND = Merge


def data(rows=1_000, partitions=2, frac_match=0.3, build_partitions=0):
    """Return a small definition of data."""
    return JoinData(
        device="cpu", seed=1, rows=rows, partitions=partitions, frac_match=frac_match,
        build_partitions=build_partitions or partitions,
    )  # fmt: skip


def n_matches(rows, partitions, frac_match, build_partitions=0):
    """Return the number of rows of the joined frame."""
    pairs = partitions * (build_partitions or partitions)
    return pairs * max(int(rows // partitions * frac_match), 1)


def whole(chunk_frame, partitions):
    """Return all chunks in one frame."""
    return pd.concat([chunk_frame(chunk) for chunk in range(partitions)], ignore_index=True)


SHAPES = [
    (1_000, 2, 0.3),
    (997, 4, 0.5),
    (3, 3, 1.0),
    (10, 1, 0.3),
    (100, 7, 1.0),
    (50, 5, 0.001),
]


@pytest.mark.parametrize("shape", [*SHAPES, (100, 7, 1.0, 1), (100, 7, 0.3, 3)])
def test_matches_and_sums_are_those_of_one_pandas_merge(shape):
    definition, partitions = data(*shape), shape[1]
    build = whole(definition.build, definition.build_partitions)[["key", "payload"]]
    joined = build.merge(whole(definition.other, partitions), on="key", how="inner")
    assert len(joined) == n_matches(*shape)
    parts = [definition.joined_sums(chunk) for chunk in range(partitions)]
    assert total(parts) == column_sums(joined)


def test_the_chunks_are_those_of_dask_cudas_benchmark():
    rows, partitions = 1_003, 4
    definition = data(rows, partitions)
    stretch, chosen = rows // partitions, int(rows // partitions * 0.3)
    for chunk in range(partitions):
        build, other = definition.build(chunk), definition.other(chunk)
        assert set(map(str, [*build.dtypes, *other.dtypes])) == {"int64"}
        assert build["key"].tolist() == list(range(rows * chunk, rows * (chunk + 1)))
        assert sorted(build["payload"]) == sorted(other["payload"]) == list(range(rows))
        assert set(build["shuffle"].value_counts()) <= {250, 251}
        matching = other["key"][other["key"] < rows * partitions]
        for index, keys in matching.groupby(matching // rows):
            start = rows * index + stretch * chunk
            assert keys.between(start, start + stretch - 1).all()
            assert len(keys) == keys.nunique() == chosen
        fillers = other["key"][other["key"] >= rows * partitions].sort_values()
        first = rows * (partitions + chunk)
        assert fillers.tolist() == list(range(first, first + rows - chosen * partitions))
        assert not other["key"].is_monotonic_increasing
        assert not other["payload"].is_monotonic_increasing


def test_the_partitions_of_the_build_frame_follow_its_shuffle_column(client):
    work = workload(Merge, rows=300, partitions=3)
    work.prepare(client)
    build, other = work.frames
    assert {future.status for future in futures_of([build, other])} == {"finished"}
    assert list(build.columns) == list(other.columns) == ["key", "payload"]
    for number in range(3):
        part = build.partitions[number].compute()
        assert part.index.name == "shuffle"
        assert set(part.index) == {number}
        assert {len(part[part["key"] // 300 == chunk]) for chunk in range(3)} == {100}
    expected = whole(work.data.build, 3)[["key", "payload"]]
    pd.testing.assert_frame_equal(build.compute().sort_values("key", ignore_index=True), expected)


def test_each_side_and_chunk_is_another_permutation():
    payloads = [data().build(0), data().build(1), data().other(0), data().other(1)]
    assert len({tuple(frame["payload"]) for frame in payloads}) == 4


def test_one_partition_for_each_worker_by_default():
    work = workload(Merge, n_workers=5, rows=1_000_000)
    assert work.data.partitions == 5
    assert work.payload_bytes == 160_000_000


def _first_partition(change):
    def on_partition(frame, partition_info=None):
        return change(frame) if partition_info["number"] == 0 else frame

    return lambda joined: joined.map_partitions(on_partition, meta=joined._meta)


def _swap(column):
    def change(frame):
        values = frame[column].to_numpy().copy()
        values[[0, 1]] = values[[1, 0]]
        return frame.assign(**{column: values})

    return change


def _add_one(column):
    return lambda frame: frame.assign(**{column: frame[column] + (np.arange(len(frame)) == 3)})


CORRUPTIONS = {
    "row dropped": (_first_partition(lambda f: f.iloc[1:]), "rows: expected 600, found 599"),
    "row twice": (_first_partition(lambda f: pd.concat([f, f.iloc[:1]])), "600, found 601"),
    "row replaced": (_first_partition(lambda f: pd.concat([f.iloc[1:], f.iloc[1:2]])), "key:"),
    "empty": (_first_partition(lambda f: f.iloc[:0]), "rows: expected 600"),
    "key off by one": (_first_partition(_add_one("key")), "key: expected"),
    "payload off by one": (_first_partition(_add_one("payload_x")), "payload_x: expected"),
    "payload_x at another key": (_first_partition(_swap("payload_x")), r"key \* payload_x: exp"),
    "payload_y at another key": (_first_partition(_swap("payload_y")), r"key \* payload_y: exp"),
    "payloads exchanged": (
        _first_partition(
            lambda f: f.assign(payload_x=f["payload_y"], payload_y=f["payload_x"])
        ),
        "payload_x: expected",
    ),
    "nan": (_first_partition(lambda f: f.assign(key=f["key"].where(f["key"] > 500))), "float64"),
    "narrow": (_first_partition(lambda f: f.astype("int32")), "int32"),
    "column lost": (lambda joined: joined[["key", "payload_x"]], "expected.*payload_y"),
    "partition lost": (lambda joined: joined.partitions[[0]], r"expected \(2,\) blocks"),
    "in three partitions": (lambda joined: joined.repartition(npartitions=3), r"found \(3,\)"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Meta is not valid")
@pytest.mark.parametrize(("change", "message"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corrupted_result_is_caught(client, done, change, message):
    work, result = done
    corrupted = persist(client, change(result))
    with pytest.raises(VerificationError, match=message):
        work.verify(client, corrupted)


def test_an_outer_join_is_caught(client, done):
    work, _ = done
    build, other = work.frames
    outer = persist(client, build.merge(other, on=["key"], how="outer", shuffle_method="tasks"))
    with pytest.raises(VerificationError, match="float64"):
        work.verify(client, outer)


@pytest.mark.parametrize("shuffle", ["tasks", "p2p"])
def test_a_small_build_frame_is_not_shuffled(client, shuffle):
    work = workload(Merge, partitions=5, build_partitions=1, shuffle=shuffle)
    work.prepare(client)
    names = {dask.utils.key_split(key) for key in work.build().optimize().__dask_graph__()}
    assert not any("split" in name or "transfer" in name for name in names)


@pytest.mark.parametrize("configured", ["tasks", "p2p"])
@pytest.mark.parametrize("shuffle", ["tasks", "p2p", "dask"])
def test_the_shuffle_does_not_depend_on_dasks_configuration(client, shuffle, configured):
    work = workload(Merge, shuffle=shuffle)
    with dask.config.set({"dataframe.shuffle.method": configured}):
        work.prepare(client)
        graph = work.build().optimize().__dask_graph__()
    names = {dask.utils.key_split(key) for key in graph}
    assert ("hash-join-transfer" in names) == (shuffle != "tasks")
    assert any("split" in name for name in names) == (shuffle == "tasks")


def test_by_default_the_shuffle_is_dasks(client):
    with dask.config.set({"dataframe.shuffle.method": None}), client.as_current():
        assert shuffle_method("dask", "cpu") == dask.utils.get_default_shuffle_method()
    assert shuffle_method("dask", "gpu") == "tasks"
