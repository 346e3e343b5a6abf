"""Stubs of mpi4py for tests in which one process says what has arrived and what is complete."""

# ruff: noqa: N802 - the names of mpi4py

from typing import Any


class Request:
    """A request that completes when it is said to, or when it is cancelled."""

    def __init__(self, complete: bool) -> None:
        self.complete = complete

    def Test(self) -> bool:
        return self.complete

    def Cancel(self) -> None:
        self.complete = True


class Message:
    """A message that has arrived."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def Recv(self, target: tuple[Any, Any]) -> None:
        target[0][:] = self.content

    def Irecv(self, target: tuple[Any, Any]) -> Request:
        self.Recv(target)
        return Request(True)


class Status:
    """The size of the message that was found."""

    nbytes = 0

    def Get_count(self, _: Any) -> int:
        return self.nbytes


class Communicator:
    """The messages that have arrived; what is received without a probe never does."""

    def __init__(self, *arrived: bytes, sends: bool = True) -> None:
        self.arrived = [bytes(content) for content in arrived]
        self.sends = sends
        self.sent: list[tuple[int, int, int]] = []
        self.receives: list[Request] = []

    def Improbe(self, _rank: int, _tag: int, status: Status) -> Message | None:
        if not self.arrived:
            return None
        status.nbytes = len(self.arrived[0])
        return Message(self.arrived.pop(0))

    def Isend(self, buffer: tuple[Any, Any], rank: int, tag: int) -> Request:
        self.sent.append((len(buffer[0]), rank, tag))
        return Request(self.sends)

    def Irecv(self, *_: Any) -> Request:
        self.receives.append(Request(False))
        return self.receives[-1]
