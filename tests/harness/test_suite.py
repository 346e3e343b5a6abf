"""A suite is read or refused with the path of a key; a plan has blocks of cases in random order."""

import dataclasses
import json
import textwrap
import tomllib
from collections import Counter
from dataclasses import dataclass, field

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.analysis import comparability
from commbench.errors import UnavailableError, UsageError
from commbench.harness import suite
from commbench.harness.cases import cases_for, make_suite, plan, structure
from commbench.harness.suite import read_suite
from commbench.model import ClusterSpec, Launch
from commbench.stats.selection import describe_settings
from commbench.store.records import from_dict
from commbench.workloads.merge import Merge
from commbench.workloads.pingpong import PingPong
from commbench.workloads.workload import Context

MERGE = '[[case]]\nworkload = "merge"\n'

BAD = {
    "numbers of workers of a pair": (
        '[[case]]\nworkload = "pingpong"\nworkers = [2, 4]', "runs between two processes",
        "case[0]",
    ),
    "largest of a number": (
        MERGE + 'params = {rows = 5}\nscaling = {rows = "largest"}', "for a list of sizes",
    ),
    "largest of the threads": (
        MERGE + 'scaling = {threads_per_worker = "largest"}', "for a list of sizes",
    ),
    "date in a list for Dask": (
        'cluster.dask_config = {"distributed.scheduler.preload" = [2020-01-01]}\n' + MERGE,
        "a list of these",
    ),
    "no path": ('[[case]]\nworkload = "a\\u0000.py"', "no path of a script"),
    "no path of placements": ('cluster.placement = "a\\u0000"\n' + MERGE, "null byte"),
    "unknown key of the suite": ("launch = 3\n" + MERGE, "'launch' (did you mean 'launches'?)"),
    "unknown key of the cluster": (
        "[cluster]\nworkers = 2\n" + MERGE, "'workers'", "known: cpus_per_worker, dask", ".cluster",
    ),
    "parameter outside params": (MERGE + "rows = 3", "svd: params = { rows = … }", ".case[0]"),
    "unknown key of a case": (MERGE + "param = {}", "'param' (did you mean 'params'?)", ".case[0]"),
    "unknown key of a case's cluster": (
        MERGE + MERGE + "[case.cluster]\nn_worker = 1", "'n_worker'", ".case[1].cluster",
    ),
    "unknown parameter": (MERGE + "params = {row = 3}", "case[0]", "'row'", "known: build_"),
    "word for an integer": (MERGE + 'launches = "few"', "'few' is not a number", ".launches"),
    "unit of a size for a count": (MERGE + 'params = {rows = "8MiB"}', "not a number", "rows"),
    "size for a duration": ('timeout_s = "8MiB"\n' + MERGE, "not a duration", ".timeout_s"),
    "bool for an integer": (MERGE + "launches = true", "expected int, got True", "launches"),
    "bool for a float": ("timeout_s = true\n" + MERGE, "expected float, got True", ".timeout_s"),
    "string for a list": (
        MERGE + 'backends = "tcp"', "expected a list, got 'tcp'; write [\"tcp\"]", "backends",
    ),
    "integer in a list": (MERGE + 'backends = ["tcp", 5]', "expected str, got 5", "backends[1]"),
    "integer for a variable": (
        "[cluster.env]\nUCX_TLS = 1\n" + MERGE, "expected str, got 1", "env['UCX_TLS']",
    ),
    "number for the cluster": ("cluster = 5\n" + MERGE, "expected a table, got 5", ".cluster"),
    "number for the parameters": (MERGE + "params = 5", "expected a mapping", ".case[0].params"),
    "one case in single brackets": ('[case]\nworkload = "merge"', "expected a list", ".case"),
    "no case": ("", "'case' is missing; write [[case]] and, in the next line, workload = "),
    "an empty list of cases": ("case = []", "no case", "[[case]]"),
    "no workload": ("[[case]]\nlaunches = 3", "'workload' is missing", ".case[0]"),
    "no launches": (MERGE + "launches = 0", "case[0]", "launches is 0", "at least 1"),
    "negative warm-ups": (MERGE + "warmups = -1", "warmups is -1", "at least 0"),
    "no time": (MERGE + "timeout_s = 0", "timeout is 0.0 s", "above 0"),
    "not a time": (MERGE + "timeout_s = nan", "finite", "timeout_s"),
    "no workers": ("[cluster]\nn_workers = 0\n" + MERGE, "case[0]", "at least one worker"),
    "no threads": ("[cluster]\nthreads_per_worker = 0\n" + MERGE, "--threads is 0; a cluster has"),
    "no backends at all": ("backends = []\n" + MERGE, "backends is empty"),
    "unknown workload": (MERGE.replace("merge", "merg"), "'merg' (did you mean 'merge'?)"),
    "unknown backend": (MERGE + 'backends = ["tcpp"]', "case[0]", "did you mean 'tcp'?", "known: "),
    "unknown transport": (MERGE + 'backends = ["ucx:foo"]', "'foo'", "known: tcp, shm, nvlink, ib"),
    "twin alone": (MERGE + 'backends = ["mpi", "tcp@2"]', "a control of tcp", "name both"),
    "option of tcp": (MERGE + 'backends = ["tcp:shm"]', "takes no options", "'shm'"),
    "unknown launcher": ('[cluster]\nlauncher = "slrm"\n' + MERGE, "launcher 'slrm'", "known: "),
    "unknown device": (
        '[cluster]\ndevice = "tpu"\n' + MERGE, "device 'tpu'", "known: auto, cpu, gpu",
    ),
    "fraction for an integer": (MERGE + "params = {rows = 1.5}", "expected int, got 1.5", "rows"),
    "unknown choice": (
        MERGE + 'params = {shuffle = "p3p"}', "expected one of 'dask', 'tasks', 'p2p', got",
        "shuffle",
    ),
    "several problems": (
        "nope = 1\n" + MERGE + 'launches = "x"\n[[case]]\nworkload = 3', "'nope'",
        ".case[0].launches", ".case[1].workload",
    ),
    "a key that a parameter decides": (
        MERGE.replace("merge", "rechunk")
        + 'cluster.dask_config = {"array.rechunk.method" = "p2p"}',
        "no effect on rechunk", "--method",
    ),
    "another spelling of such a key": (
        MERGE.replace("merge", "rechunk")
        + 'cluster.dask_config = {"array.chunk_size" = "1MiB"}',
        "no effect on rechunk", "--chunk-size",
    ),
    "a name that no variable has": (
        'cluster.env = {"UCX_TLS=tcp" = ""}\n' + MERGE, "'UCX_TLS=tcp' = '' is no variable",
    ),
    "a value that no variable has": (
        'cluster.env = {"UCX_TLS" = "a\\u0000"}\n' + MERGE, "is no variable of an environment",
    ),
    "an unknown key of Dask": (
        'cluster.dask_config = {"distributed.comm.compresion" = "lz4"}\n' + MERGE,
        "case[0]", "did you mean 'distributed.comm.compression'?",
    ),
    "workers that are given and varied": (
        MERGE + 'workers = [2, 4]\nvary = ["workers=1|8"]', "workers are given and varied",
    ),
    "the same case twice": (MERGE + MERGE, "merge over tcp", "twice"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "parts"), [(c, p) for c, *p in BAD.values()], ids=BAD.keys())
