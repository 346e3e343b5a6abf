"""An encrypted cluster with a certificate made for it."""

import os

from dask.distributed import Client, LocalCluster, Security

if __name__ == "__main__":
    security = Security.temporary()
    quiet = {"dashboard_address": ":0", "n_workers": 2, "threads_per_worker": 1}
    with (
        LocalCluster(security=security, protocol="tls://", **quiet) as cluster,
        Client(cluster, security=security) as client,
    ):
        print(client.scheduler.address.partition("://")[0])
        blocks = client.map(lambda n: bytes(n), [10**6] * 8, pure=False)
        print(client.submit(lambda parts: sum(map(len, parts)), blocks).result())
        client.restart()
        print(client.submit(sum, [1, 2]).result(), len(client.run(os.getpid)))
