"""What runs in workers may be sent by value, to workers that have neither commbench nor pyarrow."""

import json
import sys

import cloudpickle
import numpy as np
import pytest

from commbench.harness import p2p, spill, transfers, wire

MODULES = (transfers, p2p, wire, spill)


@pytest.fixture
def by_value():
    """Have the modules pickled by value."""
    for module in MODULES:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in MODULES:
        cloudpickle.unregister_pickle_by_value(module)


def test_workers_without_commbench_are_observed(cluster, by_value):
    client, missing = cluster.client, ("commbench", "pyarrow")

    def hide(names):
        for name in [each for each in sys.modules if each.partition(".")[0] in names]:
            del sys.modules[name]
        sys.modules.update(dict.fromkeys(names))

    def unhide(names):
        for name in names:
            del sys.modules[name]

    one, other = sorted(cluster.names)
    # Other tests may have made the worker spill.
    n_spilled = client.run(spill.written)[one]
    client.run(hide, missing)
    try:
        client.register_plugin(transfers.TransferLog())
        client.register_plugin(p2p.BatchLog())
        client.register_plugin(wire.WireMeter())
        x = client.submit(np.ones, 10**6, workers=[one])
        assert client.submit(np.sum, x, workers=[other]).result() == 10**6
        counts = client.run(transfers.count)
        assert counts[other]["n_logged"] == 1
        assert json.loads(client.run(transfers.drain, 10)[other])["nbytes"] == [8 * 10**6]
        assert client.run(wire.take)[one][0][1] > 8 * 10**6
        assert json.loads(client.run(p2p.drain, 10)[one]) == {"n_left": 0}
        assert client.run(spill.written)[one] == n_spilled
    finally:
        client.run(unhide, missing)
        for plugin in (transfers.TransferLog, p2p.BatchLog, wire.WireMeter):
            client.unregister_worker_plugin(plugin.name)
