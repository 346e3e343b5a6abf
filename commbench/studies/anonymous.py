"""Replace what may identify a user, a machine or their code by labels.

Every text of a record is replaced, unless it is known to be commbench's or Dask's: ``task-1``,
``key-1``, ``worker-1``, ``host-1`` (this one), …, in the order in which they appear. Names of
regions are kept, because they are chosen for the record.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

from commbench import backends
from commbench.model import Manifest, registry
from commbench.model.observed import LOCAL, Record
from commbench.store.emitter import Emit, Recorder
from commbench.store.parts import table_kind
from commbench.store.records import FIELDS

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT = {
    "case_id", "layer", "tool", "channel", "action", "transport", "contradiction", "cpus",
    "numa_nodes", "sockets", "gpu", "gpu_links", "nic", "file_system", "role", "context", "stage",
}  # fmt: skip
"""The fields whose texts are commbench's, Dask's or the kernel's."""
_KEPT_NAMES = {"Region", "Setting"}
_NOUNS = {"src": "worker", "dst": "worker", "name": "task", "label": "activity"}
_KEPT_TEXTS = {
    "worker": {"scheduler", "client"},
    "host": {LOCAL},
    # Those of Dask's P2P shuffles.
    "task": {"shuffle-barrier", "shuffle-transfer", "hash-join-transfer", "rechunk-transfer"},
    # Tasks may meter activities with their names.
    "activity": {
        "thread-cpu", "thread-noncpu", "executor", "run-queue", "offload", "other", "network",
        "serialize", "deserialize", "compress", "decompress", "disk-read", "disk-write",
        "cancelled", "failed", "contention", "connect", "background-disk disk-write",
        "background-comms compress", "p2p-comms-limiter", "page-faults", "busy", "stolen",
        "p2p-shard-partition-cpu", "p2p-shard-partition-noncpu", "p2p-get-output-cpu",
        "p2p-get-output-noncpu", "seceded",
    },
    "value": {"none", "lz4", "zlib", "snappy", "zstd"},
}  # fmt: skip
_HERE = "host-1"
_UNKNOWN: Mapping[str, Any] = {"git": None, "gpus": None}


class AnonymousRecorder:
    """A `Recorder` of records without names."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._labels: defaultdict[str, dict[str, str]] = defaultdict(dict)
        # The manifest has it, too: rules ask whether the workers are there.
        self._labels["host"][platform.node()] = _HERE

    def __call__(self, record: Record | pa.Table, /) -> None:
        """Write `record`."""
        self._recorder(self._renamed(record))

    @contextmanager
    def region(self) -> Iterator[Emit]:
        """Buffer records; write them only if the block succeeds."""
        with self._recorder.region() as keep:
            yield lambda record: keep(self._renamed(record))

    def close(self) -> None:
        """Write the buffered tables."""
        self._recorder.close()

    def _renamed(self, record: Any) -> Any:
        is_single = isinstance(record, Record)
        kind = type(record).__name__ if is_single else table_kind(record)
        labels = {
            field: partial(self._label, _NOUNS.get(field, field.replace("_", "-")))
            for field, type_name in FIELDS[kind].items()
            if type_name == "str" and field not in _KEPT
            if not (field == "name" and kind in _KEPT_NAMES)
        }
        if is_single:
            return replace(record, **{f: label(getattr(record, f)) for f, label in labels.items()})
        for field, label in labels.items():
            record = _with_texts(record, field, label)
        return record

    def _label(self, noun: str, text: str) -> str:
        if not text or text in _KEPT_TEXTS.get(noun, ()) or (noun == "worker" and text.isdigit()):
            return text
        if noun == "value" and text in _backend_values():
            return text
        known = self._labels[noun]
        if text not in known:
            # Rules look for these in the keys, and in the names of fused tasks.
            parts = _KEPT_TEXTS["task"] if noun in ("key", "task") else ()
            kept = next((f"-{name}" for name in parts if name in text), "")
            known[text] = f"{noun}-{len(known) + 1}{kept}"
        return known[text]


def _with_texts(table: pa.Table, name: str, label: Callable[[str], str]) -> pa.Table:
    """Return `table` with the labels of the texts in a column."""
    import pyarrow as pa

    number, field = table.schema.get_field_index(name), table.schema.field(name)
    texts = table.column(name).combine_chunks().dictionary_encode()
    labels = pa.array(map(label, texts.dictionary.to_pylist()), "str")
    column = pa.DictionaryArray.from_arrays(texts.indices, labels).cast(field.type)
    return table.set_column(number, field, column)


@cache
def _backend_values() -> set[str]:
    """Return the values of variables that backends have or recommend: rules ask for them."""
    values = set[str]()
    for kind in registry.loadable("backend").values():
        # A plug-in that fails costs its values only.
        with suppress(Exception):
            for name, device in product((kind.head, kind().best), ("cpu", "gpu")):
                words = backends.parse(name).settings(device).split()
                values.update(word.partition("=")[2] for word in words)
    return values


def anonymous(manifest: Manifest) -> Manifest:
    """Return `manifest` without the name of the host, commits, and all variables but glibc's."""
    environment = {**manifest.environment, **_UNKNOWN}
    variables = environment.get("variables") or {}
    environment["variables"] = {
        name: value for name, value in variables.items()
        if name.startswith("MALLOC_") and value.isdecimal()
    }  # fmt: skip
    environment["host"] = {**environment["host"], "name": _HERE}
    return replace(manifest, environment=environment, command="")
