"""Data that is scattered, mapped and gathered, and futures that fail; nothing is closed."""

import numpy as np
from dask.distributed import Client, wait


def score(data, number):
    if number == 3:
        raise ValueError(f"no score of {number}")
    return float(data[number])


if __name__ == "__main__":
    client = Client(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    data = client.scatter(np.arange(1e6), broadcast=True)
    futures = client.map(score, [data] * 6, range(6), pure=False)
    wait(futures)
    print([future.status for future in futures], repr(futures[3].exception()))
    print(client.gather(futures, errors="skip"), futures[0].key[:5])
    client.cancel(futures)
    print(futures[0].cancelled(), client.submit(score, data, 3).result())
