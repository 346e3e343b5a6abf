"""``--vary``: which settings can be varied, by which names they go, and what is compared."""

import processes
import pytest

from commbench.errors import UnavailableError, UsageError
from commbench.harness import suite, vary
from commbench.model import ClusterSpec

pytestmark = pytest.mark.usefixtures("simulated", "no_figures", "no_rules")
REFUSED = {
    "no value": ("UCX_TLS", "is no SETTING=A|B"),
    "an empty value": ("UCX_TLS=tcp|", "has an empty value"),
    "only an empty value": ("UCX_TLS=", "has an empty value"),
    "one value": ("workers=2", "has one value, so there is nothing to compare"),
    "a value twice": ("workers=2|4|2", "has a value twice"),
    "a value twice by a range": ("workers=1..4|2", "has a value twice"),
    "a range of nothing": ("workers=0..4", "0 is too small; it must be at least 1"),
    "a range of words": ("workers=few..4", "'few' is not a number"),
    "no setting": ("=1|2", "is no SETTING=A|B"),
    "an unknown option": ("worker=2|4", "unknown setting 'worker' (did you mean 'workers'?)"),
    "an option of the launcher": ("hosts=a|b", "unknown setting 'hosts'"),
    "an option that changes no number": ("start-timeout=1|2", "unknown setting 'start-timeout'"),
    "a variable in lower case": ("ucx_tls=tcp|sm", "unknown setting 'ucx_tls'"),
    "a variable of Dask": ("DASK_TEMPORARY_DIRECTORY=a|b", "keys of Dask's configuration"),
    "an unknown key": ("distributed.comm.compresion=null|lz4", "did you mean 'distributed.comm.co"),
    "a key of nannies": ("distributed.nanny.environ.A=1|2", "the workers have no nanny"),
    "a variable of nannies": (
        "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS=1|2",
        "Set the environment variable",
    ),
    "a key in upper case": ("distributed.worker.resources.GPU=1|2", "Dask reads these as distr"),
    "a key that merge sets": ("dataframe.shuffle.method=tasks|p2p", "its parameter shuffle"),
    "an unknown section": ("foo.bar=1|2", "known: admin.…, array.…"),
    "no number": ("workers=2|many", "'many' is not a number"),
    "no worker": ("workers=0|2", "at least one worker"),
    "no placement of tasks": ("task-placement=dask|best", "unknown task placement 'best'"),
    "a variable that no backend reads": ("UCX_TLS=tcp|sm", "add --backends mpi"),
}


def variants(backends, *varied, workload="merge", **cluster):
    spec = ClusterSpec(**cluster)
    cases = suite.varied_cases(workload, backends, {}, spec, varied, lambda _: ())
    return [case.variant for case in cases]


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cant_be_varied_is_refused_before_anything_starts(text, message, tmp_path):
    result = processes.invoke("run", "merge", "--vary", text, "--output", tmp_path / "results")
    assert message in processes.usage_error(result)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ("ucx:shm", "UCX_TLS=tcp|sm"),
        ("tls", "distributed.comm.require-encryption=true|false"),
        ("tls", "distributed.comm.require_encryption=true|false"),
    ],
)
def test_a_setting_that_the_backend_sets_is_refused(backend, text):
    with pytest.raises(UsageError, match=f"{backend} sets .* itself"):
        variants(["tcp", backend], text)


@pytest.mark.parametrize(
    "key", ["dask-jobqueue.made-up", "jobqueue.made-up", "distributed.worker.resources.made-up"]
)
def test_keys_of_packages_for_dask_and_in_empty_mappings_are_settings(key):
    names = variants(["tcp"], f"{key}=1|2")
    assert names == ["made-up=1", "made-up=2"]


@pytest.mark.parametrize("key", ["pandas.made-up", "__main__.made-up", "dask.made-up"])
def test_keys_of_other_packages_are_unknown(key):
    with pytest.raises(UsageError, match="unknown key of Dask's configuration"):
        variants(["tcp"], f"{key}=1|2")


def test_a_setting_is_varied_once():
    with pytest.raises(UsageError, match="workers is varied twice"):
        vary.settings(["workers=2|4", "--workers=3|5"])
    names = ("distributed.scheduler.work-stealing", "distributed.scheduler.work_stealing")
    with pytest.raises(UsageError, match="work-stealing is varied twice"):
        vary.settings([f"{name}=true|false" for name in names])


def test_pairs_of_processes_have_no_cluster_to_vary():
    with pytest.raises(UsageError, match="workers can't be varied: pingpong runs between two"):
        variants(["tcp"], "workers=2|4", workload="pingpong")


