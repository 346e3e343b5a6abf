import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.harness.suite import scaled
from commbench.workloads import device

MERGE = '[[case]]\nworkload = "merge"\nparams = { rows = 1000 }\n'
SCALED = MERGE + 'scaling = { rows = "linear" }\n'


@given(st.floats(1e-6, 1, exclude_min=True))
def test_an_array_has_the_same_number_of_chunks_at_every_scale(scale):
    rules = {"size": "root", "chunk": "root"}
    params = scaled({"size": 16000, "chunk": 4000, "operation": "sum"}, rules, scale)
    assert params["size"] == 4 * params["chunk"]
    assert params["operation"] == "sum"
    if scale > 1e-4:
        assert (params["size"] / 16000) ** 2 == pytest.approx(scale, rel=0.03)


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 10**9))
def test_a_linear_parameter_is_rounded_and_at_least_one(scale, rows):
    params = scaled({"rows": rows}, {"rows": "linear"}, scale)
    assert params["rows"] == max(1, round(rows * scale))


@given(st.lists(st.integers(1, 2**30), min_size=1, max_size=8, unique=True))
def test_scale_1_changes_no_parameter(sizes):
    params = {"a": sizes, "b": sizes, "c": sizes[0], "d": 7.5}
    rules = {"a": "linear", "b": "largest", "c": "root"}
    assert scaled(params, rules, 1.0) == params


def test_the_largest_sizes_are_cut_and_the_smallest_stays():
    sizes = [1, 1024, 1 << 20]
    for scale, kept in ((1.0, 3), (0.999, 2), (1 / 1024, 2), (1e-9, 1)):
        assert scaled({"sizes": sizes}, {"sizes": "largest"}, scale)["sizes"] == sizes[:kept]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"row": "linear"}, "unknown parameter in scaling 'row' (did you mean 'rows'?)"),
        ({"rows": "cubic"}, "unknown rule of scaling for rows 'cubic'"),
        ({"rows": "cubic"}, "known: largest, linear, root"),
        ({"shuffle": "linear"}, "shuffle is 'tasks'; whole numbers"),
        ({"frac": "linear"}, "frac is 0.3; whole numbers"),
        ({"none": "root"}, "none is 0; whole numbers from 1 up"),
    ],
)
def test_an_invalid_rule_is_refused(rules, message):
    params = {"rows": 10, "shuffle": "tasks", "frac": 0.3, "none": 0}
    with pytest.raises(UsageError) as error:
        scaled(params, rules, 0.5)
    assert message in str(error.value)


@pytest.mark.parametrize("scale", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_a_scale_is_above_0_and_at_most_1(scale, read):
    with pytest.raises(UsageError, match=r"scale is .*above 0 and at most 1"):
        read(SCALED, scale=scale)
    with pytest.raises(UsageError, match="scale"):
        read(f"scale = {scale}\n{SCALED}")


def test_the_scale_of_the_command_line_overrides_that_of_the_file(read):
    for suite, scale in (
        (read("scale = 0.1\n" + SCALED), 0.1), (read("scale = 0.1\n" + SCALED, scale=0.5), 0.5),
        (read(SCALED), 1.0), (read(SCALED, scale=None), 1.0),
    ):  # fmt: skip
        assert suite.scale == scale
        assert suite.cases[0].params["rows"] == 1000 * scale


def test_a_case_without_rules_is_refused_at_a_smaller_scale(read):
    assert len(read(MERGE + MERGE.replace("1000", "7")).cases) == 2
    with pytest.raises(UsageError, match=r"case\[1\].*nothing says.*scaling = "):
        read(SCALED + MERGE.replace("1000", "7"), scale=0.5)


def test_a_scale_that_is_too_small_for_a_workload_is_refused(read):
    with pytest.raises(UsageError, match=r"case\[0\]: rows is 1; it must be at least"):
        read(SCALED, scale=0.001)


def test_from_scale_leaves_out_a_case_at_smaller_scales(read):
    content = SCALED + SCALED.replace("1000", "2000") + "from_scale = 0.5\n"
    assert [len(read(content, scale=scale).cases) for scale in (0.4, 0.5, 1.0)] == [1, 2, 2]


def test_a_scale_that_leaves_out_all_cases_is_refused_with_the_least_one(read):
    content = SCALED + "from_scale = 0.5\n" + SCALED + "from_scale = 0.1\n"
    with pytest.raises(UsageError, match=r"scale is 0.01, and the first case begins at 0.1"):
        read(content, scale=0.01, placement="auto")


def test_a_list_of_workers_is_a_case_for_each_number_and_backend(read):
    suite = read('backends = ["tcp", "ucx"]\n' + SCALED + "workers = [2, 3]\n")
    cases = [(case.backend, case.cluster.n_workers) for case in suite.cases]
    assert cases == [("tcp", 2), ("ucx", 2), ("tcp", 3), ("ucx", 3)]
    with pytest.raises(UsageError, match="workers is empty"):
        read(SCALED + "workers = []\n")
    with pytest.raises(UsageError, match="at least one worker"):
        read(SCALED + "workers = [0]\n")


def test_threads_per_worker_scale_by_their_rule(read):
    content = (
        "[cluster]\nthreads_per_worker = 28\n" + MERGE
        + 'scaling = { rows = "linear", threads_per_worker = "linear" }\n'
    )  # fmt: skip
    for scale, threads, rows in ((1.0, 28, 1000), (0.25, 7, 250), (0.01, 1, 10)):
        (case,) = read(content, scale=scale).cases
        assert (case.cluster.threads_per_worker, case.params["rows"]) == (threads, rows)


def test_the_device_auto_is_replaced_by_the_detected_one(read, monkeypatch):
    content = '[cluster]\ndevice = "auto"\n' + MERGE
    for name in ("gpu", "cpu"):
        monkeypatch.setattr(device, "detect", lambda name=name, **_: name)
        assert read(content).cases[0].cluster.device == name


def test_an_unknown_published_figure_is_refused_with_the_known_ones(read):
    assert read('reproduces = "mpi4dask.frontera"\n' + MERGE).reproduces == "mpi4dask.frontera"
    with pytest.raises(UsageError) as error:
        read('reproduces = "mpi4dask.fronterra"\n' + MERGE)
    for text in ("my.toml", "did you mean 'mpi4dask.frontera'?", "rapids_blog.message_1GB"):
        assert text in str(error.value)
