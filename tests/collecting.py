"""Collect from a simulated cluster: from the workers' logs to parts on disk, and what it costs.

The client runs in another process than the test, as in a launch.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import builders
import simulated

from commbench.harness import transfer_log
from commbench.harness.measure import traffic
from commbench.launchers import members
from commbench.model import Case, ClusterSpec
from commbench.model.observed import Record
from commbench.store import directory, emitter, parts

TIMEOUT_S = 200.0
_FILE = Path(__file__).resolve()


def collected(n_workers: int, n_entries: int, output: Path) -> dict[str, Any]:
    """Collect `n_entries` of each of `n_workers` into a run in `output`; return what it cost.

    Returns
    -------
    ``n_records``, and ``n_stored`` of them on disk; ``collect_s`` until the client has all of them,
    and the ``client_cpu_s`` of that; ``disk_s`` until all are on disk, ``empty_s`` where the logs
    are empty; ``n_messages`` to the scheduler, the ``largest_bytes`` of an answer,
    ``scheduler_bytes`` read and written by the scheduler, and its ``scheduler_cpu_s``;
    ``begin_bytes`` and ``peak_bytes`` of the client's memory; ``stored_bytes`` on disk;
    ``path`` of the run.
    """
    case = Case(workload="merge", backend="tcp", cluster=ClusterSpec(n_workers=n_workers))
    results = directory.RunStore.create(output, builders.run([case], id=f"{n_workers}-{n_entries}"))
    with simulated.cluster(n_workers) as address:
        command = [sys.executable, _FILE, address, case.id, str(n_entries), results.path]
        client = subprocess.run(
            command, stdout=subprocess.PIPE, check=True, cwd=results.path, timeout=TIMEOUT_S
        )
    stored = parts.closed(results.path, "TransferRecord")
    return {
        **json.loads(client.stdout), "path": results.path,
        "n_stored": sum(len(parts.read(part, "TransferRecord")) for part in stored),
        "stored_bytes": sum(part.stat().st_size for part in stored),
    }  # fmt: skip


class _Counting:
    """A client that counts its messages and the answers' sizes."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.n_messages = self.largest_bytes = 0

    def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        answer = self._client.run(function, *args, **kwargs)
        self.n_messages += 1
        nbytes = sum(len(text) for text in answer.values() if isinstance(text, str))
        self.largest_bytes = max(self.largest_bytes, nbytes)
        return answer


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s*([0-9]+)", status)[1])


def _client(address: str, case_id: str, n_entries: int, run: Path) -> dict[str, Any]:
    from distributed import Client

    where: dict[str, Any] = {"case_id": case_id, "launch": 0, "iteration": 0}
    with Client(address, set_as_default=False, timeout=60) as client:
        workers = members.workers_by_address(client)
        names = {address: str(info["name"]) for address, info in workers.items()}
        client.register_plugin(transfer_log.TransferLog())
        client.run(simulated.fill, n_entries)
        null = os.fdopen(os.open(os.devnull, os.O_WRONLY), "wb")
        emit, counting = emitter.Recorder(null, run, "client"), _Counting(client)
        with emit.region() as keep:
            # What Arrow takes once is not what collecting takes.
            keep(builders.wire(Case(workload="merge", backend="tcp"), 1))
        begin_bytes, n_records = _peak_bytes(), 0
        n_read, n_written, cpu_s = client.run_on_scheduler(simulated.told)
        client_cpu_s, began = time.process_time(), time.monotonic()
        with emit.region() as keep:
            for record in traffic.fetches(counting, names, **where):
                keep(record)
                n_records += 0 if isinstance(record, Record) else len(record)
            ended = time.monotonic()
        stored, client_cpu_s = time.monotonic(), time.process_time() - client_cpu_s
        n_read_after, n_written_after, cpu_after_s = client.run_on_scheduler(simulated.told)
        again = time.monotonic()
        nothing = list(traffic.fetches(client, names, **where))
        return {
            "n_workers": len(names), "n_records": n_records, "n_left": len(nothing) - len(names),
            "collect_s": ended - began, "disk_s": stored - began,
            "empty_s": time.monotonic() - again,
            "n_messages": counting.n_messages, "largest_bytes": counting.largest_bytes,
            "scheduler_bytes": n_read_after - n_read + n_written_after - n_written,
            "scheduler_cpu_s": cpu_after_s - cpu_s, "client_cpu_s": client_cpu_s,
            "begin_bytes": begin_bytes, "peak_bytes": _peak_bytes(),
        }  # fmt: skip


if __name__ == "__main__":
    _, _address, _case_id, _n_entries, _run = sys.argv
    print(json.dumps(_client(_address, _case_id, int(_n_entries), Path(_run))))
