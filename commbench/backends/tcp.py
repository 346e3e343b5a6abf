"""``tcp``: Dask's default, sockets through tornado."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.backends.backend import STAGED, Backend, Transport, Unavailability
from commbench.machine.gpu import in_use

if TYPE_CHECKING:
    from commbench.backends.endpoints import Endpoints, Tool


class TcpBackend(Backend):
    """``tcp://`` addresses with Dask's default settings."""

    head = "tcp"
    protocol = "tcp"

    def unavailable(self, device: str) -> Unavailability | None:  # noqa: D102
        del device
        return None

    def environment(self, device: str, scratch: Path) -> dict[str, str]:  # noqa: D102
        del device, scratch
        return {}

    def unavailable_layer(self, layer: str, mode: str) -> Unavailability | None:
        """Return None: the layers only need Python's standard library."""
        del layer, mode
        return None

    def endpoints(self, layer: str) -> Endpoints | Tool:  # noqa: D102
        from commbench.backends import tcp_endpoints

        return tcp_endpoints.BLOCKING_TCP if layer == "raw" else tcp_endpoints.TCP_STREAMS

    @staticmethod
    def transport(comm: Any) -> Transport:
        """Return the network interface that the socket uses."""
        used = _route(comm)
        if not in_use():
            return used
        # Sockets take host memory only.
        return Transport(used.name + STAGED, f"{used.evidence}; GPU memory is copied to the host")

    def settings(self, device: str) -> str:  # noqa: D102
        del device
        return "nothing: Dask's default"


def _route(comm: Any) -> Transport:
    import psutil
    from distributed.comm import get_address_host

    local = get_address_host(comm.local_address)
    peer = get_address_host(comm.peer_address)
    evidence = f"socket {comm.local_address} ↔ {comm.peer_address}"
    if local == peer:
        # Linux routes a host's traffic with itself over lo, for any of its addresses.
        return Transport("tcp/lo", evidence)
    for interface, addresses in psutil.net_if_addrs().items():
        # In routed clusters lo may have the host's address, but never carries remote traffic.
        if interface != "lo" and any(address.address == local for address in addresses):
            return Transport(f"tcp/{interface}", evidence)
    return Transport("tcp", evidence)
