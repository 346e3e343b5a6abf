"""Trials whose answer is known beforehand: each measures, and compares what commbench says.

A trial is a function of a seed and an empty folder. It returns rows: the name of the question,
whether the answer was right, whether something else was named falsely, and for numbers the relative
or absolute error.
"""

import dataclasses
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import builders
import namespaces
import numpy as np
import overhead
import processes
from namespaces import PAYLOAD_SHARE

import commbench
from commbench import backends, stats
from commbench.analysis.run import Run
from commbench.machine import cores
from commbench.model import Case, Comparison, Stopping
from commbench.model.units import format_message_size
from commbench.stats.selection import measured
from commbench.stats.sequential import next_block

BARE = Path(__file__).parents[1] / "bare"
BUDGET_S = 90
"""About as long for each backend as in ``make run``."""
MERGE = ("--workers", 2, "--rows", 250_000, "--shuffle", "tasks")
POOL_LAUNCHES, POOL_ITERATIONS, PILOT = 120, 20, 10
PLUG_IN = '''
import dataclasses
import os
import time
import uuid
from pathlib import Path

import dask.array as da
import numpy as np

import commbench
from commbench.backends.tcp import TcpBackend
from commbench.workloads.merge import Merge
from commbench.workloads.pingpong import PingPong


class Delayed(TcpBackend):
    """tcp, with which a merge takes longer by as many percent as its option gives."""
    head = "delayed"

    def __init__(self, options=()):
        super().__init__()
        self.options = tuple(options)

    def environment(self, device, scratch):
        return {"COMMBENCH_TRUTH_PERCENT": self.options[0]}


def wait_longer(frame, began, percent):
    time.sleep((time.time() - began) * percent / 100)
    return frame


class DelayedMerge(Merge):
    """A merge whose last tasks sleep for a share of the time that it has taken."""
    name = "delayed-merge"

    def build(self):
        joined, percent = super().build(), int(os.environ["COMMBENCH_TRUTH_PERCENT"])
        return joined.map_partitions(wait_longer, time.time(), percent, meta=joined._meta)


class TwoModes(PingPong):
    """A ping-pong that takes 4 ms longer in every second launch."""
    name = "two-modes"

    async def exchange(self, comm, payload):
        counter = Path(os.environ["COMMBENCH_TRUTH"]) / "launches"
        if not hasattr(self, "slow"):
            with counter.open("a") as file:
                file.write("x")
            self.slow = counter.stat().st_size // 2 % 2
        reply = await super().exchange(comm, payload)
        until = time.perf_counter() + 0.008 * self.slow
        while time.perf_counter() < until:
            pass
        return reply


def burn(cpu_s, sleep_s):
    began = time.time()
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass
    time.sleep(sleep_s)
    with (Path(os.environ["COMMBENCH_TRUTH"]) / "tasks").open("a") as file:
        file.write(f"{began} {time.time() - began}\\n")
    return np.ones(1, "u1")


class Known(commbench.ClusterWorkload):
    """Tasks that use a core, and sleep, for known times."""
    name = "known"
    summary = "tasks that use a core, and sleep, for known times"

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Params:
        cpu: float = dataclasses.field(default=0.05, metadata={"help": "seconds on a core"})
        sleep: float = dataclasses.field(default=0.05, metadata={"help": "seconds asleep"})
        tasks: int = dataclasses.field(default=20, metadata={"help": "their number"})

    payload_bytes = 0

    def prepare(self, client):
        pass

    def build(self):
        p = self.params
        return da.map_blocks(
            burn, p.cpu, p.sleep, chunks=((1,) * p.tasks,), dtype="u1", name=f"burn-{uuid.uuid4()}",
            meta=np.empty(0, "u1"),
        )

    def verify(self, client, result):
        commbench.finished_blocks(result, (self.params.tasks,))
'''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answer to one question in one trial."""

    question: str
    right: bool
    false: bool | None = None
    """Whether something else was named; None where nothing can be."""
    wanted: float = 0.95
    """The least share of right answers."""
    error: float | None = None
    medians_s: dict[str, list[float]] | None = None
    """The medians of launches, by backend or by how their processes started."""
    iterations_s: dict[str, list[list[float]]] | None = None
    """The times of the iterations of each launch, in order of time, by backend."""
    designs: list[tuple[int, float]] | None = None
    """The iterations per launch, and the seconds per block, that a run would choose from each
    ``PILOT`` launches that follow each other."""


def run(folder: Path, *arguments: object, prefix: Sequence[str] = ()) -> Run:
    """Run the command line with the plug-ins above, in another process."""
    plugged = processes.plug_in(
        folder / "plugged", "truth_plugin", PLUG_IN,
        backends={"delayed": "Delayed"},
        workloads={"two-modes": "TwoModes", "known": "Known", "delayed-merge": "DelayedMerge"},
    )  # fmt: skip
    path = os.pathsep.join([str(plugged), os.environ.get("PYTHONPATH", "")])
    command = [*prefix, sys.executable, "-m", "commbench.cli", "run", *map(str, arguments)]
    done = subprocess.run(
        [*command, "--output", str(folder / "results")], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "COMMBENCH_TRUTH": str(folder)}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
    return commbench.load(Path(done.stdout.splitlines()[-1]))


def equal_backends(seed: int, folder: Path) -> Iterator[Outcome]:
    """Measure tcp under two names, through merge."""
    result, comparison = compared(folder, "merge", "tcp,tcp@2", seed)
    verdict = comparison.verdict
    yield from estimates(comparison, 1.0)
    claimed = verdict in ("faster", "slower")
    yield Outcome(
        question="equal backends: no difference is claimed", right=not claimed, false=claimed,
        medians_s=medians_s(result, lambda case: case.backend),
    )  # fmt: skip
    one, other = comparison.baseline_moved_bytes, comparison.candidate_moved_bytes
    yield Outcome(
        question="equal backends move the same bytes, within 5 %",
        right=abs(one / other - 1) <= 0.05, error=one / other - 1,
    )  # fmt: skip
    if is_precise(comparison):
        question = "equal backends are called the same, where the ratio's standard error is ≤ 2 %"
        yield Outcome(question=question, right=verdict == "same", wanted=0.5)


def is_precise(comparison: Comparison) -> bool:
    """Return whether the standard error of the ratio is at most 2 %."""
    return math.log(comparison.ci_high / comparison.ci_low) <= 2 * 1.96 * 0.02


def pool(seed: int, folder: Path) -> Iterator[Outcome]:
    """Measure tcp under two names for so long that the page can resample runs."""
    result = run(
        folder, "merge", "--backends", "tcp,tcp@2", *MERGE, "--launches", POOL_LAUNCHES,
        "--iterations", POOL_ITERATIONS, "--seed", seed,
    )  # fmt: skip
    columns = ["case_id", "iteration"]
    times = result.measured.pivot(index="launch", columns=columns, values="seconds").dropna()
    manifest = dataclasses.replace(result.manifest, stopping=Stopping())
    designs = []
    for first in range(len(times) - PILOT + 1):
        launches = times.index[first : first + PILOT]
        frames = {
            name: frame[frame["launch"].isin(launches)]
            for name, frame in (("samples", result.samples), ("ends", result.ends))
        }
        block = next_block(result.replace(manifest, **frames))
        assert block.iterations is not None
        designs.append((block.iterations, round(block.seconds, 3)))
    (comparison,) = result.comparisons
    claimed = comparison.verdict in ("faster", "slower")
    yield Outcome(
        question=f"equal backends, {POOL_LAUNCHES} launches each: no difference is claimed",
        right=not claimed, false=claimed, designs=designs,
        iterations_s={
            case.backend: times[case.id].to_numpy().round(6).tolist()
            for case in result.suite.cases
        },
    )  # fmt: skip


def delayed_backend(seed: int, folder: Path) -> Iterator[Outcome]:
    """Measure a merge over tcp, and over one that takes 10 or 15 % longer."""
    percent = (10, 15)[seed % 2]
    _, comparison = compared(folder, "delayed-merge", f"delayed:{percent},delayed:0", seed)
    yield from estimates(comparison, 1 / (1 + percent / 100))
    yield Outcome(
        question=f"a delay of {percent} % is found", right=comparison.verdict == "faster",
        wanted={10: 0.8, 15: 0.95}[percent], false=comparison.verdict in ("slower", "same"),
    )  # fmt: skip


def compared(folder: Path, workload: str, backends: str, seed: int) -> tuple[Run, Comparison]:
    """Compare two backends, with the time per backend that ``make run`` has."""
    result = run(
        folder, workload, "--backends", backends, *MERGE, "--budget", f"{BUDGET_S}s",
        "--seed", seed,
    )  # fmt: skip
    (comparison,) = result.comparisons
    return result, comparison


def medians_s(run: Run, name: Callable[[Case], str]) -> dict[str, list[float]]:
    """Return the medians of the launches of each case, in their order."""
    medians = run.launch_medians.groupby("case_id")["median_s"]
    return {name(case): medians.get_group(case.id).tolist() for case in run.suite.cases}


def estimates(comparison: Comparison, truth: float) -> Iterator[Outcome]:
    """Compare a ratio with the `truth`, and its interval, which takes six launches."""
    if not math.isnan(comparison.ci_low):
        right = comparison.ci_low <= truth <= comparison.ci_high
        question = "the 95 % interval of a ratio has the true one"
        yield Outcome(question=question, right=right, error=comparison.ratio / truth - 1)


def forked_launches(seed: int, folder: Path) -> Iterator[Outcome]:
    """Start the processes of every second launch by fork, of the others by exec."""
    suite = folder / "suite.toml"
    case = '[[case]]\nworkload = "merge"\nparams = {{ rows = 100000, shuffle = "tasks" }}\n{}\n'
    fresh = 'cluster = { launcher_options = { start = "spawn" } }'
    suite.write_text(case.format("") + case.format(fresh))
    result = run(folder, suite, "--launches", 6, "--iterations", 5, "--seed", seed)
    medians = medians_s(result, lambda case: case.cluster.launcher_options.get("start", "fork"))
    error = float(np.median(medians["fork"]) / np.median(medians["spawn"]) - 1)
    yield Outcome(
        question="forked launches take as long as fresh ones, within 5 %",
        right=abs(error) <= 0.05, error=error, medians_s=medians,
    )  # fmt: skip


def two_modes(seed: int, folder: Path) -> Iterator[Outcome]:
    """Delay messages by 8 ms in two of four launches."""
    share = low_mode_share(folder, "two-modes", seed)
    yield Outcome(question="launches of two modes are named, with their shares", right=share == 0.5)


def one_mode(seed: int, folder: Path) -> Iterator[Outcome]:
    """Measure the same without the delay."""
    named = not math.isnan(low_mode_share(folder, "pingpong", seed))
    yield Outcome(question="launches of one mode are not split", right=not named, false=named)


def low_mode_share(folder: Path, workload: str, seed: int) -> float:
    """Return the share of the launches in the faster mode; nan if there is one mode."""
    result = run(
        folder, workload, "--layers", "comm", "--sizes", 1, "--launches", 8, "--iterations", 20,
        "--seed", seed,
    )  # fmt: skip
    return float(result.summaries["low_mode_share"].item())


def too_few_cores(seed: int, folder: Path) -> Iterator[Outcome]:
    """Run two processes on one core, and each on a core."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    given = ("pingpong", "--layers", "comm", "--sizes", 1, "--launches", 1, "--seed", seed)
    for cpus, expected in ((f"{first}", True), (f"{first},{second}", False)):
        result = run(folder, *given, prefix=("taskset", "-c", cpus))
        named = any("busy threads share" in text for text in result.warnings)
        yield Outcome(
            question="two busy processes on one core are named, on two cores not",
            right=named == expected, false=None if expected else named,
        )  # fmt: skip


