# The public names and where they are defined; `lazy_loader` imports each when it is first used.

from . import stats
from .analysis.findings import CaseRecords, Rule
from .analysis.run import Run, load
from .backends.base import Backend, Transport
from .backends.endpoints import Endpoint, Endpoints
from .backends.tcp_endpoints import BLOCKING_TCP
from .cli.python_api import run, run_async
from .conformance import check_backend, check_launcher, check_workload
from .errors import (
    CommbenchError,
    LaunchError,
    ResultsError,
    UnavailableError,
    UsageError,
    VerificationError,
)
from .launchers.base import Launcher, RunningCluster, worker_preloads
from .model.derived import Finding
from .model.published import published_figure
from .model.units import format_bandwidth, format_bytes, format_message_size, format_seconds
from .reports.figures import figure
from .reports.figures.style import backend_styles, new_figure, styled
from .reports.sections import Section, Table, reading
from .studies.notebook import load_ipython_extension
from .studies.profile import profile
from .workloads.base import ClusterWorkload, FetchWorkload, PairWorkload
from .workloads.device import (
    array_library,
    finished_blocks,
    persist_input,
    uniform_array,
    uniform_block,
    verify_blocks,
)
from .workloads.placement import rebalance

__all__ = [
    "BLOCKING_TCP",
    "Backend",
    "CaseRecords",
    "ClusterWorkload",
    "CommbenchError",
    "Endpoint",
    "Endpoints",
    "FetchWorkload",
    "Finding",
    "LaunchError",
    "Launcher",
    "PairWorkload",
    "ResultsError",
    "Rule",
    "Run",
    "RunningCluster",
    "Section",
    "Table",
    "Transport",
    "UnavailableError",
    "UsageError",
    "VerificationError",
    "array_library",
    "backend_styles",
    "check_backend",
    "check_launcher",
    "check_workload",
    "figure",
    "finished_blocks",
    "format_bandwidth",
    "format_bytes",
    "format_message_size",
    "format_seconds",
    "load",
    "load_ipython_extension",
    "new_figure",
    "persist_input",
    "profile",
    "published_figure",
    "reading",
    "rebalance",
    "run",
    "run_async",
    "stats",
    "styled",
    "uniform_array",
    "uniform_block",
    "verify_blocks",
    "worker_preloads",
]
__version__: str
