from __future__ import annotations

from commbench.mpi.spin_policy import MAX_S, MIN_S, SOON_S, SpinPolicy


def policy_after(*waits: float) -> SpinPolicy:
    """Return what these waits have taught."""
    policy = SpinPolicy()
    for waited in waits:
        policy.update(waited)
    return policy


def test_no_spin_before_two_quick_answers():
    assert policy_after().spin_s == 0.0
    assert policy_after(SOON_S / 3).spin_s == 0.0


def test_spins_after_two_quick_answers():
    hot = policy_after(SOON_S / 3, SOON_S / 3)
    assert hot.spin_s == MIN_S
    assert hot.immediate
    slower = policy_after(MAX_S / 4, MAX_S / 4)
    assert slower.spin_s == MAX_S / 2
    assert not slower.immediate


def test_spin_is_bounded():
    assert policy_after(0.9 * MAX_S, 0.9 * MAX_S).spin_s == MAX_S


def test_one_long_wait_ends_spinning():
    assert policy_after(SOON_S, SOON_S, 0.5).spin_s == 0.0
    assert policy_after(*[0.5] * 100).spin_s == 0.0
