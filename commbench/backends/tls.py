"""``tls``: tcp with encryption, by a key and a certificate that are made for the run."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from typing import Any

from commbench.backends.backend import Backend, Transport, Unavailability
from commbench.backends.tcp import TcpBackend


class TlsBackend(TcpBackend):
    """``tls://`` addresses; both ends of a connection have to show the certificate."""

    head = "tls"
    protocol = "tls"
    has_secrets = True
    plain = "tcp"
    unavailable_layer = Backend.unavailable_layer
    endpoints = Backend.endpoints

    def unavailable(self, device: str) -> Unavailability | None:  # noqa: D102
        del device
        if importlib.util.find_spec("cryptography") is None:
            return Unavailability(
                "the package cryptography is not installed", "pip install cryptography"
            )
        return None

    def dask_config(self) -> Mapping[str, Any]:  # noqa: D102
        return _credentials()

    @staticmethod
    def transport(comm: Any) -> Transport:
        """Return the network interface that the socket uses, and the cipher."""
        used = TcpBackend.transport(comm)
        name, version, _ = comm.extra_info["cipher"]
        return Transport(
            f"tls{used.name.removeprefix('tcp')}", f"{used.evidence}; {version}, {name}"
        )

    def settings(self, device: str) -> str:  # noqa: D102
        del device
        return "distributed.comm.tls.*, for example by Security.temporary()"


@cache
def _credentials() -> dict[str, Any]:
    from distributed import Security

    temporary = Security.temporary()
    key, certificate = temporary.tls_worker_key, temporary.tls_worker_cert
    roles = ("client", "scheduler", "worker")
    return {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": temporary.tls_ca_file,
        **{f"distributed.comm.tls.{role}.key": key for role in roles},
        **{f"distributed.comm.tls.{role}.cert": certificate for role in roles},
    }
