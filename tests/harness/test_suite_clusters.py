"""A suite's cases go to the cluster that the command line names, and are otherwise the file's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask_clusters
import pytest
from click.testing import CliRunner, Result

from commbench.cli.main import main
from commbench.harness.suite import read_suite
from commbench.model import ClusterSpec, registry

FOLDER = Path(__file__).parents[2] / "suites"
PAIRS_ALONE = ("mpi4dask-pingpong", "ucx-py-message-1gb")
WITH_CLUSTERS = sorted({path.stem for path in FOLDER.glob("*.toml")} - {*PAIRS_ALONE})
SLURM = (
    "--launcher",
    "slurm",
    "--launcher-option",
    "memory=8GB",
    "--launcher-option",
    "queue=ours",
)
OWN = """
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


def run(path: Path, output: Path, *arguments: str | Path) -> Result:
    """Run a suite with its results in `output`."""
    words = ["run", path, "--output", output, *arguments]
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a suite that has a launcher of its own."""
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_every_shipped_suite_becomes_jobs(name: str, tmp_path: Path) -> None:
    """Each case on a cluster has a script with what was given and its threads; pairs have none."""
    pytest.importorskip("dask_jobqueue")
    path = FOLDER / f"{name}.toml"
    result = run(path, tmp_path, *SLURM, "--scale", "1", "--launches", "1", "--dry-run")
    assert result.exit_code == 0, result.output
    cases = read_suite(path, {"scale": 1.0}).cases
    clusters = [case.cluster for case in cases if case.workload != "pingpong"]
    scripts = result.stdout.split("#!/usr/bin/env bash")[1:]
    assert all("#SBATCH -p ours" in script for script in scripts)
    found = sorted(
        int(script.partition("--nthreads ")[2].split()[0]) for script in scripts
    )  # fmt: skip
    assert found == sorted(cluster.threads_per_worker for cluster in clusters)
    n_pairs = len(cases) - len(clusters)
    assert result.stderr.count("two processes here, no job") == n_pairs
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_nothing_but_the_launcher_changes(name: str) -> None:
    """With --launcher ssh a case has the file's workers, threads and parameters, and the hosts."""
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


def test_what_is_given_wins_over_the_file(own: Path) -> None:
    """Options of the same launcher win one by one; another launcher takes none of the file's."""

    def cluster(**given: Any) -> ClusterSpec:
        return read_suite(own, {"cluster": given}).cases[0].cluster

    same = cluster(launcher_options={"queue": "ours"})
    assert same.launcher == "slurm"
    assert same.launcher_options == {"memory": "8GB", "queue": "ours"}
    assert (same.n_workers, same.start_timeout_s) == (3, 50.0)
    assert cluster(launcher="slurm", start_timeout_s=40.0) == replace(
        cluster(), start_timeout_s=40.0
    )
    assert cluster(launcher="local") == ClusterSpec(n_workers=3, start_timeout_s=50.0)


def test_options_of_gpus_are_for_cases_that_work_on_one(tmp_path: Path) -> None:
    """A case on the CPU keeps its cluster, and pairs of processes on GPUs have a pool, too."""
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
    ("name", "arguments", "says"),
    [
        ("mpi4dask-pingpong", SLURM, "--launcher, --launcher-option: no case of the suite"),
        ("mpi4dask-pingpong", ("--start-timeout", "9"), "--start-timeout: no case of the suite"),
        ("mpi4dask-merge", ("--hosts", "a,b"), "the launcher local takes no --hosts"),
        ("mpi4dask-merge", ("--launcher", "ssh"), "ssh needs --hosts with at least two"),
        ("mpi4dask-merge", ("--launcher", "shh"), "unknown launcher 'shh' (did you mean 'ssh'?)"),
        ("mpi4dask-merge", ("--launcher", "slurm", "--start-timeout", "400"), "and the whole"),
        ("mpi4dask-merge", (*SLURM, "--scheduler-address", "tcp://a:1"), "slurm takes no"),
        ("mpi4dask-merge", (*SLURM, "--launcher-option", "que=x"), "slurm has no option 'que'"),
        ("mpi4dask-merge", (*SLURM, "--placement", "auto"), "slurm takes no --placement"),
        ("mpi4dask-merge", ("--scheduler-address", "a", "--scheduler-file", "b"), "give one"),
        ("mpi4dask-merge", ("--workers-per-gpu", "2"), "--workers-per-gpu: no case of the suite"),
        ("mpi4dask-merge", ("--rmm-async",), "--rmm-async: no case of the suite"),
        (
            "mpi4dask-merge",
            ("--launcher", "external", "--scheduler-address", "tcp://a:1", "--backends", "tcp"),
            "the running cluster of tcp://a:1 has one size, and the cases ask for 2 workers of 1 "
            "threads and for 3 of 1",
        ),
    ],
)
def test_nonsense_is_refused_before_anything_starts(
    name: str, arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """The complaint has the option and what it is for, as with a workload."""
    monkeypatch.setattr("commbench.workloads.device.detect", lambda: "cpu")
    result = run(FOLDER / f"{name}.toml", tmp_path / "results", *arguments)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.stderr.split())
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_a_suite_is_measured_on_a_running_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published SVD runs, small, on the four workers that somebody else started."""
    names: Callable[[str], list[str]] = registry.names
    monkeypatch.setattr(registry, "names", lambda kind: [] if kind == "plot" else names(kind))
    output = tmp_path / "results"
    with dask_clusters.started(tmp_path, 4) as cluster:
        result = run(
            FOLDER / "ucx-dgx-svd.toml", output, "--scale", "0.1%", "--backends", "tcp",
            "--launches", "1", "--iterations", "1", "--launcher", "external",
            "--scheduler-file", cluster.file,
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    (path,) = output.iterdir()
    told = json.loads(CliRunner().invoke(main, ["report", str(path), "--format", "json"]).stdout)
    assert {row["src"] for row in told["transports"]} == {f"their-{n}" for n in range(4)}
    assert any("one running cluster" in warning for warning in told["warnings"])
    (stored,) = json.loads((path / "run.json").read_text())["suite"]["cases"]
    assert stored["cluster"]["scheduler"] == str(cluster.file)
