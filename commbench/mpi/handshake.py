"""What two processes tell each other over TCP before they talk MPI.

Each message is ``b"DMPI"``, the version, the kind and the length of its body (at most 4 KiB), and
the body: a JSON object. Whatever else comes over the connection ends it.

::

    connector → listener   HELLO
    listener → connector   HELLO, or REFUSE with the reason

and then, where the two processes share no communicator yet (see :mod:`commbench.mpi.pairing`)::

    acceptor → other       OFFER, with the place to meet
    other → acceptor       COMING
    acceptor → other       READY
"""

from __future__ import annotations

import dataclasses
import enum
import json
import struct
from typing import Any

__all__ = [
    "HEADER",
    "MAX_BODY",
    "Hello",
    "Kind",
    "ProtocolError",
    "RefusedError",
    "decode_body",
    "decode_header",
    "encode",
]

MAGIC = b"DMPI"
VERSION = 2
MAX_BODY = 4096
HEADER = struct.Struct("<4sHHI")


class Kind(enum.IntEnum):
    """The kinds of messages."""

    HELLO = 1
    REFUSE = 2
    OFFER = 3
    COMING = 4
    READY = 5


class ProtocolError(OSError):
    """The other end says something that this protocol doesn't have."""


class RefusedError(OSError):
    """The other end says why it won't talk to this one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hello:
    """One end introduces itself.

    Attributes
    ----------
    process, mode, library, world, rank
        As in :class:`commbench.mpi.runtime.Runtime`.
    pid
        Of this process.
    tag
        The tag that this end receives on.
    gpu_memory
        What this end does with GPU memory, as in :mod:`commbench.mpi.device`.
    """

    process: str
    mode: str
    library: str
    world: str
    rank: int
    pid: int
    tag: int
    gpu_memory: str

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Hello:
        """Return what a HELLO says, checked.

        Raises
        ------
        ProtocolError
            Where a field is missing, unknown or of another type.

        Examples
        --------
        >>> Hello.parse({"process": "ab"})
        Traceback (most recent call last):
            ...
        commbench.mpi.handshake.ProtocolError: HELLO has the fields ['process']
        """
        types: dict[str, type] = {f.name: int if f.type == "int" else str for f in _FIELDS}
        if body.keys() != types.keys():
            raise ProtocolError(f"HELLO has the fields {sorted(body)}")
        for name, expected in types.items():
            if type(body[name]) is not expected:
                raise ProtocolError(f"HELLO has {name}={body[name]!r}")
        hello = cls(**body)
        if hello.tag < 1 or hello.rank < 0 or not hello.process:
            raise ProtocolError(f"HELLO has rank {hello.rank}, tag {hello.tag}")
        return hello


_FIELDS = dataclasses.fields(Hello)


def encode(kind: Kind, body: dict[str, Any]) -> bytes:
    r"""Return one message as bytes.

    Examples
    --------
    >>> encode(Kind.READY, {})
    b'DMPI\x02\x00\x05\x00\x02\x00\x00\x00{}'
    """
    text = json.dumps(body).encode()
    if len(text) > MAX_BODY:
        raise ValueError(f"a body of {len(text)} B is longer than {MAX_BODY} B")
    return HEADER.pack(MAGIC, VERSION, kind, len(text)) + text


def decode_header(header: bytes | bytearray) -> tuple[Kind, int]:
    """Return the kind of a message and the length of its body.

    Raises
    ------
    ProtocolError
        Where this is no message of ours.

    Examples
    --------
    >>> decode_header(b"GET / HTTP/1.1"[:HEADER.size])
    Traceback (most recent call last):
        ...
    commbench.mpi.handshake.ProtocolError: not an mpi:// peer: it began with b'GET '
    """
    magic, version, kind, length = HEADER.unpack(header)
    if magic != MAGIC:
        raise ProtocolError(f"not an mpi:// peer: it began with {magic!r}")
    if version != VERSION:
        raise ProtocolError(f"the peer speaks version {version} of mpi://, this end {VERSION}")
    if kind not in Kind._value2member_map_ or length > MAX_BODY:
        raise ProtocolError(f"a message of kind {kind} and {length} B")
    return Kind(kind), length


def decode_body(text: bytes | bytearray) -> dict[str, Any]:
    """Return the body of a message.

    Raises
    ------
    ProtocolError
        Where it is no JSON object.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a body that is not JSON") from error
    if not isinstance(body, dict):
        raise ProtocolError("a body that is not a JSON object")
    return body
