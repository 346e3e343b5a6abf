"""The raw layers of ucx and mpi: what other programs measure."""

import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import processes
import psutil
import pytest
from launching import make_launch, ping_pong, select

from commbench import backends
from commbench.backends import mpi, mpi_endpoints, ucx, ucx_endpoints
from commbench.errors import LaunchError
from commbench.harness import cases
from commbench.harness.measure.message_loop import measure_with_tool
from commbench.model import Case
from commbench.model.observed import Sample, TransportUsed
from commbench.workloads.pingpong import PingPong
from commbench.workloads.workload import Context

HEADER = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"


def raw(records):
    """Return the samples of the layer raw."""
    return [sample for sample in select(records, Sample) if sample.layer == "raw"]


@pytest.mark.parametrize("mode", ["latency", pytest.param("bandwidth", marks=pytest.mark.slow)])
def test_ucx_perftest_gives_one_unverified_sample_per_size(mode, tmp_path):
    sizes = (1, 100_000)
    records = ping_pong(
        "ucx:shm", tmp_path, iterations=20, layers=("raw",), sizes=sizes, mode=mode, window=16
    )
    samples = raw(records)
    assert [(s.payload_bytes, s.iteration, s.warmup) for s in samples] == [
        (size, 0, False) for size in sizes
    ]
    assert {(s.tool, s.verified, s.cpu_seconds) for s in samples} == {("ucx_perftest", False, 0.0)}
    assert all(0 < s.seconds < 1 for s in samples)
    used = select(records, TransportUsed)
    assert [(u.src, u.dst) for u in used] == [("0", "1"), ("1", "0")]
    # The same as ucxx has in a process with these variables, by UCX's log.
    assert all(u.transport in ("sysv/memory", "posix/memory") for u in used)
    assert all(u.evidence.startswith("raw: ucx_perftest; UCX's log: ") for u in used)


def test_plain_ucx_is_tcp_both_in_ucx_perftest_and_under_dask_and_warns(tmp_path):
    # Error handling, which Dask asks for, excludes shared memory.
    records = ping_pong("ucx", tmp_path, iterations=20, layers=("raw", "comm"), sizes=(1,))
    used = select(records, TransportUsed)
    assert [u.transport for u in used] == ["tcp/lo"] * 4
    assert all("tcp/lo" in u.evidence and "ucx:shm" in u.contradiction for u in used)
    assert "UCX_MM_ERROR_HANDLING" not in os.environ


@pytest.mark.parametrize(
    "mode", [pytest.param("latency", marks=pytest.mark.slow),
             pytest.param("bandwidth", marks=pytest.mark.slow), "bidirectional"]
)  # fmt: skip
def test_mpi_without_python_is_verified(mode, tmp_path):
    sizes = (1, 100_000, 2 << 20)
    records = ping_pong(
        "mpi", tmp_path, iterations=20, layers=("raw",), sizes=sizes, mode=mode, window=16
    )
    samples = raw(records)
    assert {(s.verified, s.tool) for s in samples} == {(True, "")}
    assert {s.payload_bytes for s in samples} == {*sizes}
    assert all(0 < s.seconds < 1 for s in samples)
    names = {used.transport for used in select(records, TransportUsed)}
    assert names in ({"sysv/memory+cma/memory"}, {"mpi"}, {"mpi/shm"})


@pytest.mark.parametrize(
    "text",
    ["", "ucx_perftest: command line error", HEADER, HEADER + "1,2,3\n", "a,b,c,d,e,f,g,h\n"],
)
def test_output_of_the_tool_without_a_result_is_an_error(text):
    with pytest.raises(LaunchError, match="printed no result"):
        ucx_endpoints.tool_times(text)


def test_the_last_line_of_the_output_is_the_result():
    lines = "500,1.0,1.0,1.0,1,1,1,1\n1000,2.5,9.0,3.0,1,1,1,1\nbye\n"
    assert ucx_endpoints.tool_times(HEADER + lines) == ucx_endpoints.ToolTimes(2.5e-6, 3e-6)


def test_a_tool_that_ends_before_it_listens_fails_the_launch_at_once(monkeypatch, tmp_path):
    program = processes.program(tmp_path / "ucx_perftest", "echo no such device; exit 1")
    monkeypatch.setattr(ucx_endpoints, "_program", lambda: str(program))
    monkeypatch.setattr(ucx_endpoints, "_environ", dict)
    workload = PingPong(PingPong.Params(sizes=(1,)), Context(n_workers=2, device="cpu", seed=0))
    launch = make_launch(case("ucx"))
    with pytest.raises(LaunchError, match="at 1 B: no such device; its server: no such"):
        measure_with_tool(ucx_endpoints.Perftest(), launch, workload, tmp_path, [].append)


def test_the_tool_has_the_variables_that_ucxx_sets(monkeypatch):
    # An import loads UCX, which fails in a process that has loaded that of MPICH.
    if importlib.util.find_spec("ucxx") is None:
        pytest.skip("ucxx is missing")
    monkeypatch.delenv("UCX_RNDV_THRESH", raising=False)
    monkeypatch.setenv("UCX_MAX_RNDV_RAILS", "2")
    code = "import os, ucxx; print(*(f'{n}={t}' for n, t in os.environ.items() if n[:4] == 'UCX_'))"
    text = subprocess.check_output([sys.executable, "-c", code], text=True)
    known = dict(each.split("=", 1) for each in text.splitlines()[-1].split())
    tool = ucx_endpoints._environ({})
    assert {name: tool[name] for name in known} == known
    assert known["UCX_MAX_RNDV_RAILS"] == "2"
    assert "UCX_RNDV_THRESH" in known
    assert ucx_endpoints._environ({"UCX_RNDV_THRESH": "1k"})["UCX_RNDV_THRESH"] == "1k"


