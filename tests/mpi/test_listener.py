"""Many peers at once, and strangers at the port."""

import asyncio
import contextlib
import multiprocessing
import os
import random
import socket
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import dask
import psutil
import pytest
from distributed.comm import connect, listen, parse_host_port
from distributed.comm.core import FatalCommClosedError
from faulty_peer import rename
from peers import (
    addresses,
    ask,
    check_echo,
    exchange,
    handler,
    no_connect_is_left,
    peers,
    until,
    usage,
)
from scenarios import or_slow, scenario

from commbench.mpi import backend, handshake, pairs
from commbench.mpi import connect as mpi_connect
from commbench.mpi.channel import Channel
from commbench.mpi.control import Control
from commbench.mpi.handshake import Kind
from commbench.mpi.runtime import runtime


def hello(process: str, **others: Any) -> dict[str, Any]:
    """Return the HELLO of a process that has the right library."""
    local = runtime("127.0.0.1")
    return {
        "process": process, "mode": "elastic", "library": local.library, "world": "", "rank": 0,
        "host": local.host, "pid": 1, "tag": 2**20, "gpu_memory": "host", "nonce": "ab" * 16,
        **others,
    }  # fmt: skip


def contact() -> dict[str, Any]:
    """Return what a process says about itself in CONNECT and CONNECTING."""
    local = runtime("127.0.0.1")
    return {"port": local.port, "segments": sorted(local.segments)}


async def open_control(host: str, port: int) -> Control:
    """Return a TCP connection to a listener."""
    loop = asyncio.get_running_loop()
    control = Control(loop)
    await loop.create_connection(lambda: control, host, port)
    return control


@pytest.mark.slow
@scenario(90)
async def test_six_processes_connect_to_all_at_once() -> None:
    async with peers(6) as group:
        everyone = [peer.address for peer in group]
        comms = await asyncio.gather(*map(connect, everyone))
        for comm in comms:
            await comm.write({"op": "connect", "addresses": everyone})
        for comm in comms:
            assert await comm.read() == "connected"
            await comm.close()


@scenario(100)
async def test_more_connects_at_once_than_mpich_takes_are_refused() -> None:
    outcomes = Counter[str]()

    async def attempt(number: int, host: str, port: int) -> None:
        control = await open_control(host, port)
        control.send(Kind.HELLO, **hello(f"{number:032x}"))
        await control.receive(Kind.HELLO)
        await control.receive(Kind.PROOF)
        control.send(Kind.CONNECT, tag=number, **contact())
        try:
            outcomes[(await control.receive(Kind.CONNECTING))[0].name] += 1
            await control.receive(*Kind)
        except OSError as error:
            outcomes[str(error)] += 1
        control.abort()

    async with peers(1) as (victim,):
        host, port = parse_host_port(victim.address)
        await asyncio.gather(*(attempt(number, host, port) for number in range(150)))
        assert outcomes["CONNECTING"] <= mpi_connect.MAX_CALLS
        assert outcomes.total() - outcomes["CONNECTING"] == 150, outcomes
        await victim.check()


@scenario(200)
async def test_beyond_the_maximum_of_peers_new_ones_are_refused_and_known_ones_served() -> None:
    mpi_connect.MAX_PEERS = 2
    async with peers(3) as (one, two, three), listen("mpi://127.0.0.1:0", handler) as listener:
        await one.check()
        await two.check()
        with pytest.raises(FatalCommClosedError, match="start it anew"):
            await connect(three.address, timeout=60)
        comm = await connect(one.address)
        assert await ask(comm, "connect", addresses=[listener.contact_address]) == "connected"
        await comm.close()
        await two.check()


def connect_once(address: str, answers: Any) -> None:
    """Say whether a new process can exchange a message."""
    try:
        asyncio.run(check_echo(address, timeout=60))
    except FatalCommClosedError as error:
        answers.put(str(error))
    else:
        answers.put("served")


@pytest.mark.slow
@scenario(3000)
async def test_a_process_serves_as_many_peers_as_its_maximum() -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["distributed.comm", "commbench.mpi.backend"])
    answers = context.Queue()
    n_processes = mpi_connect.MAX_PEERS + 24
    async with peers(1) as (first,), listen("mpi://127.0.0.1:0", handler) as listener:
        comm = await connect(first.address)
        for _ in range(0, n_processes, 8):
            processes = [
                context.Process(target=connect_once, args=(listener.contact_address, answers))
                for _ in range(8)
            ]
            for process in processes:
                process.start()
            for process in processes:
                await asyncio.to_thread(process.join)
                assert process.exitcode == 0
        counts = Counter(answers.get() for _ in range(n_processes))
        assert counts.pop("served") == mpi_connect.MAX_PEERS - 1, counts
        assert all("start it anew" in text for text in counts)
        await exchange(comm)
        await comm.close()


