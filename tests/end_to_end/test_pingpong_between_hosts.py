"""``commbench run pingpong --peer HOST`` measures the link between two hosts of a known rate."""

import importlib.util
import subprocess

import namespaces
import processes
import pytest
import sshd
from namespaces import PAYLOAD_SHARE, Layout

from commbench import load
from commbench.machine.process import MARK

RATE_BPS = 30e6
BLOCK = 3_000_000
"""What takes a tenth of a second."""
ADDRESSES = ("10.213.1.1", "10.213.1.2")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Yield a command line on one host, and the command that runs another one on its peer."""
    folder = tmp_path_factory.mktemp("peer")
    with namespaces.laid_out(Layout(2, {(0, 1): RATE_BPS})) as there:
        # UCX takes no device that has no address.
        for name, device, address in zip(there.names, ("to1", "to0"), ADDRESSES, strict=True):
            command = ["ip", "-n", name, "address", "add", f"{address}/24", "dev", device]
            subprocess.run(command, check=True)
        prefixes = [["ip", "netns", "exec", name] for name in there.names]
        with (
            processes.command_line(folder, prefixes[0]) as line,
            sshd.server(folder / "sshd", ADDRESSES, prefixes) as server,
        ):
            yield line, f"{server.command(folder / 'ssh')} {ADDRESSES[1]}"


def run(hosts, *options):
    """Start a run of one launch with the peer on the other host."""
    line, peer = hosts
    return line.start("run", "pingpong", "--peer", peer, "--launches", "1", "--quiet", *options)


@pytest.mark.parametrize(
    ("backend", "layers"),
    [
        ("tcp", "raw,coroutine,comm"),
        pytest.param("ucx", "coroutine,comm", marks=pytest.mark.slow),
        pytest.param("mpi", "raw,coroutine,comm", marks=pytest.mark.slow),
    ],
)
def test_the_link_between_the_hosts_is_what_is_measured(hosts, monkeypatch, backend, layers):
    if backend == "ucx" and importlib.util.find_spec("ucxx") is None:
        pytest.skip("ucxx is missing")
    # To MPI these hosts are one, with shared memory.
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    ended = run(
        hosts, "--backends", backend, "--layers", layers, "--sizes", f"1,{BLOCK}",
        "--iterations", "40", "--warmups", "4", "--seconds-per-size", "0.2",
    ).finish()  # fmt: skip
    assert ended.status == 0, ended.said
    measured = load(ended.run)
    samples = measured.samples.query("not warmup and layer != 'memcpy'")
    assert {*samples["layer"]} == {*layers.split(",")}
    assert samples["verified"].all()
    assert (samples["cpu_seconds"] > 0).all()
    for layer, rows in samples.query("payload_bytes == @BLOCK").groupby("layer"):
        # Other programs make many messages slower than the link, and none faster.
        rate_Bps = BLOCK / rows["seconds"].quantile(0.1)  # noqa: N806 - the unit's spelling
        assert rate_Bps == pytest.approx(RATE_BPS * PAYLOAD_SHARE, rel=0.1), layer
    assert len({*measured.worker_places["pid"]}) == 2
    if backend != "ucx":
        # The devices of the hosts have other names.
        assert {*measured.transports["contradiction"]} == {""}


@pytest.mark.slow
def test_pairs_share_the_link(hosts):
    ended = run(
        hosts, "--backends", "tcp", "--mode", "multi-pair", "--pairs", "2", "--sizes", f"{BLOCK}",
        "--window", "4", "--iterations", "100", "--warmups", "10",
    ).finish()  # fmt: skip
    assert ended.status == 0, ended.said
    (sample,) = load(ended.run).samples.query("not warmup").itertuples()
    rate_Bps = BLOCK / sample.seconds  # noqa: N806 - the unit's spelling
    assert rate_Bps == pytest.approx(RATE_BPS * PAYLOAD_SHARE, rel=0.1)


@pytest.mark.parametrize("role", ["peer", "launch"])
def test_a_kill_leaves_no_process_on_either_host(hosts, role):
    running = run(hosts, "--backends", "tcp", "--sizes", "1", "--iterations", "1000000",
                  "--seconds-per-size", "600")  # fmt: skip
    running.until_record("IdleCost")
    victim = running.find(role)
    # The launch can't kill a peer: it ends because its standard input does.
    assert (MARK in victim.environ) == (role == "launch")
    victim.kill()
    ended = running.finish()
    assert ended.status == 1, ended.said
    assert ("peer on" if role == "peer" else "launch") in ended.said
    processes.until(lambda: not running.tag.processes(), "no process is left")
