"""What ``commbench doctor`` prints of an examination."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commbench.model.units import format_bandwidth, format_seconds
from commbench.studies.doctor import Examination, worded

_STYLES = {"yes": "green", "no": "red", "warning": "yellow", "note": "cyan"}
_FACTS = (
    ("host", "{name}, {os}, {kernel}, {architecture}; hypervisor {hypervisor}"),
    ("processor", "{model}, governor {governors}, turbo {turbo}, clock source {clock_source}"),
    ("cores", "{usable_cores} of {logical_cores} usable (numbers {allowed_cpus}), SMT {smt}"),
    ("memory", "{total_bytes}, {available_bytes} available, swap {swap_bytes}"),
    ("pages", "transparent huge pages {transparent_huge_pages}, /dev/shm {shm_bytes}"),
    ("cgroup", "quota of cores {cgroup_quota_cores}, limit of memory {cgroup_limit_bytes}"),
    ("limits", "locked memory {memlock_bytes}, open files {open_files}"),
)
_NIC = "link {state}, {speed_Mbps} Mb/s, MTU {mtu_bytes}, driver {driver}, numa {numa_node}"
_LISTS = (
    ("numa", "numa {node}", "cores {cpus}, {memory_bytes}"),
    ("network", "nic {name}", _NIC),
    ("rdma", "rdma {name}:{port}", "{state}, {rate}, {link_layer}, numa {numa_node}"),
    ("gpus", "gpu {index}", "{name}, {memory_bytes}, driver {driver}, {pci}, {uuid}"),
)


def render(examination: Examination, console: Console) -> None:
    """Draw the examination on `console`; long facts wrap, none is cut."""
    _section(console, "Machine", _facts(examination))
    checks = [("backend", "device", "runs", "what it sets, or why it does not run")]
    for item in examination.backends:
        remedy = f". To have it: {item.remedy}" if item.remedy else ""
        why = f"sets {item.settings}" if item.available else f"{item.reason}{remedy}"
        checks.append((item.name, item.device, "yes" if item.available else "no", why))
    _section(console, "Backends", checks)
    lanes: dict[tuple[str, str, str, str], list[str]] = {}
    for lane in examination.transports:
        rate = "—" if lane.bandwidth_Bps is None else format_bandwidth(lane.bandwidth_Bps)
        delay = "—" if lane.latency_s is None else format_seconds(lane.latency_s)
        lanes.setdefault((lane.name, lane.kind, rate, delay), []).append(lane.device)
    if lanes:
        header = ("transport", "kind", "bandwidth", "latency", "devices")
        rows = [(*lane, " ".join(devices)) for lane, devices in lanes.items()]
        _section(console, "UCX's transports, as UCX assumes and nobody measured", [header, *rows])
    _section(console, "Advice", examination.advice or [("none", "nothing to be said against it")])


def _section(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in rows[0]:
        table.add_column(overflow="fold")
    for row in rows:
        # As Text, no fact is taken for markup or an emoji.
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    console.print(Text(f"\n{title}", "bold"))
    console.print(table)


def _facts(examination: Examination) -> list[tuple[str, str]]:
    machine = examination.machine
    of_host = machine["host"] | machine["cpu"] | machine["memory"]
    words = {key: worded(key, value) for key, value in of_host.items()}
    facts = [(label, template.format(**words)) for label, template in _FACTS]
    for kind, label, template in _LISTS:
        items = [{key: worded(key, item[key]) for key in item} for item in machine[kind]]
        rows = [(label.format(**item), template.format(**item)) for item in items]
        facts += rows or [(kind, "none")]
    versions = [f"{name} {version}" for name, version in machine["packages"].items() if version]
    facts.append(("software", ", ".join([machine["python"], *versions])))
    return [*facts, ("mpiexec", examination.mpiexec or "not found"), *examination.gpu_memory]