def test_bad_suite_is_refused_with_file_path_and_remedy(content, parts, read):
    with pytest.raises(UsageError) as caught:
        read(content)
    for part in parts:
        assert part in str(caught.value)
    if "twice" not in parts and "no case" not in parts:
        assert "my.toml" in str(caught.value)


def test_of_cases_that_given_backends_make_equal_that_with_most_launches_counts(read):
    content = (
        MERGE + 'backends = ["tcp"]\nlaunches = 6\n' + MERGE + 'backends = ["mpi"]\nlaunches = 2'
    )
    suite = read(content, backends=("tcp", "mpi"))
    assert [(case.backend, case.launches) for case in suite.cases] == [("tcp", 6), ("mpi", 6)]


def test_frames_on_gpus_are_not_shuffled_through_host_memory():
    context = Context(n_workers=2, device="gpu", seed=0)
    with pytest.raises(UsageError, match="P2P moves rows in host memory"):
        Merge(Merge.Params(shuffle="p2p"), context)


def test_a_workload_that_cannot_be_imported_hides_no_typo(read, installed):
    installed("workload", {"broken": UnavailableError("workload broken", "it lacks a", "add a")})
    with pytest.raises(UsageError, match="did you mean 'launches'"):
        read("launch = 3\n" + MERGE)


