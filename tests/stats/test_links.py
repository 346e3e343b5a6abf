"""What addresses tell of the link between two workers."""

from __future__ import annotations

from collections.abc import Callable

import builders
import pytest
from builders import address, transfer

from commbench.analysis.run import Run
from commbench.stats.links import link_classes

Recorded = Callable[..., Run]
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
def test_the_host_in_the_address_tells(one: str, other: str, link: str, recorded: Recorded) -> None:
    """Two workers share a process, a host or neither, in both directions."""
    records = [address(CASE, "0", one), address(CASE, "1", other)]
    pairs = [transfer(CASE, 0, 1), transfer(CASE, 0, 1, src="1", dst="0")]
    run = recorded([CASE], [*records, *pairs])
    assert link_classes(run.transfers, run).tolist() == [link, link]


def test_what_no_address_tells_is_unknown(recorded: Recorded) -> None:
    """A run without addresses, or with those of other cases, knows no link."""
    other = builders.case("ucx")
    records = [address(other, "0"), address(other, "1"), transfer(CASE, 0, 1)]
    run = recorded([CASE, other], records)
    assert link_classes(run.transfers, run).tolist() == ["unknown"]
    assert link_classes(run.transfers.iloc[:0], run).tolist() == []


def test_launches_that_disagree_leave_it_unknown(recorded: Recorded) -> None:
    """A pair that was on one host in one launch and on two in another has no class."""
    records = [transfer(CASE, 0, 1)]
    for launch, where in enumerate(["tcp://10.0.0.1:40000", "tcp://10.0.0.2:40000"]):
        records.append(address(CASE, "0", "tcp://10.0.0.1:40001", launch=launch))
        records.append(address(CASE, "1", where, launch=launch))
    run = recorded([CASE], records)
    assert link_classes(run.transfers, run).tolist() == ["unknown"]
