"""``commbench model`` fits latency and bandwidth to a run's transfers, and predicts times."""

import itertools
import json
from dataclasses import replace

import builders
import pytest
from builders import address, end, transfer
from processes import invoke, usage_error

SIZES = (1 << 10, 1 << 20, 16 << 20)
TCP = builders.case("tcp", "all-to-all", n_workers=3)
UCX = builders.case("ucx", "all-to-all", n_workers=3)


def swept(case, alpha_s, beta_Bps, launches=6, sizes=SIZES):  # noqa: N803
    """Return exact fetches of all pairs, alone, and five times slower together."""
    records = [address(case, worker) for worker in "012"]
    pairs = itertools.permutations("012", 2)
    for launch, (src, dst), size in itertools.product(range(launches), pairs, sizes):
        seconds = alpha_s + size / (beta_Bps * (2 if (src, dst) == ("0", "1") else 1))
        for channel, factor in (("alone", 1), ("together", 5)):
            link = {"src": src, "dst": dst, "launch": launch, "channel": channel}
            records.append(transfer(case, 0, factor * seconds, size, **link))
    return records + [end(case, launch=launch) for launch in range(launches)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run over tcp with 1 ms and 0.5 GB/s, but 1 GB/s from 0 to 1."""
    return stored(tmp_path_factory.mktemp("results"), [TCP], swept(TCP, 1e-3, 5e8))


def stored(folder, cases, records=()):
    return builders.written(folder, cases, records).path


def model(*arguments, columns=200):
    return invoke("model", *arguments, columns=columns)


def row(result, name, title):
    """Return the cells of a row of the table with that title."""
    assert result.exit_code == 0, result.output
    table = result.stdout[result.stdout.index(title) :]
    line = next(line for line in table.splitlines() if line.startswith(name))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_tables_have_every_pair_and_class(run):
    result = model(run)
    cells = row(result, "0 → 1", "alone: pairs")
    assert cells == ["0 → 1", "1.00 ms", "0.0%", "1", "0.0%", "1.00 MB", "0.0%", "0.0%"]
    cells = row(result, "0 → 1", "together: pairs")
    assert cells[1:4] == ["5.00 ms", "0.0%", "0.2"]
    assert row(result, "same host", "alone: classes")[0] == "same host (6 pairs)"
    assert "97%" in result.stdout


@pytest.mark.parametrize("columns", [80, 200])
def test_tables_fit_the_terminal(columns, run):
    result = model(run, "--predict", "1GiB", columns=columns)
    assert max(map(len, result.stdout.splitlines())) <= columns


@pytest.mark.parametrize(
    ("size", "text"), [("1MiB", "3.10 ms"), ("16MiB", "34.6 ms"), ("1GiB", "2.15 s *")]
)
def test_time_of_a_transfer_is_predicted(size, text, run):
    cells = row(model(run, "--predict", size), "1 → 0", "alone: pairs")
    assert cells[-1] == text


def test_json_has_every_model_in_base_units(run):
    result = model(run, "--format", "json", "--predict", "1000000")
    report = json.loads(result.stdout, parse_constant=pytest.fail)
    assert list(report) == ["run", "predicted_bytes", "models"]
    rows = {(m["channel"], m["src"], m["dst"]): m for m in report["models"]}
    assert len(rows) == 2 * (1 + 6)
    pair = rows["alone", "0", "1"]
    assert (pair["alpha_s"], pair["beta_Bps"]) == pytest.approx((1e-3, 1e9), rel=1e-3)
    assert pair["predicted_s"] == pytest.approx(2e-3, rel=1e-3)
    assert pair["half_bytes"] == pytest.approx(1e6, rel=1e-3)
    assert pair["link"] == "same host"


def test_backend_can_be_selected(tmp_path):
    run = stored(tmp_path, [TCP, UCX], swept(TCP, 1e-3, 5e8) + swept(UCX, 1e-4, 5e9))
    assert "did you mean 'ucx'" in usage_error(model(run, "--backends", "uxc"))
    shown = model(run, "--backends", "ucx").stdout
    assert "over ucx" in shown
    assert "over tcp" not in shown


NONE = "it has no transfers between workers"
ALONE = {"channel": "alone"}
BAD = {
    "no transfers": (NONE, []),
    "failures only": (NONE, [builders.failure(TCP)]),
    "warm-ups only": (NONE, [transfer(TCP, 0, 1, 1 << n, iteration=-1) for n in range(20)]),
    "one size": (
        "tcp: one size only; at least 3 are needed",
        [transfer(TCP, 0, 0.1, 1 << 20, iteration=n, **ALONE) for n in range(9)],
    ),
    "zero durations": (
        "tcp: none of 20 has a duration", [transfer(TCP, 0, 0, 1 << n, **ALONE) for n in range(20)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "records"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("options", [[], ["--format", "json"]])
def test_run_without_enough_transfers_is_refused(reason, records, options, tmp_path):
    error = usage_error(model(stored(tmp_path, [TCP], records), *options))
    assert reason in error
    assert "commbench run all-to-all" in error


def test_pairs_that_cannot_be_fitted_are_left_out_with_the_reason(tmp_path):
    records = [
        record for record in swept(TCP, 1e-3, 5e8)
        if (getattr(record, "src", ""), getattr(record, "dst", "")) != ("2", "0")
        or record.nbytes == SIZES[-1]
    ]  # fmt: skip
    result = model(stored(tmp_path, [TCP], records), "--predict", "1MiB")
    assert "\n2 → 0" not in result.stdout
    why = "No model of 2 → 0: one size only; at least 3 are needed."
    assert result.stdout.count(why) == 2


def test_a_channel_without_a_model_is_one_sentence(tmp_path):
    records = [
        record for record in swept(TCP, 1e-3, 5e8)
        if getattr(record, "channel", "") != "together" or record.nbytes == SIZES[-1]
    ]  # fmt: skip
    result = model(stored(tmp_path, [TCP], records))
    assert row(result, "0 → 1", "alone: pairs")
    (line,) = [line for line in result.stdout.splitlines() if "together" in line]
    assert line.endswith(
        "over tcp, together. No model of same host (6 pairs): one size only; at least 3 are needed."
    )


def test_a_bandwidth_that_the_largest_size_disproves_is_marked(run, tmp_path):
    sizes = (1 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20)
    slower = [
        replace(record, stop_s=2 * record.stop_s)
        if getattr(record, "nbytes", 0) == sizes[-1] else record
        for record in swept(TCP, 1e-3, 5e8, sizes=sizes)
    ]  # fmt: skip
    result = model(stored(tmp_path, [TCP], slower), "--predict", "16MiB")
    for title, name in (("alone: classes", "same host"), ("alone: pairs", "1 → 0")):
        cells = row(result, name, title)
        assert (cells[3][-2:], cells[-1][-2:]) == (" !", " !")
    meaning = "!: the largest size takes over 1.2 times as long"
    assert " ".join(result.stdout.split()).count(meaning) == 4
    assert "!" not in model(run, "--predict", "16MiB").stdout


def test_folder_without_a_run_is_refused(tmp_path):
    assert "holds no run" in usage_error(model(tmp_path))
    assert "is not a number of bytes" in model(tmp_path, "--predict", "many").stderr
