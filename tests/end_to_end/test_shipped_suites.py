"""The suites of the published figures ask for what was published, and run where it isn't there."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from commbench.cli.main import main
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
    return read_suite(FOLDER / f"{SUITES[figure]}.toml", overrides)


def arrays(suite):
    return [case for case in suite.cases if case.workload == "transpose-sum"]


def payload(case):
    kind = registry.load("workload", case.workload)
    context = Context(n_workers=case.cluster.n_workers, device="cpu", seed=0)
    return int(kind(kind.Params(**case.params), context).payload_bytes)


def test_every_published_figure_has_a_suite():
    assert list(SUITES) == published.names()
    for figure in SUITES:
        assert suite(figure).reproduces == figure


@pytest.mark.parametrize("figure", SUITES)
def test_a_suite_measures_what_was_published(figure):
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
                found = {name for case in over for name in case.params.get("layers", ())}
                assert value.layer in found


def test_the_transposes_are_those_of_the_paper_and_the_post():
    import dask.array as da

    for case in suite("mpi4dask.transpose_ri2", scale=1).cases:
        assert case.params == {"size": 16_000, "chunk": 4_000, "operation": "persist"}
        assert case.cluster.threads_per_worker == 28
        assert payload(case) == 2_048_000_000
    for case in arrays(suite("ucx_dgx_blog.transpose", scale=1)):
        assert case.params == {"size": 40_000, "chunk": 4_096, "operation": "sum"}
    (rows, _) = da.core.normalize_chunks("128 MiB", (40_000, 40_000), dtype="f8")
    assert rows[0] == 4_096


def test_the_merges_have_the_papers_bytes_per_worker():
    ri2 = suite("mpi4dask.merge_ri2", scale=1).cases
    assert {case.params["rows"] for case in ri2} == {100_000_000}
    assert {case.params["frac_match"] for case in ri2} == {0.3}
    assert {case.params["shuffle"] for case in ri2} == {"tasks"}
    found = {case.cluster.n_workers: payload(case) for case in ri2}
    assert found == {n: 3_200_000_000 * n for n in (2, 3, 4, 5, 6)}
    frontera = [c for c in suite("mpi4dask.frontera", scale=1).cases if c.workload == "merge"]
    found = {case.cluster.n_workers: payload(case) for case in frontera}
    assert found == {n: 1_600_000_000 * n for n in (1, 2, 4, 8, 16, 32)}
    assert {case.cluster.threads_per_worker for case in frontera} == {8}


def test_the_svd_and_the_messages_are_those_of_the_posts():
    for case in suite("ucx_dgx_blog.svd", scale=1).cases:
        assert case.params == {"rows": 1_000_000, "columns": 1_000, "chunk_rows": 10_000}
        assert case.cluster.n_workers == 4
    for case in suite("rapids_blog.message_1GB", scale=1).cases:
        assert [*case.params["sizes"]] == [10**9]
    assert {c.cluster.n_workers for c in suite("rapids_blog.merge_dgx1", scale=1).cases} == {8}


@pytest.mark.parametrize("figure", SUITES)
def test_the_full_size_is_one_setting_away(figure):
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
def test_a_scale_is_a_share_of_the_bytes(figure, scale):
    full = {
        (
            c.workload,
            c.backend,
            c.cluster.n_workers,
            c.cluster.device,
            str(c.params.get("layers")),
        ): c
        for c in suite(figure, scale=1).cases
    }
    for case in suite(figure, scale=scale).cases:
        layers = str(case.params.get("layers"))
        cluster = case.cluster
        other = full[case.workload, case.backend, cluster.n_workers, cluster.device, layers]
        if case.workload == "pingpong":
            largest = max(other.params["sizes"])
            assert 0.5 * scale <= max(case.params["sizes"]) / largest <= scale
        else:
            assert payload(case) / payload(other) == pytest.approx(scale, rel=0.03)


def test_scaled_arrays_keep_their_chunks():
    for scale in (0.001, 0.03, 0.7):
        for figure, n in (("mpi4dask.transpose_ri2", 4), ("ucx_dgx_blog.transpose", 10)):
            for case in arrays(suite(figure, scale=scale)):
                assert math.ceil(case.params["size"] / case.params["chunk"]) == n
        for case in suite("ucx_dgx_blog.svd", scale=scale).cases:
            assert case.params["rows"] == 100 * case.params["chunk_rows"]
            assert case.params["chunk_rows"] == 10 * case.params["columns"]


def run(figure, output, *arguments):
    path = FOLDER / f"{SUITES[figure]}.toml"
    words = ["run", path, "--output", output, "--launches", 1, "--iterations", 1, *arguments]
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_page_counts_the_cases():
    page = (FOLDER.parent / "docs" / "suites.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `([\w-]+)\.toml` .* \| (\d+ of \d+) \|$", page, re.MULTILINE))
    found = {}
    for figure, name in SUITES.items():
        needs = [{*case.backend.replace(":", "+").split("+")} for case in suite(figure).cases]
        bare = [names for names in needs if not names & {"nvlink", "ib"}]
        found[name] = f"{len(bare)} of {len(needs)}"
    assert said == found


@pytest.fixture
def no_figures(monkeypatch):
    names = registry.names
    monkeypatch.setattr(
        registry, "names", lambda kind: ["published"] if kind == "plot" else names(kind)
    )


@pytest.mark.parametrize("figure", ["rapids_blog.merge_dgx1", "mpi4dask.frontera"])
def test_a_suite_runs_and_its_run_knows_the_figure(figure, tmp_path, no_figures):
    result = run(figure, tmp_path, "--backends", "fake", "--scale", "0.1%", "--warmups", 0)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.iterdir()
    stored = json.loads((path / "run.json").read_text())["suite"]
    assert (stored["reproduces"], stored["scale"]) == (figure, 0.001)
    assert "at 0.1 % of its full size" in result.stdout
    title = published.published_figure(figure).title
    assert f"Compared with the published figure: {title}" in " ".join(result.stdout.split())
    told = json.loads(CliRunner().invoke(main, ["report", str(path), "--format", "json"]).stdout)
    assert (told["run"]["reproduces"], told["run"]["scale"]) == (figure, 0.001)
    assert len(told["published"]) >= len(published.published_figure(figure).values)
    assert not any(row["comparable"] for row in told["published"])


def test_a_suite_runs_for_real(tmp_path, no_figures):
    arguments = ("--backends", "tcp", "--scale", "0.1%", "--warmups", 0)
    result = run("rapids_blog.message_1GB", tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.iterdir()
    assert (path / "figures" / "published.png").stat().st_size > 10_000
    told = json.loads(CliRunner().invoke(main, ["report", str(path), "--format", "json"]).stdout)
    here = {(row["backend"], row["layer"]): row["here"] for row in told["published"]}
    assert here["tcp", "coroutine"] > 1e6
    assert here["tcp", "comm"] > 1e6
    assert here["ucx:nvlink", ""] is None
    assert "46.5 GB/s" in result.stdout


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setattr(environment, "gpus", lambda: [])
    monkeypatch.setattr(environment, "rdma_devices", lambda *_: [])


def test_absent_hardware_is_told_case_by_case_with_what_can_run(tmp_path, bare):
    result = run("rapids_blog.merge_dgx1", tmp_path / "results")
    assert result.exit_code == 2
    assert not (tmp_path / "results").exists()
    for words in (
        "backend ucx:tcp+nvlink is unavailable: no NVIDIA GPU is visible",
        "backend ucx:ib is unavailable: no RDMA device is present",
        "backend ucx:nvlink+ib is unavailable: no NVIDIA GPU is visible",
        "To go on with 2 of 5 cases, over tcp, ucx:tcp: --skip-unavailable",
    ):
        assert words in result.stderr
    assert result.stderr.count("ucx:ib is") == 1


@pytest.mark.parametrize(
    ("figure", "rest"),
    [
        ("rapids_blog.message_1GB", "3 of 5 cases, over tcp, ucx:tcp, ucx:shm"),
        ("ucx_dgx_blog.transpose", "3 of 6 cases, over tcp, ucx, ucx:shm"),
        ("ucx_dgx_blog.svd", "3 of 4 cases, over tcp, ucx, ucx:shm"),
    ],
)
def test_what_the_rest_is_depends_on_the_suite(figure, rest, tmp_path, bare):
    result = run(figure, tmp_path / "results")
    assert result.exit_code == 2
    assert f"To go on with {rest}: --skip-unavailable" in result.stderr


def test_what_is_there_runs_without_the_rest(tmp_path, bare, no_figures):
    arguments = ("--backends", "fake,ucx:ib", "--scale", 0.001, "--skip-unavailable")
    result = run("mpi4dask.merge_ri2", tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("skipped: backend ucx:ib is unavailable") == 1
    assert "(5 cases)" in result.stderr
    assert "not measured in this run" in " ".join(result.stdout.split())


def test_gpu_memory_takes_a_gpu(tmp_path, bare):
    path = tmp_path / "gpu.toml"
    path.write_text('[cluster]\ndevice = "gpu"\n[[case]]\nworkload = "merge"\n')
    result = CliRunner().invoke(main, ["run", str(path), "--output", str(tmp_path / "results")])
    assert result.exit_code == 2
    assert "device gpu is unavailable: no NVIDIA GPU is visible" in result.stderr
    assert "Nothing else is left to measure" in result.stderr


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "1.5", "200%", "much"])
def test_a_bad_scale_is_told_before_anything_starts(scale, tmp_path):
    result = run("mpi4dask.merge_ri2", tmp_path / "results", f"--scale={scale}")
    assert result.exit_code == 2
    assert "scale" in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "results").exists()


def test_auto_is_settled_before_the_plan(monkeypatch):
    monkeypatch.setattr(device, "detect", lambda: "gpu")
    for figure in SUITES:
        for value in published.published_figure(figure).values:
            over = [case for case in suite(figure, scale=1).cases if case.backend == value.backend]
            assert value.device in {case.cluster.device for case in over}
        if figure != "ucx_dgx_blog.transpose":
            assert {case.cluster.device for case in suite(figure).cases} == {"gpu"}
