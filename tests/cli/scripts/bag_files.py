"""Records of JSON in a bag."""

import json

import dask.bag as db
from dask.distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        client = Client(cluster)
        rows = [{"age": n % 70, "city": f"c{n % 5}"} for n in range(1000)]
        people = db.from_sequence(rows, npartitions=5)
        print(len(people.map(json.dumps).to_textfiles("people.*.json")))
        read = db.read_text("people.*.json").map(json.loads)
        adults = read.filter(lambda person: person["age"] > 30)
        print(sorted(adults.pluck("city").frequencies().compute()))
