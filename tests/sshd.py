"""A server of SSH for one test: on loopback, at a free port, with new keys."""

import contextlib
import fcntl
import functools
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes
import pytest

_PRIVILEGE_SEPARATION = Path("/run/sshd")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Server:
    """Where it listens, and what a client needs to come in."""

    port: int
    known_hosts: Path
    key: Path
    log: Path

    @property
    def options(self) -> dict[str, str]:
        """The options of the launcher ``ssh``."""
        return {
            "port": str(self.port), "known_hosts": str(self.known_hosts),
            "client_keys": str(self.key), "username": getpass.getuser(),
        }  # fmt: skip

    @property
    def arguments(self) -> list[str]:
        """The same on the command line."""
        pairs = [f"{key}={value}" for key, value in self.options.items()]
        return [word for pair in pairs for word in ("--launcher-option", pair)]

    def command(self, path: Path) -> Path:
        """Write an ``ssh`` that comes in, and return its path."""
        options = {
            "Port": self.port, "IdentityFile": self.key, "UserKnownHostsFile": self.known_hosts,
            "BatchMode": "yes", "IdentitiesOnly": "yes",
        }  # fmt: skip
        words = " ".join(f"-o {name}={value}" for name, value in options.items())
        return processes.program(path, f'exec ssh -F none {words} "$@"')


@contextlib.contextmanager
def server(
    folder: Path, addresses: Sequence[str] = ("127.0.0.1",), prefixes: Sequence[list[str]] = ([],)
) -> Iterator[Server]:
    """Give a server that lets the present user in; else skip the test.

    Parameters
    ----------
    addresses, prefixes
        Where it listens, and the prefixes of its commands there; there is one process for each,
        all at the same port.
    """
    sshd = shutil.which("sshd", path=_PATH)
    if sshd is None:
        pytest.skip("sshd of openssh-server is not installed")
    with contextlib.ExitStack() as undo:
        if os.geteuid() == 0:
            undo.enter_context(_privilege_separation())
        yield from _serve(sshd, folder, addresses, prefixes)


@contextlib.contextmanager
def _privilege_separation() -> Iterator[None]:
    """Have the folder that a server of root's needs; the last of the tests' servers removes it.

    Debian's service makes it, too.
    """
    marker = _PRIVILEGE_SEPARATION / "made-by-tests"
    lock = os.open(_PRIVILEGE_SEPARATION.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _PRIVILEGE_SEPARATION.exists():
            _PRIVILEGE_SEPARATION.mkdir(mode=0o755)
            marker.touch()
        # A shared lock means that a server is using the folder.
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if marker.exists():
                marker.unlink()
                _PRIVILEGE_SEPARATION.rmdir()
    finally:
        os.close(lock)


def _serve(
    sshd: str, folder: Path, addresses: Sequence[str], prefixes: Sequence[list[str]]
) -> Iterator[Server]:
    folder.mkdir()
    folder.chmod(0o700)
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = _free_port()
    public = (folder / "host.pub").read_text()
    known = "".join(f"[{address}]:{port} {public}" for address in (*addresses, "localhost"))
    (folder / "known_hosts").write_text(known)
    (folder / "empty").mkdir(mode=0o755)
    servers = []
    log = folder / "sshd.log"
    try:
        for address, prefix in zip(addresses, prefixes, strict=True):
            config = folder / f"config-{address}"
            config.write_text(
                f"Port {port}\nListenAddress {address}\nHostKey {folder}/host\n"
                f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nUsePAM no\n"
                "StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n"
                "MaxStartups 100\nPermitUserEnvironment no\n"
            )
            with log.open("ab") as output:
                servers.append(
                    subprocess.Popen(
                        [*prefix, sshd, "-D", "-e", "-f", str(config)],
                        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    )
                )  # fmt: skip
        for child, address, prefix in zip(servers, addresses, prefixes, strict=True):
            listens = functools.partial(_listens, prefix, address, port, child)
            processes.until(listens, f"sshd at {address}")
        yield Server(port, folder / "known_hosts", folder / "user", log)
    except _EndedError as error:
        pytest.skip(f"sshd does not start: {error}: {log.read_text().strip()}")
    finally:
        for child in servers:
            child.terminate()
        for child in servers:
            child.wait()


class _EndedError(Exception):
    """The server is no more."""


def _listens(prefix: list[str], address: str, port: int, child: subprocess.Popen[bytes]) -> bool:
    if child.poll() is not None:
        raise _EndedError(f"it ended with {child.returncode}")
    script = f"exec 3<>/dev/tcp/{address}/{port}"
    return not subprocess.run(
        [*prefix, "bash", "-c", script], capture_output=True, check=False
    ).returncode


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
