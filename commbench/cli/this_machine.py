"""``doctor`` and ``topology``: the capabilities and the layout of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commbench.cli.results import PATH
from commbench.errors import UsageError
from commbench.harness.options import POSITIVE
from commbench.store import files

if TYPE_CHECKING:
    from rich.console import Console

    from commbench.studies.doctor import Examination

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


@click.command()
def doctor() -> None:
    """Show what this machine can measure, why not the rest, and what would disturb it."""
    from rich.console import Console

    from commbench.studies.doctor import examine

    console = Console()
    with console.capture() as shown:
        render_examination(examine(), console)
    click.echo(shown.get(), nl=False)


def render_examination(examination: Examination, console: Console) -> None:
    """Print the examination on `console`; long facts are wrapped."""
    _section(console, "Machine", _facts(examination))
    columns = ("backend", "device", "runs", "what it sets, or why it does not run")
    _section(console, "Backends", [columns, *examination.backends])
    _section(console, "Advice", examination.advice or [("none", "nothing to be said against it")])


def _section(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in rows[0]:
        table.add_column(overflow="fold")
    for row in rows:
        # Text is not parsed for markup or emojis.
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    console.print(Text(f"\n{title}", "bold"))
    console.print(table)


def _facts(examination: Examination) -> list[tuple[str, str]]:
    from commbench.studies.doctor import format_fact

    machine = examination.machine
    host_facts = machine["host"] | machine["cpu"] | machine["memory"]
    words = {key: format_fact(key, value) for key, value in host_facts.items()}
    facts = [(label, template.format(**words)) for label, template in _FACTS]
    for kind, label, template in _LISTS:
        items = [{key: format_fact(key, item[key]) for key in item} for item in machine[kind]]
        rows = [(label.format(**item), template.format(**item)) for item in items]
        facts += rows or [(kind, "none")]
    versions = [f"{name} {version}" for name, version in machine["packages"].items() if version]
    facts.append(("software", ", ".join([machine["python"], *versions])))
    return [*facts, ("mpiexec", examination.mpiexec or "not found"), *examination.gpu_memory]


@click.command()
@click.argument("file", type=PATH, required=False)
@click.option(
    "--write-placement", type=PATH, metavar="FILE.toml",
    help="Write what `--placement auto` would bind workers to, as a file for `--placement`.",
)  # fmt: skip
@click.option("--workers", type=POSITIVE, help="The number of workers.  [default: one per GPU]")
def topology(file: Path | None, write_placement: Path | None, workers: int | None) -> None:
    """Show NUMA nodes, GPUs and NICs, and the links between them.

    FILE has the output of `nvidia-smi topo -m` on another machine.
    """
    from commbench.machine.topology import discovery, hosts
    from commbench.machine.topology.workers import auto, visible
    from commbench.reports import host_tables, terminal

    host = discovery.this_host() if file is None else hosts.read_host(file)
    click.echo(
        terminal.page(host_tables.heading(host), host.notes, host_tables.tables(host)), nl=False
    )
    if write_placement is None and workers:
        raise UsageError("--workers is for --write-placement FILE.toml; add that, or leave it out")
    if write_placement is not None:
        if file is None:
            used = visible(host.gpus, os.environ)
            if host.gpus and not used:
                click.echo(
                    "the placement is without GPUs: none of the host's is named in "
                    f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}",
                    err=True,
                )
            host = replace(host, gpus=used)
        device = "gpu" if host.gpus else "cpu"
        placement = auto(host, workers or max(1, len(host.gpus)), device)
        files.write(write_placement, host_tables.placement_file(placement, host))
        click.echo(f"wrote {write_placement}")
