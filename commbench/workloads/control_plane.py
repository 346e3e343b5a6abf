"""``control-plane``: round trips and connections, without which Dask moves no data.

Operations of an iteration, one after another unless noted: ``run``, a function that ``client.run``
calls on all workers by way of the scheduler; ``scheduler``, one that ``client.run_on_scheduler``
calls; ``connect``, a new connection from the client to a worker with one request over it; and
``storm``, as many of these at once. Each sends a number and gets it back.

Payload: none; an operation has a few hundred bytes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from commbench.errors import VerificationError
from commbench.workloads.workload import ClusterWorkload, Context, option

_SECONDS = 5e-3
"""The time of an operation, roughly."""


class ControlPlane(ClusterWorkload):
    """Many small operations of one kind."""

    name = "control-plane"
    summary = "round trips to workers and scheduler, and new connections to workers"
    stresses = "scheduler"
    on_gpu = False
    scales = False
    quick: ClassVar[Mapping[str, Any]] = {"count": 50}
    task_placement = "dask"

    @dataclass(frozen=True, kw_only=True)
    class Params:
        operation: Literal["run", "scheduler", "connect", "storm"] = option(
            "run",
            "run: round trips to all workers; scheduler: to it; connect: new "
            "connections to a worker, one by one; storm: all at once",
        )
        count: int = option(100, "operations of an iteration", least=1)

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        self._random = random.Random(context.seed)

    @property
    def operations(self) -> tuple[int, str]:
        """The round trips or the connections."""
        makes_connections = self.params.operation in ("connect", "storm")
        return self.params.count, "connections" if makes_connections else "round trips"

    @property
    def expected_seconds(self) -> float:
        """Some time for each operation."""
        return _SECONDS * int(self.params.count)

    def prepare(self, client: Any) -> None:
        """Choose the worker to connect to: the first one by its address."""
        self._address = min(client.nthreads())

    def build(self) -> Any:
        """Return a number for each operation, new ones at each call."""
        self._sent = [self._random.getrandbits(31) for _ in range(self.params.count)]
        return self._sent

    def compute(self, client: Any, graph: Any) -> Any:
        """Do the operations, and return the numbers that came back for each."""
        match self.params.operation:
            case "run":
                return [[*client.run(_echo, number).values()] for number in graph]
            case "scheduler":
                return [[client.run_on_scheduler(_echo, number)] for number in graph]
            case operation:
                at_once = operation == "storm"
                return client.sync(_connections, client, self._address, graph, at_once)

    def verify(self, client: Any, result: Any) -> None:
        """Compare the numbers that came back with those that were sent."""
        del client
        n_answers = self.context.n_workers if self.params.operation == "run" else 1
        expected = [[number] * n_answers for number in self._sent]
        if result != expected:
            n_right = sum(one == other for one, other in zip(expected, result, strict=False))
            raise VerificationError(
                f"control-plane: of {len(expected)} operations {len(result)} had an answer, and "
                f"{n_right} brought back the number that was sent, from each of {n_answers}"
            )


def _echo(number: int) -> int:
    return number


async def _connections(
    client: Any, address: str, numbers: Sequence[int], at_once: bool
) -> list[list[int]]:
    """Return the answer over a new connection for each number."""

    async def over_new_connection(number: int) -> list[int]:
        from distributed.core import connect, send_recv

        comm = await connect(address, **client.connection_args)
        try:
            return [await send_recv(comm, op="echo", data=number)]
        finally:
            await comm.close()

    if at_once:
        import asyncio

        return await asyncio.gather(*map(over_new_connection, numbers))
    return [await over_new_connection(number) for number in numbers]
