"""The raw layers of ucx and mpi: what other programs measure, told as it is."""

from __future__ import annotations

import os
import statistics
import subprocess
from pathlib import Path

import builders
import pytest

from commbench import backends
from commbench.backends import mpi, mpi_endpoints, ucx, ucx_endpoints
from commbench.errors import LaunchError
from commbench.harness import cases
from commbench.harness.measure.pingpong import measure_with_tool
from commbench.model import Case, Failure, Launch, Sample, TransportUsed
from commbench.workloads.base import Context
from commbench.workloads.pingpong import PingPong

HEADER = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"


def measured(backend, folder, iterations=20, **params):
    """Return the records of one good launch of the raw layer."""
    if problem := backends.parse(backend).unavailable("cpu"):
        pytest.skip(f"{backend}: {problem.reason}")
    params = {"layers": ("raw",), "sizes": (1, 100_000)} | params
    case = Case(
        workload="pingpong", backend=backend, params=params, iterations=iterations,
        warmups=iterations // 10,
    )  # fmt: skip
    if problem := cases.unmet(case):
        pytest.skip(f"{backend}: {problem.reason}")
    plan = [Launch(case=case, index=0, block=0, position=0)]
    records = builders.measured(plan, folder)
    assert not [record for record in records if isinstance(record, Failure)], records
    return records


def raw(records):
    """Return the samples of the layer raw."""
    return [r for r in records if isinstance(r, Sample) and r.layer == "raw"]


@pytest.mark.parametrize("mode", ["latency", "bandwidth"])
def test_ucx_perftest_gives_one_sample_per_size_that_nobody_could_verify(mode, tmp_path):
    """Each size has one sample that names the tool, claims no check and no CPU time."""
    records = measured("ucx:shm", tmp_path, mode=mode, window=16)
    found = raw(records)
    assert [(s.payload_bytes, s.iteration, s.warmup) for s in found] == [
        (1, 0, False), (100_000, 0, False)
    ]  # fmt: skip
    assert {(s.tool, s.verified, s.cpu_seconds) for s in found} == {("ucx_perftest", False, 0.0)}
    assert all(0 < s.seconds < 1 for s in found)
    used = [record for record in records if isinstance(record, TransportUsed)]
    assert [(u.src, u.dst) for u in used] == [("0", "1"), ("1", "0")]
    # The same as ucxx has in a process with these variables, and told by UCX's own log.
    assert all(u.transport in ("sysv/memory", "posix/memory") for u in used)
    assert all(u.evidence.startswith("raw: ucx_perftest; UCX's log: ") for u in used)


def test_ucx_perftest_has_dasks_transport(tmp_path):
    """Plain ucx has error handling, and so tcp, in ucx_perftest as it has it under Dask."""
    used = [r for r in measured("ucx", tmp_path, sizes=(1,)) if isinstance(r, TransportUsed)]
    assert {u.transport for u in used} == {"tcp/lo"}


@pytest.mark.parametrize("mode", ["latency", "bandwidth", "bidirectional"])
def test_mpi_without_python_is_verified(mode, tmp_path):
    """Blocking MPI gives as many verified samples as the other layers, over the same transport."""
    records = measured("mpi", tmp_path, mode=mode, window=16, sizes=(1, 100_000, 2 << 20))
    found = raw(records)
    assert {(s.verified, s.tool) for s in found} == {(True, "")}
    assert {s.payload_bytes for s in found} == {1, 100_000, 2 << 20}
    assert all(0 < s.seconds < 1 for s in found)
    used = [record for record in records if isinstance(record, TransportUsed)]
    assert {u.transport for u in used} == {"sysv/memory+cma/memory"} or "mpi" in str(used)


@pytest.mark.parametrize(
    "text",
    ["", "ucx_perftest: command line error", HEADER, HEADER + "1,2,3\n", "a,b,c,d,e,f,g,h\n"],
)
def test_output_without_a_result_is_no_number(text):
    """Whatever is no line of eight numbers is told as it stands."""
    with pytest.raises(LaunchError, match="printed no result"):
        ucx_endpoints.tool_times(text)


