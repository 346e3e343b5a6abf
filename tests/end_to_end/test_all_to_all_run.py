"""All-to-all as users run it: from the command line to the report, the figure and the model."""

from __future__ import annotations

import json

import processes
import pytest
from click.testing import CliRunner

from commbench.cli.main import main

SIZES = [1 << 10, 1 << 16, 8 << 20]


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """Return the end of a run of one launch with three workers, and its report."""
    with processes.command_line(tmp_path_factory.mktemp("all-to-all")) as line:
        ended = line.run(
            "all-to-all", "--workers", "3", "--launches", "1", "--iterations", "2",
            "--sizes", "1KiB,64KiB,8MiB",
        )  # fmt: skip
        assert ended.status == 0, ended.said
        yield ended, line.report(ended.run)


def test_the_matrix_is_complete(exchanged):
    _, report = exchanged
    found = {(row["channel"], row["src"], row["dst"]): row["n"] for row in report["pairs"]}
    assert found == {
        (channel, src, dst): 2
        for channel in ("alone", "together") for src in "012" for dst in "012" if src != dst
    }  # fmt: skip


def test_every_size_is_in_the_report(exchanged):
    _, report = exchanged
    found = {(row["layer"], row["message_bytes"], row["payload_bytes"]) for row in report["cases"]}
    assert found == {("alone", size, size) for size in SIZES} | {
        ("together", size, 6 * size) for size in SIZES
    }
    assert all(row["n_samples"] == 2 for row in report["cases"])


def test_all_bytes_are_covered_and_no_fetch_is_lost(exchanged):
    _, report = exchanged
    (row,) = report["coverage"]
    assert row["logged_bytes"] == 2 * 2 * 6 * sum(SIZES)
    assert 0.98 < row["coverage"] <= 1
    assert row["n_lost"] == 0
    assert not any("missing" in text or "missed" in text for text in report["warnings"])


def test_the_run_shows_tables_and_a_figure(exchanged):
    ended, _ = exchanged
    assert "all-to-all, one pair at a time" in ended.stdout
    assert "all-to-all, all pairs at once" in ended.stdout
    assert {path.name for path in (ended.run / "figures").glob("*.png")} == {"pair-bandwidth.png"}


def test_a_model_can_be_fitted_to_it(exchanged):
    ended, _ = exchanged
    said = CliRunner().invoke(main, ["model", str(ended.run), "--format", "json"])
    assert said.exit_code == 0, said.output
    # On a machine with several NUMA nodes these workers may run on all of them.
    (link,) = {model["link"] for model in json.loads(said.stdout)["models"]}
    assert link in ("same NUMA", "same host")
