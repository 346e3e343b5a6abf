"""Copies of a checkout of dask/distributed, in which its tests run over tcp or ``mpi://``."""

from __future__ import annotations

import filecmp
import importlib.metadata
import importlib.util
import itertools
import re
import shutil
import sys
from pathlib import Path

AS_TCP = """
from distributed.comm.tcp import *
from commbench.mpi.backend import MPIBackend as TCPBackend
from commbench.mpi.backend import MPIConnector as TCPConnector
from commbench.mpi.backend import MPIListener as TCPListener
from commbench.mpi.comm import MPIComm as TCP
"""
"""What stands for ``distributed.comm.tcp`` in the tests over ``mpi://``."""

DEFAULTS = ("comm/core.py", "deploy/local.py")
"""Modules that use tcp where no protocol is named, whatever the configuration says."""


def check_version(source: Path) -> Path:
    """Return the package that is installed, or exit where `source` is of another version."""
    installed = Path(importlib.util.find_spec("distributed").origin).parent
    names = {str(file.relative_to(installed)) for file in installed.rglob("*.py")} - {"_version.py"}
    _, *other = filecmp.cmpfiles(installed, source / "distributed", names, shallow=False)
    if differing := sorted(itertools.chain(*other)):
        version = importlib.metadata.version("distributed")
        sys.exit(
            f"DISTRIBUTED_SOURCE: {source} is not distributed {version}, which is installed: "
            f"{len(differing)} of {len(names)} files differ, {differing[0]} among them; "
            f"check out {version} there"
        )
    return installed


def copy(source: Path, installed: Path, tree: Path, protocol: str) -> None:
    """Copy what the tests of `source` need to `tree`, where they use `protocol`."""
    package = tree / "distributed"
    # With their times, so that compiled modules are valid, too.
    shutil.copytree(source / "distributed", package)
    plugin = Path(__file__).with_name("distributed_plugin.py")
    for file in (source / "conftest.py", source / "pyproject.toml", plugin):
        shutil.copy(file, tree)
    # The build writes it, so a checkout need not have it.
    shutil.copy(installed / "_version.py", package)
    (tree / "tmp").mkdir()
    if protocol == "mpi":
        (package / "comm/mpi_as_tcp.py").write_text(AS_TCP)
        changed = [package / name for name in ("utils_test.py", *DEFAULTS)]
        for file in (*package.rglob("test_*.py"), *changed):
            file.write_text(over_mpi(file.read_text()))


def over_mpi(text: str) -> str:
    """Return `text` with addresses, protocols and comm classes of mpi for those of tcp.

    Examples
    --------
    >>> over_mpi('from distributed.comm.tcp import TCP; listen("tcp://"); Worker(protocol="tcp")')
    'from distributed.comm.mpi_as_tcp import TCP; listen("mpi://"); Worker(protocol="mpi")'
    """
    text = re.sub(r"\btcp://", "mpi://", text)
    text = re.sub(r"([\"'])tcp\1", r"\1mpi\1", text)
    return re.sub(r"\bdistributed\.comm\.tcp\b", "distributed.comm.mpi_as_tcp", text)
