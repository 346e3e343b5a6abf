"""What collecting costs with many workers, which are simulated: in number, not in speed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
CLIENT = """
import json, os, re, sys, time
sys.path.insert(0, sys.argv[1])
import simulated
from distributed import Client
from commbench import transfers
from commbench.launch import _Emitter
from commbench.model import TransferRecord

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1])

address, n_entries = sys.argv[2], int(sys.argv[3])
with Client(address, set_as_default=False) as client:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    names = {address: str(info["name"]) for address, info in workers.items()}
    client.register_plugin(transfers.TransferLog())
    client.run(simulated.fill, n_entries, list(names)[:10])
    begin = peak()
    emit = _Emitter(os.open(os.devnull, os.O_WRONLY))
    began, n_records = time.perf_counter(), 0
    for record in transfers.collect(client, names, case_id="0" * 12, launch=0, iteration=0):
        emit(record)
        n_records += isinstance(record, TransferRecord)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    nothing = list(transfers.collect(client, names, case_id="0" * 12, launch=0, iteration=0))
    empty_s = time.perf_counter() - began
    print(json.dumps({
        "n_workers": len(names), "n_records": n_records, "seconds": seconds,
        "empty_s": empty_s, "n_left": len(nothing) - len(names),
        "begin_bytes": begin, "peak_bytes": peak(),
    }))
"""


@contextmanager
def cluster(n_workers: int) -> Iterator[str]:
    """Start a simulated cluster and give its scheduler's address."""
    command = [sys.executable, str(TESTS / "simulated.py"), str(n_workers)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


def collected(n_workers: int, n_entries: int) -> dict[str, Any]:
    """Collect `n_entries` of each worker in a process of its own and return what that took."""
    with cluster(n_workers) as address:
        found = subprocess.check_output(
            [sys.executable, "-c", CLIENT, str(TESTS), address, str(n_entries)], text=True
        )
    return json.loads(found.splitlines()[-1])


def test_ten_thousand_entries_of_64_workers_take_little_memory():
    """Nothing is lost, nothing comes twice, and the client needs less than 500 MB."""
    found = collected(64, 10_000)
    assert found["n_records"] == 640_000
    assert found["n_left"] == 0
    assert found["peak_bytes"] < 500e6


@pytest.mark.slow
def test_ten_thousand_entries_of_64_workers_are_collected_in_ten_seconds():
    """On a machine that does nothing else."""
    found = [collected(64, 10_000)["seconds"] for _ in range(3)]
    print(f"\n64 workers, 640,000 entries: {', '.join(f'{seconds:.1f} s' for seconds in found)}")
    assert min(found) < 10
