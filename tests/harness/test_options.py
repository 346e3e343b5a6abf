"""A workload's parameters are options of the command line, read as strictly as a suite is."""

import contextlib
import dataclasses
import importlib.util
import re
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import builders
import pytest
from click.testing import CliRunner

from commbench.errors import UsageError
from commbench.harness import options
from commbench.harness.cases import cases_for
from commbench.machine import environment
from commbench.model import ClusterSpec, Stopping, registry
from commbench.workloads.merge import Merge
from commbench.workloads.tiny_tasks import TinyTasks
from commbench.workloads.workload import Workload, option


@dataclass(frozen=True, kw_only=True)
class Params:
    """One parameter of every type."""

    rows: int = field(default=7, metadata={"help": "rows"})
    size: int = field(default=8, metadata={"help": "size", "unit": "bytes"})
    pause: float = field(default=0.1, metadata={"help": "pause", "unit": "seconds"})
    counts: tuple[int, ...] = field(default=(1,), metadata={"help": "counts"})
    bare: int = 5
    share: float = field(default=0.5, metadata={"help": "share"})
    part: float = option(0.25, "part", unit="share")
    deep: bool = field(default=False, metadata={"help": "deep"})
    label: str = field(default="x", metadata={"help": "label"})
    how: Literal["tasks", "p2p"] = field(default="p2p", metadata={"help": "how"})
    sizes: tuple[int, ...] = field(default=(1, 2), metadata={"help": "sizes", "unit": "bytes"})
    names: tuple[str, ...] = field(default=("a",), metadata={"help": "names"})
    long_list: tuple[int, ...] = field(default=tuple(range(50)), metadata={"help": "long"})


@pytest.fixture
def read():
    """Return a function that parses arguments and returns their values, or the output."""
    kind = type("Kind", (Workload,), {"Params": Params, "defaults": {"iterations": 11}})
    groups = options.groups(kind)

    def read(*arguments):
        values = {}
        command = options.Command("x", groups, callback=lambda **given: values.update(given))
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code in (0, 2), result.output
        return values if result.exit_code == 0 and values else result.output

    return read


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (("--rows", "3"), "rows", 3),
        (("--rows", "1e6"), "rows", 1_000_000),
        (("--rows", "-3"), "rows", -3),
        (("--pause", "20ms"), "pause", 0.02),
        (("--part", "20%"), "part", 0.2),
        (("--counts", "1e3,2k"), "counts", (1000, 2000)),
        (("--launches", "1e1"), "launches", 10),
        (("--budget", "5m"), "budget", 300.0),
        (("--size", "8MiB"), "size", 8 << 20),
        (("--share", "0.25"), "share", 0.25),
        (("--deep", "yes"), "deep", True),
        (("--how", "tasks"), "how", "tasks"),
        (("--sizes", "1, 1KiB,8MiB"), "sizes", (1, 1024, 8 << 20)),
        (("--names", "a,b"), "names", ("a", "b")),
        (("--long-list", "3"), "long_list", (3,)),
        (("--backends", "tcp,ucx:tcp+shm"), "backends", ("tcp", "ucx:tcp+shm")),
        (("--timeout", "1.5min"), "timeout", 90.0),
        (("--min-transfer", "1KiB"), "min_transfer", 1024),
        (("--min-batch", "1KiB"), "min_batch", 1024),
        ((), "min_batch", 250_000),
        ((), "rows", None),
        ((), "min_transfer", 1_000_000),
    ],
)
def test_option_has_the_type_of_its_field(arguments, name, value, read):
    assert read(*arguments)[name] == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "1.5"), "'1.5' is not a whole number"),
        (("--rows", "many"), "'many' is not a number; write for example 6, 1e6 or 250k"),
        (("--pause", "2 bits"), "'2 bits' is not a duration"),
        (("--how", "p3p"), "'p3p' is not one of 'tasks', 'p2p'"),
        (("--size", "1.5B"), "'1.5B' is not a whole number of bytes"),
        (("--sizes", "1,x"), "'x' is not a number of bytes"),
        (("--sizes", ","), "',' names nothing"),
        (("--backends", ""), "'' names nothing"),
        (("--timeout", "nan"), "'nan' is not a duration"),
        (("--min-transfer", "-1"), "'-1' is not a number of bytes"),
    ],
)
def test_bad_value_is_refused_with_its_option(arguments, message, read):
    output = read(*arguments)
    assert message in output
    assert f"'{arguments[0]}'" in output


