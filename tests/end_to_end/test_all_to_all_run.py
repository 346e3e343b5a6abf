"""All-to-all as users run it: from the command line to the report, the figure and the model."""

import json
import os

import processes
import pytest

SIZES = [1 << 10, 1 << 16, 2 << 20]
# With one CPU the workers share it.
CPUS = [str(cpu) for cpu in (3 * sorted(os.sched_getaffinity(0)))[:3]]


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """Return the end of a run of one launch with three placed workers, and its report."""
    folder = tmp_path_factory.mktemp("all-to-all")
    file = folder / "placement.toml"
    file.write_text("".join(f'[[worker]]\ncpus = "{cpu}"\n' for cpu in CPUS))
    with processes.command_line(folder) as line:
        ended = line.run(
            "all-to-all", "--workers", "3", "--launches", "1", "--iterations", "2",
            "--sizes", "1KiB,64KiB,2MiB", "--placement", file,
        )  # fmt: skip
        assert ended.status == 0, ended.said
        yield ended, line.report(ended.run)


def test_every_pair_has_one_fetch_per_iteration_alone_and_together(exchanged):
    _, report = exchanged
    assert {(row["channel"], row["src"], row["dst"]): row["n"] for row in report["pairs"]} == {
        (channel, src, dst): 2
        for channel in ("alone", "together") for src in "012" for dst in "012" if src != dst
    }  # fmt: skip


def test_every_size_has_a_row_with_the_payload_of_all_pairs(exchanged):
    _, report = exchanged
    rows = {(row["layer"], row["message_bytes"], row["payload_bytes"]) for row in report["cases"]}
    assert rows == {("alone", size, size) for size in SIZES} | {
        ("together", size, 6 * size) for size in SIZES
    }
    assert all(row["n_samples"] == 2 for row in report["cases"])


def test_all_bytes_are_covered_and_no_fetch_is_lost(exchanged):
    _, report = exchanged
    (row,) = report["coverage"]
    assert row["logged_bytes"] == 2 * 2 * 6 * sum(SIZES)
    # The rest are the envelopes.
    assert 0.98 < row["coverage"] <= 1
    assert row["n_lost"] == 0
    assert not any("missing" in text or "missed" in text for text in report["warnings"])


def test_the_run_shows_tables_and_a_figure(exchanged):
    ended, _ = exchanged
    assert "all-to-all, one pair at a time" in ended.stdout
    assert "all-to-all, all pairs at once" in ended.stdout
    assert {path.name for path in (ended.run / "figures").glob("*.png")} == {"pair-bandwidth.png"}


def test_the_report_has_the_placement_and_the_class_of_each_link(exchanged):
    ended, report = exchanged
    locations = {row["worker"]: row["cpus"] for row in report["places"]}
    assert locations == dict(zip("012", CPUS, strict=True))
    assert [row["cpus"] for row in report["cases"][0]["cluster"]["placement"]] == CPUS
    assert f"worker 1: CPUs {CPUS[1]}" in processes.invoke("report", "-v", ended.run).stdout
    assert {pair["link"] for pair in report["pairs"]} <= {"same NUMA", "cross-socket", "same host"}
    assert "unknown" not in {link["link"] for link in report["links"]}


def test_a_model_can_be_fitted_to_the_run(exchanged):
    ended, _ = exchanged
    result = processes.invoke("model", ended.run, "--format", "json")
    assert result.exit_code == 0, result.output
    # Where there are several NUMA nodes, the CPUs may be on different ones.
    links = {model["link"] for model in json.loads(result.stdout)["models"]}
    assert links <= {"same NUMA", "cross-socket", "same host"}
    assert links
