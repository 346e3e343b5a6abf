"""What the kernel counts per core is read for the right cores, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commbench.machine import cores, environment

STAT = """\
cpu  1 1 1 1 1 1 1 1 0 0
cpu0 100 10 20 5000 7 3 4 50 9 9
cpu2 200 0 0 5000 0 0 0 0 0 0
cpu12 1000 0 0 0 0 0 0 900 0 0
intr 5 5
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a folder as the kernel shows one."""
    (tmp_path / "stat").write_text(STAT)
    return tmp_path


def test_busy_and_stolen_time_are_summed_over_the_cores_that_are_asked_for(proc: Path) -> None:
    """User, nice, system and interrupts are busy; idling and waiting for disks are not."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert cores.times([0], proc) == pytest.approx((137 * tick_s, 50 * tick_s))
    assert cores.times({0, 2}, proc) == pytest.approx((337 * tick_s, 50 * tick_s))


@pytest.mark.parametrize("text", [None, "", "cpu0 1 2 3\n"])
def test_what_the_kernel_does_not_tell_is_unknown(text: str | None, tmp_path: Path) -> None:
    """Without the file, a core's line or its numbers there is no answer, and no 0."""
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert cores.times([0], tmp_path) is None


def test_a_core_that_is_off_line_is_unknown(proc: Path) -> None:
    """Cores are known by number, not by their place in the list."""
    assert cores.times([0, 1], proc) is None


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ({"usable_cores": 8, "cgroup_quota_cores": "unlimited"}, 8),
        ({"usable_cores": 8, "cgroup_quota_cores": 2.5}, 2.5),
        ({"usable_cores": 8, "cgroup_quota_cores": None}, 8),
        ({}, None),
    ],
)
def test_usable_cores_are_the_tightest_limit(cpu: dict[str, object], expected: float) -> None:
    """A quota below the allowed cores counts; what is unknown does not."""
    assert cores.usable(cpu) == expected


def test_the_clock_has_a_step() -> None:
    """Two readings differ by nanoseconds or more, and by less than a millisecond."""
    assert 1e-9 <= environment.timer_resolution() < 1e-3


def test_a_coarse_clock_has_a_coarse_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where most readings are equal, the step is what the others differ by."""
    readings = iter(range(10**6))
    monkeypatch.setattr(environment.time, "perf_counter", lambda: 0.01 * (next(readings) // 50))
    assert environment.timer_resolution() == pytest.approx(0.01)


def test_a_clock_that_stands_has_the_step_that_it_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without two different readings nothing else is known."""
    monkeypatch.setattr(environment.time, "perf_counter", lambda: 1.0)
    assert (
        environment.timer_resolution() == environment.time.get_clock_info("perf_counter").resolution
    )
