"""nannies: a ``distributed.LocalCluster``, as most users start one."""

import os
import time

from commbench import (
    Launcher,
    RunningCluster,
    check_workers,
    unwatch_workers,
    wait_for_workers,
    watch_workers,
    worker_preloads,
)


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
            workers = wait_for_workers(self.client, spec, deadline)
            check_workers(workers, spec, protocol)
            # What the rest of commbench wants to know of a cluster.
            self.names = {address: str(info["name"]) for address, info in workers.items()}
            self.pids = (os.getpid(), *self.client.run(os.getpid).values())
            watch_workers(self)  # a worker that leaves or joins ends the launch
        except BaseException:
            self.close()
            raise

    def close(self):
        unwatch_workers(self)
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
