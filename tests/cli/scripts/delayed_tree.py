"""A tree of delayed sums, with a mistake that the script catches."""

import dask
from dask.distributed import Client, wait


@dask.delayed
def add(x, y):
    return x + y


@dask.delayed
def invert(x):
    return 1 / x


if __name__ == "__main__":
    client = Client(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    values = [dask.delayed(number) for number in range(64)]
    while len(values) > 1:
        values = [add(one, two) for one, two in zip(values[::2], values[1::2], strict=True)]
    total = values[0].persist()
    wait(total)
    print(total.compute())
    try:
        invert(add(0, 0)).compute()
    except ZeroDivisionError as error:
        print("caught", error)
    client.shutdown()
