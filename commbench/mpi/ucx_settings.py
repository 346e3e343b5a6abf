"""UCX's environment while MPI initializes: transports and network interfaces."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

__all__ = ["ucx_environment"]


@contextlib.contextmanager
def ucx_environment(address: str) -> Iterator[frozenset[str] | None]:
    """Set UCX's variables for the block; yield the interfaces that it may use, or None if unknown.

    Without the transport posix, peers attach System V segments, which survive the death of a peer
    during a connect (:mod:`commbench.mpi.connect`). In world mode the launcher decides.
    """
    given = os.environ.get("UCX_NET_DEVICES")
    devices = _devices(address) if given is None else frozenset(given.split(","))
    variables = {"UCX_NET_DEVICES": ",".join(sorted(devices))} if devices else {}
    if any(Path("/sys/class/net", name, "bridge").exists() for name in devices or ()):
        # By default, UCX leaves out bridges.
        variables["UCX_TCP_BRIDGE_ENABLE"] = os.environ.get("UCX_TCP_BRIDGE_ENABLE", "y")
    transports = os.environ.get("UCX_TLS") or "^"
    if transports.startswith("^"):
        variables["UCX_TLS"] = f"{transports},posix" if transports[1:] else "^posix"
    elif not {"self", "all"} & {*transports.split(",")}:
        # MPI aborts the process if it can't reach itself.
        variables["UCX_TLS"] = f"{transports},self"
    inherited = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield devices
    finally:
        for name, value in inherited.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _devices(address: str) -> frozenset[str] | None:
    """Return the interface with this address, and all RDMA devices unless it is the loopback."""
    try:
        resolved = socket.getaddrinfo(address or "::", None)[0][4][0]
        ip = ipaddress.ip_address(str(resolved).partition("%")[0])
    except (OSError, ValueError):
        return None
    if ip.is_unspecified:
        return None
    if ip.is_loopback:
        return frozenset({"lo"})
    # An address may have a label, as eth0:1. Of a routed host it may be on lo, too.
    names = {
        name.partition(":")[0]
        for name, addresses in psutil.net_if_addrs().items()
        if any(entry.address.partition("%")[0] == str(ip) for entry in addresses)
    } - {"lo"}
    ports = Path("/sys/class/infiniband").glob("*/ports/*")
    return frozenset(names | {f"{p.parent.parent.name}:{p.name}" for p in ports}) if names else None
