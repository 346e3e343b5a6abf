"""An actor, a queue, a lock, a variable, an event and a topic, between tasks in threads."""

import threading

from dask.distributed import Client, Event, Lock, Queue, Variable


class Counter:
    """The state of an actor."""

    n = 0

    def increment(self):
        self.n += 1
        return self.n


def work(number, queue, counter):
    with Lock("shared"):
        counter.increment().result()
    Event("go").wait(timeout=60)
    queue.put(number * Variable("factor").get())


with Client(processes=False, n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
    counter = client.submit(Counter, actor=True).result()
    queue, factor = Queue("results"), Variable("factor")
    factor.set(10)
    futures = client.map(work, range(4), queue=queue, counter=counter)
    heard = threading.Event()
    client.subscribe_topic("done", lambda _: heard.set())
    Event("go").set()
    client.gather(futures)
    print(sorted(queue.get() for _ in futures), counter.n, counter.increment().result())
    client.log_event("done", "all")
    print(client.get_events("done")[0][1], heard.wait(60))