@pytest.mark.parametrize(
    ("backends", "varied", "names"),
    [
        (["tcp"], ["workers=2|4"], ["workers=2", "workers=4"]),
        (["tcp"], ["--workers=1..3|8"], ["workers=1", "workers=2", "workers=3", "workers=8"]),
        (["tcp"], ["memory-limit=1GB|2GB"], ["memory_limit=1GB", "memory_limit=2GB"]),
        (
            ["tcp", "mpi"],
            ["distributed.comm.compression=null|lz4"],
            ["tcp compression=null", "tcp compression=lz4",
             "mpi compression=null", "mpi compression=lz4"],
        ),
        # A variable that tcp does not read.
        (["tcp", "ucx"], ["UCX_TLS=tcp|tcp,sm"], ["tcp", "ucx UCX_TLS=tcp", "ucx UCX_TLS=tcp,sm"]),
        (
            ["tcp"],
            ["distributed.comm.timeouts.connect=30s|60s", "MALLOC_ARENA_MAX=1|2"],
            [f"connect={s}s MALLOC_ARENA_MAX={n}" for s in (30, 60) for n in (1, 2)],
        ),
        (
            ["tcp"],
            ["distributed.comm.retry.delay.min=1s|2s", "distributed.adaptive.minimum=1|2"],
            [f"min={s}s minimum={n}" for s in (1, 2) for n in (1, 2)],
        ),
    ],
)  # fmt: skip
def test_names_have_what_differs_and_nothing_else(backends, varied, names):
    assert variants(backends, *varied, env={"A": "1"}, threads_per_worker=2) == names


def test_keys_that_end_alike_have_their_whole_names():
    names = variants(
        ["tcp"],
        "distributed.scheduler.active-memory-manager.interval=1s|2s",
        "distributed.admin.tick.interval=1s|2s",
    )
    assert names[0] == (
        "distributed.scheduler.active-memory-manager.interval=1s distributed.admin.tick.interval=1s"
    )


def test_all_combinations_are_compared_under_one_label(tmp_path):
    result = processes.invoke(
        "run", "merge", "--backends", "fake,fake:slow", "--workers", "2..4", "--launches", 6,
        "--output", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    content = processes.report(*tmp_path.iterdir())
    names = ["fake workers=2", "fake workers=4", "fake:slow workers=2", "fake:slow workers=4"]
    for table in ("cases", "pairs", "coverage", "transports"):
        assert {row["backend"] for row in content[table]} == {*names}
    compared = {(c["baseline"], c["candidate"]): c["verdict"] for c in content["comparisons"]}
    assert [*compared.values()] == ["same"] * 6
    assert " are the same." in " ".join(result.stdout.split())
    tables = processes.invoke("report", *tmp_path.iterdir(), "-v").stdout
    assert "on 1 thread, cpu: time per iteration" in " ".join(tables.split())


def test_a_twin_is_compared_with_its_original_of_the_same_settings(tmp_path):
    arguments = ("--backends", "fake,fake@2", "--vary", "threads=1|2", "--output", tmp_path)
    assert processes.invoke("run", "merge", *arguments, "--launches", 1).exit_code == 0
    content = processes.report(*tmp_path.iterdir())
    assert {(c["baseline"], c["candidate"]) for c in content["comparisons"]} == {
        ("fake threads=1", "fake threads=2"),
        ("fake threads=1", "fake@2 threads=1"),
        ("fake threads=2", "fake@2 threads=2"),
    }


def test_a_suite_file_varies_settings_and_the_command_line_others(tmp_path):
    file = tmp_path / "suite.toml"
    file.write_text(
        'backends = ["fake"]\nvary = ["workers=2|4"]\n'
        '[[case]]\nworkload = "merge"\n'
        '[[case]]\nworkload = "svd"\nvary = ["threads=1|2"]\n'
    )
    read = suite.read_suite(file)
    assert [case.variant for case in read.cases] == [
        "workers=2", "workers=4", "threads=1", "threads=2"
    ]  # fmt: skip
    given = suite.read_suite(file, {"vary": ("memory_limit=1GB|2GB",)})
    assert {case.variant for case in given.cases} == {"memory_limit=1GB", "memory_limit=2GB"}


def test_varied_workers_replace_those_of_a_case(tmp_path):
    file = tmp_path / "suite.toml"
    file.write_text('[[case]]\nworkload = "merge"\nworkers = [2, 8]\n')
    read = suite.read_suite(file, {"vary": ("workers=4|6",)})
    assert [case.cluster.n_workers for case in read.cases] == [4, 6]


def test_a_backend_that_cannot_be_imported_prevents_no_other(installed):
    installed("backend", {"broken": UnavailableError("backend broken", "it lacks a", "install a")})
    assert variants(["tcp"], "A=1|2") == ["A=1", "A=2"]


def test_a_wrong_setting_in_a_suite_file_has_its_path(tmp_path):
    file = tmp_path / "suite.toml"
    file.write_text('[[case]]\nworkload = "merge"\nvary = ["workers=2"]\n')
    with pytest.raises(UsageError, match=r"suite.toml: case\[0\]: .* has one value"):
        suite.read_suite(file)
