"""What peers that die or stop leave behind: shared memory, and slots of the receive queue."""

import asyncio
import ctypes
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from distributed.comm import connect
from distributed.comm.core import FatalCommClosedError
from faulty_peer import rename
from peers import SOON_S, Peer, addresses, ask, check_echo, exchange, peers, until, usage
from scenarios import PRIVATE_SHM, or_slow, scenario

from commbench.mpi import pairs, shared_memory
from commbench.mpi.receive_queue import ABANDONED_S, SENDERS, has_ended, started_at
from commbench.mpi.runtime import runtime


@scenario(280)
async def test_senders_killed_or_stopped_in_a_write_only_delay_all_others() -> None:
    """A killed one delays them for seconds, a stopped one until it goes on.

    They write to one queue, in order.
    """
    pairs.RELEASE_AFTER_S = SOON_S
    local = runtime("127.0.0.1")
    queue = SENDERS._queue
    assert queue is not None
    comms: list[Any] = []

    async def faint(peer: Peer, number: int) -> int:
        """Have a peer get a signal in the middle of a write; return the slot."""
        comms.append(comm := await connect(peer.address))
        await exchange(comm)
        await comm.write({"op": "faint", "segments": sorted(local.segments), "signal": number})
        while not (unwritten := queue.unwritten()):
            await asyncio.sleep(0.01)
        return unwritten[0]

    async with peers(5) as (partner, killed, stopped, other, fresh):
        for peer in (partner, stopped, other):
            await peer.check()
        await faint(killed, signal.SIGKILL)
        await asyncio.wait_for(check_echo(partner.address), 100)
        await fresh.check()

        slot = await faint(stopped, signal.SIGSTOP)
        answer = asyncio.ensure_future(check_echo(partner.address))
        other.end()
        await asyncio.sleep(SOON_S[0] + 5 * ABANDONED_S)
        assert queue.unwritten()[0] == slot
        assert not answer.done()
        stopped.process.send_signal(signal.SIGCONT)
        await asyncio.wait_for(answer, 100)
        for comm in comms:
            comm.abort()
        await fresh.check()


@pytest.mark.parametrize("n_rounds", or_slow(2, 10))
@scenario(280, namespaces=PRIVATE_SHM)
async def test_ended_and_killed_processes_leave_no_shared_memory(n_rounds: int) -> None:
    """Nor do those whom they met keep any of it."""
    pairs.RELEASE_AFTER_S = SOON_S
    local = runtime("127.0.0.1")
    local_segments = set(local.segments)

    def left() -> tuple[list[str], set[int]]:
        rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        files = [path.name for path in Path("/dev/shm").iterdir()]
        return files, {int(row.split()[1]) for row in rows} - local_segments

    before: dict[str, float] = {}
    for turn in range(n_rounds):
        async with peers(5) as group:
            await asyncio.gather(*(check_echo(peer.address) for peer in group))
            # Every second time they die so long after their connections that it is seen late.
            await asyncio.sleep(turn % 2 * 2 * SOON_S[0])
            for number, peer in enumerate(group):
                if number % 2 == turn % 2:
                    peer.process.kill()
                else:
                    peer.process.stdin.close()
                peer.process.wait()
        await until(lambda: left() == ([], set()), "files or segments are left")
        assert shared_memory.segments() == local_segments
        before = before or usage()
    after = usage()
    assert after["resident"] - before["resident"] < 20e6, (before, after)
    assert after["descriptors"] <= before["descriptors"] + 1, (before, after)
    assert after["threads"] <= before["threads"], (before, after)
    assert len(local.tags) <= 1


@scenario(60, namespaces=("unshare", "--ipc"))
async def test_messages_to_a_dead_peer_reach_no_other_shared_memory() -> None:
    pairs.RELEASE_AFTER_S = SOON_S
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    # The first segment of a namespace, which zeros in a queue would name, belongs to others.
    foreign = libc.shmget(0, 65536, 0o1600)
    address = libc.shmat(foreign, None, 0)
    assert foreign == 0
    local = runtime("127.0.0.1")
    async with peers(2) as (peer, other):
        comm, bystander = await connect(peer.address), await connect(other.address)
        await exchange(comm)
        await exchange(bystander)
        peer.process.send_signal(signal.SIGSTOP)
        # More than fit in the queue: UCX still has some of them when the peer has died.
        for _ in range(400):
            await comm.write({"op": "echo", "x": bytes(4000)})
        (pair,) = (p for group in pairs.PAIRS.values() for p in group if p.pid == peer.process.pid)
        peer.process.kill()
        peer.process.wait()
        await until(
            lambda: not shared_memory.segments() & pair.segments, "the peer's memory is kept"
        )
        for _ in range(20):
            await exchange(bystander)
            await asyncio.sleep(0.02)
        assert not any(ctypes.string_at(address, 65536))
        assert foreign in shared_memory.segments()
        assert local.segments <= shared_memory.segments()


