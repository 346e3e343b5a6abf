import builders
import pytest
from builders import place

from commbench.machine.topology.workers import link_class, rank
from commbench.model import ClusterSpec
from commbench.stats.links import link_classes

CASE = builders.case()
NVLINK_GPUS = {"gpu_links": "GPU0=NV2 GPU1=NV1 GPU2=PIX"}


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        ({"host_id": "a"}, {"host_id": "b"}, "network"),
        ({}, {}, "same NUMA"),
        ({}, {"numa_nodes": "1", "sockets": "1"}, "cross-socket"),
        ({}, {"numa_nodes": "1", "sockets": "0"}, "same socket"),
        ({}, {"numa_nodes": "1", "sockets": ""}, "same host"),
        ({"numa_nodes": "0-1"}, {"numa_nodes": "0-1"}, "same host"),
        ({"numa_nodes": "0"}, {"numa_nodes": "0-1"}, "same host"),
        ({"numa_nodes": ""}, {"numa_nodes": ""}, "same host"),
        ({"numa_nodes": "many"}, {}, "same host"),
        ({}, {"numa_nodes": "1", "sockets": "x"}, "same host"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "0"}, "NV2"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "2", "numa_nodes": "1"}, "PIX"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "3"}, "same GPU"),
        ({"gpu": "0", "gpu_uuid": "a"}, {"gpu": "0", "gpu_uuid": "a"}, "same GPU"),
        ({"gpu": "0", "gpu_uuid": "a"}, {"gpu": "0", "gpu_uuid": "b"}, "same host"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "7"}, "same host"),
        ({"gpu": "3"} | NVLINK_GPUS, {}, "same NUMA"),
        ({"gpu": "0"}, {"gpu": "0", "host_id": "other"}, "network"),
        ({"host": "a", "host_id": "x"}, {"host": "a", "host_id": "y"}, "network"),
    ],
)
def test_the_link_class_of_two_workers(one, other, link):
    assert link_class(place(CASE, "0", **one), place(CASE, "1", **other)) == link


def test_link_classes_sort_from_near_to_far():
    links = ["network", "same rack", "SYS", "NV1", "PIX", "same NUMA", "NV12", "same host"]
    assert sorted(links, key=rank) == [
        "NV12", "NV1", "PIX", "SYS", "same NUMA", "same host", "same rack", "network",
    ]  # fmt: skip


@pytest.fixture
def classes(recorded):
    """Return a function that returns the classes of the links of all transfers of a run."""

    def classes(records, case=CASE, **fields):
        run = recorded([case], records, **fields)
        return link_classes(run.transfers, run).tolist()

    return classes


ADDRESSED = [
    builders.address(CASE, "0", "tcp://10.0.0.1:1"),
    builders.address(CASE, "1", "tcp://10.0.0.2:1"),
    builders.transfer(CASE, 0, 1),
]


@pytest.mark.parametrize(
    ("racks", "link"),
    [
        ({}, "network"),
        ({"r": ("n0*",)}, "same rack"),
        ({"r": ("n01", "10.0.0.2")}, "same rack"),
        ({"r": ("n01",), "s": ("n02",)}, "network"),
    ],
)
def test_racks_contain_host_names_and_addresses(racks, link, classes):
    hosts = [
        place(CASE, "0", host="n01", host_id="a"), place(CASE, "1", host="n02", host_id="b"),
    ]  # fmt: skip
    assert classes([*hosts, *ADDRESSED], racks=racks) == [link]


def test_racks_contain_addresses_in_runs_without_worker_places(classes):
    assert classes(ADDRESSED, racks={"r": ("10.0.0.*",)}) == ["same rack"]


def test_two_addresses_of_one_host_are_the_same_host(classes):
    # As on a DGX, where each worker listens on another interface.
    places = [place(CASE, worker, numa_nodes="0-1") for worker in "01"]
    assert classes([*places, *ADDRESSED]) == ["same host"]


def test_equal_gpus_on_two_hosts_have_equal_link_classes(classes):
    case = builders.case(n_workers=4)
    records = []
    for worker in range(4):
        host, gpu = divmod(worker, 2)
        records.append(
            place(
                case, str(worker), host_id=str(host), gpu=str(gpu), gpu_uuid=f"GPU-{worker}",
                gpu_links=f"GPU{1 - gpu}=NV4", numa_nodes=str(gpu),
            )
        )  # fmt: skip
    pairs = [("0", "1"), ("2", "3"), ("0", "2"), ("1", "2")]
    records += [builders.transfer(case, 0, 1, src=src, dst=dst) for src, dst in pairs]
    assert classes(records, case) == ["NV4", "NV4", "network", "network"]


def test_a_pair_with_two_classes_in_two_launches_is_unknown(classes):
    records = [builders.transfer(CASE, 0, 1)]
    for launch, node in enumerate("01"):
        records.append(place(CASE, "0", launch=launch))
        records.append(place(CASE, "1", launch=launch, numa_nodes=node, sockets=node))
    assert classes(records) == ["unknown"]


def test_jobs_that_each_see_one_gpu_as_gpu_0_do_not_share_it(classes):
    case = builders.case(cluster=ClusterSpec(n_workers=3))
    uuids = ("a", "b", "a")
    records = [place(case, str(n), gpu="0", gpu_uuid=uuid) for n, uuid in enumerate(uuids)]
    records += [builders.transfer(case, 0, 1, src="0", dst=dst) for dst in "12"]
    assert classes(records, case) == ["same host", "same GPU"]


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        ("tcp://10.0.0.1:40000", "tcp://10.0.0.1:40001", "same host"),
        ("tcp://10.0.0.1:40000", "tcp://10.0.0.2:40000", "network"),
        ("ucx://[fe80::1]:40000", "ucx://[fe80::1]:40001", "same host"),
        ("ucx://[fe80::1]:40000", "ucx://[fe80::2]:40000", "network"),
        ("mpi://127.0.0.1:40000", "mpi://127.0.0.1:40001", "same host"),
        ("tls://node-1:40000", "tls://node-2:40000", "network"),
        ("tcp://[broken", "tcp://10.0.0.1:40001", "network"),
    ],
)
def test_the_link_class_by_the_hosts_of_two_addresses(one, other, link, classes):
    records = [builders.address(CASE, "0", one), builders.address(CASE, "1", other)]
    pairs = [builders.transfer(CASE, 0, 1), builders.transfer(CASE, 0, 1, src="1", dst="0")]
    assert classes([*records, *pairs]) == [link, link]


def test_the_link_class_without_addresses_is_unknown(recorded):
    other = builders.case("ucx")
    records = [builders.address(other, name) for name in "01"]
    run = recorded([CASE, other], [*records, builders.transfer(CASE, 0, 1)])
    assert link_classes(run.transfers, run).tolist() == ["unknown"]
    assert link_classes(run.transfers.iloc[:0], run).tolist() == []