def case(backend, **params):
    """Return a case."""
    return Case(workload="pingpong", backend=backend, params=params)


def test_raw_ucx_without_its_tool_is_unavailable(monkeypatch):
    monkeypatch.setattr("commbench.machine.installed.ucx_tools", lambda: None)
    problem = cases.unmet(case("ucx:shm", layers=("comm", "raw")))
    assert "needs ucx_perftest" in problem.reason
    assert "pip install 'distributed-ucxx" in problem.remedy
    assert cases.unmet(case("ucx:shm", layers=("comm",))) is None


def test_raw_mpi_without_a_c_compiler_is_unavailable(monkeypatch):
    monkeypatch.setattr(mpi, "compiler", lambda: None)
    assert "no C compiler" in cases.unmet(case("mpi", layers=("raw",))).reason
    assert cases.unmet(case("tcp", layers=("raw",))) is None


def test_a_mode_that_ucx_perftest_lacks_is_unavailable():
    problem = cases.unmet(case("ucx", layers=("raw",), mode="bidirectional"))
    assert "no mode bidirectional" in problem.reason
    assert "--mode latency or bandwidth" in problem.remedy


@pytest.mark.parametrize("layer", ["raw", "coroutine"])
def test_a_third_partys_backend_has_the_layers_of_dask_alone(layer):
    problem = cases.unmet(case("fake", layers=(layer,)))
    assert f"the backend fake has no layer {layer}" in problem.reason
    assert cases.unmet(case("fake", layers=("comm",))) is None


def test_the_compilers_complaint_is_the_error(tmp_path):
    if mpi.compiler() is None:
        pytest.skip("no C compiler")
    source = tmp_path / "wrong.c"
    source.write_text("int main( {")
    with pytest.raises(LaunchError, match=r"wrong\.c failed: .*error"):
        mpi_endpoints.compile_and_load(source)


ROUNDS = 15
BARE = Path(__file__).parents[2] / "bare" / "mpi_loop.c"


def ratio(by_commbench, by_hand):
    """Return the median ratio of two measures that take turns, each going first half the time."""
    ratios = []
    for number in range(ROUNDS):
        if number % 2:
            denominator, numerator = by_hand(), by_commbench()
        else:
            numerator, denominator = by_commbench(), by_hand()
        ratios.append(numerator / denominator)
    print(f"raw / by hand = {statistics.median(ratios):.3f} ({min(ratios):.3f}…{max(ratios):.3f})")
    return statistics.median(ratios)


@pytest.fixture
def pinned(monkeypatch, tmp_path):
    """Bind the ends of ucx_perftest to two cores: sharing one takes 100 times as long."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("one core only")
    program = processes.program(
        tmp_path / "pinned",
        f'case "$1" in -p) core={first} ;; *) core={others[0]} ;; esac\n'
        f'exec taskset -c $core {ucx_endpoints._program()} "$@"',
    )
    monkeypatch.setattr(ucx_endpoints, "_program", lambda: str(program))
    for name, value in backends.parse("ucx:shm").environment("cpu", tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_raw_ucx_is_within_a_tenth_of_ucx_perftest_by_hand(tmp_path, pinned):
    workload = PingPong(PingPong.Params(sizes=(1,)), Context(n_workers=2, device="cpu", seed=0))
    launch = make_launch(Case(workload="pingpong", backend="ucx:shm", iterations=1000, warmups=100))
    tools = ucx_endpoints._environ({}) | {"UCX_TLS": "tcp,sm", "UCX_MM_ERROR_HANDLING": "y"}
    options = f"-t {ucx.TESTS['latency']} -s 1 -e -f -n 10000 -w 1000".split()

    def by_commbench():
        records = []
        measure_with_tool(ucx_endpoints.Perftest(), launch, workload, tmp_path, records.append)
        return records[0].seconds

    def by_hand():
        with socket.create_server(("127.0.0.1", 0)) as free:
            given = ["-p", str(free.getsockname()[1]), *options]
        command = [ucx_endpoints._program(), *given]
        with subprocess.Popen(command, env=tools, stdout=subprocess.DEVNULL) as server:
            processes.until(psutil.Process(server.pid).net_connections, "the server")
            client = [ucx_endpoints._program(), "127.0.0.1", *given]
            text = subprocess.check_output(client, env=tools, text=True, timeout=60)
        # Of latency (µs) the 50 % quantile, average and overall; two bandwidths, two rates.
        return float(text.split()[-7]) / 1e6

    assert 0.9 <= ratio(by_commbench, by_hand) <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("size", "mode"), [(1, "latency"), (1 << 20, "bandwidth")])
def test_raw_mpi_is_within_a_tenth_of_a_c_program(size, mode, tmp_path):
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

    def by_commbench():
        records = ping_pong(
            "mpi", tmp_path, iterations=1000, warmups=100, layers=("raw",), sizes=(size,), mode=mode
        )
        return statistics.median(s.seconds for s in raw(records) if not s.warmup)

    assert 0.9 <= ratio(by_commbench, by_hand) <= 1.1
