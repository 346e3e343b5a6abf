import pytest

from commbench.mpi.spin_policy import MAX_S, MIN_S, SOON_S, SpinPolicy


@pytest.mark.parametrize(
    ("waits_s", "spin_s", "immediate"),
    [
        ([], 0, False),
        ([SOON_S / 3], 0, True),
        ([SOON_S / 3] * 2, MIN_S, True),
        ([MAX_S / 4] * 2, MAX_S / 2, False),
        ([0.9 * MAX_S] * 2, MAX_S, False),
        ([SOON_S, SOON_S, 0.5], 0, False),
        ([0.5] * 100, 0, False),
    ],
)
def test_receiver_spins_after_two_quick_answers_until_a_late_one(
    waits_s: list[float], spin_s: float, immediate: bool
) -> None:
    policy = SpinPolicy()
    for waited_s in waits_s:
        policy.update(waited_s)
    assert (policy.spin_s, policy.immediate) == (spin_s, immediate)