@pytest.mark.parametrize("content", ["x = ", "a = 1\na = 2", b"name = '\xff'", b"\x00", "[[case"])
def test_broken_toml_is_refused(content, read):
    with pytest.raises(UsageError, match=r"can't read .*my\.toml.*give a suite file"):
        read(content)


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_path_without_a_file_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match=r"can't read .*give a suite file"):
        read_suite(tmp_path / name)


def test_case_overrides_the_suite_and_options_override_both(read):
    content = (
        'backends = ["tcp"]\nlaunches = 2\niterations = 5\n[cluster]\nn_workers = 3\n'
        '[cluster.env]\nA = "1"\n'
        + MERGE
        + 'backends = ["ucx"]\nlaunches = 4\n[case.cluster]\nthreads_per_worker = 2\n'
    )
    (case,) = read(content).cases
    assert (case.backend, case.launches, case.iterations, case.warmups) == ("ucx", 4, 5, 1)
    assert case.cluster == ClusterSpec(n_workers=3, threads_per_worker=2, env={"A": "1"})
    (case,) = read(content, backends=("tcp",), launches=9, seed=None).cases
    assert (case.backend, case.launches, case.iterations, case.seed) == ("tcp", 9, 5, 0)


def test_numbers_have_the_units_of_the_command_line(read):
    content = (
        'timeout_s = "5m"\nscale = "10%"\n[cluster]\nstart_timeout_s = "90s"\nn_workers = "1k"\n'
        '[[case]]\nworkload = "all-to-all"\nparams = {sizes = ["8MiB", "1e6", 64]}\n'
        'scaling = {sizes = "largest"}\n'
    )
    suite = read(content)
    (case,) = suite.cases
    assert (suite.scale, case.timeout_s, case.cluster.start_timeout_s) == (0.1, 300.0, 90.0)
    assert (case.cluster.n_workers, case.params["sizes"]) == (1000, (64,))
    assert read(content, scale=1).cases[0].params["sizes"] == (8 << 20, 10**6, 64)


def test_suite_has_its_name_or_that_of_its_file(read):
    assert read(MERGE).name == "my"
    assert read('name = "mine"\n' + MERGE).name == "mine"


def test_suite_overrides_the_defaults_of_a_workload(read):
    pingpong = '[[case]]\nworkload = "pingpong"\n'
    assert read(pingpong).cases[0].iterations == 1000
    assert read("iterations = 7\n" + pingpong).cases[0].iterations == 7


def test_case_has_default_parameters(read):
    (short,), (long,) = (read(MERGE + text).cases for text in ("", 'params = {shuffle = "dask"}'))
    assert short == long
    assert "rows" in short.params


@pytest.mark.parametrize(
    "texts", [("frac_match = 1", "frac_match = 1.0"), ("rows = 1000", "rows = 1e3")]
)
def test_integers_and_floats_of_the_same_value_give_the_same_case(texts, read):
    one, same = (read(f"{MERGE}params = {{{text}}}").cases for text in texts)
    assert one[0].id == same[0].id


def test_docstring_has_every_key():
    text = textwrap.dedent((suite.__doc__ or "").partition("::\n")[2])
    content = tomllib.loads(text)
    structure(content, suite.SuiteFile, "docstring")
    in_suite, in_case = (
        {field.name for field in dataclasses.fields(kind)}
        for kind in (suite.SuiteFile, suite.CaseEntry)
    )
    assert {*content} == in_suite
    assert {*content["cluster"]} == {field.name for field in dataclasses.fields(ClusterSpec)}
    assert {*content["case"][0]} == in_case - in_suite


def suite_with(launches):
    """Return a suite with a case for each number of launches."""
    return make_suite(
        "s", [builders.case(params={"n": n}, launches=count) for n, count in enumerate(launches)]
    )


suites = st.lists(st.integers(1, 5), min_size=1, max_size=6).map(suite_with)


