"""A Slurm of one node: its daemons, its key and all its files belong to one test."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo", "squeue")
_CONFIG = """\
ClusterName=commbench-test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=1
NodeName={host} CPUs=8 RealMemory=8000 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Give the environment in which ``sbatch`` finds the node; else skip the test."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} of slurm-wlm and munge not installed")
    if os.geteuid() != 0:
        pytest.skip("the daemons of Slurm take root")
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o755)
    # Its daemon refuses a key that others could put there.
    munge, key = folder / "munge", folder / "munge/key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    config.write_text(
        _CONFIG.format(host=socket.gethostname(), folder=folder, ports=_free_ports(2))
    )
    environ = {"SLURM_CONF": str(config)}
    daemons = []
    try:
        daemons.append(
            _start(
                folder, environ, "munged", "--foreground", "--force", f"--socket={munge}/socket",
                f"--key-file={key}", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
                f"--seed-file={munge}/seed",
            )
        )  # fmt: skip
        processes.until((munge / "socket").exists, "munged")
        daemons.append(_start(folder, environ, "slurmctld", "-D", "-f", str(config)))
        daemons.append(_start(folder, environ, "slurmd", "-D", "-f", str(config)))
        processes.until(lambda: _is_idle(environ, daemons, folder), "an idle node of Slurm")
        yield environ
    finally:
        subprocess.run(
            ["scancel", "--user=root"], env=os.environ | environ, capture_output=True, check=False
        )
        with contextlib.suppress(AssertionError):
            processes.until(lambda: not queue(environ), "an empty queue", seconds=20)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=20)
            daemon.kill()
            daemon.wait()


def queue(environ: dict[str, str]) -> list[str]:
    """Return a line for each job that waits or runs."""
    command = ["squeue", "--noheader", "--format=%i %T %r"]
    done = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


def _start(folder: Path, environ: dict[str, str], name: str, *arguments: str) -> subprocess.Popen:
    program = shutil.which(name, path=_PATH)
    with (folder / f"{name}.out").open("wb") as output:
        return subprocess.Popen(
            [str(program), *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ | environ,
        )  # fmt: skip


def _is_idle(environ: dict[str, str], daemons: list[subprocess.Popen], folder: Path) -> bool:
    if any(daemon.poll() is not None for daemon in daemons):
        said = "\n".join(file.read_text(errors="replace") for file in folder.glob("*.out"))
        pytest.skip(f"Slurm does not start here: {said[-1500:]}")
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"],
        env=os.environ | environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() == "idle"


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
