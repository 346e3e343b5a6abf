"""nannies: a ``distributed.LocalCluster``, as most users start one."""

import os
import time

from commbench.launchers import members
from commbench.launchers.base import Launcher, RunningCluster, worker_preloads
from commbench.machine import process


class NannyCluster(RunningCluster):
    def __init__(self, spec, protocol, preload):
        from distributed import LocalCluster

        self.cluster = LocalCluster(
            n_workers=spec.n_workers,
            threads_per_worker=spec.threads_per_worker,
            protocol=protocol,
            host="127.0.0.1",
            dashboard_address=":0",
            preload=worker_preloads(spec, preload),
        )
        try:
            self.client = self.cluster.get_client()
            deadline = time.monotonic() + spec.start_timeout_s
            found = members.wait_for(self.client, spec, deadline)
            members.check_workers(found, spec, protocol)
            # What the rest of commbench wants to know of a cluster.
            self.names = {address: str(info["name"]) for address, info in found.items()}
            self.pids = (os.getpid(), *self.client.run(os.getpid).values())
            members.watch(self)  # a worker that leaves or joins ends the launch
        except BaseException:
            self.close()
            raise

    def close(self):
        process.unwatch()
        if hasattr(self, "client"):
            self.client.close()
        self.cluster.close()


class NannyLauncher(Launcher):
    name = "nannies"  # the entry point's name
    supports = frozenset()  # of hosts, memory_limit and other fields of ClusterSpec

    @classmethod
    def remote(cls, spec):
        return False  # no worker is on another host

    def start(self, spec, protocol, scratch, preload=()):
        return NannyCluster(spec, protocol, preload)
