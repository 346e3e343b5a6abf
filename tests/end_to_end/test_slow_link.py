"""A link of a known rate between two of three hosts: it is measured, named, and predicted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import namespaces
import pytest
from click.testing import CliRunner
from namespaces import PAYLOAD_SHARE

from commbench.cli.main import main

SLOW = {("0", "1"), ("1", "0")}
SECONDS = 0.2
"""What the largest block takes on the slow link: latency is little of it, and of a quarter of it.

So most held-out transfers are told by the link, whose rate is known, and not by the machine's load.
"""
ITERATIONS = 5
RATES = [50e6, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (100e6, 200e6))]
"""Well below what two busy cores let a fetch of Dask's have on the links that are not slow."""


@pytest.fixture(scope="module", params=RATES, ids=lambda rate: f"{rate / 1e6:g}MBps")
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[float, Any, Path]]:
    """Return the rate of the slow link, the report of a run over it, and the run."""
    rate: float = request.param
    folder = tmp_path_factory.mktemp("slow-link")
    with (
        namespaces.hosts(3, {(0, 1): rate}) as there,
        namespaces.command_line(folder, there) as line,
    ):
        ended = line.run(
            "all-to-all", "--launcher", "namespaces", "--workers", "3", "--launches", "1",
            "--iterations", str(ITERATIONS), "--sizes",
            f"64KiB,{round(rate * SECONDS / 4)},{round(rate * SECONDS)}",
        )  # fmt: skip
        assert ended.status == 0, ended.said
        yield rate, line.report(ended.run), ended.run


def test_the_slow_link_has_its_rate_both_ways(measured: tuple[float, Any, Path]) -> None:
    """Alone, the median bandwidth of either direction is within 10 % of what the link lets pass.

    That is the rate of its frames less their headers, ``PAYLOAD_SHARE`` of it.
    """
    rate, report, _ = measured
    found = {
        (row["src"], row["dst"]): row["q50_Bps"]
        for row in report["pairs"] if row["channel"] == "alone"
    }  # fmt: skip
    assert len(found) == 6
    for pair in SLOW:
        assert found[pair] == pytest.approx(rate * PAYLOAD_SHARE, rel=0.1), found


def test_the_slow_pair_is_named_first_and_no_other(measured: tuple[float, Any, Path]) -> None:
    """Alone, the two directions of the slow link are named, and nobody else."""
    _, report, _ = measured
    named = {(row["src"], row["dst"]) for row in report["slow_pairs"] if row["channel"] == "alone"}
    assert named == SLOW
    (warning,) = [text for text in report["warnings"] if "over tcp, alone: pair" in text]
    assert any(f"pair {src} → {dst} is" in warning for src, dst in SLOW)


def test_the_model_predicts_transfers_over_the_slow_link(
    measured: tuple[float, Any, Path],
) -> None:
    """Held-out transfers are predicted with a median error of at most 20 %."""
    rate, _, run = measured
    said = CliRunner().invoke(main, ["model", str(run), "--format", "json"])
    assert said.exit_code == 0, said.output
    models = {
        (model["src"], model["dst"]): model
        for model in json.loads(said.stdout)["models"] if model["channel"] == "alone"
    }  # fmt: skip
    for pair in SLOW:
        model = models[pair]
        assert model["error_median"] <= 0.2
        assert model["beta_Bps"] == pytest.approx(rate * PAYLOAD_SHARE, rel=0.15)
        assert model["link"] == "network"


def test_the_hosts_are_gone_with_the_test() -> None:
    """Whoever makes hosts leaves none behind, also where the test fails."""
    made = []

    def fail() -> None:
        with namespaces.hosts(2, {}) as there:
            made.extend(_names() & set(there.names))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(made) == 2
    assert not _names() & set(made)


def test_those_of_a_test_that_was_killed_go_first() -> None:
    """Hosts whose test is no longer there are removed before others are made."""
    with namespaces.hosts(1, {}):
        child = subprocess.Popen(["true"])
        child.wait()
        stale = namespaces.name(child.pid, 0)
        subprocess.run(["ip", "netns", "add", stale], check=True)
    with namespaces.hosts(1, {}):
        assert stale not in _names()


def _names() -> set[str]:
    listed = subprocess.check_output(["ip", "netns", "list"], text=True)
    return {line.split()[0] for line in listed.splitlines()}
