"""The suites in suites/ reproduce the published figures, also on machines without the hardware."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import builders
import pytest
from processes import draw_only, invoke, usage_error

from commbench.harness import runner
from commbench.harness.cases import make_workload
from commbench.harness.suite import read_suite
from commbench.machine import environment
from commbench.model import published, registry
from commbench.workloads import device
from commbench.workloads.base import Context

FOLDER = Path(__file__).parents[2] / "suites"
SUITES = {
    "rapids_blog.merge_dgx1": "ucx-py-merge",
    "rapids_blog.message_1GB": "ucx-py-message-1gb",
    "ucx_dgx_blog.transpose": "ucx-dgx-transpose",
    "ucx_dgx_blog.svd": "ucx-dgx-svd",
    "mpi4dask.pingpong": "mpi4dask-pingpong",
    "mpi4dask.transpose_ri2": "mpi4dask-transpose",
    "mpi4dask.merge_ri2": "mpi4dask-merge",
    "mpi4dask.frontera": "mpi4dask-scaling",
}


def suite(figure, **overrides):
    """Return the suite that reproduces `figure`."""
    return read_suite(FOLDER / f"{SUITES[figure]}.toml", overrides)


def transposes(suite):
    return [case for case in suite.cases if case.workload == "transpose-sum"]


def payload(case):
    """Return the bytes that the case's workload counts."""
    kind = registry.load("workload", case.workload)
    context = Context(n_workers=case.cluster.n_workers, device="cpu", seed=0)
    return int(kind(kind.Params(**case.params), context).payload_bytes)


def test_every_published_figure_has_a_suite():
    assert list(SUITES) == published.names()
    for figure in SUITES:
        assert suite(figure).reproduces == figure


@pytest.mark.parametrize("name", registry.suites())
def test_every_case_of_a_suite_has_parameters_that_its_workload_takes(name):
    suite = read_suite(FOLDER / f"{name}.toml")
    assert suite.name == name
    assert [make_workload(case).name for case in suite.cases]


@pytest.mark.parametrize("figure", SUITES)
def test_suite_has_a_case_for_each_published_value(figure):
    cases = suite(figure, scale=1).cases
    for value in published.published_figure(figure).values:
        for backend in filter(None, (value.backend, value.over)):
            over = [case for case in cases if case.backend == backend]
            if value.workload:
                over = [case for case in over if case.workload == value.workload]
            assert over, backend
            if value.workers:
                assert {*value.workers} <= {case.cluster.n_workers for case in over}
            if value.message_bytes:
                assert {*value.message_bytes} <= {*over[0].params["sizes"]}
            if value.layer:
                layers = {name for case in over for name in case.params.get("layers", ())}
                assert value.layer in layers


def test_transposes_have_the_published_sizes():
    import dask.array as da

    for case in suite("mpi4dask.transpose_ri2", scale=1).cases:
        assert case.params == {"size": 16_000, "chunk": 4_000, "operation": "persist"}
        assert case.cluster.threads_per_worker == 28
        assert payload(case) == 2_048_000_000
    for case in transposes(suite("ucx_dgx_blog.transpose", scale=1)):
        assert case.params == {"size": 40_000, "chunk": 4_096, "operation": "sum"}
    (rows, _) = da.core.normalize_chunks("128 MiB", (40_000, 40_000), dtype="f8")
    assert rows[0] == 4_096


def test_merges_have_the_published_bytes_per_worker():
    ri2 = suite("mpi4dask.merge_ri2", scale=1).cases
    assert {case.params["rows"] for case in ri2} == {100_000_000}
    assert {case.params["frac_match"] for case in ri2} == {0.3}
    assert {case.params["shuffle"] for case in ri2} == {"tasks"}
    payloads = {case.cluster.n_workers: payload(case) for case in ri2}
    assert payloads == {n: 3_200_000_000 * n for n in (2, 3, 4, 5, 6)}
    frontera = [c for c in suite("mpi4dask.frontera", scale=1).cases if c.workload == "merge"]
    payloads = {case.cluster.n_workers: payload(case) for case in frontera}
    assert payloads == {n: 1_600_000_000 * n for n in (1, 2, 4, 8, 16, 32)}
    assert {case.cluster.threads_per_worker for case in frontera} == {8}


