"""Count the bytes of all messages between workers, at the comm layer.

Dask's transfer log only has fetches of ``gather_dep``. This plugin counts all messages, including
those of the P2P shuffle: it wraps ``write`` of the comm classes in use, and adds the worker's name
to Dask's handshake, so that both ends know their peer.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from distributed import core
from distributed.comm.core import Comm
from distributed.diagnostics.plugin import WorkerPlugin

_NAME_KEY = "commbench-worker"
_INTRODUCE = "commbench-introduce"
_METER = "commbench_meter"
"""The attribute of ``Comm`` with this process's meter; modules sent by value share no globals."""


class WireMeter(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that counts the bytes and messages written to each other worker.

    The count is that of the process, which is the worker's if it is the only one there; of several,
    the first counts. The peer's name is empty for the scheduler and clients. It is also empty for a
    connection that was open before the plugin was registered, until ``introduce`` names it; those
    in use at that moment stay without. ``connect_seconds`` is the time in which a connection was
    being made.
    """

    name = "commbench-wire-meter"

    def __init__(self) -> None:
        self.nbytes: defaultdict[str, int] = defaultdict(int)
        self.n_messages: defaultdict[str, int] = defaultdict(int)
        self.comms: dict[str, weakref.ref[Any]] = {}
        self.connect_seconds, self._n_connecting, self._connecting_since = 0.0, 0, 0.0

    def setup(self, worker: Any) -> None:
        """Start counting in the process of `worker`, unless another worker of it does."""
        if hasattr(Comm, _METER):
            return
        setattr(Comm, _METER, self)
        self._worker_name = str(worker.name)
        self._handshake_info = Comm.handshake_info
        self._write_methods: dict[type[Any], Any] = {}

        def handshake_info(comm: Any) -> dict[str, Any]:
            self._wrap_write(type(comm))
            return {**self._handshake_info(comm), _NAME_KEY: self._worker_name}

        Comm.handshake_info = handshake_info
        self._connect = core.connect

        async def connect(*args: Any, **kwargs: Any) -> Any:
            if self._n_connecting == 0:
                self._connecting_since = time.perf_counter()
            self._n_connecting += 1
            try:
                return await self._connect(*args, **kwargs)
            finally:
                self._n_connecting -= 1
                if self._n_connecting == 0:
                    self.connect_seconds += time.perf_counter() - self._connecting_since

        core.connect = connect
        worker.handlers[_INTRODUCE] = self._on_introduction
        # Those with the scheduler and clients are open already.
        stream = getattr(worker, "batched_stream", None)
        if (comm := getattr(stream, "comm", None)) is not None:
            self._wrap_write(type(comm))

    def teardown(self, worker: Any) -> None:
        """Restore the methods of the comm classes."""
        if not self._is_counting:
            return
        delattr(Comm, _METER)
        worker.handlers.pop(_INTRODUCE, None)
        Comm.handshake_info = self._handshake_info
        core.connect = self._connect
        for cls, write in self._write_methods.items():
            cls.write = write
        self._write_methods.clear()

    @property
    def _is_counting(self) -> bool:
        return getattr(Comm, _METER, None) is self

    async def introduce(self, pool: Any, addresses: Collection[str]) -> None:
        """Exchange names over the idle connections of `pool` with workers at `addresses`."""
        if not self._is_counting:
            return

        async def exchange(address: str) -> None:
            if all(comm.closed() for comm in pool.available[address]):
                # It is in use meanwhile, or gone.
                return
            comm = await pool.connect(address)
            try:
                self._wrap_write(type(comm))
                # Also if this end knows its peer, which may not know this end.
                name = await core.send_recv(comm, op=_INTRODUCE, name=self._worker_name)
                # A worker without this plugin answers None.
                if name is not None:
                    comm.remote_info[_NAME_KEY] = name
            except OSError:
                # The peer has left, and `comm` is closed.
                return
            finally:
                pool.reuse(address, comm)

        exchanges = [
            exchange(address)
            for address, comms in list(pool.available.items())
            if address in addresses
            for _ in range(len(comms))
        ]
        await asyncio.gather(*exchanges)

    async def _on_introduction(self, comm: Any, name: str) -> str:
        self._wrap_write(type(comm))
        comm.remote_info[_NAME_KEY] = name
        return self._worker_name

    def _wrap_write(self, cls: type[Any]) -> None:
        # TLS inherits TCP's method; if both were wrapped, a message would count twice.
        owner: type[Any] = next(base for base in cls.__mro__ if "write" in vars(base))
        if owner in self._write_methods:
            return
        write = owner.write
        self._write_methods[owner] = write

        async def counted(comm: Any, *args: Any, **kwargs: Any) -> Any:
            nbytes = await write(comm, *args, **kwargs)
            # The peer's name is unknown until its handshake has been read.
            peer = comm.remote_info.get(_NAME_KEY, "")
            # Dask's base class promises no return value.
            self.nbytes[peer] += nbytes or 0
            self.n_messages[peer] += 1
            if peer and (peer not in self.comms or self.comms[peer]() is not comm):
                self.comms[peer] = weakref.ref(comm)
            return nbytes

        owner.write = counted


def _meter(worker: Any) -> WireMeter:
    # Workers that share a process have none, nor has one that has just joined.
    meter: WireMeter = worker.plugins.get(WireMeter.name) or WireMeter()
    return meter


async def introduce(addresses: Collection[str], dask_worker: Any) -> None:
    """Name the connections that were open before the plugin was registered; runs on a worker.

    Their handshakes had no names. To renew them would slow down the first job of a region.

    Parameters
    ----------
    addresses
        The addresses of the workers.
    """
    if (meter := dask_worker.plugins.get(WireMeter.name)) is not None:
        await meter.introduce(dask_worker.rpc, addresses)


def take(dask_worker: Any) -> list[tuple[str, int, int]]:
    """Return (peer, bytes, messages) since the last call; runs on a worker."""
    meter = _meter(dask_worker)
    rows = [(peer, nbytes, meter.n_messages[peer]) for peer, nbytes in meter.nbytes.items()]
    meter.nbytes.clear()
    meter.n_messages.clear()
    return rows


def forget(dask_worker: Any) -> None:
    """Reset the counts; runs on a worker."""
    take(dask_worker)


def forget_others(dask_worker: Any) -> None:
    """Reset the counts of what was sent to the scheduler and clients; runs on a worker."""
    meter = _meter(dask_worker)
    for counts in (meter.nbytes, meter.n_messages):
        counts.pop("", None)


def transports(transport: Any, dask_worker: Any) -> list[tuple[str, str, str]]:
    """Return (peer, transport, evidence) of every live connection; runs on a worker.

    Parameters
    ----------
    transport
        The backend's ``transport`` function.
    """
    rows = []
    for peer, reference in _meter(dask_worker).comms.items():
        comm = reference()
        if comm is not None and not comm.closed():
            used = transport(comm)
            rows.append((peer, used.name, used.evidence))
    return rows


def compressions(dask_worker: Any) -> list[str]:
    """Return the compressions of the live connections, or ``"none"``; runs on a worker.

    The two ends of a connection agree on one; on the same host Dask never compresses.
    """
    live = (reference() for reference in _meter(dask_worker).comms.values())
    options = [comm.handshake_options for comm in live if comm is not None and not comm.closed()]
    return sorted({option.get("compression") or "none" for option in options})
