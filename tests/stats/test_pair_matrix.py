"""The bandwidth between workers comes as arrays with names and units."""

from __future__ import annotations

import sys
from collections.abc import Callable

import builders
import numpy as np
import pytest

import commbench
from commbench import stats
from commbench.analysis.run import Run
from commbench.errors import UnavailableError

Recorded = Callable[..., Run]


def several(recorded: Recorded) -> Run:
    """Return a run of two backends over twelve workers, of which few exchange anything."""
    cases = [builders.case(name, n_workers=12) for name in ("ucx", "tcp")]
    records = [
        builders.transfer(case, 0.0, seconds, src=src, dst=dst)
        for case in cases
        for src, dst, seconds in (("0", "10", 0.5), ("0", "10", 1.0), ("10", "2", 2.0))
    ]
    return recorded(cases, records)


def test_the_matrix_has_what_the_table_has(recorded: Recorded) -> None:
    """Every pair of the report is in its place, case by case."""
    run = several(recorded)
    matrix = commbench.pair_matrix(run)
    assert matrix["q50_Bps"].dims == ("case", "channel", "src", "dst")
    for row in stats.pairs(run).itertuples():
        cell = matrix.sel(case=row.case_id, channel=row.channel, src=row.src, dst=row.dst)
        for name in ("n", "bytes", "q25_Bps", "q50_Bps", "q75_Bps", "mean_Bps", "busy_Bps"):
            assert cell[name].item() == getattr(row, name)
    fastest = matrix.sel(channel="gather", src="0", dst="10")
    assert fastest["q50_Bps"].values.tolist() == [12e6, 12e6]
    assert fastest["bytes"].values.tolist() == [16_000_000] * 2


def test_names_are_in_the_order_of_suite_and_workers(recorded: Recorded) -> None:
    """Cases keep the suite's order and know their backend; worker 10 comes after worker 2."""
    matrix = commbench.pair_matrix(several(recorded))
    assert matrix["backend"].values.tolist() == ["ucx", "tcp"]
    assert matrix["workload"].values.tolist() == ["merge", "merge"]
    assert matrix["src"].values.tolist() == matrix["dst"].values.tolist() == ["0", "2", "10"]


def test_a_pair_without_a_transfer_has_no_bandwidth(recorded: Recorded) -> None:
    """Nothing was counted there, and nothing is known of its bandwidth."""
    matrix = commbench.pair_matrix(several(recorded))
    idle = matrix.sel(channel="gather", src="2", dst="0")
    assert idle["n"].values.tolist() == idle["bytes"].values.tolist() == [0, 0]
    assert np.isnan(idle["q50_Bps"].values).all()
    assert matrix["n"].dtype == "int64"


def test_units_are_told(recorded: Recorded) -> None:
    """Every array names its unit, and the whole says which transfers count."""
    matrix = commbench.pair_matrix(several(recorded))
    assert {name: matrix[name].attrs["units"] for name in ("bytes", "q25_Bps", "n")} == {
        "bytes": "B", "q25_Bps": "B/s", "n": "1",
    }  # fmt: skip
    assert matrix.attrs["min_transfer_bytes"] == 1_000_000


def test_a_run_without_transfers_has_an_empty_matrix(recorded: Recorded) -> None:
    """There are no pairs then, and no error either; a path will do as well."""
    run = recorded([builders.case()])
    assert commbench.pair_matrix(run.path)["q50_Bps"].shape == (0, 0, 0, 0)


def test_a_missing_xarray_is_told(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra that brings it."""
    run = several(recorded)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(UnavailableError, match=r"pip install 'commbench\[xarray\]'"):
        commbench.pair_matrix(run)
