"""Run distributed's own tests over tcp and ``mpi://`` and compare them, one by one.

``DISTRIBUTED_SOURCE=DIR python tests/distributed_suites.py [MODULE ...]``, where DIR is a checkout
of dask/distributed at the version that is installed; see ``docs/distributed-suites.md``.
"""

import argparse
import contextlib
import filecmp
import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from distributed_plugin import read_lines

# fmt: off
MODULES = [
    "comm/test_comms", "test_nanny", "test_failed_workers", "test_core", "test_batched",
    "test_locks", "test_variable", "test_queues", "test_spill", "deploy/test_local",
    "cli/test_dask_worker", "test_stress", "test_worker", "test_client", "test_scheduler",
    "shuffle/test_shuffle", "shuffle/test_rechunk", "test_steal", "test_active_memory_manager",
    "test_actor", "test_publish", "test_client_executor",
]
# fmt: on

BUFFER_TYPE = "it knows no mmap, which is what large frames of mpi:// are received into"
KNOWN = {
    "test_comms.py::test_tcp_specific": "it expects an empty `extra_info`; mpi's has the mode",
    "test_comms.py::test_comm_closed_on_write_error": "it replaces a method of tcp's stream",
    "test_comms.py::test_stop_listener_during_handle_stream": (
        "it replaces a private method of tcp's listener"
    ),
    "test_comms.py::test_share_buffer_with_header[tornado-200000-9500-False]": BUFFER_TYPE,
    "test_comms.py::test_share_buffer_with_header[tornado-200000-10500-True]": BUFFER_TYPE,
    "test_comms.py::test_share_buffer_with_header[tornado-350000-0-False]": BUFFER_TYPE,
}
"""Why tests differ over ``mpi://``: by name, with or without parameters."""

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

TEST_TIMEOUT_S = 120
STALLED_S = 300
"""A test that stands still within MPI does not see its own timeout."""


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


def copy_checkout(source: Path, installed: Path, tree: Path, protocol: str) -> None:
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


