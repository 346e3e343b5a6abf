"""Collect from a simulated cluster: from the workers' logs to the lines on disk, and what it takes.

The client runs in a process of its own, as in a launch; this one does what the runner does.
"""

from __future__ import annotations

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

from commbench import emitter, runner, store, transfers
from commbench.lines import Lines
from commbench.model import Case, ClusterSpec

TIMEOUT_S = 200.0
_FILE = Path(__file__).resolve()


def collected(n_workers: int, n_entries: int, output: Path) -> dict[str, Any]:
    """Collect `n_entries` of each of `n_workers` into a run in `output`; return what that took.

    Returns
    -------
    ``n_records``, and ``n_lines`` of them on disk; ``collect_s`` until the client has all of them,
    and the ``client_cpu_s`` of that; ``disk_s`` until all are on disk, ``empty_s`` where the logs
    are empty; ``n_messages`` to the scheduler, the ``largest_bytes`` of an answer,
    ``scheduler_bytes`` read and written by the scheduler, and its ``scheduler_cpu_s``;
    ``begin_bytes`` and ``peak_bytes`` of the client's memory; ``lines_bytes`` of the lines on disk;
    ``path`` of the run.
    """
    case = Case(workload="merge", backend="tcp", cluster=ClusterSpec(n_workers=n_workers))
    results = store.RunStore.create(output, builders.run([case], id=f"{n_workers}-{n_entries}"))
    read_end, write_end = os.pipe()
    with simulated.cluster(n_workers) as address, os.fdopen(read_end, "rb", buffering=0) as pipe:
        command = [sys.executable, _FILE, address, case.id, str(n_entries), str(write_end)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, pass_fds=[write_end], cwd=results.path
        ) as client:
            try:
                os.close(write_end)
                stored_at = 0.0
                for found in runner._lines(pipe, client, time.monotonic() + TIMEOUT_S):
                    if found is not None:
                        record = found if isinstance(found, Lines) else store.decode(found)
                        results.append(record)
                        stored_at = time.monotonic()
                told = json.loads(client.communicate()[0])
                assert client.returncode == 0
            finally:
                client.kill()
    results.close()
    lines = results.path / "transfers.jsonl"
    with lines.open("rb") as file:
        n_lines = sum(1 for _ in file)
    return {
        **told, "disk_s": stored_at - told["began"], "n_lines": n_lines,
        "lines_bytes": lines.stat().st_size, "path": results.path,
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


def _client(address: str, case_id: str, n_entries: int, descriptor: int) -> dict[str, Any]:
    from distributed import Client

    where: dict[str, Any] = {"case_id": case_id, "launch": 0, "iteration": 0}
    with Client(address, set_as_default=False, timeout=60) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        names = {address: str(info["name"]) for address, info in workers.items()}
        client.register_plugin(transfers.TransferLog())
        client.run(simulated.fill, n_entries)
        emit, counting = emitter.Pipe(descriptor, Path.cwd()), _Counting(client)
        begin_bytes, n_records = _peak_bytes(), 0
        n_read, n_written, cpu_s = client.run_on_scheduler(simulated.told)
        own_cpu_s, began = time.process_time(), time.monotonic()
        with emit.held() as hold:
            for record in transfers.collect(counting, names, **where):
                hold(record)
                n_records += record.text.count("\n") if isinstance(record, Lines) else 0
            ended, own_cpu_s = time.monotonic(), time.process_time() - own_cpu_s
        n_read_after, n_written_after, cpu_after_s = client.run_on_scheduler(simulated.told)
        again = time.monotonic()
        nothing = list(transfers.collect(client, names, **where))
        return {
            "n_workers": len(names), "n_records": n_records, "n_left": len(nothing) - len(names),
            "began": began, "collect_s": ended - began, "empty_s": time.monotonic() - again,
            "n_messages": counting.n_messages, "largest_bytes": counting.largest_bytes,
            "scheduler_bytes": n_read_after - n_read + n_written_after - n_written,
            "scheduler_cpu_s": cpu_after_s - cpu_s, "client_cpu_s": own_cpu_s,
            "begin_bytes": begin_bytes, "peak_bytes": _peak_bytes(),
        }  # fmt: skip


if __name__ == "__main__":
    _, _address, _case_id, _n_entries, _descriptor = sys.argv
    print(json.dumps(_client(_address, _case_id, int(_n_entries), int(_descriptor))))