def slow_parts(seed: int, folder: Path) -> Iterator[Outcome]:
    """Shape one of four hosts, one link or one direction to 40 MB/s."""
    kinds = ("worker", "sender", "receiver", "link", "direction")
    dice = random.Random(seed)
    kind, slow = kinds[seed % len(kinds)], dice.randrange(4)
    other = dice.choice([host for host in range(4) if host != slow])
    rest = [host for host in range(4) if host != slow]
    rate_Bps = 40e6  # noqa: N806 - the spelling of the unit
    layouts = {
        "worker": ([(slow, host) for host in rest], False, f"from and to worker {slow}"),
        "sender": ([(slow, host) for host in rest], True, f"from worker {slow}"),
        "receiver": ([(host, slow) for host in rest], True, f"to worker {slow}"),
        "link": (
            [(slow, other)], False, f"between workers {min(slow, other)} and {max(slow, other)}"
        ),
        "direction": ([(slow, other)], True, f"from worker {slow} to {other}"),
    }  # fmt: skip
    links, one_way, cause = layouts[kind]
    layout = namespaces.mesh(4, dict.fromkeys(links, rate_Bps), one_way=one_way)
    with namespaces.laid_out(layout) as there, namespaces.launches_on_host_0(folder, there):
        result = processes.measured(
            "all-to-all", "--launcher", "namespaces", "--workers", 4, "--launches", 3,
            "--iterations", 3, "--sizes", "64KiB,8MB", "--seed", seed, "--output",
            folder / "results",
        )  # fmt: skip
    table = result.slow_pairs[result.slow_pairs["channel"] == "alone"]
    causes = set(table["cause"])
    yield Outcome(
        question=f"a slow {kind} of four hosts is named",
        right=cause in causes, false=bool(causes - {cause}),
    )  # fmt: skip
    pairs = result.pairs[result.pairs["channel"] == "alone"].set_index(["src", "dst"])["q50_Bps"]
    for src, dst in links:
        rate = pairs[str(src), str(dst)]
        error = rate / (rate_Bps * PAYLOAD_SHARE) - 1
        yield Outcome(
            question="the bandwidth of a shaped link, within 10 %",
            right=abs(error) <= 0.1, error=error,
        )  # fmt: skip


