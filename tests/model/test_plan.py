"""A case's id is the same wherever and whenever the same thing is measured, and only then."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench import model
from commbench.model import Case, ClusterSpec, Placement, Summary
from commbench.store.directory import decode_launch

CASE = Case(
    workload="merge",
    backend="ucx:tcp+shm",
    params={"rows": 1000, "frac_match": 0.3, "sizes": (1, 2)},
    cluster=ClusterSpec(n_workers=4, hosts=("a", "b"), env={"B": "2", "A": "1"}),
)
ID = "0fc80ca884bc"

CHANGES = {
    "workload": {"workload": "svd"},
    "backend": {"backend": "ucx:shm"},
    "a parameter": {"params": {**CASE.params, "rows": 1001}},
    "a parameter's type": {"params": {**CASE.params, "rows": "1000"}},
    "one more parameter": {"params": {**CASE.params, "more": 0}},
    "workers": {"cluster": dataclasses.replace(CASE.cluster, n_workers=5)},
    "threads": {"cluster": dataclasses.replace(CASE.cluster, threads_per_worker=2)},
    "device": {"cluster": dataclasses.replace(CASE.cluster, device="gpu")},
    "launcher": {"cluster": dataclasses.replace(CASE.cluster, launcher="slurm")},
    "hosts": {"cluster": dataclasses.replace(CASE.cluster, hosts=("b", "a"))},
    "launcher options": {"cluster": dataclasses.replace(CASE.cluster, launcher_options={"a": "1"})},
    "environment": {"cluster": dataclasses.replace(CASE.cluster, env={"A": "1"})},
    "placement": {"cluster": dataclasses.replace(CASE.cluster, placement=(Placement(cpus="0"),))},
    "another placement": {
        "cluster": dataclasses.replace(CASE.cluster, placement=(Placement(cpus="1"),))
    },
    "RMM's pool": {"cluster": dataclasses.replace(CASE.cluster, rmm_pool="1GB")},
    "RMM's allocator": {"cluster": dataclasses.replace(CASE.cluster, rmm_async=True)},
    "managed memory": {"cluster": dataclasses.replace(CASE.cluster, rmm_managed=True)},
    "shared GPUs": {"cluster": dataclasses.replace(CASE.cluster, workers_per_gpu=2)},
}
REPLICATION = {"launches": 7, "iterations": 9, "warmups": 0, "seed": 3, "timeout_s": 1.0}


def test_the_id_of_a_case_outlives_versions() -> None:
    """The id that this case had when the first results were published is its id today."""
    assert CASE.id == ID


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_the_id_does_not_depend_on_the_process(hash_seed: str) -> None:
    """A process with another hash seed finds the same id for the same case."""
    code = f"from commbench.model import *; print({CASE!r}.id)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    found = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert found.strip() == CASE.id


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_is_measured_changes_the_id(change: dict[str, Any]) -> None:
    """A case that measures anything else has another id."""
    assert dataclasses.replace(CASE, **change).id != CASE.id


@pytest.mark.parametrize("field", REPLICATION)
def test_how_often_it_is_measured_does_not_change_the_id(field: str) -> None:
    """Replication, seed and deadline leave the id alone."""
    changed = dataclasses.replace(CASE, **{field: REPLICATION[field]})
    assert changed != CASE
    assert changed.id == CASE.id


@pytest.mark.parametrize("where", [{"scheduler": "tcp://a:1"}, {"start_timeout_s": 1.0}])
def test_where_a_cluster_is_found_does_not_change_the_id(where: dict[str, Any]) -> None:
    """Another address of a running cluster, or more patience, is no other thing to measure."""
    changed = dataclasses.replace(CASE, cluster=dataclasses.replace(CASE.cluster, **where))
    assert changed.id == CASE.id


@given(st.permutations(sorted(CASE.params)), st.permutations(sorted(CASE.cluster.env)))
def test_the_id_does_not_depend_on_the_order_of_keys(params: list[str], env: list[str]) -> None:
    """Parameters and variables may be named in any order."""
    cluster = dataclasses.replace(CASE.cluster, env={key: CASE.cluster.env[key] for key in env})
    params_here = {key: CASE.params[key] for key in params}
    assert dataclasses.replace(CASE, params=params_here, cluster=cluster).id == CASE.id


def test_every_field_of_a_case_was_judged() -> None:
    """A new field of Case needs a decision whether it changes the id; ClusterSpec's say it."""
    judged = {*REPLICATION, "workload", "backend", "params", "cluster"}
    assert {field.name for field in dataclasses.fields(Case)} == judged
    assert all("info" in field.metadata for field in dataclasses.fields(ClusterSpec))


def test_a_launch_survives_its_way_to_the_child_process() -> None:
    """A launch that went through JSON is the launch, with the same case id."""
    placement = (Placement(cpus="0-3", gpu=1), Placement(nic="eth0"))
    case = dataclasses.replace(CASE, cluster=dataclasses.replace(CASE.cluster, placement=placement))
    launch = model.Launch(case=case, index=3, block=2, position=1)
    arrived = decode_launch(json.loads(json.dumps(dataclasses.asdict(launch))))
    assert arrived.case.id == case.id
    assert (arrived.index, arrived.block, arrived.position) == (3, 2, 1)
    assert arrived.case.cluster == case.cluster
    assert arrived.case.timeout_s == CASE.timeout_s


@pytest.mark.parametrize("record", builders.every_kind(CASE), ids=lambda r: type(r).__name__)
def test_records_do_not_change(record: Any) -> None:
    """A record, once written, can't be touched up."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.case_id = "another"


@pytest.mark.parametrize(("median_s", "throughput"), [(2.0, 50.0), (0.0, math.nan)])
def test_throughput_is_payload_over_the_median(median_s: float, throughput: float) -> None:
    """Bytes over seconds, and no number where there were no seconds."""
    numbers = dict.fromkeys((f.name for f in dataclasses.fields(Summary)), 0)
    summary = Summary(**{**numbers, "payload_bytes": 100, "median_s": median_s})
    assert summary.throughput_Bps == pytest.approx(throughput, nan_ok=True)
