"""Runs that no machine here could make: a large one, a failed one, and one on GPUs."""

import random

import builders as b
import generated

from commbench.harness.cases import cases_for
from commbench.model import ClusterSpec, observed

_N_WORKERS = 4
_N_TRANSFERS = 20_000


def thousand_workers(output):
    """Write a run of 1,000 workers on 125 hosts."""
    run = generated.generated(output, _N_TRANSFERS, 1000, ["tcp", "ucx"])
    return run.rename(output / "thousand-workers")


def failures(output):
    """Write a run with failed launches, lost log entries, and pairs that exchanged nothing."""
    cases = _merge(["tcp", "ucx", "mpi"], ClusterSpec(n_workers=_N_WORKERS), rows=1000)
    good, partly, failed = cases
    shuffled = random.Random(1)
    records = []
    for case, n_good in ((good, 3), (partly, 2)):
        for launch in range(n_good):
            records += _launch(case, launch, shuffled, silent={("0", "3"), ("2", "1")})
        records += [b.log_count(case, "1", n_started=40, n_logged=31, n_busy=2, n_failed=1)]
    records += [
        *_launch(partly, 2, shuffled, silent=set(), ok=False),
        b.failure(partly, "2 of 4 tasks failed: OSError: Timed out during handshake", launch=2),
        b.transport(partly, "tcp/lo", contradiction="ucx was asked for shared memory"),
        b.sample(failed, 9.0, iteration=-1),
        b.failure(failed, "no end after 300 s (--timeout)"), b.end(failed, ok=False),
        b.failure(failed, "the launch was ended by SIGSEGV", launch=1),
        b.end(failed, launch=1, ok=False),
    ]  # fmt: skip
    return b.written(output, cases, records, id="failures").path


def gpus(output):
    """Write a run on eight GPUs of two hosts, joined by NVLink and PCI Express."""
    cluster = ClusterSpec(
        n_workers=8, device="gpu", hosts=("node0", "node1"), launcher="ssh",
        rmm_pool="10GB", rmm_async=True,
    )  # fmt: skip
    cases = _merge(["ucx", "ucx:tcp+nvlink"], cluster, rows=10_000_000)
    shuffled = random.Random(2)
    records = []
    for case in cases:
        for launch in range(3):
            records += _launch(case, launch, shuffled, silent=set())
            for worker in range(8):
                host, gpu = divmod(worker, 4)
                links = (f"GPU{other}=NV{1 + (gpu + other) % 2}" for other in range(4))
                slow = f"GPU{3 - gpu}="
                joined = (f"{slow}SYS" if link.startswith(slow) else link for link in links)
                records += [
                    b.place(
                        case, str(worker), launch=launch, host=f"node{host}",
                        host_id=f"boot{host} net", gpu=str(gpu), gpu_uuid=f"GPU-{worker}",
                        gpu_pci=f"00000000:0{gpu}:00.0", nic=f"mlx5_{gpu // 2}",
                        gpu_links=" ".join(link for link in joined if f"GPU{gpu}=" not in link),
                        numa_nodes=str(gpu // 2), sockets=str(gpu // 2),
                    ),
                    b.address(case, str(worker), f"ucx://10.0.0.{host + 1}:{40_000 + worker}"),
                ]  # fmt: skip
            memory = "RMM 26.10 PoolMemoryResource; CuPy by rmm"
            records.append(b.setting(case, observed.GPU_MEMORY, memory, launch=launch))
        for src, dst in _pairs(8):
            name = "cuda_ipc" if src // 4 == dst // 4 else "rc_mlx5/mlx5_0:1"
            records.append(b.transport(case, name, src=str(src), dst=str(dst)))
    return b.written(output, cases, records, id="gpus").path


GENERATED = {
    "thousand-workers": thousand_workers, "failures": failures, "gpus": gpus,
}  # fmt: skip


def _merge(backends, cluster, rows):
    params = {"rows": rows, "shuffle": "tasks"}
    return cases_for("merge", backends, params, cluster, launches=3)


def _pairs(n_workers):
    for src in range(n_workers):
        for dst in range(n_workers):
            if src != dst:
                yield src, dst


def _launch(case, launch, numbers, *, silent, ok=True):
    """Yield the records of a launch with a warm-up and three iterations."""
    n_workers = case.cluster.n_workers
    for iteration in range(-1, 3):
        seconds = numbers.uniform(0.9, 1.1) * (5 if iteration < 0 else 1)
        yield b.sample(
            case, seconds, launch=launch, iteration=iteration,
            payload_bytes=32_000 * n_workers, build_seconds=0.01, submit_seconds=0.02,
        )  # fmt: skip
        for src, dst in _pairs(n_workers):
            pair = {"src": str(src), "dst": str(dst)}
            if (pair["src"], pair["dst"]) in silent:
                continue
            start = 100 * launch + 10 * iteration + numbers.uniform(0, 0.5)
            n_bytes = numbers.randrange(500_000, 30_000_000)
            bandwidth = numbers.uniform(1e9, 2e9) / (4 if (src, dst) == (1, 2) else 1)
            yield b.transfer(
                case, start, start + n_bytes / bandwidth, n_bytes, launch=launch,
                iteration=iteration, **pair,
            )  # fmt: skip
            yield b.wire(case, n_bytes + 700, launch=launch, iteration=iteration, **pair)
        for worker in map(str, range(n_workers)):
            at = {"launch": launch, "iteration": iteration}
            n = n_workers - 1
            yield b.log_count(case, worker, n_started=n, n_logged=n, **at)
            start = 100 * launch + 10 * iteration + numbers.uniform(0, 0.5)
            yield b.task(case, start, start + 0.2, worker, **at)
            yield b.task(case, start + 0.2, start + 0.3, worker, action="transfer", **at)
            yield b.thread_time(case, worker, "loop", cpu_seconds=0.4, n_turns=700, **at)
            yield b.thread_time(case, worker, cpu_seconds=numbers.uniform(3, 5), **at)
            yield b.activity(case, "execute", "thread-cpu", 0.2, worker=worker, **at)
            yield b.activity(case, "gather-dep", "network", 0.1, worker=worker, **at)
        yield b.network(case, 10**9, launch=launch, iteration=iteration)
    yield b.spill(case, launch=launch, worker="1")
    yield b.idle(case, numbers.uniform(0.1, 0.2), launch=launch)
    yield b.core_use(case, others=0.1, stolen=0.02, launch=launch)
    yield b.end(case, launch=launch, ok=ok)
