"""Which kind of link joins two workers: by the places that they told, else by their addresses."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from commbench.machine.topology import UNKNOWN, link_class, rack_of, rank
from commbench.model import WorkerPlace

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from commbench.analysis.run import Run

    _Numbers = np.ndarray[Any, Any]

_WORKER = ["case_id", "launch", "worker"]
_FIELDS = [field.name for field in fields(WorkerPlace)]
_KIND = ["numa_nodes", "sockets", "gpu", "gpu_links"]
"""What the class of a link depends on within a host."""
_AT_ONCE = 1 << 16
"""Pairs that are judged at a time: what that takes stays in a processor's cache."""
_UNTOLD, _DIFFERING = -1, 0
"""The numbers of the class unknown: where no launch tells, and where launches differ."""


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
    names = pd.Index(workers["worker"].unique())
    # A number for each end, -1 for one that no launch tells of.
    ends = []
    for end in ("src", "dst"):
        texts = table[end].astype("category").cat
        ends.append((names.get_indexer(texts.categories.astype("str")), texts.codes.to_numpy()))
    cases = table["case_id"].astype("category").cat
    rows_of = {name: np.flatnonzero(cases.codes == n) for n, name in enumerate(cases.categories)}

    judge = _Judge(workers, kinds)
    classes = np.full(len(table), _UNTOLD, dtype=np.int16)
    for (case_id, _), members in workers.groupby(["case_id", "launch"], sort=False):
        # The last one is that of a worker whose number is -1.
        member = np.full(len(names) + 1, -1)
        member[names.get_indexer(members["worker"])] = members.index
        all_rows = rows_of.get(case_id, np.empty(0, dtype=int))
        for begin in range(0, len(all_rows), _AT_ONCE):
            rows = all_rows[begin : begin + _AT_ONCE]
            one, other = (member[numbers[codes[rows]]] for numbers, codes in ends)
            told = (one >= 0) & (other >= 0)
            rows, seen = rows[told], judge.classes(one[told], other[told])
            before = classes[rows]
            classes[rows] = np.where((before == _UNTOLD) | (before == seen), seen, _DIFFERING)
    return pd.Series(judge.texts(classes), table.index)


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
    racks = {name: rack_of(name, run.manifest.racks) for name in names}
    return workers[_WORKER].assign(
        at=texts["at"],
        process=texts["process"],
        host_id=texts["host_id"],
        pid=workers["pid"].fillna(-1).astype("int64"),
        kind=workers["kind"].fillna(-1).astype("int64"),
        rack=pd.Series([racks[name] for name in names], index=workers.index, dtype="str"),
    ), kinds


class _Judge:
    """Tells the classes of links between rows of ``_workers``, as numbers and as texts."""

    def __init__(self, workers: pd.DataFrame, kinds: list[WorkerPlace]) -> None:
        import pandas as pd

        self._kinds = kinds
        self._known = {name: workers[name].to_numpy() for name in ("pid", "kind")}
        for name in ("at", "process", "host_id", "rack"):
            # -1 for an empty text.
            self._known[name], _ = pd.factorize(workers[name].where(workers[name] != ""))
        self._numbers = {UNKNOWN: _DIFFERING}

    def classes(self, one: _Numbers, other: _Numbers) -> _Numbers:
        """Return the number of the class between each of `one` and its `other`, by row."""
        import numpy as np

        ends = {name: (known[one], known[other]) for name, known in self._known.items()}
        same = {name: first == second for name, (first, second) in ends.items()}
        first, second = ends["kind"]
        told = (first >= 0) & (second >= 0)
        near = np.where(told, same["host_id"], same["at"])
        rack = same["rack"] & (ends["rack"][0] >= 0)
        links = np.where(rack, self._number("same rack"), self._number("network"))
        links[near] = self._number("same host")
        # Each two kinds of places are judged once, as those of two processes on one host.
        beside = told & near
        both = first * len(self._kinds) + second
        for pair in np.unique(both[beside]):
            place, next_to = (self._kinds[kind] for kind in divmod(int(pair), len(self._kinds)))
            judged = link_class(place, replace(next_to, pid=-1, host_id=place.host_id))
            links[beside & (both == pair)] = self._number(judged)
        inside = np.where(told, same["pid"], same["process"] & (ends["process"][0] >= 0))
        links[near & inside] = self._number("same process")
        return links

    def texts(self, classes: _Numbers) -> pd.Categorical:
        """Return the names of classes, in their order; what nothing tells is unknown as well."""
        import numpy as np
        import pandas as pd

        found = pd.Categorical.from_codes(np.maximum(classes, _DIFFERING), list(self._numbers))
        return found.reorder_categories(sorted(self._numbers, key=rank))

    def _number(self, link: str) -> int:
        return self._numbers.setdefault(link, len(self._numbers))


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