@scenario(60)
async def test_memory_that_a_dead_peer_has_shared_by_a_key_is_kept() -> None:
    pairs.RELEASE_AFTER_S = SOON_S
    libc, nbytes = ctypes.CDLL(None), 2**20
    libc.shmat.restype = ctypes.c_void_p
    local_segments = set(runtime("127.0.0.1").segments)
    async with peers(1) as (peer,):
        comm = await connect(peer.address)
        number = await ask(comm, "share", nbytes=nbytes)
        address = libc.shmat(number, None, 0)
        # The kernel frees it when nobody uses it any more.
        assert libc.shmctl(number, 0, None) == 0
        ctypes.memset(address, 1, nbytes)
        assert shared_memory.segments() > local_segments
        peer.process.kill()
        await until(lambda: not shared_memory.segments() - local_segments - {number}, "it is kept")
        assert ctypes.string_at(address, nbytes) == b"\1" * nbytes


@pytest.mark.slow
@scenario(60)
async def test_memory_that_a_peer_added_later_is_released_when_it_dies() -> None:
    """UCX adds segments while many messages wait to be read."""
    pairs.RELEASE_AFTER_S = SOON_S
    local_segments = set(runtime("127.0.0.1").segments)
    async with peers(1) as (peer,):
        comm, reader = await connect(peer.address), await connect(peer.address)
        # Its answers wait to be read as well: nothing reads them here.
        await comm.write({"op": "sleep"})
        known = set[int]()
        for number in range(4000):
            await comm.write({"op": "echo", "x": bytes(4000)})
            if number % 20 == 0:
                await exchange(reader)
            known = known or shared_memory.segments()
        assert shared_memory.segments() > known, "the peer has added nothing"
        # A zombie has died, too: nobody waits for it until the end of this block.
        peer.process.kill()
        await until(lambda: shared_memory.segments() == local_segments, "memory is kept")


@scenario(60)
async def test_a_peer_lives_though_no_file_can_be_opened_to_see_it() -> None:
    local = runtime("127.0.0.1")
    async with peers(1) as (peer,):
        await check_echo(peer.address)
        (sender,) = SENDERS._counts
        pid = peer.process.pid
        assert set(sender.threads() or ()) >= {str(pid)}
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        assert sender.threads() is None
        assert not sender.is_dead
        pairs.release_dead()
        later = SENDERS.add(pid)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        assert not later.is_dead
        assert [pair.pid for group in pairs.PAIRS.values() for pair in group] == [pid]
        assert not has_ended(pid, started_at(pid))
        assert has_ended(pid, started_at(pid) - 1)
        # Its memory stays until it can be seen.
        peer.process.kill()
        peer.process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        assert pairs.release_dead()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        assert shared_memory.segments() > local.segments
        assert not pairs.release_dead()
        assert shared_memory.segments() == local.segments


def test_memory_that_a_connect_needs_stays_though_its_peer_has_died() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(0, 4096, 0o600)
    try:
        with shared_memory.attached([number]):
            shared_memory.release([number])
            assert shared_memory.mapped([number])
        assert not shared_memory.mapped([number])
    finally:
        libc.shmctl(number, 0, None)


OTHER_ADDRESSES = sorted(addresses() - {"127.0.0.1"})
needs_two_interfaces = pytest.mark.skipif(
    not OTHER_ADDRESSES, reason="no interface but the loopback"
)


def _started_in(host: str, *namespaces: str) -> Peer:
    """Start a peer in new namespaces, given by options of ``unshare``."""
    command = (
        f"import os, sys\nos.execvp('unshare', ['unshare', *{namespaces}, sys.executable, "
        "*sys.argv[1:]])"
    )
    return Peer("-c", command, str(Path(__file__).with_name("peers.py")), f"mpi://{host}:0")


@needs_two_interfaces
@pytest.mark.parametrize("tls", ["^posix", "tcp,self"])
@scenario(60, namespaces=("unshare", "--ipc"))
async def test_processes_with_pid_namespaces_but_one_of_ipc_connect_without_shared_memory(
    tls: str,
) -> None:
    os.environ["UCX_TLS"] = tls
    host = OTHER_ADDRESSES[0]
    runtime(host)
    peer = _started_in(host, "--pid", "--fork", "--kill-child", "--mount-proc")
    await peer.ready()
    if tls == "tcp,self":
        await check_echo(peer.address)
    else:
        with pytest.raises(FatalCommClosedError, match="share an IPC namespace, but no PID"):
            await connect(peer.address)
    peer.end()


@needs_two_interfaces
@scenario(60, namespaces=("unshare", "--ipc"))
async def test_processes_with_ipc_namespaces_connect_though_their_segments_have_the_same_ids() -> (
    None
):
    host = OTHER_ADDRESSES[0]
    local = runtime(host)
    for role in ("leads", "follows"):
        rename(role)
        peer = _started_in(host, "--ipc")
        await peer.ready()
        comm = await connect(peer.address, timeout=60)
        for nbytes in (1, 10_000_000):
            assert (await ask(comm, "send", nbytes=nbytes))["x"].nbytes == nbytes
        await comm.close()
        (pair,) = (pair for name, (pair,) in pairs.PAIRS.items() if pair.pid == peer.process.pid)
        assert not pair.segments
        peer.end()
    assert local.segments == shared_memory.segments()
