"""An asynchronous client on an asynchronous cluster."""

import asyncio

from dask.distributed import Client, LocalCluster, as_completed


def inc(x):
    return x + 1


async def main():
    quiet = {"dashboard_address": ":0", "asynchronous": True}
    async with (
        LocalCluster(n_workers=2, threads_per_worker=1, **quiet) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        future = client.submit(inc, 10)
        print(await future, await client.gather(client.map(inc, range(5))))
        results = [await each async for each in as_completed(client.map(inc, range(3)))]
        print(sorted(results), len(await client.nthreads()))


if __name__ == "__main__":
    asyncio.run(main())
