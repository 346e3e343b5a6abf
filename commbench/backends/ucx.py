"""``ucx`` and ``ucx:…``: distributed-ucxx, with the transports in the name.

docs/backends.md has what each name sets, and why.

UCX logs to the launch's scratch folder at level ``info``. The log names the lanes of every endpoint
configuration, and has no entries per message.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.backends.backend import Backend, Transport, Unavailability
from commbench.errors import UsageError
from commbench.machine import installed

if TYPE_CHECKING:
    from commbench.backends.endpoints import Endpoints, Tool

_MODES = ("blocking", "polling", "thread", "thread-polling", "thread-future")
_MODE, _FUTURE = "UCXPY_PROGRESS_MODE", "UCXPY_ENABLE_PYTHON_FUTURE"
_TLS = {"tcp": ("tcp",), "shm": ("sm",), "nvlink": ("cuda_copy", "cuda_ipc"), "ib": ("rc",)}
TOOL = "ucx_perftest"
TESTS = {"latency": "tag_lat", "bandwidth": "tag_bw", "message-rate": "tag_bw"}
"""The test of ``ucx_perftest`` for each mode of pingpong."""
# UCX's transports by the family that users speak of, fastest first.
_FAMILIES = {
    "nvlink": ("cuda_ipc",),
    "shm": ("xpmem", "cma", "knem", "sysv", "posix"),
    "ib": ("rc_verbs", "rc_mlx5", "dc_mlx5", "ud_verbs", "ud_mlx5", "rc", "dc", "ud"),
    "tcp": ("tcp",),
}
_GPU_ARRAYS = ("cupy", "numba.cuda")
"""The packages with arrays in GPU memory."""
_FIELD_TRANSPORTS = 1 << 3
_MAX_LANES = 64


class UcxBackend(Backend):
    """``protocol="ucx"`` of distributed-ucxx."""

    head = "ucx"
    protocol = "ucx"
    variables = ("UCX_", "UCXPY_")
    config_keys = ("distributed-ucxx", "distributed.comm.ucx")
    packages = (
        "distributed-ucxx", "distributed-ucxx-cu12", "distributed-ucxx-cu13", "ucxx", "ucxx-cu12",
        "ucxx-cu13", "libucx-cu12", "libucx-cu13",
    )  # fmt: skip
    nic_variable = "UCX_NET_DEVICES"
    takes_options = True
    choices = tuple(_TLS)
    tuned = frozenset({"shm", "thread-future"})
    in_mpi_ranks = False
    is_fast = True
    launch_factor = 2.0
    before_cuda = "distributed_ucxx.ucxx:init_once"
    # If configured, it creates the context before UCX looks for one.

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        for option in options:
            if option not in _TLS and option not in _MODES:
                raise UsageError(
                    f"unknown transport {option!r} in backend 'ucx:{'+'.join(options)}'; "
                    f"known: {', '.join(_TLS)}, joined by +, for example ucx:tcp+nvlink, "
                    f"and the progress modes {', '.join(_MODES)}"
                )
        self._transports = tuple(option for option in _TLS if option in options)
        modes = tuple(option for option in _MODES if option in options)
        if len(modes) > 1:
            raise UsageError(
                f"backend 'ucx:{'+'.join(options)}' names several progress modes, "
                f"{' and '.join(modes)}; keep one"
            )
        self._mode = "".join(modes)
        super().__init__(self._transports + modes)

    @property
    def best(self) -> str:  # noqa: D102
        if not self._transports:
            return super().best
        return type(self)((*self._transports, "thread-future")).name

    def unavailable(self, device: str) -> Unavailability | None:  # noqa: D102
        for package in ("ucxx", "distributed_ucxx"):
            if importlib.util.find_spec(package) is None:
                return Unavailability(
                    f"the package {package} is not installed", installed.install_command("ucx")
                )
        if "nvlink" in self._transports:
            # Importing this would take a twentieth of the time of `commbench list`.
            from commbench.machine import environment

            if not environment.gpus():
                return Unavailability(
                    "no NVIDIA GPU is visible, and NVLink joins GPUs",
                    "run on a machine with GPUs, or drop nvlink from the name",
                )
            if device != "gpu":
                return Unavailability(
                    "NVLink carries GPU memory only",
                    "add --device gpu, or drop nvlink from the name",
                )
        if "ib" in self._transports:
            return _unavailable_ib()
        return None

    def environment(self, device: str, scratch: Path) -> dict[str, str]:  # noqa: D102
        return log_variables(scratch) | self._variables(device)

    def _variables(self, device: str) -> dict[str, str]:
        mode, *future = self._mode.split("-future")
        settings = {_MODE: mode} if mode else {}
        if future:
            settings[_FUTURE] = "1"
        if device == "gpu":
            settings["DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT"] = "True"
        if not self._transports:
            return settings
        tls = ["tcp", *(name for option in self._transports for name in _TLS[option])]
        if device == "gpu":
            tls.append("cuda_copy")
        settings["UCX_TLS"] = ",".join(dict.fromkeys(tls))
        if "shm" in self._transports:
            settings["UCX_MM_ERROR_HANDLING"] = "y"
        return settings

    def unavailable_layer(self, layer: str, mode: str) -> Unavailability | None:  # noqa: D102
        if layer != "raw":
            return None
        if mode not in TESTS:
            return Unavailability(
                f"the layer raw of ucx is {TOOL}, which has no mode {mode}",
                f"leave raw out of --layers, or choose --mode {' or '.join(TESTS)}",
            )
        if installed.find_ucx(TOOL) is None:
            return Unavailability(
                f"the layer raw of ucx needs {TOOL}, of the package libucx or on the PATH",
                f"{installed.install_command('ucx')}, or leave raw out of --layers",
            )
        return None

    def endpoints(self, layer: str) -> Endpoints | Tool:  # noqa: D102
        from commbench.backends import ucx_endpoints

        return ucx_endpoints.Perftest() if layer == "raw" else ucx_endpoints.AWAITED

    @staticmethod
    def transport(comm: Any) -> Transport:
        """Return the endpoint's fastest lane, from ``ucp_ep_query`` on the live endpoint."""
        lanes = query_lanes(int(comm.ep._ep.handle))
        # UCX lists lanes that only GPU memory can use. RMM is imported wherever it is installed.
        name = fastest(lanes, has_gpu_memory=not sys.modules.keys().isdisjoint(_GPU_ARRAYS))
        evidence = f"ucp_ep_query: {' '.join(lanes)}"
        if lines := [line for line in logged() if f"tag({name}" in line]:
            evidence += f"; log: {lines[-1]}"
        return Transport(name, evidence)

    def contradiction(self, transport: str) -> str:  # noqa: D102
        family = _family(transport)
        if not family:
            return f"{self.name} moves its bytes over {transport or 'an unknown transport'}"
        if not self._transports and transport != "tcp/lo" and family == "tcp":
            return f"{self.name} moves its bytes over {transport}: tcp, with UCX's overhead"
        if not self._transports and family == "tcp":
            return (
                f"{self.name} moves its bytes over {transport}, with UCX's overhead: UCX's shared "
                "memory refuses the error handling that Dask asks for unless "
                "UCX_MM_ERROR_HANDLING=y, which ucx:shm sets"
            )
        if self._transports and family not in self._transports:
            return f"{self.name} moves its bytes over {transport}"
        # Between hosts shm and nvlink are impossible.
        alone = transport != "tcp/lo" and "ib" not in self._transports
        if len(self._transports) > 1 and family == "tcp" and not alone:
            wanted = "+".join(option for option in self._transports if option != "tcp")
            return f"{self.name} moves its bytes over {transport}, not over {wanted}"
        return ""

    def polling(self, variables: Mapping[str, str]) -> str:  # noqa: D102
        mode = variables.get(_MODE)
        if mode == "thread" and variables.get(_FUTURE, "0") != "0":
            return ""
        return f"{_MODE}={mode}" if mode else f"{_MODE}=blocking, the default"

    @classmethod
    def advice(cls, machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:  # noqa: D102
        variables = {name: v for name, v in machine["variables"].items() if name.startswith("UCX_")}
        if variables:
            names = ", ".join(variables)
            yield "warning", f"{names}: set here, and outranks Dask's configuration"
        allowed = variables.get("UCX_MM_ERROR_HANDLING", "n").lower() in ("y", "yes", "1", "on")
        found = [name for name, version in machine["packages"].items() if version]
        if "distributed-ucxx" in " ".join(found) and not allowed:
            text = (
                "ucx alone does not use shared memory within a host, but tcp, or RDMA if there is "
                "any: Dask asks for error handling, and UCX's shared memory refuses that unless "
                "UCX_MM_ERROR_HANDLING=y, which ucx:shm sets"
            )
            yield "note", text

    def settings(self, device: str) -> str:  # noqa: D102
        settings = self._variables(device)
        return " ".join(f"{key}={value}" for key, value in settings.items()) or (
            "nothing: UCX's default under Dask"
        )


def _unavailable_ib() -> Unavailability | None:
    from commbench.machine import environment

    if not environment.rdma_devices():
        return Unavailability(
            "no RDMA device is present (/sys/class/infiniband is empty)",
            "run on a machine with InfiniBand or RoCE, or drop ib from the name",
        )
    tools = installed.ucx_tools()
    if tools is not None and not list((tools.parent / "lib" / "ucx").glob("libuct_ib*")):
        return Unavailability(
            "the UCX in the libucx wheel is built without InfiniBand",
            "install ucxx from conda-forge, or a UCX with verbs on the system and set "
            "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true",
        )
    return None


def _family(transport: str) -> str:
    head = transport.partition("/")[0]
    return next((family for family, names in _FAMILIES.items() if head in names), "")


def fastest(lanes: list[str], *, has_gpu_memory: bool) -> str:
    """Return the lane of the fastest kind, for example ``sysv/memory``.

    Examples
    --------
    >>> lanes = ["tcp/lo", "cuda_ipc/cuda"]
    >>> fastest(lanes, has_gpu_memory=True), fastest(lanes, has_gpu_memory=False)
    ('cuda_ipc/cuda', 'tcp/lo')
    """
    order = list(_FAMILIES)
    known = [lane for lane in lanes if _family(lane)]
    if not has_gpu_memory:
        known = [lane for lane in known if _family(lane) != "nvlink"]
    return min(known, key=lambda lane: order.index(_family(lane)), default="")


def query_lanes(endpoint: int) -> list[str]:
    """Return the lanes of a ``ucp_ep_h``, for example ``sysv/memory``; none if UCX refuses."""
    import ctypes

    # These are classes of this function, because cloudpickle can't send them by value.
    class Lane(ctypes.Structure):
        """``ucp_transport_entry_t`` of ucp.h."""

        _fields_ = (("transport", ctypes.c_char_p), ("device", ctypes.c_char_p))

    class EndpointAttributes(ctypes.Structure):
        """``ucp_ep_attr_t`` of ucp.h, with the fields of its ``ucp_transports_t``."""

        _fields_ = (
            ("field_mask", ctypes.c_uint64),
            ("name", ctypes.c_char * 32),
            ("local_sockaddr", ctypes.c_char * 128),
            ("remote_sockaddr", ctypes.c_char * 128),
            ("lanes", ctypes.POINTER(Lane)),
            ("n_lanes", ctypes.c_uint),
            ("lane_size", ctypes.c_size_t),
            ("user_data", ctypes.c_void_p),
        )

    # ucxx does not wrap ucp_ep_query, but hands out the ucp_ep_h that it takes.
    lanes = (Lane * _MAX_LANES)()
    attributes = EndpointAttributes(
        field_mask=_FIELD_TRANSPORTS,
        lanes=lanes,
        n_lanes=_MAX_LANES,
        lane_size=ctypes.sizeof(Lane),
    )
    # The library is already loaded, and the loader returns ucxx's copy for this soname.
    libucp = ctypes.CDLL("libucp.so.0")
    status = libucp.ucp_ep_query(ctypes.c_void_p(endpoint), ctypes.byref(attributes))
    if status != 0:
        return []
    used = lanes[: attributes.n_lanes]
    names = (f"{lane.transport.decode()}/{lane.device.decode()}" for lane in used)
    # The connection manager's lane has no device and carries no data.
    return [name for name in names if not name.endswith("/")]


def log_variables(scratch: Path) -> dict[str, str]:
    """Return the variables that make each process log to a separate file in `scratch`."""
    return {
        "UCX_LOG_LEVEL": "info",
        # Processes of several hosts may have the same pid.
        "UCX_LOG_FILE": str(scratch / "ucx-%h-%p.log"),
        "UCX_WARN_UNUSED_ENV_VARS": "n",
    }


def logged(pid: int | None = None) -> list[str]:
    """Return the log lines of this process's, or process `pid`'s, endpoints, oldest first.

    One line names the context, the distance (``self``, ``intra-node`` or ``inter-node``) and the
    lanes, for example ``intra-node cfg#1 tag(sysv/memory cma/memory)``.
    """
    import ctypes
    import socket

    # The log is a buffered stdio stream, which is lost if a worker is killed.
    ctypes.CDLL(None).fflush(None)
    name = os.environ.get("UCX_LOG_FILE", "").replace("%p", str(pid or os.getpid()))
    # UCX leaves the domain out.
    path = Path(name.replace("%h", socket.gethostname().partition(".")[0]))
    if not path.is_file():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return [line.partition("INFO")[2].strip() for line in lines if " cfg#" in line]
