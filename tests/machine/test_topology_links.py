"""The class of the link between two workers follows from where they are."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import place

from commbench.machine.topology import link_class, parse, rank
from commbench.model import WorkerPlace
from commbench.stats.links import link_classes

CASE = builders.case()
DGX1 = Path(__file__).parents[1] / "topology/dgx1.txt"
NVLINK_GPUS = {"gpu_links": "GPU0=NV2 GPU1=NV1 GPU2=PIX"}


def at(worker: str = "0", **given: Any) -> WorkerPlace:
    """Return a place of that worker."""
    found = place(CASE, worker, **given)
    assert isinstance(found, WorkerPlace)
    return found


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        ({"pid": 7}, {"pid": 7}, "same process"),
        ({"pid": 7, "host_id": "a"}, {"pid": 7, "host_id": "b"}, "network"),
        ({}, {}, "same NUMA"),
        ({}, {"numa_nodes": "1", "sockets": "1"}, "cross-socket"),
        ({}, {"numa_nodes": "1", "sockets": "0"}, "same socket"),
        ({}, {"numa_nodes": "1", "sockets": ""}, "cross-socket"),
        ({"numa_nodes": "0-1"}, {"numa_nodes": "0-1"}, "same host"),
        ({"numa_nodes": "0"}, {"numa_nodes": "0-1"}, "same host"),
        ({"numa_nodes": ""}, {"numa_nodes": ""}, "same host"),
        ({"numa_nodes": "many"}, {}, "same host"),
        ({}, {"numa_nodes": "1", "sockets": "x"}, "same host"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "0"}, "NV2"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "2", "numa_nodes": "1"}, "PIX"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "3"}, "same GPU"),
        ({"gpu": "3"} | NVLINK_GPUS, {"gpu": "7"}, "same host"),
        ({"gpu": "3"} | NVLINK_GPUS, {}, "same NUMA"),
        ({"gpu": "0"}, {"gpu": "0", "host_id": "other"}, "network"),
        ({"host": "a", "host_id": "x"}, {"host": "a", "host_id": "y"}, "network"),
    ],
)
def test_two_places_have_a_class(one: dict[str, Any], other: dict[str, Any], link: str) -> None:
    """Process, GPU, NUMA node, socket, host and network are told apart."""
    assert link_class(at("0", **one), at("1", **other)) == link


def test_every_pair_of_a_dgx1s_gpus(recorded: Any) -> None:
    """Eight workers with a GPU each have the classes of the published matrix, all 56 ways."""
    matrix = parse(DGX1.read_text())
    gpus = [f"GPU{i}" for i in range(8)]
    case = builders.case(n_workers=8)
    records = []
    for number, gpu in enumerate(gpus):
        links = " ".join(f"{other}={matrix.links[gpu, other]}" for other in gpus if other != gpu)
        records.append(place(case, str(number), gpu=str(number), gpu_links=links))
    pairs = list(permutations("01234567", 2))
    records += [builders.transfer(case, 0, 1, src=src, dst=dst) for src, dst in pairs]
    run = recorded([case], records)
    found = link_classes(run.transfers, run).tolist()
    assert found == [matrix.links[f"GPU{src}", f"GPU{dst}"] for src, dst in pairs]
    assert {*found} == {"NV1", "NV2", "SYS"}


def test_classes_sort_from_near_to_far() -> None:
    """More NVLinks come first, then PCIe, then the host, then the network."""
    links = ["network", "same rack", "SYS", "NV1", "PIX", "same NUMA", "NV12", "same host"]
    assert sorted(links, key=rank) == [
        "NV12", "NV1", "PIX", "SYS", "same NUMA", "same host", "same rack", "network",
    ]  # fmt: skip


def test_classes_of_a_run_use_its_racks(recorded: Any) -> None:
    """Racks that the run knows by a host's name or address join its workers."""
    records = [
        place(CASE, "0", host="n01", host_id="a"), place(CASE, "1", host="n02", host_id="b"),
        builders.address(CASE, "0", "tcp://10.0.0.1:1"),
        builders.address(CASE, "1", "tcp://10.0.0.2:1"),
        builders.transfer(CASE, 0, 1),
    ]  # fmt: skip

    def classes(racks: dict[str, tuple[str, ...]]) -> list[str]:
        run = recorded([CASE], records, racks=racks)
        return link_classes(run.transfers, run).tolist()

    assert classes({}) == ["network"]
    assert classes({"r": ("n0*",)}) == ["same rack"]
    assert classes({"r": ("n01", "10.0.0.2")}) == ["same rack"]
    assert classes({"r": ("n01",), "s": ("n02",)}) == ["network"]


def test_a_run_without_places_uses_addresses(recorded: Any) -> None:
    """The reference runs know hosts, and racks by their addresses."""
    records = [
        builders.address(CASE, "0", "tcp://10.0.0.1:1"),
        builders.address(CASE, "1", "tcp://10.0.0.2:1"),
        builders.transfer(CASE, 0, 1),
    ]
    run = recorded([CASE], records, racks={"r": ("10.0.0.*",)})
    assert link_classes(run.transfers, run).tolist() == ["same rack"]


def test_addresses_of_one_host_do_not_make_it_two(recorded: Any) -> None:
    """Workers that listen on different interfaces of a host, as on a DGX, are on one host."""
    records = [
        place(CASE, "0", numa_nodes="0-1"), place(CASE, "1", numa_nodes="0-1"),
        builders.address(CASE, "0", "ucx://10.0.1.1:1"),
        builders.address(CASE, "1", "ucx://10.0.2.1:1"),
        builders.transfer(CASE, 0, 1),
    ]  # fmt: skip
    run = recorded([CASE], records)
    assert link_classes(run.transfers, run).tolist() == ["same host"]


def test_two_hosts_of_one_kind_are_judged_alike(recorded: Any) -> None:
    """Equal places within two hosts give equal classes, whatever tells the hosts apart."""
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
    run = recorded([case], records)
    assert link_classes(run.transfers, run).tolist() == ["NV4", "NV4", "network", "network"]


def test_launches_that_place_a_pair_differently_leave_it_unknown(recorded: Any) -> None:
    """What was one link in the first launch and another in the second has no class."""
    records = [builders.transfer(CASE, 0, 1)]
    for launch, node in enumerate("01"):
        records += [place(CASE, "0", launch=launch)]
        records += [place(CASE, "1", launch=launch, numa_nodes=node, sockets=node)]
    run = recorded([CASE], records)
    assert link_classes(run.transfers, run).tolist() == ["unknown"]


def test_the_process_ids_of_launches_do_not_matter(recorded: Any) -> None:
    """Fresh processes at the same places are on the same link."""
    records = [builders.transfer(CASE, 0, 1)]
    for launch in range(3):
        records += [
            dataclasses.replace(at(worker, launch=launch), pid=100 * launch + int(worker))
            for worker in "01"
        ]
    run = recorded([CASE], records)
    assert link_classes(run.transfers, run).tolist() == ["same NUMA"]
