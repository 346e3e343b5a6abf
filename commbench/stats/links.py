"""Which kind of link joins two workers: by the places that they told, else by their addresses."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from commbench.model import WorkerPlace
from commbench.topology import UNKNOWN, link_class, rack_of

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData

_WORKER = ["case_id", "launch", "worker"]
_PAIR = ["case_id", "src", "dst"]
_FIELDS = [field.name for field in fields(WorkerPlace)]
_KIND = ["numa_nodes", "sockets", "gpu", "gpu_links"]
"""What the class of a link depends on within a host."""


def link_classes(table: pd.DataFrame, run: RunData) -> pd.Series[str]:
    """Return for each row of `table`, by its case_id, src and dst, the class of the pair's link.

    Returns
    -------
    Series
        A class of ``commbench.topology.links``. Runs of earlier versions tell addresses only: then
        it is ``same process``, ``same host``, ``same rack`` or ``network``. ``unknown`` where the
        run tells nothing, or its launches put the pair on links of different classes.
    """
    import pandas as pd

    workers, kinds = _workers(run)
    pairs = table[_PAIR].drop_duplicates()
    ends = pairs.merge(workers.rename(columns={"worker": "src"}), on=["case_id", "src"]).merge(
        workers.rename(columns={"worker": "dst"}), on=["case_id", "launch", "dst"]
    )
    grouped = ends.assign(link=_links(ends, kinds)).groupby(_PAIR, observed=True)["link"]
    classes = grouped.min().where(grouped.min() == grouped.max(), UNKNOWN)
    places = pd.MultiIndex.from_frame(table[_PAIR])
    found = classes.reindex(places).fillna(UNKNOWN)
    return found.set_axis(table.index).astype("str")


def hosts(run: RunData) -> set[str]:
    """Return what tells the hosts of all workers apart, as far as the run tells."""
    workers, _ = _workers(run)
    return {*workers["host_id"].where(workers["kind"] >= 0, workers["at"])}


def _workers(run: RunData) -> tuple[pd.DataFrame, list[WorkerPlace]]:
    """Return a row for each worker of each launch, and the kinds of places that they have.

    Workers are of one ``kind`` where their places within their hosts are alike: of such kinds there
    are few, however many hosts there are. It is -1 where a worker's place is not told.
    """
    import pandas as pd

    addresses = run.addresses.assign(
        at=[_host(address) for address in run.addresses["address"]],
        process=[_process(address) for address in run.addresses["address"]],
    )[[*_WORKER, "at", "process"]].astype({"at": "str", "process": "str"})
    places = run.places[_FIELDS]
    places = places.assign(kind=places.groupby(_KIND, sort=False).ngroup())
    first = places.drop_duplicates("kind")
    kinds = [WorkerPlace(**row) for row in first[_FIELDS].to_dict(orient="records")]

    workers = addresses.merge(places, on=_WORKER, how="outer")
    texts = workers[["at", "process", "host", "host_id"]].fillna("").astype("str")
    names = list(zip(texts["host"], texts["at"], strict=True))
    racks = {name: rack_of(name, run.run.racks) for name in names}
    return workers[_WORKER].assign(
        at=texts["at"],
        process=texts["process"],
        host_id=texts["host_id"],
        pid=workers["pid"].fillna(-1).astype("int64"),
        kind=workers["kind"].fillna(-1).astype("int64"),
        rack=pd.Series([racks[name] for name in names], index=workers.index, dtype="str"),
    ), kinds


def _links(ends: pd.DataFrame, kinds: list[WorkerPlace]) -> pd.Series[str]:
    """Return the class of each pair of workers; ``_x`` is the one, ``_y`` the other."""
    same = {
        name: ends[f"{name}_x"] == ends[f"{name}_y"]
        for name in ("host_id", "at", "process", "rack", "pid")
    }
    told = (ends["kind_x"] >= 0) & (ends["kind_y"] >= 0)
    near = same["host_id"].where(told, same["at"])
    links = (same["rack"] & (ends["rack_x"] != "")).map({True: "same rack", False: "network"})
    links = links.astype("str")
    links[near] = "same host"
    # Each two kinds of places are judged once, as those of two processes on one host.
    for (one, other), rows in ends[told & near].groupby(["kind_x", "kind_y"]).groups.items():
        beside = replace(kinds[other], pid=-1, host_id=kinds[one].host_id)
        links[rows] = link_class(kinds[one], beside)
    inside = told & same["pid"] | ~told & same["process"] & (ends["process_x"] != "")
    links[near & inside] = "same process"
    return links


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