def planted_log(seed: int, folder: Path) -> Iterator[Outcome]:
    """Plant overlapping and retried fetches, steps and skew of clocks in a log of equal links."""
    dice = np.random.default_rng(seed)
    case = builders.case(n_workers=4, launches=3)
    n_steps = int(dice.integers(1, 4))
    nbytes, seconds = 8_000_000, 0.01
    records = []
    for launch in range(3):
        for dst in range(4):
            ends = {"dst": str(dst), "launch": launch}
            skew = dice.normal(0, 1)
            n_logged = 6
            if dst == 1 and launch < n_steps:
                # The clock was set back during this fetch.
                records.append(builders.transfer(case, 2, 1, nbytes, src="0", **ends))
                n_logged += 1
            for src in {*range(4)} - {dst}:
                # Two that overlap by half: three halves of the time of one.
                for start in (skew, skew + seconds / 2):
                    stop = start + seconds * math.exp(dice.normal(0, 0.02))
                    records.append(
                        builders.transfer(case, start, stop, nbytes, src=str(src), **ends)
                    )
            counts = {"n_started": n_logged + 2, "n_logged": n_logged, "n_busy": 2}
            records.append(builders.log_count(case, str(dst), launch=launch, **counts))
    store = builders.written(folder, [case], builders.ended(records))
    planted = commbench.load(store.path)
    pairs = planted.pairs
    busy = nbytes * 2 / (1.5 * seconds)
    error = float(np.median(pairs["busy_Bps"])) / busy - 1
    yield Outcome(
        question="busy bandwidth of overlapping fetches, skewed clocks: within 5 %",
        right=abs(error) <= 0.05, error=error,
    )  # fmt: skip
    yield Outcome(
        question="fetches that end before they begin are counted apart",
        right=int(pairs["n_untimed"].sum()) == n_steps,
    )
    (coverage,) = planted.coverage.itertuples()
    yield Outcome(
        question="fetches that a busy sender made wait are counted, and none is lost",
        right=(coverage.n_busy, coverage.n_lost) == (24, 0), false=coverage.n_lost > 0,
    )  # fmt: skip
    yield Outcome(
        question="equal links: none is named as slow", right=planted.slow_pairs.empty,
        false=not planted.slow_pairs.empty,
    )  # fmt: skip