@given(suites, st.integers(0, 2**32))
def test_block_has_a_launch_of_every_case(suite, seed):
    launches = plan(suite, seed)
    assert launches == plan(suite, seed)
    assert [launch.block for launch in launches] == sorted(launch.block for launch in launches)
    for block in range(max(case.launches for case in suite.cases)):
        in_block = [launch for launch in launches if launch.block == block]
        expected = {case.id for case in suite.cases if case.launches > block}
        assert {(launch.case.id, launch.index) for launch in in_block} == {
            (case_id, block) for case_id in expected
        }
        assert [launch.position for launch in in_block] == list(range(len(expected)))


def test_seeds_and_blocks_have_different_orders():
    suite = suite_with([5] * 6)
    orders = [tuple(launch.case.id for launch in plan(suite, seed)) for seed in range(10)]
    assert len(set(orders)) == 10
    blocks = [orders[0][begin : begin + 6] for begin in range(0, 30, 6)]
    assert len(set(blocks)) == 5
    # So that no case is earlier in its blocks than others, nor of a run that is continued.
    assert blocks[1::2] == [block[::-1] for block in blocks[:4:2]]
    later = plan(suite, 0, done=dict.fromkeys(orders[0], 3), n_blocks=3)
    assert tuple(launch.case.id for launch in later[:6]) == blocks[3]


def test_every_case_is_first_equally_often():
    suite = suite_with([1] * 4)
    first = Counter(plan(suite, seed)[0].case.id for seed in range(2000))
    # Binomial (2000, 1/4): four standard deviations are 77.
    assert all(abs(first[case.id] - 500) < 78 for case in suite.cases)


@given(suites, st.data())
def test_launches_that_are_done_are_not_planned(suite, data):
    done = {case.id: data.draw(st.integers(0, 7)) for case in suite.cases}
    counts = Counter(launch.case.id for launch in plan(suite, 0, done={**done, "foreign": 3}))
    for case in suite.cases:
        assert counts[case.id] == max(0, case.launches - done[case.id])


def test_launches_of_a_resumed_run_have_new_numbers():
    one, two = (builders.case(name, launches=2) for name in ("tcp", "ucx"))
    plans = plan(make_suite("s", [one, two]), 0, done={one.id: 1}, begun={one.id: 5})
    assert sorted(launch.index for launch in plans if launch.case.id == one.id) == [5]
    assert sorted(launch.index for launch in plans if launch.case.id == two.id) == [0, 1]
    assert [launch.block for launch in plans] == [5, 5, 6]


keys = st.sampled_from([*suite.CaseEntry.__dataclass_fields__, "case", "name", "x"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=4))
def test_any_content_is_a_suite_or_refused(content):
    structured, message = None, ""
    try:
        structured = structure(content, suite.SuiteFile, "my.toml")
    except UsageError as error:
        message = str(error)
    assert isinstance(structured, suite.SuiteFile) != ("my.toml" in message)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("message-rate", "has the mode message-rate, and reports would take it for latency"),
        ("eager", "unknown mode 'eager'"),
    ],
)
def test_pair_workload_with_a_mode_of_another_metric_is_refused(
    monkeypatch, installed, mode, message
):
    class Rates(PingPong):
        """A ping-pong with a mode that no parameter sets."""

    monkeypatch.setattr(Rates, "mode", mode)
    installed("workload", {"rates": Rates})
    with pytest.raises(UsageError, match=message):
        cases_for("rates", ["tcp"], {}, ClusterSpec())


def test_a_case_keeps_its_id_when_its_workload_gets_a_parameter(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Params(Merge.Params):
        more: int = field(default=3, metadata={"help": "more", "added": "9.9"})

    def made(**params):
        (case,) = cases_for("merge", ["tcp"], params, ClusterSpec())
        return case

    before = made()
    monkeypatch.setattr(Merge, "Params", Params)
    after, launch = made(), plan(make_suite("s", [made(more=3)]), 0)[0]
    read = from_dict(json.loads(json.dumps(dataclasses.asdict(launch))), Launch).case
    assert after.params == read.params == {**before.params, "more": 3}
    assert after.id == read.id == before.id != made(more=4).id
    assert describe_settings(after) == describe_settings(before) != describe_settings(made(more=4))
    runs = [builders.run([case]) for case in (before, after, made(more=4))]
    assert comparability.match(runs[0], runs[1]).differences == ()
    (difference,) = comparability.match(runs[1], runs[2]).differences
    assert str(difference).startswith("merge over tcp: params.more")
