import dataclasses
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench import model
from commbench.model import Case, ClusterSpec, Placement
from commbench.store.records import from_dict

CASE = Case(
    workload="merge",
    backend="ucx:tcp+shm",
    params={"rows": 1000, "frac_match": 0.3, "sizes": (1, 2)},
    cluster=ClusterSpec(n_workers=4, hosts=("a", "b"), env={"B": "2", "A": "1"}),
)
ID = "0fc80ca884bc"

CLUSTER_CHANGES = [
    {"n_workers": 5}, {"threads_per_worker": 2}, {"device": "gpu"}, {"launcher": "slurm"},
    {"hosts": ("b", "a")}, {"launcher_options": {"a": "1"}}, {"env": {"A": "1"}},
    {"rmm_pool": "1GB"}, {"rmm_async": True}, {"rmm_managed": True}, {"workers_per_gpu": 2},
    {"placement": (Placement(cpus="0"),)}, {"placement": (Placement(cpus="1"),)},
]  # fmt: skip
CHANGES = [
    {"workload": "svd"}, {"backend": "ucx:shm"}, {"params": {**CASE.params, "rows": 1001}},
    {"params": {**CASE.params, "rows": "1000"}}, {"params": {**CASE.params, "more": 0}},
    *({"cluster": dataclasses.replace(CASE.cluster, **change)} for change in CLUSTER_CHANGES),
]  # fmt: skip
NOT_IN_ID = {
    "launches": 7,
    "iterations": 9,
    "warmups": 0,
    "seed": 3,
    "timeout_s": 1.0,
    "varied": ("threads",),
    "later_params": ("of another workload",),
}


def test_the_id_does_not_depend_on_version_or_process():
    # ID is of the version that the first results were published with.
    assert CASE.id == ID
    code = f"from commbench.model import *; print({CASE!r}.id)"
    environment = {**os.environ, "PYTHONHASHSEED": "4242"}
    output = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert output.strip() == ID


def test_what_is_measured_changes_the_id():
    ids = {CASE.id, *(dataclasses.replace(CASE, **change).id for change in CHANGES)}
    assert len(ids) == 1 + len(CHANGES)


def test_replication_does_not_change_the_id():
    for field, value in NOT_IN_ID.items():
        changed = dataclasses.replace(CASE, **{field: value})
        assert changed != CASE
        assert changed.id == CASE.id


@pytest.mark.parametrize("where", [{"scheduler": "tcp://a:1"}, {"start_timeout_s": 1.0}])
def test_the_address_of_a_cluster_does_not_change_the_id(where):
    changed = dataclasses.replace(CASE, cluster=dataclasses.replace(CASE.cluster, **where))
    assert changed.id == CASE.id


@given(st.permutations(sorted(CASE.params)), st.permutations(sorted(CASE.cluster.env)))
def test_the_id_does_not_depend_on_the_order_of_keys(params, env):
    cluster = dataclasses.replace(CASE.cluster, env={key: CASE.cluster.env[key] for key in env})
    params_here = {key: CASE.params[key] for key in params}
    assert dataclasses.replace(CASE, params=params_here, cluster=cluster).id == CASE.id


def test_every_field_of_a_case_is_known_to_change_the_id_or_not():
    known = {*NOT_IN_ID, "workload", "backend", "params", "cluster"}
    assert {field.name for field in dataclasses.fields(Case)} == known
    assert all("info" in field.metadata for field in dataclasses.fields(ClusterSpec))


def test_a_launch_is_the_same_after_json():
    placement = (Placement(cpus="0-3", gpu=1), Placement(nic="eth0"))
    case = dataclasses.replace(CASE, cluster=dataclasses.replace(CASE.cluster, placement=placement))
    launch = model.Launch(case=case, index=3, block=2, position=1)
    arrived = from_dict(json.loads(json.dumps(dataclasses.asdict(launch))), model.Launch)
    assert arrived.case.id == case.id
    assert (arrived.index, arrived.block, arrived.position) == (3, 2, 1)
    assert arrived.case.cluster == case.cluster
    assert arrived.case.timeout_s == CASE.timeout_s