def cpu_time(seed: int, folder: Path) -> Iterator[Outcome]:
    """Have a process use a core in blocks of 1 to 50 ms."""
    del folder
    block_s = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)[seed % 6]
    code = """
import sys, time
for line in sys.stdin:
    until = time.process_time() + float(line)
    while time.process_time() < until:
        pass
    print(flush=True)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def used_s(seconds: float) -> float:
            """Return the median CPU time of a block, with that of its messages."""
            blocks = []
            for _ in range(20):
                began = cores.cpu_seconds([child.pid])
                print(seconds, file=child.stdin, flush=True)
                child.stdout.readline()
                blocks.append(cores.cpu_seconds([child.pid]) - began)
                time.sleep(0.002)
            return float(np.median(blocks))

        error = (used_s(block_s) - used_s(0.0)) / block_s - 1
        child.stdin.close()
    yield Outcome(
        question="CPU time of blocks of 1 to 50 ms, within 5 %", right=abs(error) <= 0.05,
        error=error,
    )  # fmt: skip


def profile(seed: int, folder: Path) -> Iterator[Outcome]:
    """Run tasks that sleep, hold the GIL, or wait for a core, half of the time."""
    first = min(os.sched_getaffinity(0))
    kinds = {
        "sleep": (("--workers", 1, "--sleep", 0.05), (), "blocked"),
        "the GIL": (("--workers", 1, "--threads", 2, "--sleep", 0), (), "blocked"),
        "a core": (("--workers", 2, "--sleep", 0), ("taskset", "-c", str(first)), "queue"),
    }
    kind = list(kinds)[seed % len(kinds)]
    arguments, prefix, part = kinds[kind]
    result = run(
        folder, "known", *arguments, "--cpu", 0.05, "--tasks", 40, "--launches", 1,
        "--iterations", 1, "--warmups", 1, "--seed", seed, prefix=prefix,
    )  # fmt: skip
    profiles = stats.worker_profiles(result)
    tasks = profiles[profiles["compute_s"].notna()]
    (shares,) = stats.profile_shares(tasks, result).itertuples()
    # All threads compute for 2 s together. Only sleep lasts as long where others use the cores.
    computed = (2.0 if kind == "sleep" else 1.0) / tasks["wall_s"].max()
    waited = computed if kind == "sleep" else 1 - computed
    if kind == "the GIL":
        # Between tasks a thread has none: the event loop waits for the GIL, too.
        (sample,) = measured(result).itertuples()
        spans = np.loadtxt(folder / "tasks")
        late = spans[spans[:, 0] >= sample.started_at_s - 0.01]
        waited = late[:, 1].sum() / 2 / sample.seconds - computed
    for field, truth in (("compute", computed), (part, waited)):
        error = getattr(shares, field) - truth
        name = "no core" if field == "queue" else field
        yield Outcome(
            # Another question since stolen time is known; see SUPERSEDED.
            question=f"the share *{name}* of tasks that "
            + ("sleep" if (kind, field) == ("sleep", "blocked") else f"wait for {kind}")
            + ", within 5 points"
            + " of their spans" * (kind == "the GIL"),
            right=abs(error) <= 0.05, error=error,
        )  # fmt: skip


def perftest(seed: int, folder: Path) -> Iterator[Outcome]:
    """Stream messages by ucx_perftest, and by a loop that waits until the peer has all of them."""
    # The loop's own Python takes 2 to 3 us per message: below 4 MiB that is more than 5 %.
    size, n_windows = ((4 << 20, 8), (8 << 20, 4), (16 << 20, 2))[seed % 3]
    loop = [sys.executable, BARE / "ucx_stream.py", str(size), "16", str(n_windows)]
    environ = os.environ | backends.parse("ucx:shm").environment("cpu", folder)
    by_tool, by_loop = [], []
    for _ in range(6):
        result = run(
            folder, "pingpong", "--mode", "bandwidth", "--window", 16, "--layers", "raw",
            "--backends", "ucx:shm", "--sizes", size, "--launches", 1,
        )  # fmt: skip
        by_tool += result.samples["seconds"].tolist()
        for _ in range(3):
            text = subprocess.check_output(loop, env=environ, text=True, timeout=120)
            by_loop.append(float(text.splitlines()[-1]))
    # Other processes only make them slower.
    error = min(by_tool) / min(by_loop) - 1
    yield Outcome(
        question="a stream of ucx_perftest is at most 10 % faster than one that is acknowledged, "
        "from one buffer",
        right=error >= -0.1, error=error,
    )  # fmt: skip


def message_overhead(seed: int, folder: Path) -> Iterator[Outcome]:
    """Measure messages in the harness and by hand."""
    size, count = ((1, 3000), (65536, 2000), (8 << 20, 150))[seed % 3]
    what = f"the harness adds less than 5 % to a message of {format_message_size(size)}"
    yield _share(what, 0.05, overhead.message(size, count, 5, folder / "logs"))


def profile_overhead(seed: int, folder: Path) -> Iterator[Outcome]:
    """Measure a merge with and without the profile that every run records."""
    backend = ("tcp", "ucx")[seed % 2]
    what = "the profile adds less than 2 % to a merge over tcp or ucx"
    yield _share(what, 0.02, overhead.profile(backend, folder / "scratch"))


def user_code_overhead(seed: int, folder: Path) -> Iterator[Outcome]:
    """Measure computations with and without ``commbench.profile``."""
    kinds = (
        (overhead.merge, "a merge", 60, 0.03), (overhead.array, "an array job", 60, 0.03),
        (overhead.tiny_tasks, "10,000 tiny tasks", 4, 0.08),
    )  # fmt: skip
    build, name, pairs, most = kinds[seed % 3]
    wall, cpu = overhead.user_code(build, pairs, folder)
    yield _share(f"commbench.profile adds less than {most:.0%} to the time of {name}", most, wall)
    what = "commbench.profile adds less than 3 % (to tiny tasks 8 %) to the CPU time of these"
    yield _share(what, most, cpu)


def scheduler_overhead(seed: int, folder: Path) -> Iterator[Outcome]:
    """Sample the scheduler of 64 workers while it is measured."""
    placement = ("pinned", "dask")[seed % 2]
    what = "commbench takes less than 2 % of the CPU time of the scheduler of 64 workers"
    yield _share(what, 0.02, overhead.scheduler(placement, folder))


def _share(question: str, most: float, share: float) -> Outcome:
    """Return the answer to whether the median share is below a limit.

    So short a trial scatters by more than what is asked: half of them may be above.
    """
    return Outcome(
        question=f"{question}, in the median", right=share < most, wanted=0.5, error=share
    )


TRIALS: dict[str, Callable[[int, Path], Iterator[Outcome]]] = {
    trial.__name__.replace("_", "-"): trial
    for trial in (
        cpu_time, planted_log, too_few_cores, profile, one_mode, two_modes, slow_parts,
        forked_launches, equal_backends, pool, delayed_backend, perftest,
        message_overhead, profile_overhead, user_code_overhead, scheduler_overhead,
    )
}  # fmt: skip
SHARES = {
    "cpu-time": 20, "planted-log": 20, "too-few-cores": 2, "profile": 3, "slow-parts": 2,
    "pool": 0.05,
}  # fmt: skip
"""How often the quick trials, those of several kinds, and the longest run for each time of the
others."""
