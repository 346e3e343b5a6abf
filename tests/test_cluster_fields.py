"""A field of the cluster is said once: options, suites, labels and ids follow."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest

from commbench import cluster_options
from commbench.model import Case, ClusterSpec
from commbench.model.plan import _setting
from commbench.workloads.merge import Merge
from commbench.workloads.pingpong import PingPong


@dataclasses.dataclass(frozen=True, kw_only=True)
class Larger(ClusterSpec):
    """A cluster with one more field."""

    memory_limit: str = _setting("", "--memory-limit", "Of each worker.", none="none")


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
