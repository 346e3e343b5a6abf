import dataclasses
from datetime import date
from itertools import chain

import click
import pytest

from commbench import backends
from commbench.errors import UsageError
from commbench.harness import options as run_options
from commbench.harness.cases import cases_for
from commbench.launchers.local import LocalLauncher
from commbench.model import Case, ClusterSpec, Placement
from commbench.model.plan import _field
from commbench.stats.selection import describe_settings
from commbench.workloads.merge import Merge
from commbench.workloads.pingpong import PingPong


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargerSpec(ClusterSpec):
    """A cluster with one more field."""

    disk_limit: str = _field("", "--disk-limit", "Of each worker.", none="none", example="1GB")


@pytest.fixture
def options(monkeypatch):
    """Return the options of a merge on the larger cluster."""
    monkeypatch.setattr(run_options, "ClusterSpec", LargerSpec)
    return {option.name or "": option for option in chain(*run_options.groups(Merge).values())}


def parsed(options, *arguments):
    command = click.Command("run", params=list(options.values()))
    return command.make_context("run", list(arguments)).params


def test_a_new_field_has_an_option_with_help_and_default(options):
    assert options["disk_limit"].to_info_dict()["help"] == "Of each worker."
    assert run_options.cluster(parsed(options), Merge) == LargerSpec()
    chosen = parsed(options, "--disk-limit", "4GB", "--device", "cpu", "--workers", "3")
    assert run_options.cluster(chosen, Merge) == LargerSpec(n_workers=3, disk_limit="4GB")
    in_suites = {option.name: option for option in chain(*run_options.groups().values())}
    assert in_suites["disk_limit"].default is None


def test_a_new_field_with_an_example_is_refused_by_launchers_that_do_not_support_it():
    local = LocalLauncher()
    local.validate(LargerSpec(), backends.parse("tcp"))
    with pytest.raises(UsageError, match="the launcher local takes no --disk-limit"):
        local.validate(LargerSpec(disk_limit="4GB"), backends.parse("tcp"))


def test_a_new_field_changes_labels_and_case_ids_only_where_it_is_set():
    plain, limited = (
        Case(workload="merge", backend="tcp", cluster=cluster)
        for cluster in (LargerSpec(), LargerSpec(disk_limit="4GB"))
    )
    assert plain.id == Case(workload="merge", backend="tcp").id != limited.id
    assert limited.cluster.labels()["disk_limit"] == "4GB"
    assert plain.cluster.labels()["disk_limit"] == ""


def test_pair_workloads_only_have_the_options_of_devices():
    groups = run_options.groups(PingPong)
    assert "Cluster" not in groups
    assert {option.name for option in groups["GPU"]} == {"device", *ClusterSpec.settings("gpu")}


WHOLE = ClusterSpec(
    n_workers=3, threads_per_worker=2, device="gpu", launcher="mine", hosts=("a", "b"),
    task_placement="dask", memory_limit="4GB", env={"A": "1"},
    dask_config={"distributed.comm.compression": "zlib"},
    launcher_options={"queue": "short"}, placement=(Placement(cpus="0"),),
    workers_per_gpu=2, rmm_pool="1GB", rmm_async=True, rmm_managed=True,
)  # fmt: skip


def test_the_order_of_settings_in_descriptions_is_stable():
    # Histories of asv and names in pyperf depend on it.
    assert describe_settings(Case(workload="merge", backend="tcp", cluster=WHOLE)) == (
        "workers=3, threads=2, device=gpu, launcher=mine, hosts=a,b, queue=short, "
        "placement=CPUs 0, rmm=pool 1GB async managed, workers_per_gpu=2, memory_limit=4GB, "
        "task_placement=dask, A=1, distributed.comm.compression=zlib, iterations=3, warmups=1"
    )


@pytest.mark.parametrize(
    "name", [name for name, field in ClusterSpec.settings().items() if field.is_measured]
)
def test_cases_that_differ_in_a_measured_field_have_different_labels(name, recorded):
    other = dataclasses.replace(ClusterSpec(), **{name: getattr(WHOLE, name)})
    cases = [Case(workload="merge", backend="tcp", cluster=c) for c in (ClusterSpec(), other)]
    plain, label = recorded(cases).case_labels.values()
    assert label.startswith("merge (")
    assert plain != label
    assert "{}" not in plain
    assert "launcher_option" not in plain


@pytest.mark.parametrize("text", ["lots", "0", "-1GB", "nan", "1.5.2GB", "8"])
def test_an_invalid_memory_limit_is_refused(text):
    spec = ClusterSpec(memory_limit=text)
    with pytest.raises(UsageError, match=f"memory limit of '{text}' makes no sense.*10GB.* 0.5"):
        LocalLauncher().validate(spec, backends.parse("tcp"))


def test_a_date_in_the_dask_configuration_is_refused():
    cluster = ClusterSpec(dask_config={"distributed.version": date(2026, 1, 1)})
    with pytest.raises(UsageError, match=r"distributed\.version is datetime\.date"):
        cases_for("merge", ["tcp"], {}, cluster)
