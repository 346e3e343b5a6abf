"""Which kind of link joins two workers, as far as their addresses tell."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData

UNKNOWN = "unknown"


def link_classes(table: pd.DataFrame, run: RunData) -> pd.Series[str]:
    """Return for each row of `table`, by its case_id, src and dst, the class of the pair's link.

    Returns
    -------
    Series
        ``same process``, ``same host`` or ``other host``; ``unknown`` where the run does not tell
        the addresses, or the launches put the pair on different kinds of link.
    """
    import pandas as pd

    launches = run.addresses.assign(
        host=[_host(address) for address in run.addresses["address"]],
        process=[_process(address) for address in run.addresses["address"]],
    )[["case_id", "launch", "worker", "host", "process"]]
    pairs = table[["case_id", "src", "dst"]].drop_duplicates()
    ends = pairs.merge(launches.rename(columns={"worker": "src"}), on=["case_id", "src"]).merge(
        launches.rename(columns={"worker": "dst"}), on=["case_id", "launch", "dst"]
    )
    ends["link"] = "other host"
    ends.loc[ends["host_x"] == ends["host_y"], "link"] = "same host"
    inside = (ends["process_x"] == ends["process_y"]) & (ends["process_x"] != "")
    ends.loc[inside, "link"] = "same process"
    grouped = ends.groupby(["case_id", "src", "dst"])["link"]
    classes = grouped.min().where(grouped.min() == grouped.max(), UNKNOWN)
    places = pd.MultiIndex.from_frame(table[["case_id", "src", "dst"]])
    found = classes.reindex(places).fillna(UNKNOWN)
    return found.set_axis(table.index).astype("str")


def hosts(run: RunData) -> set[str]:
    """Return the hosts of all workers whose addresses the run tells."""
    return {_host(address) for address in run.addresses["address"]}


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or address
    except ValueError:
        return address


def _process(address: str) -> str:
    """Return the process of an ``inproc://host/pid/number`` address, or nothing.

    Examples
    --------
    >>> _process("inproc://10.0.0.1/4711/1"), _process("tcp://10.0.0.1:8786")
    ('10.0.0.1/4711', '')
    """
    scheme, _, place = address.partition("://")
    return place.rpartition("/")[0] if scheme == "inproc" else ""
