import pytest

from commbench.errors import UsageError, VerificationError
from commbench.workloads.all_to_all import AllToAll
from commbench.workloads.workload import Context


def work(*sizes, n_workers=3, seed=1):
    """Return the workload with these sizes."""
    context = Context(n_workers=n_workers, device="cpu", seed=seed)
    return AllToAll(AllToAll.Params(sizes=sizes), context)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda block: block[:-1], r"came as ndarray of shape \(999,\)"),
        (lambda block: block.astype("u2"), "should be 1000 B"),
        (lambda block: block.tobytes(), "came as bytes of shape None"),
        (lambda _: None, "came as NoneType"),
    ],
    ids=["short", "wide", "bytes", "nothing"],
)
def test_a_block_that_arrived_wrong_is_caught(spoil, words):
    with pytest.raises(VerificationError, match=words):
        work(1000).verify(1, 1000, spoil(work(1000).block(1, 1000)))


@pytest.mark.parametrize(
    ("sizes", "n_workers", "words"),
    [
        ((), 2, "sizes is empty"),
        ((0,), 2, "a size of 0 B"),
        ((5, -1), 2, "a size of -1 B"),
        ((5, 6, 5), 2, "names a size twice"),
        ((5,), 1, "one worker has no other to fetch from; --workers 2"),
    ],
)
def test_parameters_out_of_range_are_refused(sizes, n_workers, words):
    with pytest.raises(UsageError, match=words):
        work(*sizes, n_workers=n_workers)