def test_the_last_line_is_the_result():
    """What was printed on the way does not count."""
    lines = "500,1.0,1.0,1.0,1,1,1,1\n1000,2.5,9.0,3.0,1,1,1,1\nbye\n"
    assert ucx_endpoints.tool_times(HEADER + lines) == ucx_endpoints.ToolTimes(2.5e-6, 3e-6)


def test_a_tool_that_fails_is_told_with_its_words(monkeypatch, tmp_path):
    """A program that ends before it listens fails the launch at once, and not after a wait."""
    program = tmp_path / "ucx_perftest"
    program.write_text("#!/bin/sh\necho no such device\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(ucx_endpoints, "_program", lambda: str(program))
    monkeypatch.setattr(ucx_endpoints, "_environ", dict)
    workload = PingPong(PingPong.Params(sizes=(1,)), Context(n_workers=2, device="cpu", seed=0))
    launch = Launch(case=Case(workload="pingpong", backend="ucx"), index=0, block=0, position=0)
    with pytest.raises(LaunchError, match="ucx_perftest failed at 1 B: no such device"):
        measure_with_tool(ucx_endpoints.Perftest(), launch, workload, tmp_path, [].append)


def case(backend, **params):
    """Return a case."""
    return Case(workload="pingpong", backend=backend, params=params)


def test_raw_ucx_without_its_tool_is_unavailable(monkeypatch):
    """Without ucx_perftest nothing starts, and what to install is said."""
    monkeypatch.setattr("commbench.machine.environment.ucx_tools", lambda: None)
    problem = cases.unmet(case("ucx:shm", layers=("comm", "raw")))
    assert "needs ucx_perftest" in problem.reason
    assert "commbench[ucx]" in problem.remedy
    assert cases.unmet(case("ucx:shm", layers=("comm",))) is None


def test_raw_mpi_without_a_compiler_is_unavailable(monkeypatch):
    """Python's calls would be most of a small message's time, so there is no way around C."""
    monkeypatch.setattr(mpi, "compiler", lambda: None)
    problem = cases.unmet(case("mpi", layers=("raw",)))
    assert "no C compiler" in problem.reason
    assert cases.unmet(case("tcp", layers=("raw",))) is None


def test_a_mode_that_the_tool_lacks_is_unavailable():
    """ucx_perftest streams one way only."""
    problem = cases.unmet(case("ucx", layers=("raw",), mode="bidirectional"))
    assert "no mode bidirectional" in problem.reason
    assert "--mode latency or bandwidth" in problem.remedy


@pytest.mark.parametrize("layer", ["raw", "coroutine"])
def test_a_protocol_that_a_layer_does_not_know_is_unavailable(layer):
    """A backend of somebody else's has the layers of Dask, not the ones below."""
    problem = cases.unmet(case("fake", layers=(layer,)))
    assert f"the backend fake has no layer {layer}" in problem.reason
    assert cases.unmet(case("fake", layers=("comm",))) is None


def test_c_that_does_not_compile_is_told(tmp_path):
    """The compiler's complaint is the message."""
    if mpi.compiler() is None:
        pytest.skip("no C compiler")
    source = tmp_path / "wrong.c"
    source.write_text("int main( {")
    with pytest.raises(LaunchError, match=r"wrong\.c failed: .*error"):
        mpi_endpoints.compile_and_load(source)


# --- within 10 % of what people measure by hand -----------------------------------------------

ROUNDS = 15
BARE = Path(__file__).parents[2] / "bare" / "mpi_loop.c"


def ratio(ours, by_hand):
    """Return the median ratio of two measures that take turns, each going first half the time."""
    ratios = []
    for number in range(ROUNDS):
        pair = (ours, by_hand)
        found = {place: pair[place]() for place in ((0, 1) if number % 2 else (1, 0))}
        ratios.append(found[0] / found[1])
    print(f"raw / by hand = {statistics.median(ratios):.3f} ({min(ratios):.3f}…{max(ratios):.3f})")
    return statistics.median(ratios)


def by_commbench(backend, folder, size, mode):
    """Return the raw layer's median seconds of one message."""
    records = measured(backend, folder, iterations=1000, sizes=(size,), mode=mode)
    return statistics.median(s.seconds for s in raw(records) if not s.warmup)


@pytest.fixture
def pinned(monkeypatch, tmp_path):
    """Give each end of ucx_perftest a core of its own: sharing one takes 100 times as long."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("one core only")
    program = tmp_path / "pinned"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in -p) core={first} ;; *) core={others[0]} ;; esac\n'
        f'exec taskset -c $core {ucx_endpoints._program()} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(ucx_endpoints, "_program", lambda: str(program))
    for name, value in backends.parse("ucx:shm").environment("cpu", tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "mode"), [(1, "latency"), (1 << 20, "bandwidth")])
def test_raw_ucx_is_ucx_perftest_by_hand(size, mode, tmp_path, pinned):
    """Latency at 1 B and bandwidth at 1 MiB are within 10 % of the tool run from a shell."""
    workload = PingPong(
        PingPong.Params(sizes=(size,), mode=mode), Context(n_workers=2, device="cpu", seed=0)
    )
    case = Case(workload="pingpong", backend="ucx:shm", iterations=1000, warmups=100)
    tools = ucx_endpoints._environ({}) | {"UCX_TLS": "tcp,sm", "UCX_MM_ERROR_HANDLING": "y"}
    options = f"-t {ucx.TESTS[mode]} -s {size} -e -f"
    options += " -n 10000 -w 1000" if mode == "latency" else " -n 1280 -w 640 -O 64"

    def by_commbench():
        found = []
        launch = Launch(case=case, index=0, block=0, position=0)
        measure_with_tool(ucx_endpoints.Perftest(), launch, workload, tmp_path, found.append)
        return found[0].seconds

    def by_hand():
        script = (
            f"{ucx_endpoints._program()} -p 13399 {options} >/dev/null & sleep 0.5; "
            f"{ucx_endpoints._program()} 127.0.0.1 -p 13399 {options} | tail -1; wait"
        )
        text = subprocess.check_output(["sh", "-c", script], env=tools, text=True, timeout=60)
        # "Final: iterations, percentile, average, overall latency (µs), bandwidth (MiB/s)".
        numbers = text.split()
        return float(numbers[2]) / 1e6 if mode == "latency" else size / 2**20 / float(numbers[6])

    found = ratio(by_commbench, by_hand)
    assert 0.9 <= found <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("size", "mode"), [(1, "latency"), (1 << 20, "bandwidth")])
def test_raw_mpi_is_a_loop_of_c_by_hand(size, mode, tmp_path):
    """Latency at 1 B and bandwidth at 1 MiB are within 10 % of a C program joined likewise."""
    import shutil
    import sys

    folder = Path(sys.executable).parent
    mpicc = shutil.which("mpicc_abi", path=folder)
    if mpicc is None or mpi.compiler() is None:
        pytest.skip("no mpicc_abi of MPICH's wheel beside Python, or no C compiler")
    program = tmp_path / "mpi_loop"
    subprocess.run([mpicc, "-O2", "-o", program, BARE], check=True, timeout=60)
    # Batches as commbench has them; windows as osu_bw has them.
    arguments = [str(size), "100", "100"] if mode == "latency" else [str(size), "20", "1", "64"]
    command = [folder / "mpiexec", "-n", "1", program]

    def by_hand():
        environ = {**os.environ, "MPIR_CVAR_CH4_NETMOD": "ucx"}
        with subprocess.Popen(
            [*command, "accept", *arguments], stdout=subprocess.PIPE, text=True, env=environ
        ) as peer:
            assert peer.stdout is not None
            port = peer.stdout.readline().strip()
            text = subprocess.check_output([*command, port, *arguments], env=environ, timeout=60)
        return float(text) / 1e6

    found = ratio(lambda: by_commbench("mpi", tmp_path, size, mode), by_hand)
    assert 0.9 <= found <= 1.1