def test_help_has_the_defaults(read):
    text = " ".join(read("--help").split())
    for default in ("7", "0.5", "False", "p2p", "1B,2B", "0.1s", "0,1,2,3,…,49"):
        assert f"[default: {default}]" in text
    assert re.search(r"--iterations COUNT Timed calls per launch. \[default: 11\]", text)


@pytest.mark.parametrize(("value", "wrong"), [((2, 1), 1), ((), None), (0, 0), (3, None)])
def test_the_least_value_holds_for_a_number_and_for_each_of_several(value, wrong):
    kind = dataclasses.make_dataclass("Kind", [("size", Any, option(2, "", unit="bytes", least=2))])
    named = type("Named", (Workload,), {"name": "named"})
    with (
        contextlib.nullcontext() if wrong is None else
        pytest.raises(UsageError, match=f"named: size is {wrong} B; it must be at least 2 B")
    ):  # fmt: skip
        named(kind(size=value), None)


def test_help_has_the_options_in_groups(read):
    lines = read("--help").splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Workload:", "Cluster:", "GPU:", "Statistics:", "Output:"]
    first = [lines[lines.index(title) + 1].split()[0] for title in titles]
    assert first == ["--rows", "--workers", "--device", "--quick", "--output"]


@pytest.mark.parametrize("name", registry.names("workload"))
def test_parameters_of_every_workload_are_options(name):
    kind = registry.load("workload", name)
    parameters = options.param_options(kind.Params)
    names = [option.name for option in parameters]
    assert names == [field.name for field in dataclasses.fields(kind.Params)]
    assert all(option.help for option in parameters)
    workload, *others = options.groups(kind).values()
    assert names == [option.name for option in workload[:-2]]
    assert {option.name for option in chain(*others)}.isdisjoint(names)


@pytest.mark.parametrize(
    ("cupy", "gpus", "device"), [(True, 1, "gpu"), (True, 0, "cpu"), (False, 1, "cpu")]
)
def test_auto_is_gpu_with_a_gpu_and_cupy(cupy, gpus, device, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if cupy else None)
    monkeypatch.setattr(environment, "gpus", lambda: [{"index": 0, "uuid": "GPU-0"}] * gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert options.cluster({"device": "auto"}, Merge).device == device
    assert options.cluster({"device": "gpu", "workers": 3}, Merge).device == "gpu"
    assert options.cluster({"device": "cpu", "workers": 3}, Merge).n_workers == 3
    # It has no data on GPUs.
    assert options.cluster({"device": "auto"}, TinyTasks).device == "cpu"


def test_an_option_of_the_launcher_is_given_once():
    pairs = (("job_extra_directives", "--exclusive"), ("job-extra-directives", "--gres=gpu:1"))
    with pytest.raises(UsageError, match="job_extra_directives is given 2 times"):
        options.overrides({"launcher_option": pairs})


def test_options_that_are_not_given_override_nothing():
    given = dict.fromkeys(("launches", "iterations", "warmups", "seed", "timeout"))
    assert options.replication(given) == {}
    assert options.replication({**given, "warmups": 0, "timeout": 5.0}) == {
        "warmups": 0, "timeout_s": 5.0,
    }  # fmt: skip


def test_a_budget_has_defaults_and_rigorous_is_one():
    none = dict.fromkeys(("launches", "iterations", "budget", "detect", "rigorous"))
    assert options.stopping(none) is None
    assert options.stopping({**none, "budget": 60.0}) == Stopping(budget_s=60.0)
    assert options.stopping({**none, "detect": 0.1}) == Stopping(detect=0.1)
    rigorous = {**none, "rigorous": True}
    assert options.stopping(rigorous) == Stopping(budget_s=3600.0, detect=0.02)
    given = options.stopping({**rigorous, "detect": 0.01, "iterations": 4})
    assert given == Stopping(budget_s=3600.0, detect=0.01, fixed_iterations=True)


def test_a_resumed_run_has_time_for_the_start_of_its_workers():
    (case,) = cases_for("merge", ["tcp"], {}, ClusterSpec(start_timeout_s=1800), timeout_s=3600)
    manifest = builders.run([case])
    with pytest.raises(UsageError, match="raise the latter above the former"):
        options.resumed(manifest, {"timeout": 1200.0})
