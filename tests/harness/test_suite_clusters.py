from dataclasses import replace
from pathlib import Path

import processes
import pytest

from commbench.harness.suite import read_suite
from commbench.model import ClusterSpec

FOLDER = Path(__file__).parents[2] / "suites"
WITHOUT_CLUSTERS = ("mpi4dask-pingpong", "ucx-py-message-1gb")
WITH_CLUSTERS = sorted({path.stem for path in FOLDER.glob("*.toml")} - {*WITHOUT_CLUSTERS})
SLURM = ("--launcher", "slurm", "--launcher-option", "memory=8GB",
         "--launcher-option", "queue=ours")  # fmt: skip
SUITE = """
[cluster]
n_workers = 3
start_timeout_s = 50
launcher = "slurm"
launcher_options = { memory = "8GB", queue = "theirs" }

[[case]]
workload = "merge"

[[case]]
workload = "pingpong"
cluster = { launcher = "local", launcher_options = {} }
"""


def run(path, output, *arguments):
    return processes.invoke("run", path, "--output", output, *arguments, figures=(), rules=())


@pytest.fixture
def suite_file(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(SUITE)
    return path


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_every_case_of_a_shipped_suite_has_a_job_script(name, tmp_path):
    pytest.importorskip("dask_jobqueue")
    path = FOLDER / f"{name}.toml"
    result = run(path, tmp_path, *SLURM, "--scale", "1", "--launches", "1", "--dry-run")
    assert result.exit_code == 0, result.output
    cases = read_suite(path, {"scale": 1.0}).cases
    clusters = [case.cluster for case in cases if case.workload != "pingpong"]
    scripts = result.stdout.split("#!/usr/bin/env bash")[1:]
    assert all("#SBATCH -p ours" in script for script in scripts)
    threads = [int(script.partition("--nthreads ")[2].split()[0]) for script in scripts]
    assert sorted(threads) == sorted(cluster.threads_per_worker for cluster in clusters)
    n_pairs = len(cases) - len(clusters)
    assert result.stderr.count("two processes, no job") == n_pairs
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_another_launcher_changes_nothing_else_of_a_shipped_suite(name):
    path = FOLDER / f"{name}.toml"
    given = {"launcher": "ssh", "hosts": ("a", "b"), "start_timeout_s": 90.0}
    file = read_suite(path, {"scale": 1.0}).cases
    for case, before in zip(
        read_suite(path, {"scale": 1.0, "cluster": given}).cases, file, strict=True
    ):
        on_hosts = before.workload != "pingpong"
        assert case == replace(
            before, cluster=replace(before.cluster, **given) if on_hosts else before.cluster
        )


def test_options_override_the_cluster_of_the_file(suite_file):
    def cluster(**given):
        return read_suite(suite_file, {"cluster": given}).cases[0].cluster

    same = cluster(launcher_options={"queue": "ours"})
    assert same.launcher == "slurm"
    assert same.launcher_options == {"memory": "8GB", "queue": "ours"}
    assert (same.n_workers, same.start_timeout_s) == (3, 50.0)
    assert cluster(launcher="slurm", start_timeout_s=40.0) == replace(
        cluster(), start_timeout_s=40.0
    )
    assert cluster(launcher="local") == ClusterSpec(n_workers=3, start_timeout_s=50.0)


def test_gpu_options_apply_only_to_cases_on_gpus(tmp_path):
    path = tmp_path / "gpus.toml"
    entry = '[[case]]\nworkload = "{}"\n[case.cluster]\ndevice = "{}"\n'
    kinds = [("merge", "gpu"), ("merge", "cpu"), ("pingpong", "gpu")]
    path.write_text("".join(entry.format(*kind) for kind in kinds))
    given = {"rmm_pool": "1GB", "workers_per_gpu": 2, "launcher": "ssh", "hosts": ("a", "b")}
    clusters = [case.cluster for case in read_suite(path, {"cluster": given}).cases]
    assert [(c.rmm_pool, c.workers_per_gpu, c.launcher) for c in clusters] == [
        ("1GB", 2, "ssh"), ("", 1, "ssh"), ("1GB", 2, "local"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mpi4dask-pingpong", SLURM, "--launcher, --launcher-option: no case of the suite"),
        ("mpi4dask-pingpong", ("--start-timeout", "9"), "--start-timeout: no case of the suite"),
        ("mpi4dask-merge", ("--launcher", "shh"), "unknown launcher 'shh' (did you mean 'ssh'?)"),
        ("mpi4dask-merge", ("--workers-per-gpu", "2"), "--workers-per-gpu: no case of the suite"),
        ("mpi4dask-merge", ("--rmm-async",), "--rmm-async: no case of the suite"),
        (
            "mpi4dask-merge",
            ("--launcher", "external", "--scheduler", "tcp://a:1", "--backends", "tcp"),
            "the running cluster of tcp://a:1 has one size, and the cases ask for 2 workers of 1 "
            "threads and for 3 of 1",
        ),
    ],
)
def test_invalid_options_are_usage_errors(name, arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr("commbench.workloads.device.detect", lambda **_: "cpu")
    result = run(FOLDER / f"{name}.toml", tmp_path / "results", *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "results").exists()
