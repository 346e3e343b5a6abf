"""A process works on the first GPU in CUDA_VISIBLE_DEVICES, and each worker gets another one."""

import pytest

from commbench.errors import UsageError
from commbench.machine import gpu
from commbench.model import ClusterSpec, Placement

pytestmark = pytest.mark.usefixtures("two_gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def orders(variables):
    """Return what each process has in CUDA_VISIBLE_DEVICES."""
    return [each.get(VISIBLE, "") for each in variables]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, ("0", "1")),
        ("1, 0", ("1", "0")),
        ("", ()),
        ("-1", ()),
        ("1,7,0", ("1",)),
        ("0,0", ("0",)),
        ("GPU-b,GPU-aaaa", ("GPU-b", "GPU-aaaa")),
        ("MIG-1111,MIG-2222", ("MIG-1111", "MIG-2222")),
    ],
)
def test_visible_gpus_end_at_the_first_missing_or_repeated_one(text, names):
    assert gpu.devices({} if text is None else {VISIBLE: text}) == names


def test_each_worker_sees_another_gpu_first():
    variables = gpu.env_for_workers(ClusterSpec(n_workers=2, device="gpu"), {})
    assert orders(variables) == ["0,1", "1,0"]
    assert {each["CUDA_DEVICE_ORDER"] for each in variables} == {"PCI_BUS_ID"}
    names = {VISIBLE: "GPU-bbbb,GPU-aaaa"}
    variables = gpu.env_for_workers(ClusterSpec(n_workers=2, device="gpu"), names)
    assert orders(variables) == ["GPU-bbbb,GPU-aaaa", "GPU-aaaa,GPU-bbbb"]


def test_workers_that_share_gpus_fill_the_first_one_first():
    spec = ClusterSpec(n_workers=3, device="gpu", workers_per_gpu=2)
    assert orders(gpu.env_for_workers(spec, {})) == ["0,1", "0,1", "1,0"]
    assert orders(gpu.env_for_workers(spec, {VISIBLE: "1,0"})) == ["1,0", "1,0", "0,1"]


@pytest.mark.parametrize(
    ("n_workers", "per_gpu", "environ", "says"),
    [
        (3, 1, {}, r"3 processes need 3 GPUs, one each, and 2 are visible$"),
        (5, 2, {}, r"need 3 GPUs, one for 2 \(--workers-per-gpu\), and 2 are visible$"),
        (2, 1, {VISIBLE: "1"}, r"and 1 is visible \(CUDA_VISIBLE_DEVICES=1\)$"),
    ],
)
def test_more_workers_than_gpus_is_an_error(n_workers, per_gpu, environ, says):
    spec = ClusterSpec(n_workers=n_workers, device="gpu", workers_per_gpu=per_gpu)
    with pytest.raises(UsageError, match=says):
        gpu.env_for_workers(spec, environ)


def test_the_gpu_of_a_placement_wins():
    placement = (Placement(gpu=1), Placement(gpu=1), Placement(cpus="0"))
    spec = ClusterSpec(n_workers=2, device="gpu", placement=placement[:2])
    assert orders(gpu.env_for_workers(spec, {})) == ["1,0", "1,0"]
    spec = ClusterSpec(n_workers=2, device="gpu", placement=placement[1:])
    assert orders(gpu.env_for_workers(spec, {})) == ["1,0", "1,0"]
    visible = {VISIBLE: "GPU-aaaa,GPU-b"}
    assert orders(gpu.env_for_workers(spec, visible)) == ["GPU-b,GPU-aaaa"] * 2
    # Which number a part of a divided GPU has is unknown.
    assert orders(gpu.env_for_workers(spec, {VISIBLE: "MIG-1111,MIG-2222"}))[0] == "1"


def test_for_host_memory_nvidia_smi_is_not_asked(monkeypatch):
    def devices(environ):
        raise AssertionError("nvidia-smi was asked")

    monkeypatch.setattr(gpu, "devices", devices)
    assert gpu.env_for_workers(ClusterSpec(n_workers=2), {}) == ({}, {})
    assert gpu.env_for_processes(ClusterSpec(), 2, {}) == ({}, {})


def test_the_gpus_of_another_host_are_counted_from_the_first():
    four = [gpu.env_for_remote_worker(number, 4, 1, {})[VISIBLE] for number in range(4)]
    assert four == ["0,1,2,3", "1,2,3,0", "2,3,0,1", "3,0,1,2"]
    assert gpu.env_for_remote_worker(3, 4, 2, {})[VISIBLE] == "1,0"
    assert gpu.env_for_remote_worker(1, 2, 1, {VISIBLE: "4,5,6"})[VISIBLE] == "5,6,4"
    with pytest.raises(UsageError, match="3 processes need 3 GPUs, one each, and 2 are visible"):
        gpu.env_for_remote_worker(0, 3, 1, {VISIBLE: "4,5"})
