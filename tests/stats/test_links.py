import builders
import pytest
from builders import address, transfer

from commbench.stats.links import link_classes

CASE = builders.case()


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        ("tcp://10.0.0.1:40000", "tcp://10.0.0.1:40001", "same host"),
        ("tcp://10.0.0.1:40000", "tcp://10.0.0.2:40000", "network"),
        ("ucx://[fe80::1]:40000", "ucx://[fe80::1]:40001", "same host"),
        ("ucx://[fe80::1]:40000", "ucx://[fe80::2]:40000", "network"),
        ("mpi://127.0.0.1:40000", "mpi://127.0.0.1:40001", "same host"),
        ("tls://node-1:40000", "tls://node-2:40000", "network"),
        ("inproc://10.0.0.1/4711/1", "inproc://10.0.0.1/4711/2", "same process"),
        ("inproc://10.0.0.1/4711/1", "inproc://10.0.0.1/4712/1", "same host"),
        ("tcp://[broken", "tcp://10.0.0.1:40001", "network"),
    ],
)
def test_link_class_by_host_of_the_addresses(one, other, link, recorded):
    records = [address(CASE, "0", one), address(CASE, "1", other)]
    pairs = [transfer(CASE, 0, 1), transfer(CASE, 0, 1, src="1", dst="0")]
    run = recorded([CASE], [*records, *pairs])
    assert link_classes(run.transfers, run).tolist() == [link, link]


def test_link_class_without_addresses_is_unknown(recorded):
    other = builders.case("ucx")
    records = [address(other, "0"), address(other, "1"), transfer(CASE, 0, 1)]
    run = recorded([CASE, other], records)
    assert link_classes(run.transfers, run).tolist() == ["unknown"]
    assert link_classes(run.transfers.iloc[:0], run).tolist() == []


def test_link_class_is_unknown_where_launches_disagree(recorded):
    records = [transfer(CASE, 0, 1)]
    for launch, where in enumerate(["tcp://10.0.0.1:40000", "tcp://10.0.0.2:40000"]):
        records.append(address(CASE, "0", "tcp://10.0.0.1:40001", launch=launch))
        records.append(address(CASE, "1", where, launch=launch))
    run = recorded([CASE], records)
    assert link_classes(run.transfers, run).tolist() == ["unknown"]
