from __future__ import annotations

from commbench.mpi.spin_policy import MAX_S, MIN_S, SOON_S, SpinPolicy


def learned(*waits: float) -> SpinPolicy:
    """Return what these waits have taught."""
    policy = SpinPolicy()
    for waited in waits:
        policy.update(waited)
    return policy


def test_nobody_looks_at_first():
    """A new conversation rests until it is rung for, and so does one with a single answer."""
    assert learned().spin_s == 0.0
    assert learned(SOON_S / 3).spin_s == 0.0


def test_quick_answers_are_looked_for():
    """After two of them the next is looked for, within a turn where they are quick enough."""
    hot = learned(SOON_S / 3, SOON_S / 3)
    assert hot.spin_s == MIN_S
    assert hot.immediate
    slower = learned(MAX_S / 4, MAX_S / 4)
    assert slower.spin_s == MAX_S / 2
    assert not slower.immediate


def test_looking_is_bounded():
    """Nobody looks for longer than the bound."""
    assert learned(0.9 * MAX_S, 0.9 * MAX_S).spin_s == MAX_S


def test_one_long_wait_ends_it():
    """A heartbeat twice a second is never looked for."""
    assert learned(SOON_S, SOON_S, 0.5).spin_s == 0.0
    assert learned(*[0.5] * 100).spin_s == 0.0
