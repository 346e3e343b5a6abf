"""The bandwidth of every pair of workers as a labelled array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.errors import UnavailableError
from commbench.stats.pairs import pairs

if TYPE_CHECKING:
    import xarray as xr

    from commbench.analysis.run import Run

_PLACE = ["case", "channel", "src", "dst"]
_COUNTS = ("n", "bytes", "n_untimed")
_ATTRIBUTES = {
    "n": {"long_name": "transfers", "units": "1"},
    "bytes": {"long_name": "bytes of these transfers, in memory", "units": "B"},
    "q25_Bps": {"long_name": "lower quartile of single transfers' bandwidth", "units": "B/s"},
    "q50_Bps": {"long_name": "median of single transfers' bandwidth", "units": "B/s"},
    "q75_Bps": {"long_name": "upper quartile of single transfers' bandwidth", "units": "B/s"},
    "mean_Bps": {"long_name": "bytes over the sum of durations", "units": "B/s"},
    "busy_Bps": {"long_name": "bytes over the time with a transfer under way", "units": "B/s"},
    "concurrency": {"long_name": "transfers under way at once, on average", "units": "1"},
    "n_untimed": {"long_name": "transfers whose clock stood or went back", "units": "1"},
}


def pair_matrix(run: Run) -> xr.Dataset:
    """Return what ``pairs`` does, as arrays of shape (case, channel, src, dst).

    Raises
    ------
    UnavailableError
        Where xarray is not installed.
    """
    try:
        import xarray as xr
    except ImportError:
        raise UnavailableError(
            "pair_matrix", "the package xarray is not installed", "pip install 'commbench[xarray]'"
        ) from None
    table = pairs(run).rename(columns={"case_id": "case"})
    names = {place: list(dict.fromkeys(table[place])) for place in _PLACE}
    workers = sorted({*names["src"], *names["dst"]}, key=lambda name: (len(name), name))
    cases = table.drop_duplicates("case").set_index("case")
    matrix = xr.Dataset.from_dataframe(table.set_index(_PLACE)[list(_ATTRIBUTES)])
    matrix = matrix.reindex({**names, "src": workers, "dst": workers})
    for name, attributes in _ATTRIBUTES.items():
        if name in _COUNTS:
            matrix[name] = matrix[name].fillna(0).astype("int64")
        matrix[name].attrs = attributes
    described = {
        name: ("case", cases[name].reindex(names["case"]).to_numpy(dtype=object))
        for name in ("workload", "backend")
    }
    return matrix.assign_coords(described).assign_attrs(
        run=run.manifest.id, min_transfer_bytes=run.manifest.min_transfer_bytes
    )
