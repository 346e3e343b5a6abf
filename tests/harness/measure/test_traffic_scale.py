"""What collecting costs with many workers, which are simulated: in number, not in speed."""

from __future__ import annotations

import pytest
from collecting import collected


def test_ten_thousand_entries_of_64_workers_take_little_memory(tmp_path):
    found = collected(64, 10_000, tmp_path)
    assert found["n_records"] == found["n_stored"] == 640_000
    assert found["n_left"] == 0
    assert found["stored_bytes"] > 1e6
    assert found["largest_bytes"] < 3e6
    assert found["peak_bytes"] - found["begin_bytes"] < 60e6
    assert found["peak_bytes"] < 500e6


@pytest.mark.slow
def test_ten_thousand_entries_of_64_workers_are_collected_in_ten_seconds(tmp_path):
    found = [collected(64, 10_000, tmp_path / str(number)) for number in range(3)]
    for one in found:
        seconds = f"{one['collect_s']:.1f} s, {one['disk_s']:.1f} s to disk"
        print(f"\n640,000 entries: {seconds}, {one['peak_bytes'] / 1e6:.0f} MB", end="")
    assert min(one["disk_s"] for one in found) < 10