def strange_inputs(number: int) -> list[bytes]:
    """Return what a stranger might send: seeded, each kind about as often."""
    rng = random.Random(20)
    greeting = handshake.encode(Kind.HELLO, hello("f" * 32, tag=1))
    inputs: list[bytes] = []
    while len(inputs) < number:
        mutated = bytearray(greeting)
        for _ in range(rng.randint(1, 6)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        inputs += [
            b"",
            rng.randbytes(rng.randint(1, 300)),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            handshake.HEADER.pack(b"DMPI", handshake.VERSION, 1, rng.randint(4097, 2**32 - 1))
            + b"x" * 50,
            greeting[: rng.randint(1, len(greeting) - 1)],
            bytes(mutated),
            greeting,
            greeting + rng.randbytes(40),
            handshake.encode(Kind(rng.randint(2, 8)), {}),
            handshake.HEADER.pack(b"DMPI", handshake.VERSION, 1, 4) + rng.randbytes(4),
        ]
    return inputs[:number]


@pytest.mark.parametrize("n_inputs", or_slow(2_000, 10_000))
@scenario(120)
async def test_strange_inputs_leave_nothing_and_friends_are_served(n_inputs: int) -> None:
    n_calls = 0

    async def counting(comm: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        await handler(comm)

    async with await listen("mpi://127.0.0.1:0", counting) as listener:
        host, port = listener.get_host_port()

        def attack(inputs: list[bytes]) -> None:
            for data in inputs:
                with socket.create_connection((host, port)) as stranger:
                    stranger.settimeout(5)
                    with contextlib.suppress(OSError):
                        stranger.sendall(data)
                        if random.random() < 0.1:
                            stranger.shutdown(socket.SHUT_WR)
                            while stranger.recv(4096):
                                pass

        inputs = strange_inputs(1_000 + n_inputs)
        await asyncio.to_thread(attack, inputs[:1_000])
        await check_echo(listener.contact_address)
        await asyncio.sleep(0.5)
        before, tags = usage(), len(runtime().tags)
        await asyncio.to_thread(attack, inputs[1_000:])
        await check_echo(listener.contact_address)
        await asyncio.sleep(0.5)
        after = usage()
        assert n_calls == 2
        assert after["descriptors"] <= before["descriptors"], (before, after)
        assert after["resident"] - before["resident"] < 20e6, (before, after)
        assert len(runtime().tags) <= tags
        assert len(asyncio.all_tasks()) <= 3, asyncio.all_tasks()


@pytest.mark.parametrize("n_attacks", or_slow(100, 400))
@scenario(200)
async def test_who_lies_or_breaks_off_at_any_point_costs_one_connection(n_attacks: int) -> None:
    local = runtime("127.0.0.1")
    rng = random.Random(20)
    received = Counter[Kind]()
    async with peers(1) as (victim,), listen("mpi://127.0.0.1:0", handler) as listener:
        comm = await connect(victim.address)
        host, port = listener.get_host_port()

        async def attack(number: int) -> None:
            """Be honest for some messages; then say something else, or nothing."""
            control = await open_control(host, port)
            name = rng.choice(["0" * 32, "f" * 32, *pairs.PAIRS])
            truth = hello(name, pid=victim.process.pid)
            control.send(Kind.HELLO, **{**truth, "nonce": rng.randbytes(16).hex()})
            with contextlib.suppress(OSError, TimeoutError):
                for _ in range(number % 4):
                    kind, _ = await asyncio.wait_for(control.receive(*Kind), 2)
                    received[kind] += 1
                    if kind is Kind.CONNECT:
                        control.send(Kind.CONNECTING, **contact())
                    elif kind is Kind.PROOF:
                        control.send(Kind.CONNECT, tag=number, **contact())
                    elif local.process < name:
                        control.send(Kind.PROOF, proofs=[rng.randbytes(32).hex()])
                kind = rng.choice(list(Kind))
                bodies: list[dict[str, Any]] = [
                    {}, {"proofs": [1, None, "x"]}, {"proof": "x"}, {"proof": "é"}, contact(),
                    {"port": "x", "segments": [-1]}, {"port": local.port, "segments": ["1"]},
                    {"tag": 2**40, **contact()}, {"tag": 7, "port": "tag#0$connentry#00$",
                    "segments": []}, {**truth, "nonce": "0" * 32}, {"reason": 1},
                ]  # fmt: skip
                message = bytearray(handshake.encode(kind, rng.choice(bodies)))
                if rng.random() < 0.3:
                    message[rng.randrange(len(message))] ^= 1 << rng.randrange(8)
                # The listener may have refused what came before.
                if control._transport is not None:
                    control._transport.write(bytes(message))
                await asyncio.sleep(0.02)
            control.abort()

        n_tags = len(local.tags)
        for start in range(0, n_attacks, 20):
            await asyncio.gather(*map(attack, range(start, start + 20)))
        await exchange(comm)
        await victim.check()
        await no_connect_is_left()
        await until(lambda: len(local.tags) <= n_tags + 2, "tags are left")
        kinds = (Kind.HELLO, Kind.PROOF, Kind.CONNECT, Kind.CONNECTING)
        assert min(received[kind] for kind in kinds) > n_attacks // 40, received
        await comm.close()


@pytest.mark.parametrize("role", ["leads", "follows"])
@scenario(200)
async def test_who_claims_the_name_of_a_live_process_gets_no_connection(role: str) -> None:
    rename(role)
    local = runtime("127.0.0.1")
    async with peers(1) as (victim,), listen("mpi://127.0.0.1:0", handler) as listener:
        await victim.check()
        name, (pair,) = next((n, p) for n, p in pairs.PAIRS.items() if n != local.process)
        for proof in ("", pair.key.hex(), "0" * 64):
            control = await open_control(*listener.get_host_port())
            control.send(Kind.HELLO, **hello(name, pid=victim.process.pid))
            await control.receive(Kind.HELLO)
            if role == "leads":
                control.send(Kind.PROOF, proofs=[proof])
                await control.receive(Kind.CONNECT)
            else:
                await control.receive(Kind.PROOF)
                control.send(Kind.READY, proof=proof)
                await until(lambda control=control: control.error is not None, "still open")
            control.abort()
        assert pairs.PAIRS[name] == [pair]
        await victim.check()


@scenario(30)
async def test_ends_with_different_keys_or_versions_fail_at_once_and_say_why() -> None:
    key = "distributed.comm.mpi.key"
    backend.logger.warning = warning = mock.Mock()  # type: ignore[method-assign]

    async def answer(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*listener.get_host_port())
        writer.write(data)
        reply = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return reply

    def newer(data: bytes) -> bytes:
        return data[:4] + bytes([handshake.VERSION + 1]) + data[5:]

    for given, other in (("", "b"), ("a", ""), ("a", "b"), (0, "")):
        with dask.config.set({key: given}):
            listener = await listen("mpi://127.0.0.1:0", handler)
        with dask.config.set({key: other}), pytest.raises(FatalCommClosedError, match=key):
            await connect(listener.contact_address, timeout=20)
        greeting = handshake.encode(Kind.HELLO, hello("f" * 32), other.encode())
        for data, reason in ((greeting, key), (newer(greeting), "version")):
            reply = await answer(data)
            assert handshake.decode_header(reply[: handshake.HEADER.size])[0] is Kind.REFUSE
            # The HMAC is one without a key.
            assert reason in handshake.decode_body(reply)["reason"]
        listener.stop()
    server = await asyncio.start_server(lambda _, w: w.write(newer(reply)), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(FatalCommClosedError, match="version"):
        await connect(f"mpi://127.0.0.1:{port}", timeout=20)
    server.close()
    assert warning.call_count == 12


@scenario(30)
async def test_handshakes_under_way_end_with_the_listener() -> None:
    listener = await listen("mpi://127.0.0.1:0", handler)
    reader, writer = await asyncio.open_connection(*listener.get_host_port())
    await asyncio.sleep(0.1)
    listener.stop()
    listener.abort_handshaking_comms()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


@scenario(120)
async def test_tcp_and_mpi_listen_only_on_the_interface_asked_for() -> None:
    for address in addresses():
        async with peers(1, f"mpi://{address}:0") as (peer,):
            listening = {
                connection.laddr.ip
                for connection in psutil.Process(peer.process.pid).net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            }
            assert listening == {address}, (address, listening)


@scenario(30)
async def test_failures_of_processes_here_are_none_of_a_peer_elsewhere() -> None:
    introduce, share, pids = backend.introduce, backend.share_communicator, []

    def channel(*given: Any, peer_pid: int, **others: Any) -> Channel:
        pids.append(peer_pid)
        return Channel(*given, peer_pid=peer_pid, **others)

    async def elsewhere(*given: Any, **others: Any) -> Any:
        theirs, mode = await introduce(*given, **others)
        return replace(theirs, host="elsewhere"), mode

    async def really_here(mpi: Any, ours: Any, theirs: Any, *given: Any) -> Any:
        return await share(mpi, ours, replace(theirs, host=ours.host), *given)

    backend.share_communicator = really_here
    backend.Channel = channel  # type: ignore[assignment,misc]
    for known, pid in ((introduce, os.getpid()), (elsewhere, -1)):
        backend.introduce = known
        async with listen("mpi://127.0.0.1:0", handler) as listener:
            comm = await connect(listener.contact_address)
            await comm.close()
        assert pids == [pid, pid]
        pids.clear()
