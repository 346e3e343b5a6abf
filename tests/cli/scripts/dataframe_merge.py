"""A merge, a groupby and files of Parquet, in threads of this process; nothing is closed."""

import dask
import dask.dataframe as dd
from dask.distributed import Client

client = Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0")
frame = dask.datasets.timeseries(end="2000-01-10", freq="1min", seed=3)
frame.to_parquet("data")
people = frame[["name", "x"]].groupby("name").x.agg(["count", "max"]).reset_index()
joined = dd.read_parquet("data").merge(people, on="name")
joined[joined.x == joined["max"]].groupby("name").y.sum().compute().round(6).to_csv("maxima.csv")
print(len(joined), joined.npartitions, client.scheduler.address.partition("://")[0])
