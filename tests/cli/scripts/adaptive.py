"""A cluster that has no workers until there is work, and loses them again."""

import time

import dask.array as da
from dask.distributed import Client, LocalCluster

if __name__ == "__main__":
    cluster = LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0")
    cluster.adapt(minimum=0, maximum=2, interval="100 ms", wait_count=2)
    client = Client(cluster)
    print(len(cluster.workers))
    x = da.ones((1000, 1000), chunks=250)
    futures = client.map(lambda number: time.sleep(0.1) or number, range(30))
    print((x @ x).sum().compute(), sum(client.gather(futures)))
    del futures
    while cluster.workers:
        time.sleep(0.05)
    print(client.submit(sum, [1, 2]).result())
    client.close()
    cluster.close()
