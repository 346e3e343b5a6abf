"""What collecting costs with many workers, which are simulated: in number, not in speed."""

import pytest
from collecting import collected


@pytest.mark.slow
def test_ten_thousand_entries_of_64_workers_are_collected_in_ten_seconds(tmp_path):
    # On a machine that does nothing else, and until all of them are on disk.
    results = [collected(64, 10_000, tmp_path / str(number)) for number in range(3)]
    for result in results:
        assert result["n_records"] == result["n_stored"] == 640_000
        assert result["n_left"] == 0
        assert result["stored_bytes"] > 1_000_000
        assert result["largest_bytes"] < 3e6
        assert result["peak_bytes"] - result["begin_bytes"] < 60e6
        assert result["peak_bytes"] < 500e6
        seconds = f"{result['collect_s']:.1f} s, {result['disk_s']:.1f} s to disk"
        print(f"\n640,000 entries: {seconds}, {result['peak_bytes'] / 1e6:.0f} MB", end="")
    assert min(result["disk_s"] for result in results) < 10
