"""Classify the links between workers by their reported locations, else by their addresses."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from commbench.machine.topology.workers import UNKNOWN, find_rack, link_class, rank
from commbench.model.observed import WorkerPlace

if TYPE_CHECKING:
    from commbench.analysis.run import Run

_WORKER = ["case_id", "launch", "worker"]
_FIELDS = [field.name for field in fields(WorkerPlace)]
_KIND = ["numa_nodes", "sockets", "gpu", "gpu_links"]
"""The fields that decide the class of a link within a host."""
_ALWAYS_POSSIBLE = ("same host", "same rack", "network", UNKNOWN)
_MISSING = -1


def is_elsewhere(run: Run) -> bool:
    """Return whether all workers are known to be on other hosts than that which began the run."""
    here = (run.manifest.environment.get("host") or {}).get("name")
    hosts = set(run.places["host"])
    return bool(hosts and here) and here not in hosts


def moved_workers(run: Run) -> dict[str, list[str]]:
    """Return the workers that were on other hosts in other launches, as batch jobs, by case id."""
    hosts = run.places.groupby(["case_id", "worker"], observed=True)["host"].nunique()
    moved: dict[str, list[str]] = {}
    for case_id, worker in hosts.index[hosts > 1]:
        moved.setdefault(str(case_id), []).append(str(worker))
    return moved


def link_classes(table: pd.DataFrame, run: Run) -> pd.Series[Any]:
    """Return the link class of each row of `table`, from its case_id, src and dst.

    Returns
    -------
    Series
        A class of ``commbench.machine.topology.workers``. Runs with addresses only, such as the
        reference runs, have ``same host``, ``same rack`` and ``network``. The class is ``unknown``
        if it was not recorded or differs between launches.
    """
    workers, kinds = _workers(run)
    # Each pair of kinds is classified once, as on one host; `_classes_between` compares GPUs' ids.
    kind_links = [
        [link_class(one, replace(other, host_id=one.host_id, gpu_uuid="")) for other in kinds]
        for one in kinds
    ]
    links = sorted({*_ALWAYS_POSSIBLE, *chain(*kind_links)}, key=rank)
    within_host = np.array(
        [[links.index(link) for link in row] for row in kind_links], dtype=np.int16
    )
    names = pd.Index(workers["worker"].unique())
    src, dst = (positions(table[end], names) for end in ("src", "dst"))
    cases = table["case_id"].astype("category").cat
    rows_by_case = {
        name: np.flatnonzero(cases.codes == n) for n, name in enumerate(cases.categories)
    }
    classes = np.full(len(table), _MISSING, dtype=np.int16)
    for (case_id, _), members in workers.groupby(["case_id", "launch"], sort=False):
        if (rows := rows_by_case.get(case_id)) is None:
            continue
        # The last row and column stand for workers that no launch has recorded.
        between = np.full((len(names) + 1, len(names) + 1), _MISSING, dtype=np.int16)
        indices = names.get_indexer(members["worker"])
        between[np.ix_(indices, indices)] = _classes_between(members, within_host, links)
        seen, before = between[src[rows], dst[rows]], classes[rows]
        differ = (seen != before) & (seen != _MISSING) & (before != _MISSING)
        classes[rows] = np.where(differ, links.index(UNKNOWN), np.maximum(seen, before))
    classes[classes == _MISSING] = links.index(UNKNOWN)
    return pd.Series(pd.Categorical.from_codes(classes, links), table.index)


def n_hosts(run: Run) -> int:
    """Return the largest number of hosts of the workers of a launch, as far as recorded."""
    workers, _ = _workers(run)
    hosts = workers["host_id"].where(workers["kind"] >= 0, workers["address_host"])
    by_launch = hosts.groupby([workers["case_id"], workers["launch"]])
    return int(by_launch.nunique().max()) if len(workers) else 0


def _workers(run: Run) -> tuple[pd.DataFrame, list[WorkerPlace]]:
    """Return a row for each worker of each launch, and the kinds of their locations.

    Workers are of the same ``kind`` if their locations within their hosts are alike; there are few
    kinds, regardless of the number of hosts. ``kind`` is -1 for a worker without a location.
    """
    addresses = run.addresses.assign(
        address_host=[_host(address) for address in run.addresses["address"]],
    )[[*_WORKER, "address_host"]].astype({"address_host": "str"})
    places = run.places[_FIELDS]
    places = places.assign(kind=places.groupby(_KIND, sort=False).ngroup())
    first = places.drop_duplicates("kind")
    kinds = [WorkerPlace(**row) for row in first[_FIELDS].to_dict(orient="records")]

    workers = addresses.merge(places, on=_WORKER, how="outer")
    texts = workers[["address_host", "host", "host_id"]].fillna("").astype("str")
    names = list(zip(texts["host"], texts["address_host"], strict=True))
    racks = {name: find_rack(name, run.manifest.racks) for name in names}
    return workers[_WORKER].assign(
        address_host=texts["address_host"],
        host_id=texts["host_id"],
        gpu_uuid=workers["gpu_uuid"].fillna("").astype("str"),
        kind=workers["kind"].fillna(-1).astype("int64"),
        rack=pd.Series([racks[name] for name in names], index=workers.index, dtype="str"),
    ), kinds


def positions(texts: Any, names: pd.Index[str]) -> Any:
    """Return the position of each text in `names`, or -1."""
    # Millions of texts would take a gigabyte.
    unique = pd.Categorical(texts)
    return names.get_indexer(unique.categories.astype("str")).astype("int32")[unique.codes]


def _classes_between(members: pd.DataFrame, within_host: Any, links: list[str]) -> Any:
    """Return the positions in `links` of the classes between the workers of a launch.

    Parameters
    ----------
    members
        The launch's rows of ``_workers``.
    within_host
        The positions of the classes between two kinds on one host, shape (n_kinds, n_kinds).

    Returns
    -------
    ndarray
        Shape (n, n).
    """

    def same(name: str) -> Any:
        codes, _ = pd.factorize(members[name])
        return codes[:, None] == codes

    kind = members["kind"].to_numpy()
    known_kinds = (kind >= 0)[:, None] & (kind >= 0)
    near = np.where(known_kinds, same("host_id"), same("address_host"))
    rack = same("rack") & (members["rack"] != "").to_numpy()
    classes = np.where(rack, np.int16(links.index("same rack")), np.int16(links.index("network")))
    classes[near] = links.index("same host")
    if within_host.size:
        classes = np.where(near & known_kinds, within_host[kind[:, None], kind], classes)
    if "same GPU" in links:
        known_gpu = (members["gpu_uuid"] != "").to_numpy()
        apart = known_gpu[:, None] & known_gpu & ~same("gpu_uuid")
        classes[apart & (classes == links.index("same GPU"))] = links.index("same host")
    return classes


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or address
    except ValueError:
        return address
