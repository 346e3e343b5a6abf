"""The suites in suites/ reproduce the published figures, also on machines without the hardware."""

import json
import re
from pathlib import Path

import pytest
from processes import invoke, report, usage_error

from commbench.harness.cases import make_workload
from commbench.harness.suite import read_suite
from commbench.machine import environment
from commbench.model import published, registry
from commbench.workloads import device
from commbench.workloads.workload import Context

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


def run(figure, output, *arguments):
    path = FOLDER / f"{SUITES[figure]}.toml"
    once = ("--launches", 1, "--iterations", 1)
    arguments = ("--output", output, *once, *arguments)
    return invoke("run", path, *arguments, figures=("published",), rules=())


def test_docs_count_the_cases_without_gpu_and_infiniband():
    page = (FOLDER.parent / "docs" / "suites.md").read_text(encoding="utf-8")
    counts = {}
    for figure, name in SUITES.items():
        needs = [{*case.backend.replace(":", "+").split("+")} for case in suite(figure).cases]
        bare = [names for names in needs if not names & {"nvlink", "ib"}]
        counts[name] = f"{len(bare)} of {len(needs)}"
    in_docs = re.findall(r"^\| `([\w-]+)\.toml` .* \| (\d+ of \d+) \|$", page, re.MULTILINE)
    assert dict(in_docs) == counts


@pytest.mark.parametrize("figure", ["rapids_blog.merge_dgx1", "mpi4dask.frontera"])
def test_run_of_a_suite_is_compared_with_the_published_figure(figure, tmp_path, simulated):
    result = run(figure, tmp_path, "--backends", "fake", "--scale", "0.1%", "--warmups", 0)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.iterdir()
    assert (path / "figures" / "published.png").exists()
    stored = json.loads((path / "run.json").read_text())["suite"]
    assert (stored["reproduces"], stored["scale"]) == (figure, 0.001)
    assert "at 0.1 % of its full size" in result.stdout
    title = published.published_figure(figure).title
    assert f"Compared with the published figure: {title}" in " ".join(result.stdout.split())
    shown = report(path)
    assert (shown["run"]["reproduces"], shown["run"]["scale"]) == (figure, 0.001)
    assert len(shown["published"]) >= len(published.published_figure(figure).values)
    assert not any(row["comparable"] for row in shown["published"])


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
        "To have it: run on a machine with InfiniBand or RoCE",
        "backend ucx:nvlink+ib is unavailable: no NVIDIA GPU is visible",
        "To go on with 2 of 5 cases, over tcp, ucx:tcp: --skip-unavailable",
    ):
        assert message in error
    assert error.count("ucx:ib is") == 1


def test_unavailable_backend_is_skipped_once_for_all_cases(tmp_path, bare, simulated):
    arguments = ("--backends", "fake,ucx:ib", "--scale", 0.001, "--skip-unavailable")
    result = run("mpi4dask.merge_ri2", tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("skipped: backend ucx:ib is unavailable") == 1
    assert "(5 cases)" in result.stderr
    (path,) = tmp_path.glob("2*")
    assert "left out by --skip-unavailable: backend ucx:ib" in (path / "report.md").read_text()
    assert "not measured in this run" in " ".join(result.stdout.split())


def test_a_run_with_every_backend_skipped_is_refused(tmp_path, bare):
    arguments = ("--backends", "ucx:ib", "--skip-unavailable")
    result = run("mpi4dask.merge_ri2", tmp_path / "results", *arguments)
    assert "no backend is left to measure" in usage_error(result)
    assert not (tmp_path / "results").exists()


def test_case_in_gpu_memory_needs_a_gpu(tmp_path, bare):
    path = tmp_path / "gpu.toml"
    path.write_text('[cluster]\ndevice = "gpu"\n[[case]]\nworkload = "merge"\n')
    error = usage_error(invoke("run", path, "--output", tmp_path / "results"))
    assert "device gpu is unavailable: no NVIDIA GPU is visible" in error
    assert "Nothing else is left to measure" in error


def test_suite_measures_gpu_memory_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "detect", lambda **_: "gpu")
    for figure in SUITES:
        for value in published.published_figure(figure).values:
            over = [case for case in suite(figure, scale=1).cases if case.backend == value.backend]
            assert value.device in {case.cluster.device for case in over}
        if figure != "ucx_dgx_blog.transpose":
            assert {case.cluster.device for case in suite(figure).cases} == {"gpu"}
