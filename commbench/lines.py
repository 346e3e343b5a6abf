"""Records of one kind that are many, as the lines of JSON that they are stored as.

A run may have tens of millions of transfers. From a worker's answer to the file they are text,
which is checked as a whole: no process on the way makes an object of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from commbench import records
from commbench.model import Record

# All of it is what ``records.parse`` takes. What it takes beyond that is looked at line by line.
_SOUND = {
    "int": rb"-?(?:0|[1-9]\d{0,17}+)",
    "float": rb"-?(?:0|[1-9]\d{0,17}+)(?:\.\d{1,20}+)?+(?:e[-+]?\d{1,2}+)?+",
    "bool": rb"(?:true|false)",
    "str": rb'"(?:[ !#-\[\]-~]++|\\u(?!d[89a-f])[\da-f]{4})*+"',
}


@dataclass(frozen=True)
class Lines:
    """Records of one ``kind``, each a line of the ``text``."""

    kind: str
    text: str

    def records(self) -> Iterator[Record]:
        """Yield the records themselves."""
        return map(records.decode, self.text.splitlines())


def of(kind: type[Any], **fields: Any) -> Lines:
    """Return records of that `kind` as ``records.encode`` would write each of them.

    Parameters
    ----------
    fields
        Of every field its value, or the list of its values where they differ.

    Examples
    --------
    >>> from commbench.model import WireBytes
    >>> found = of(WireBytes, case_id="c", launch=0, iteration=1, src="a", dst=["b", "c"],
    ...            nbytes=[5, 6], n_messages=1)
    >>> [(record.dst, record.nbytes) for record in found.records()]
    [('b', 5), ('c', 6)]
    """
    places, columns = [], []
    for name, wanted in records.FIELDS[kind.__name__].items():
        value = fields[name]
        if isinstance(value, list):
            if wanted in ("str", "bool"):
                # Of many texts few are different ones.
                value = map({text: json.dumps(text) for text in {*value}}.__getitem__, value)
            columns.append(value)
            places.append(f'"{name}":%s')
        else:
            places.append(f'"{name}":{json.dumps(value)}'.replace("%", "%%"))
    template = f'{{"record":"{kind.__name__}",{",".join(places)}}}\n'
    return Lines(kind.__name__, "".join(template % row for row in zip(*columns, strict=True)))


def told(record: Record | Lines) -> tuple[str, str]:
    """Return the kind of `record` and its lines."""
    if isinstance(record, Lines):
        return record.kind, record.text
    return type(record).__name__, records.encode(record) + "\n"


def split(block: bytes) -> Iterator[Lines | bytes]:
    """Yield what the whole lines of `block` are: ``Lines`` that are sound, and others one by one.

    Only the kinds of ``records.FILES`` become ``Lines``. The others come without their end of line,
    and may be anything.
    """
    place, sound = 0, _pattern()
    while place < len(block):
        if found := sound.match(block, place):
            assert found.lastgroup is not None
            yield Lines(found.lastgroup, found[0].decode("ascii"))
            place = found.end()
        else:
            end = block.index(b"\n", place)
            yield block[place:end]
            place = end + 1


@cache
def _pattern() -> re.Pattern[bytes]:
    """Return what matches lines of one kind that follow each other, in a group of its name."""
    kinds = []
    for kind in records.FILES:
        fields = b",".join(
            b'"%s":%s' % (name.encode(), _SOUND[wanted])
            for name, wanted in records.FIELDS[kind].items()
        )
        name = kind.encode()
        kinds.append(rb'(?P<%s>(?:\{"record":"%s",%s\}\n)++)' % (name, name, fields))
    return re.compile(b"|".join(kinds))
