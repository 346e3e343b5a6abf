"""The messages that two processes exchange over TCP before they use MPI.

A message is ``b"DMPI"``, the version, the kind and the length of its body (at most 4 KiB), the body
(a JSON object), and an HMAC of all that. Everything else ends the connection. The key of the HMAC
is ``distributed.comm.mpi.key`` of Dask's configuration. Without one, the HMAC is a checksum. A peer
with another version or key gets REFUSE without a key, which helps nobody to guess this one.

::

    connector → listener   HELLO
    listener → connector   HELLO, or REFUSE with the reason
    follower → leader      PROOF: up to 8, one for each communicator that it shares with the leader
    leader → follower      READY with its proof, where one of these is right: done

The leader is the process with the smaller name. If the two share no communicator yet
(:mod:`commbench.mpi.pairing`)::

    leader → follower      RETRY, if they connect over another TCP connection: PROOF follows
    leader → follower      CONNECT with its MPI port
    follower → leader      CONNECTING with its MPI port
                           both connect over MPI and agree on a key
    follower → leader      READY with its proof
    leader → follower      READY with its proof

A process that gives up sends FAILED, also after READY, and nothing more over MPI; or REFUSE, if
another attempt would fail, too.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import json
import re
import struct
from typing import Any

__all__ = [
    "HEADER",
    "MAC_BYTES",
    "MAX_BODY",
    "Hello",
    "Kind",
    "MismatchError",
    "ProtocolError",
    "RefusedError",
    "decode_body",
    "decode_header",
    "encode",
    "fields",
    "shortened",
]

MAGIC = b"DMPI"
VERSION = 3
MAX_BODY = 4096
MAC_BYTES = 16
HEADER = struct.Struct("<4sHHI")


class Kind(enum.IntEnum):
    """The kinds of messages."""

    HELLO = 1
    REFUSE = 2
    PROOF = 3
    RETRY = 4
    CONNECT = 5
    CONNECTING = 6
    READY = 7
    """The last message, unless FAILED follows; then records (:mod:`commbench.mpi.control`)."""
    FAILED = 8


class ProtocolError(OSError):
    """The peer violated the protocol."""


class MismatchError(ProtocolError):
    """The two ends differ in version or key."""


class RefusedError(OSError):
    """The peer refused the connection, and said why."""


def fields(body: dict[str, Any], **types: type) -> list[Any]:
    """Return the fields of a message in the order of `types`.

    Raises
    ------
    ProtocolError
        Where a field is missing, unknown or of another type.

    Examples
    --------
    >>> fields({"tag": 7, "port": "x"}, port=str, tag=int)
    ['x', 7]
    >>> fields({"tag": "7"}, tag=int)
    Traceback (most recent call last):
        ...
    commbench.mpi.handshake.ProtocolError: a message with tag='7'
    """
    if body.keys() != types.keys():
        raise ProtocolError(f"a message with the fields {sorted(body)}")
    for name, expected in types.items():
        if type(body[name]) is not expected:
            raise ProtocolError(f"a message with {name}={body[name]!r}")
    return [body[name] for name in types]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hello:
    """The content of HELLO: who is at one end of a connection.

    Attributes
    ----------
    process, mode, library, world, rank, host
        As in :class:`commbench.mpi.runtime.Runtime`.
    pid
        The process id.
    tag
        The tag on which this end receives.
    gpu_memory
        The path of GPU memory at this end, as in :mod:`commbench.mpi.gpu_frames`.
    nonce
        Random, and new for each connection.
    """

    process: str
    mode: str
    library: str
    world: str
    rank: int
    host: str
    pid: int
    tag: int
    gpu_memory: str
    nonce: str

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Hello:
        """Return the content of a HELLO, checked.

        Raises
        ------
        ProtocolError
            Where a field is missing, unknown, of another type or out of range.

        Examples
        --------
        >>> Hello.parse({"process": "ab"})
        Traceback (most recent call last):
            ...
        commbench.mpi.handshake.ProtocolError: a message with the fields ['process']
        """
        types: dict[str, type] = {f.name: int if f.type == "int" else str for f in _FIELDS}
        hello = cls(**dict(zip(types, fields(body, **types), strict=True)))
        if not (0 < hello.tag < 2**31 and 0 <= hello.rank < 2**31 and 0 < hello.pid < 2**31):
            raise ProtocolError(f"HELLO has rank {hello.rank}, pid {hello.pid}, tag {hello.tag}")
        if not (_NAME.fullmatch(hello.process) and _NAME.fullmatch(hello.nonce)):
            raise ProtocolError("HELLO has a process or nonce that is not 32 hexadecimal digits")
        return hello


def shortened(reason: str) -> str:
    """Return `reason` in ASCII, cut to the size that REFUSE and FAILED allow."""
    return reason[:500].encode("ascii", "replace").decode()


_FIELDS = dataclasses.fields(Hello)
_NAME = re.compile("[0-9a-f]{32}")


def encode(kind: Kind, body: dict[str, Any], key: bytes = b"") -> bytes:
    r"""Return one message as bytes.

    Examples
    --------
    >>> encode(Kind.READY, {})[:14]
    b'DMPI\x03\x00\x07\x00\x02\x00\x00\x00{}'
    """
    text = json.dumps(body).encode()
    if len(text) > MAX_BODY:
        raise ValueError(f"a body of {len(text)} B is longer than {MAX_BODY} B")
    message = HEADER.pack(MAGIC, VERSION, kind, len(text)) + text
    return message + _code(message, key)


def _code(message: bytes | bytearray, key: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)[:MAC_BYTES]


def decode_header(header: bytes | bytearray) -> tuple[Kind, int]:
    """Return the kind of a message and the length of its body.

    Raises
    ------
    MismatchError
        Where the peer has another version.
    ProtocolError
        Where this is no message of this protocol.

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
        raise MismatchError(f"the peer has version {version} of mpi://, this end {VERSION}")
    if kind not in Kind._value2member_map_ or length > MAX_BODY:
        raise ProtocolError(f"a message of kind {kind} and {length} B")
    return Kind(kind), length


def decode_body(message: bytes | bytearray, key: bytes = b"") -> dict[str, Any]:
    """Return the body of a whole message.

    Raises
    ------
    MismatchError
        Where its HMAC is wrong.
    ProtocolError
        Where the body is no JSON object.

    Examples
    --------
    >>> decode_body(encode(Kind.CONNECT, {"tag": 7}, b"key"), b"key")
    {'tag': 7}
    """
    content, code = message[:-MAC_BYTES], message[-MAC_BYTES:]
    if not hmac.compare_digest(_code(content, key), bytes(code)):
        raise MismatchError(
            "a message is damaged, or the two ends differ in distributed.comm.mpi.key"
        )
    try:
        body = json.loads(content[HEADER.size :])
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a body that is not JSON") from error
    if not isinstance(body, dict):
        raise ProtocolError("a body that is not a JSON object")
    return body
