"""Which kind of link joins two workers: by the places that they told, else by their addresses."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from commbench.machine.topology import UNKNOWN, find_rack, link_class, rank
from commbench.model import WorkerPlace

if TYPE_CHECKING:
    import pandas as pd

    from commbench.analysis.run import Run

_WORKER = ["case_id", "launch", "worker"]
_FIELDS = [field.name for field in fields(WorkerPlace)]
_KIND = ["numa_nodes", "sockets", "gpu", "gpu_links"]
"""What the class of a link depends on within a host."""
_WITHOUT_KIND = ("same process", "same host", "same rack", "network", UNKNOWN)
_UNTOLD = -1


def link_classes(table: pd.DataFrame, run: Run) -> pd.Series[Any]:
    """Return for each row of `table`, by its case_id, src and dst, the class of the pair's link.

    Returns
    -------
    Series
        A class of ``commbench.machine.topology.workers``. The reference runs tell addresses only:
        then it is ``same process``, ``same host``, ``same rack`` or ``network``. ``unknown``
        where the run tells nothing, or its launches put the pair on links of different classes.
    """
    import numpy as np
    import pandas as pd

    workers, kinds = _workers(run)
    # Each two kinds of places are judged once, as those of two processes on one host.
    judged = [
        [link_class(one, replace(other, pid=-1, host_id=one.host_id)) for other in kinds]
        for one in kinds
    ]
    links = sorted({*_WITHOUT_KIND, *chain(*judged)}, key=rank)
    within_host = np.array([[links.index(link) for link in row] for row in judged], dtype=np.int16)
    names = pd.Index(workers["worker"].unique())
    src, dst = (_positions(table[end], names) for end in ("src", "dst"))
    cases = table["case_id"].astype("category").cat
    rows_of = {name: np.flatnonzero(cases.codes == n) for n, name in enumerate(cases.categories)}
    classes = np.full(len(table), _UNTOLD, dtype=np.int16)
    for (case_id, _), members in workers.groupby(["case_id", "launch"], sort=False):
        if (rows := rows_of.get(case_id)) is None:
            continue
        # The last row and column are those of workers that no launch tells of.
        between = np.full((len(names) + 1, len(names) + 1), _UNTOLD, dtype=np.int16)
        at = names.get_indexer(members["worker"])
        between[np.ix_(at, at)] = _between(members, within_host, links)
        seen, before = between[src[rows], dst[rows]], classes[rows]
        differ = (seen != before) & (seen != _UNTOLD) & (before != _UNTOLD)
        classes[rows] = np.where(differ, links.index(UNKNOWN), np.maximum(seen, before))
    classes[classes == _UNTOLD] = links.index(UNKNOWN)
    return pd.Series(pd.Categorical.from_codes(classes, links), table.index)


def hosts(run: Run) -> set[str]:
    """Return what tells the hosts of all workers apart, as far as the run tells."""
    workers, _ = _workers(run)
    return {*workers["host_id"].where(workers["kind"] >= 0, workers["at"])}


def _workers(run: Run) -> tuple[pd.DataFrame, list[WorkerPlace]]:
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
    racks = {name: find_rack(name, run.manifest.racks) for name in names}
    return workers[_WORKER].assign(
        at=texts["at"],
        process=texts["process"],
        host_id=texts["host_id"],
        pid=workers["pid"].fillna(-1).astype("int64"),
        kind=workers["kind"].fillna(-1).astype("int64"),
        rack=pd.Series([racks[name] for name in names], index=workers.index, dtype="str"),
    ), kinds


def _positions(texts: pd.Series[str], names: pd.Index[str]) -> Any:
    """Return where `names` has each of the texts; -1 for one that it hasn't."""
    column = texts.astype("category").cat
    positions = names.get_indexer(column.categories.astype("str")).astype("int32")
    return positions[column.codes.to_numpy()]


def _between(members: pd.DataFrame, within_host: Any, links: list[str]) -> Any:
    """Return the positions in `links` of the classes between the workers of a launch.

    Parameters
    ----------
    members
        Its rows of ``_workers``.
    within_host
        Those of the classes between two kinds of places on one host.

    Returns
    -------
    ndarray
        Shape (n, n).
    """
    import numpy as np
    import pandas as pd

    def same(name: str) -> Any:
        codes, _ = pd.factorize(members[name])
        return codes[:, None] == codes

    known = {name: (members[name] != "").to_numpy() for name in ("process", "rack")}
    kind = members["kind"].to_numpy()
    known_kinds = (kind >= 0)[:, None] & (kind >= 0)
    near = np.where(known_kinds, same("host_id"), same("at"))
    inside = np.where(known_kinds, same("pid"), same("process") & known["process"])
    rack = same("rack") & known["rack"]
    classes = np.where(rack, links.index("same rack"), links.index("network"))
    classes[near] = links.index("same host")
    if within_host.size:
        classes = np.where(near & known_kinds, within_host[kind[:, None], kind], classes)
    classes[near & inside] = links.index("same process")
    return classes


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
    scheme, _, path = address.partition("://")
    return path.rpartition("/")[0] if scheme == "inproc" else ""
