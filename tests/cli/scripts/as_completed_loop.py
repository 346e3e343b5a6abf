"""Work that is submitted while results arrive; the cluster is closed before its client."""

from dask.distributed import LocalCluster, as_completed, get_client, rejoin, secede, worker_client


def fib(n):
    if n < 2:
        return n
    client = get_client()
    futures = [client.submit(fib, n - 1), client.submit(fib, n - 2)]
    secede()
    results = client.gather(futures)
    rejoin()
    return sum(results)


def square_sum(n):
    with worker_client() as client:
        return sum(client.gather(client.map(lambda x: x**2, range(n))))


if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0")
    client = cluster.get_client()
    sequence, total = as_completed(client.map(abs, range(-5, 0)), with_results=True), 0
    for _, result in sequence:
        total += result
        if result > 3:
            sequence.add(client.submit(abs, result - 3, pure=False))
    print(total, client.submit(fib, 6).result(), client.submit(square_sum, 10).result())
    cluster.close()
    client.close()
