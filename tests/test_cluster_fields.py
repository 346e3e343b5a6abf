"""A field of the cluster is said once: options, suites, labels and ids follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import click
import pytest

from commbench import cluster_options
from commbench.analysis.run import Run
from commbench.model import Case, ClusterSpec, Placement
from commbench.model.plan import _field
from commbench.stats.selection import settings_of
from commbench.workloads.merge import Merge
from commbench.workloads.pingpong import PingPong


@dataclasses.dataclass(frozen=True, kw_only=True)
class Larger(ClusterSpec):
    """A cluster with one more field."""

    memory_limit: str = _field("", "--memory-limit", "Of each worker.", none="none")


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, click.Parameter]:
    """Return the options of a merge, and use the larger cluster for the rest of the test."""
    monkeypatch.setattr(cluster_options, "ClusterSpec", Larger)
    return {option.name or "": option for option in cluster_options.of_workload(Merge)}


def parsed(options: dict[str, click.Parameter], *arguments: str) -> dict[str, Any]:
    """Return what click makes of these arguments."""
    command = click.Command("run", params=list(options.values()))
    return command.make_context("run", list(arguments)).params


def test_a_new_field_has_an_option(options: dict[str, click.Parameter]) -> None:
    """With its help and default; for a suite it has none."""
    assert options["memory_limit"].to_info_dict()["help"] == "Of each worker."
    assert cluster_options.cluster(parsed(options)) == Larger()
    given = parsed(options, "--memory-limit", "4GB", "--device", "cpu", "--workers", "3")
    assert cluster_options.cluster(given) == Larger(n_workers=3, memory_limit="4GB")
    in_suites = {option.name: option for option in cluster_options.of_suite()}
    assert in_suites["memory_limit"].default is None


def test_a_new_field_is_part_of_what_is_measured() -> None:
    """It has a word in labels, and changes the id of a case where it is given, and only there."""
    plain, limited = (
        Case(workload="merge", backend="tcp", cluster=cluster)
        for cluster in (Larger(), Larger(memory_limit="4GB"))
    )
    assert plain.id == Case(workload="merge", backend="tcp").id != limited.id
    assert limited.cluster.words()["memory_limit"] == "4GB"
    assert plain.cluster.words()["memory_limit"] == ""


def test_a_pair_takes_no_options_of_a_cluster() -> None:
    """It has two processes of this host, whatever fields there are."""
    names = {option.name for option in cluster_options.of_workload(PingPong)}
    assert names == {"device", *ClusterSpec.settings("gpu")}


WHOLE = ClusterSpec(
    n_workers=3, threads_per_worker=2, device="gpu", launcher="mine", hosts=("a", "b"),
    env={"A": "1"}, launcher_options={"queue": "short"}, placement=(Placement(cpus="0"),),
    workers_per_gpu=2, rmm_pool="1GB", rmm_async=True, rmm_managed=True,
)  # fmt: skip


def test_the_order_of_words_stays() -> None:
    """Histories of asv and names in pyperf rest on it."""
    assert settings_of(Case(workload="merge", backend="tcp", cluster=WHOLE)) == (
        "workers=3, threads=2, device=gpu, launcher=mine, hosts=a,b, queue=short, "
        "placement=CPUs 0, rmm=pool 1GB async managed, workers_per_gpu=2, A=1, iterations=3, "
        "warmups=1"
    )


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(ClusterSpec)])
def test_cases_that_differ_in_one_field_have_names_of_their_own(
    name: str, recorded: Callable[..., Run]
) -> None:
    """If it says what is measured: the word is in the one that has it."""
    if not ClusterSpec.settings()[name].is_measured:
        pytest.skip("it says where a cluster is found, or how patiently")
    other = dataclasses.replace(ClusterSpec(), **{name: getattr(WHOLE, name)})
    cases = [Case(workload="merge", backend="tcp", cluster=c) for c in (ClusterSpec(), other)]
    plain, labelled = recorded(cases).case_labels.values()
    assert labelled.startswith("merge (")
    assert plain != labelled
    assert "{}" not in plain
    assert "launcher_option" not in plain
