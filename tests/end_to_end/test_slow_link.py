import json

import namespaces
import processes
import pytest
from namespaces import PAYLOAD_SHARE

SLOW = {("0", "1"), ("1", "0")}
SECONDS = 0.2
"""What the largest block takes on the slow link: latency is little of it, and of a quarter of it.

So the link, whose rate is known, determines most of the transfers that the model predicts.
"""
# Two busy cores let Dask fetch faster than this on the links that are not slow.
RATES = [50e6, 200e6]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=RATES, ids=lambda rate: f"{rate / 1e6:g}MBps")
def measured(request, tmp_path_factory):
    """Return the rate of the link between two of three hosts, the report of a run, and the run."""
    rate, folder = request.param, tmp_path_factory.mktemp("slow-link")
    with (
        namespaces.hosts(3, {(0, 1): rate}) as there,
        namespaces.launches_on_host_0(folder, there),
    ):
        result = processes.invoke(
            "run", "all-to-all", "--launcher", "namespaces", "--workers", 3, "--launches", 1,
            "--iterations", 5, "--sizes",
            f"64KiB,{round(rate * SECONDS / 4)},{round(rate * SECONDS)}",
            "--output", folder / "results", figures=())  # fmt: skip
    assert result.exit_code == 0, result.output
    run = result.stdout.splitlines()[-1]
    report = json.loads(processes.invoke("report", run, "--format", "json").stdout)
    return rate, report, run


def test_the_median_bandwidth_of_the_slow_pair_is_the_payload_rate_of_its_link(measured):
    rate, report, _ = measured
    rates = {
        (row["src"], row["dst"]): row["q50_Bps"]
        for row in report["pairs"] if row["channel"] == "alone"
    }  # fmt: skip
    assert len(rates) == 6
    for pair in SLOW:
        assert rates[pair] == pytest.approx(rate * PAYLOAD_SHARE, rel=0.1), rates


def test_only_the_slow_pair_is_named_as_slow(measured):
    _, report, _ = measured
    named = {(row["src"], row["dst"]) for row in report["slow_pairs"] if row["channel"] == "alone"}
    assert named == SLOW
    texts = [finding["statement"] for finding in report["findings"]]
    (text,) = (text for text in texts if "one pair at a time, take" in text)
    assert text.startswith("transfers between workers 0 and 1, one pair at a time, take")


def test_the_model_predicts_transfers_of_the_slow_pair_within_20_percent(measured):
    rate, _, run = measured
    result = processes.invoke("model", run, "--format", "json")
    assert result.exit_code == 0, result.output
    models = {
        (model["src"], model["dst"]): model
        for model in json.loads(result.stdout)["models"] if model["channel"] == "alone"
    }  # fmt: skip
    for pair in SLOW:
        assert models[pair]["error_median"] <= 0.2
        assert models[pair]["beta_Bps"] == pytest.approx(rate * PAYLOAD_SHARE, rel=0.15)
        assert models[pair]["link"] == "network"