def run_pytest(tree: Path, protocol: str, lines: Path, arguments: list[str]) -> None:
    """Run tests of `tree` until each has a record in `lines`; one that ends pytest has crashed."""
    environ = os.environ | {
        "PYTHONPATH": str(tree),
        "TMPDIR": str(tree / "tmp"),
        "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": protocol,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-o", "addopts=", "-rfE"]
    command += ["-p", "no:cacheprovider", "-p", "no:legacypath", "-p", "pytest_timeout"]
    command += [
        "-p",
        "distributed_plugin",
        f"--timeout={TEST_TIMEOUT_S}",
        "-o",
        "timeout_method=signal",
        f"--lines={lines}",
    ]
    log = lines.with_suffix(".log")
    while True:
        lines.touch()
        with log.open("a") as output:
            process = subprocess.Popen(
                [*command, *arguments], cwd=tree, env=environ, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            while process.poll() is None and time.time() - lines.stat().st_mtime < STALLED_S:
                time.sleep(0.2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                # Tests that were cut off leave processes in the group.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode in (0, 1, 5):
            return
        records = read_lines(lines)
        if not records or "outcome" in records[-1]:
            sys.exit(f"pytest ended with {process.returncode}; see {log}")
        how = f"pytest ended with {process.returncode}, by itself or after {STALLED_S} s of silence"
        with lines.open("a") as file:
            file.write(json.dumps(records[-1] | {"outcome": "crashed", "why": how}) + "\n")


def as_tcp(text: str) -> str:
    """Return `text` with tcp for mpi, as the other copy has it."""
    return re.sub(r"\bmpi\b", "tcp", text)


def outcomes(lines: Path, path: str) -> dict[str, dict]:
    """Return the records of the tests in `path` that have ended, by their names over tcp."""
    records = [r for r in read_lines(lines) if "outcome" in r and r["test"].startswith(path)]
    return {as_tcp(record["test"]): {"why": "", "connections": {}} | record for record in records}


def explain(test: str) -> str | None:
    """Return why `test` is known to differ, or None."""
    name = test.rpartition("/")[2]
    return KNOWN.get(name) or KNOWN.get(name.partition("[")[0])


def tally(records: dict[str, dict]) -> str:
    """Return passed/failed/skipped; a test that is expected to fail counts as skipped."""
    kinds = {"passed": "passed", "skipped": "skipped", "xfailed": "skipped"}
    counts = Counter(kinds.get(record["outcome"], "failed") for record in records.values())
    return "/".join(str(counts[kind]) for kind in ("passed", "failed", "skipped"))


class Suites:
    """Runs of test modules over both protocols.

    Parameters
    ----------
    trees
        The copies, by protocol, tcp first.
    results
        The folder of records and logs, which are continued where they exist.
    options
        What pytest is given for each module.
    """

    def __init__(self, trees: dict[str, Path], results: Path, options: list[str]) -> None:
        self.trees, self.results, self.options = trees, results, options
        titles = ("Known differences", "Known, but alike now", "Alike when run again alone",
                  "Failed over both", "DIFFERENCES")  # fmt: skip
        self.known, self.outdated, self.flaky, self.failed, self.differences = lists = (
            [], [], [], [], [],
        )  # fmt: skip
        self.sections = dict(zip(titles, lists, strict=True))

    def run(self, module: str) -> str:
        """Run a module over both, and return its row of the table."""
        folder, _, name = module.rpartition("/")
        path = "/".join(filter(None, ("distributed", folder, "tests", f"{name}.py")))
        both = []
        for protocol, tree in self.trees.items():
            lines = self.results / f"{protocol}.jsonl"
            run_pytest(tree, protocol, lines, [path, *self.options])
            both.append(outcomes(lines, path))
        tcp, mpi = both
        needed = any("tcp" in record["connections"] for record in tcp.values())
        made = sum((Counter(record["connections"]) for record in mpi.values()), Counter())
        if made["tcp"] or (needed and not made["mpi"]):
            self.differences.append(f"{module}: connections over mpi:// were {dict(made)}")
        known = sum(self._compare(test, tcp.get(test), mpi.get(test)) for test in tcp | mpi)
        return f"| {module} | {tally(tcp)} | {tally(mpi)} | {known} | {made['mpi']} |"

    def _compare(self, test: str, *records: dict | None) -> bool:
        """List `test` where it belongs, and return whether it is a known difference."""
        if None in records:
            self.differences.append(f"{test}: it has an outcome over one of both only")
            return False
        tcp, mpi = records
        why = explain(test)
        if tcp["outcome"] != mpi["outcome"]:
            if why:
                self.known.append(f"{test}: {why}")
            else:
                self._again(test, records)
            return why is not None
        if why:
            self.outdated.append(test)
        if tcp["outcome"] in ("failed", "crashed"):
            other = "" if as_tcp(mpi["why"]) == tcp["why"] else f"; over mpi: {mpi['why']}"
            self.failed.append(f"{test}: {tcp['why']}{other}")
        return False

    def _again(self, test: str, records: tuple[dict, dict]) -> None:
        """Run `test` over both by itself; it counts where it differs still."""
        both, texts = [], []
        for (protocol, tree), record in zip(self.trees.items(), records, strict=True):
            lines = self.results / f"{protocol}-again.jsonl"
            run_pytest(tree, protocol, lines, [record["test"], "--runslow"])
            both.append(outcomes(lines, "")[test])
            why = both[-1]["why"] or record["why"]
            texts.append(f"{protocol} {record['outcome']}, then {both[-1]['outcome']} {why}")
        differs = both[0]["outcome"] != both[1]["outcome"]
        (self.differences if differs else self.flaky).append(f"{test}: {'; '.join(texts)}")


def main() -> None:
    """Run the modules that the command line names, and exit with 1 where any test differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th test")
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests that match, as with pytest")
    parser.add_argument("--runslow", action="store_true", help="also what distributed marks slow")
    parser.add_argument("--resume", action="store_true", help="keep the results that exist")
    parser.add_argument("--results", type=Path, default=Path("build/distributed-suites"))
    given = parser.parse_args()
    if not (source := os.environ.get("DISTRIBUTED_SOURCE")):
        sys.exit("DISTRIBUTED_SOURCE is not set: it names a checkout of dask/distributed")
    installed = check_version(Path(source))
    if unknown := set(given.modules) - set(MODULES):
        sys.exit(f"no such module: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    if not given.resume:
        shutil.rmtree(given.results, ignore_errors=True)
    given.results.mkdir(parents=True, exist_ok=True)
    options = [f"--every={given.every}", *(["--runslow"] if given.runslow else [])]
    options += ["-k", given.k] if given.k else []
    # The copies go, and what runs in them, where this is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="distributed-suites-") as scratch:
        trees = {protocol: Path(scratch, protocol) for protocol in ("tcp", "mpi")}
        for protocol, tree in trees.items():
            copy_checkout(Path(source), installed, tree, protocol)
        suites = Suites(trees, given.results.resolve(), options)
        print(
            "| module | tcp | mpi | explained | MPI connections |\n| --- | --- | --- | --- | --- |"
        )
        for module in given.modules:
            print(suites.run(module), flush=True)
    for title, tests in suites.sections.items():
        print(f"\n{title}: {len(tests)}", *tests, sep="\n- ")
    print(
        "\nNot run:", ", ".join(name for name in MODULES if name not in given.modules) or "nothing"
    )
    if given.every > 1:
        print(f"One test in {given.every} was run.")
    if given.k:
        print(f"Only tests that match {given.k!r} were run.")
    if not given.runslow:
        print("Tests that distributed marks slow were skipped.")
    sys.exit(bool(suites.differences))


if __name__ == "__main__":
    main()
