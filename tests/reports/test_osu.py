"""The format of the OSU Micro-Benchmarks, read as their users' scripts read it."""

import itertools

import builders
import pytest
from builders import message

from commbench.errors import UsageError
from commbench.reports import osu


def numbers(text):
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [[float(word) for word in line.split()] for line in lines]


def rendered(recorded, mode=None, seconds=2e-6):
    params = {} if mode is None else {"mode": mode, "window": 64, "pairs": 3}
    case = builders.case("tcp", "pingpong", params=params)
    records = [message(case, seconds, size) for size in (1, 8192)]
    return osu.render(recorded([case], builders.ended(records)))


@pytest.mark.parametrize("mode", [None, "latency"])
def test_latency_is_in_microseconds(recorded, mode):
    text = rendered(recorded, mode)
    assert numbers(text) == [[1, 2.0], [8192, 2.0]]
    assert "# OSU MPI Latency Test" in text
    assert "# Size          Latency (us)" in text.splitlines()


def test_launches_of_two_modes_have_no_number_but_a_comment(recorded):
    case = builders.case("tcp", "pingpong")
    records = [
        message(case, seconds * 1e-3, size, launch=launch)
        for launch, seconds in enumerate([1.0, 8.0] * 3)
        for size, seconds in ((1, 2.0), (8192, seconds))
    ]
    text = osu.render(recorded([case], builders.ended(records)))
    assert numbers(text) == [[1, 2000.0]]
    assert "# 8192: launches split into two modes, 1.00 or 8.00 ms" in text.splitlines()


def test_latency_under_load_is_marked(recorded):
    params = {"mode": "loaded-latency", "window": 64, "load_size": 1 << 20}
    case = builders.case("tcp", "pingpong", params=params)
    text = osu.render(recorded([case], builders.ended([message(case, 2e-6, 1)])))
    assert numbers(text) == [[1, 2.0]]
    assert "# under load: messages of 1048576 B stream" in text


@pytest.mark.parametrize("mode", ["bandwidth", "bidirectional"])
def test_bandwidth_is_in_millions_of_bytes(recorded, mode):
    text = rendered(recorded, mode)
    assert numbers(text) == [[1, 0.5], [8192, 4096.0]]
    assert ("Bi-Directional" in text) == (mode == "bidirectional")
    assert "# Size      Bandwidth (MB/s)" in text.splitlines()


@pytest.mark.parametrize("mode", ["message-rate", "multi-pair"])
def test_message_rate_has_three_columns(recorded, mode):
    text = rendered(recorded, mode)
    assert "# Size                  MB/s        Messages/s" in text.splitlines()
    assert ("# [ pairs: 3 ] [ window size: 64 ]" in text.splitlines()) == (mode == "multi-pair")
    assert numbers(text) == [[1, 0.5, 500000.0], [8192, 4096.0, 500000.0]]


def test_each_backend_and_layer_has_a_named_block(recorded):
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx:shm")]
    records = [
        message(case, 1e-6, size, layer=layer)
        for case in cases for layer in ("comm", "worker") for size in (2, 1)
    ]  # fmt: skip
    blocks = osu.render(recorded(cases, builders.ended(records))).split("\n\n")
    assert len(blocks) == 4
    expected = itertools.product(("tcp", "ucx:shm"), ("comm", "worker"))
    for block, (name, layer) in zip(blocks, expected, strict=True):
        assert f"backend {name}, layer {layer}" in block
        assert ("not halved" in block) == (layer == "worker")
        assert [size for size, _ in numbers(block)] == [1, 2]


@pytest.mark.parametrize(
    "records",
    [
        builders.launches(builders.case(), [1.0]),
        [builders.failure(builders.case())],
        builders.ended([message(builders.case(), 1e-3, 1024, layer="alone")]),
    ],
    ids=["workload", "failure", "all-to-all"],
)
def test_a_run_without_a_ping_pong_is_refused(recorded, records):
    words = r"has no sample of a ping-pong.*samples\.jsonl has all samples"
    with pytest.raises(UsageError, match=words):
        osu.render(recorded([builders.case()], records))
