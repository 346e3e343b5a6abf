"""The packages that ``docs/extending.md`` shows, installed and run."""

import importlib
import re
import tomllib

import builders
import pages
import processes
import pytest
import shims
from launching import no_idle_cost

from commbench.conformance import check_backend, check_launcher, check_workload

FOLDERS = sorted(path.parent for path in (pages.ROOT / "tests/examples").glob("*/pyproject.toml"))
MAX_LINES = 80
PAGE = pages.ROOT / "docs/extending.md"


def entry_point(folder):
    """Return the name and the module of a package's only entry point."""
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    (names,) = points.values()
    ((name, target),) = names.items()
    return name, target.partition(":")[0]


@pytest.fixture
def installed(site):
    """Install all of them, for this process and those that it starts."""
    for folder in FOLDERS:
        shims.install(folder, site)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_plug_in_is_one_short_module_of_public_names_that_the_page_has(folder):
    _, module = entry_point(folder)
    (file,) = folder.glob("*.py")
    assert file.stem == module
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert re.findall(r"(?:from|import) commbench\.\S+.*", text) == []
    assert f"`{folder.name}/{file.name}`" in PAGE.read_text()


def test_the_page_shows_the_files_as_they_are():
    shown = {block.file: block.text for block in pages.blocks(PAGE) if block.file}
    files = {
        f"commbench-{entry_point(folder)[0]}/{file.name}": file.read_text()
        for folder in FOLDERS
        for file in folder.iterdir()
        if file.is_file()
    }
    assert {name: files[name] for name in shown if name in files} == {
        name: text for name, text in shown.items() if name.startswith("commbench-")
    }
    assert len(shown) >= 3


def test_the_backend_meets_its_contract_at_all_layers(installed):
    assert check_backend("ws") == {"websocket", "tcp"}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("bands", {"size": 500, "bands": 3}),
        ("bytes", {"sizes": (1, 1000)}),
        ("strided", {"sizes": (1 << 12, 1 << 16)}),
    ],
)
def test_a_workload_meets_its_contract(installed, name, params):
    check_workload(name, **params)


def test_the_launcher_meets_its_contract(installed, tmp_path, monkeypatch):
    monkeypatch.setattr("commbench.harness.measure.cluster.measure_idle", no_idle_cost)
    check_launcher("nannies", tmp_path)


SUITE = """
backends = ["ws"]
launches = 1
iterations = 1
warmups = 0

[[case]]
workload = "bands"
params = { size = 1500 }
cluster = { launcher = "nannies" }

[[case]]
workload = "bytes"

[[case]]
workload = "strided"
params = { sizes = [65536] }
"""


def test_every_plug_in_is_listed(installed):
    listed = processes.invoke("list", figures=["transfer-sizes"]).stdout.replace(",", " ").split()
    assert {entry_point(folder)[0] for folder in FOLDERS} <= set(listed)


def test_a_run_uses_backend_launcher_workloads_section_figure_and_format(installed, tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    output = ("--output", tmp_path / "results")
    path = processes.measured(suite, *output, figures=["transfer-sizes"]).path
    report = processes.invoke("report", "-v", path).stdout
    assert "Bytes that each worker fetched" in report
    assert "bytes, comm layer: latency" in report
    assert "strided, one pair at a time" in report
    assert "strided, all pairs at once" in report
    assert (path / "figures/transfer-sizes.svg").exists()
    cases = processes.report(path)["cases"]
    sizes = [case["message_bytes"] for case in cases if case["workload"] == "bytes"]
    assert sizes == [1, 1024, 1 << 20]
    assert "bands over ws:" in processes.invoke("report", path, "--format", "brief").stdout


def test_the_format_has_layer_and_size_of_messages_and_no_bandwidth_of_no_bytes(installed):
    tasks, messages = builders.case("tcp", "tiny-tasks"), builders.case("tcp", "pingpong")
    run = builders.in_memory(
        [tasks, messages],
        [
            builders.sample(tasks, 1.2, payload_bytes=0), builders.end(tasks),
            *(builders.message(messages, 1e-3, size) for size in (1000, 1 << 20)),
            builders.message(messages, 1e-4, 1000, layer="raw"), builders.end(messages),
        ],
    )  # fmt: skip
    lines = importlib.import_module("commbench_brief").render(run).splitlines()
    assert [line for line in lines if not line.startswith("⚠")] == [
        "tiny-tasks over tcp: 1.20 s (1 launches)",
        "pingpong comm 1.00 kB over tcp: 1.00 ms (1 launches, 1.00 MB/s)",
        "pingpong comm 1 MiB over tcp: 1.00 ms (1 launches, 1.05 GB/s)",
        "pingpong raw 1.00 kB over tcp: 100 µs (1 launches, 10.0 MB/s)",
    ]


def test_the_rule_is_applied_to_every_case(installed):
    case = builders.case()
    busy = {"cpu_seconds": 5.0}
    records = [
        builders.sample(case, 10.0), builders.end(case), builders.thread_time(case),
        builders.thread_time(case, "client", "loop", **busy),
    ]  # fmt: skip
    findings = builders.in_memory([case], records).findings
    (found,) = (finding for finding in findings if finding.rule == "busy-client")
    assert found.statement == "the client is busy with messages 50% of the time"
    assert (found.effect.low, found.effect.high) == (0.0, 0.5)
