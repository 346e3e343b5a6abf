"""An array on a LocalCluster, as in the first page on arrays."""

import dask.array as da
from dask.distributed import Client

if __name__ == "__main__":
    client = Client(n_workers=2, threads_per_worker=2, dashboard_address=":0")
    x = da.random.default_rng(7).random((2000, 2000), chunks=(500, 500))
    y = (x + x.T)[::2, 1000:].persist()
    z = y.mean(axis=1)
    print(z.shape, z.compute()[:3].round(6))
    da.to_npy_stack("stack", y.rechunk((250, -1)))
    print(sorted(da.from_npy_stack("stack").max().compute().shape))