def test_svd_and_messages_have_the_published_sizes():
    for case in suite("ucx_dgx_blog.svd", scale=1).cases:
        assert case.params == {"rows": 1_000_000, "columns": 1_000, "chunk_rows": 10_000}
        assert case.cluster.n_workers == 4
    for case in suite("rapids_blog.message_1GB", scale=1).cases:
        assert [*case.params["sizes"]] == [10**9]
    assert {c.cluster.n_workers for c in suite("rapids_blog.merge_dgx1", scale=1).cases} == {8}


@pytest.mark.parametrize("figure", SUITES)
def test_default_scale_fits_a_laptop(figure):
    small, full = suite(figure), suite(figure, scale=1)
    assert small.scale < 1 == full.scale
    assert len(small.cases) <= len(full.cases)
    alike = {(case.workload, case.backend, case.cluster.n_workers) for case in full.cases}
    for case in small.cases:
        assert (case.workload, case.backend, case.cluster.n_workers) in alike
        assert case.cluster.n_workers <= 8
        if case.workload == "pingpong":
            assert max(case.params["sizes"]) <= 100_000_000
            continue
        assert case.cluster.threads_per_worker == 1
        assert payload(case) < 500_000_000


@pytest.mark.parametrize("scale", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("figure", SUITES)
def test_scale_is_a_share_of_the_bytes(figure, scale):
    def key(case):
        layers = str(case.params.get("layers"))
        return case.workload, case.backend, case.cluster.n_workers, case.cluster.device, layers

    full = {key(case): case for case in suite(figure, scale=1).cases}
    for case in suite(figure, scale=scale).cases:
        other = full[key(case)]
        if case.workload == "pingpong":
            largest = max(other.params["sizes"])
            assert 0.5 * scale <= max(case.params["sizes"]) / largest <= scale
        else:
            assert payload(case) / payload(other) == pytest.approx(scale, rel=0.03)


def test_scaled_arrays_keep_the_number_of_chunks():
    for scale in (0.001, 0.03, 0.7):
        for figure, n in (("mpi4dask.transpose_ri2", 4), ("ucx_dgx_blog.transpose", 10)):
            for case in transposes(suite(figure, scale=scale)):
                assert math.ceil(case.params["size"] / case.params["chunk"]) == n
        for case in suite("ucx_dgx_blog.svd", scale=scale).cases:
            assert case.params["rows"] == 100 * case.params["chunk_rows"]
            assert case.params["chunk_rows"] == 10 * case.params["columns"]


def run(figure, output, *arguments):
    path = FOLDER / f"{SUITES[figure]}.toml"
    once = ("--launches", 1, "--iterations", 1)
    return invoke("run", path, "--output", output, *once, *arguments)


def test_docs_count_the_cases_without_gpu_and_infiniband():
    page = (FOLDER.parent / "docs" / "suites.md").read_text(encoding="utf-8")
    counts = {}
    for figure, name in SUITES.items():
        needs = [{*case.backend.replace(":", "+").split("+")} for case in suite(figure).cases]
        bare = [names for names in needs if not names & {"nvlink", "ib"}]
        counts[name] = f"{len(bare)} of {len(needs)}"
    in_docs = re.findall(r"^\| `([\w-]+)\.toml` .* \| (\d+ of \d+) \|$", page, re.MULTILINE)
    assert dict(in_docs) == counts


@pytest.fixture
def published_figure_only(monkeypatch):
    draw_only(monkeypatch, "published")


@pytest.fixture
def simulated(monkeypatch, published_figure_only):
    """Simulate launches in this process."""
    monkeypatch.setattr(runner, "run_plan", builders.simulate_plan)


@pytest.mark.parametrize("figure", ["rapids_blog.merge_dgx1", "mpi4dask.frontera"])
def test_run_of_a_suite_is_compared_with_the_published_figure(figure, tmp_path, simulated):
    result = run(figure, tmp_path, "--backends", "fake", "--scale", "0.1%", "--warmups", 0)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.iterdir()
    stored = json.loads((path / "run.json").read_text())["suite"]
    assert (stored["reproduces"], stored["scale"]) == (figure, 0.001)
    assert "at 0.1 % of its full size" in result.stdout
    title = published.published_figure(figure).title
    assert f"Compared with the published figure: {title}" in " ".join(result.stdout.split())
    report = json.loads(invoke("report", path, "--format", "json").stdout)
    assert (report["run"]["reproduces"], report["run"]["scale"]) == (figure, 0.001)
    assert len(report["published"]) >= len(published.published_figure(figure).values)
    assert not any(row["comparable"] for row in report["published"])


def test_messages_over_tcp_are_compared_with_nvlink(tmp_path, published_figure_only):
    arguments = ("--backends", "tcp", "--scale", "0.1%", "--warmups", 0)
    result = run("rapids_blog.message_1GB", tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.iterdir()
    assert (path / "figures" / "published.png").stat().st_size > 10_000
    report = json.loads(invoke("report", path, "--format", "json").stdout)
    here = {(row["backend"], row["layer"]): row["here"] for row in report["published"]}
    assert here["tcp", "coroutine"] > 1e6
    assert here["tcp", "comm"] > 1e6
    assert here["ucx:nvlink", ""] is None
    assert "46.5 GB/s" in result.stdout


@pytest.fixture
def bare(monkeypatch):
    """Make this a machine without GPU and InfiniBand."""
    monkeypatch.setattr(environment, "gpus", lambda: [])
    monkeypatch.setattr(environment, "rdma_devices", lambda *_: [])


def test_absent_hardware_is_reported_for_each_backend(tmp_path, bare):
    error = usage_error(run("rapids_blog.merge_dgx1", tmp_path / "results"))
    assert not (tmp_path / "results").exists()
    for message in (
        "backend ucx:tcp+nvlink is unavailable: no NVIDIA GPU is visible",
        "backend ucx:ib is unavailable: no RDMA device is present",
        "backend ucx:nvlink+ib is unavailable: no NVIDIA GPU is visible",
        "To go on with 2 of 5 cases, over tcp, ucx:tcp: --skip-unavailable",
    ):
        assert message in error
    assert error.count("ucx:ib is") == 1


def test_cases_that_can_be_measured_are_counted(tmp_path, bare):
    error = usage_error(run("rapids_blog.message_1GB", tmp_path / "results"))
    assert "To go on with 3 of 5 cases, over tcp, ucx:tcp, ucx:shm: --skip-unavailable" in error


def test_unavailable_backend_is_skipped_once_for_all_cases(tmp_path, bare, simulated):
    arguments = ("--backends", "fake,ucx:ib", "--scale", 0.001, "--skip-unavailable")
    result = run("mpi4dask.merge_ri2", tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("skipped: backend ucx:ib is unavailable") == 1
    assert "(5 cases)" in result.stderr
    assert "not measured in this run" in " ".join(result.stdout.split())


def test_case_in_gpu_memory_needs_a_gpu(tmp_path, bare):
    path = tmp_path / "gpu.toml"
    path.write_text('[cluster]\ndevice = "gpu"\n[[case]]\nworkload = "merge"\n')
    error = usage_error(invoke("run", path, "--output", tmp_path / "results"))
    assert "device gpu is unavailable: no NVIDIA GPU is visible" in error
    assert "Nothing else is left to measure" in error


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "1.5", "200%", "much"])
def test_bad_scale_is_refused(scale, tmp_path):
    result = run("mpi4dask.merge_ri2", tmp_path / "results", f"--scale={scale}")
    assert "scale" in usage_error(result)
    assert not (tmp_path / "results").exists()


def test_suite_measures_gpu_memory_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "detect", lambda: "gpu")
    for figure in SUITES:
        for value in published.published_figure(figure).values:
            over = [case for case in suite(figure, scale=1).cases if case.backend == value.backend]
            assert value.device in {case.cluster.device for case in over}
        if figure != "ucx_dgx_blog.transpose":
            assert {case.cluster.device for case in suite(figure).cases} == {"gpu"}
