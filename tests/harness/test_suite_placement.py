import processes
import pytest
import trees

from commbench.errors import UsageError
from commbench.harness import suite
from commbench.harness.cases import cases_for
from commbench.machine import cores
from commbench.machine.topology.hosts import Host, NumaNode
from commbench.model import ClusterSpec, Placement

TWO_WORKERS = """
[[worker]]
cpus = "0"
gpu = 3
nic = "mlx5_0:1"
[[worker]]
cpus = "1"
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(text, name="placement.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_placement_file_has_a_table_for_each_worker(write):
    path = write(TWO_WORKERS)
    one, other = Placement(cpus="0", gpu=3, nic="mlx5_0:1"), Placement(cpus="1")
    assert suite.choose_placement(str(path), ClusterSpec(n_workers=2, device="cpu")) == (one, other)
    assert suite.choose_placement(str(path), ClusterSpec(n_workers=1, device="cpu")) == (one,)
    assert suite.choose_placement("none", ClusterSpec(n_workers=2, device="cpu")) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[worker]]\ncores = '0'\n", r"unknown key 'cores'.*known: cpus, gpu, nic"),
        ("[[worker]]\ncpus = '0-'\n", r"worker\[0\].cpus: '0-' is no list of CPUs"),
        (TWO_WORKERS, "places 2 workers, and the cluster has 3"),
    ],
)
def test_an_invalid_placement_file_is_refused(text, message, write):
    path = write(text)
    with pytest.raises(UsageError, match=message) as error:
        suite.choose_placement(str(path), ClusterSpec(n_workers=3, device="cpu"))
    assert str(path) in str(error.value)


def test_an_unknown_choice_is_read_as_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"can't read .*atuo.*give auto, none or a placement file"):
        suite.choose_placement("atuo", ClusterSpec(n_workers=2, device="cpu"), tmp_path)


def test_racks_are_lists_of_hosts(write):
    assert suite.read_racks(write("[racks]\na = ['n1', 'n2*']\n")) == {"a": ("n1", "n2*")}
    for text, message in (("[racks]\na = 'n1'\n", "expected a list"), ("a = 1\n", "key 'a'")):
        with pytest.raises(UsageError, match=message):
            suite.read_racks(write(text))


@pytest.mark.parametrize(
    ("workload", "launcher", "message"),
    [
        ("pingpong", "local", "pingpong has no cluster to place.*all-to-all"),
        ("all-to-all", "mpirun", "the launcher mpirun takes no --placement; add --launcher local"),
    ],
)
def test_a_placement_that_would_be_ignored_is_refused(workload, launcher, message):
    cluster = ClusterSpec(launcher=launcher, placement=(Placement(cpus="0"),) * 2)
    with pytest.raises(UsageError, match=message):
        cases_for(workload, ["tcp"], {}, cluster)


def test_a_variable_that_the_nic_of_a_placement_would_override_is_refused(write):
    path = str(write(TWO_WORKERS.replace("gpu = 3\n", "")))
    with pytest.raises(UsageError, match="UCX_NET_DEVICES is set, and the placement sets it"):
        [*suite.varied_cases(
            "merge", ["tcp", "ucx"], {}, ClusterSpec(), ["UCX_NET_DEVICES=lo|eth0"],
            lambda spec: suite.choose_placement(path, spec),
        )]  # fmt: skip


def test_a_suite_names_a_placement_file_for_all_or_single_cases(write, tmp_path):
    write(TWO_WORKERS)
    path = write(
        "cluster = { placement = 'placement.toml' }\n"
        "[[case]]\nworkload = 'all-to-all'\n"
        "[[case]]\nworkload = 'merge'\ncluster = { placement = 'none' }\n",
        "suite.toml",
    )
    placed, free = suite.read_suite(path).cases
    assert [placement.cpus for placement in placed.cluster.placement] == ["0", "1"]
    assert free.cluster.placement == ()
    cases = suite.read_suite(path, {"placement": "none"}).cases
    assert [case.cluster.placement for case in cases] == [(), ()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[worker]]\ncpus = '9999'\n[[worker]]\n", "CPU 9999 is not there"),
        ("[[worker]]\ngpu = 77\n[[worker]]\n", "there is no GPU 77"),
        ("[[worker]]\n", "places 1 workers, and the cluster has 2"),
    ],
)
def test_a_placement_on_absent_devices_is_refused_before_a_run(text, message, write, tmp_path):
    output = tmp_path / "results"
    result = processes.invoke(
        "run", "all-to-all", "--placement", write(text), "--output", output, figures=(), rules=()
    )
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not output.exists()


def test_auto_only_uses_visible_gpus(tmp_path, monkeypatch):
    rows = "".join(f"{i}, A100, GPU-{i}, 00000000:0{i}:00.0, 1, 5\n" for i in range(3))
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, rows, "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-0")
    assert [
        placement.gpu
        for placement in suite.choose_placement("auto", ClusterSpec(n_workers=2, device="gpu"))
    ] == [2, 0]
    with pytest.raises(UsageError, match="each of the 3 workers"):
        suite.choose_placement("auto", ClusterSpec(n_workers=3, device="gpu"))


def two_nodes(monkeypatch, allowed):
    nodes = (NumaNode(number=0, cpus="0-2"), NumaNode(number=1, cpus="3-5"))
    host = Host(name="node1", nodes=nodes, allowed=frozenset(allowed))
    monkeypatch.setattr("commbench.machine.topology.discovery.this_host", lambda: host)


@pytest.mark.parametrize(
    ("n_workers", "n_cpus", "expected"),
    [(2, 2, ["0-1", "3-4"]), (3, 2, ["0-1", "2-3", "4-5"]), (6, 1, list("012345"))],
)
def test_workers_have_cpus_that_no_other_worker_has(n_workers, n_cpus, expected, monkeypatch):
    two_nodes(monkeypatch, range(6))
    spec = ClusterSpec(n_workers=n_workers, cpus_per_worker=n_cpus)
    assert [one.cpus for one in suite.choose_placement("none", spec)] == expected


def test_too_few_cpus_for_workers_are_refused(monkeypatch):
    two_nodes(monkeypatch, {0, 1, 4})
    with pytest.raises(UsageError, match=r"2 workers with 2 CPUs each need 4, .* 3 \(0-1,4\)"):
        suite.choose_placement("none", ClusterSpec(cpus_per_worker=2))
    with pytest.raises(UsageError, match="2 workers with -1 CPUs"):
        suite.choose_placement("none", ClusterSpec(cpus_per_worker=-1))


@pytest.mark.parametrize("n_workers", [2, 999])
def test_launchers_that_bind_no_worker_take_no_cpus_per_worker(n_workers):
    hosts = ("head", "node1")
    spec = ClusterSpec(launcher="ssh", hosts=hosts, n_workers=n_workers, cpus_per_worker=1)
    with pytest.raises(UsageError, match="--cpus-per-worker binds workers to CPUs of this host"):
        suite.choose_placement("none", spec)


@pytest.mark.parametrize(("choice", "device"), [("auto", "cpu"), ("none", "gpu")])
def test_cpus_per_worker_are_the_only_binding(choice, device):
    with pytest.raises(UsageError, match="both bind workers"):
        suite.choose_placement(choice, ClusterSpec(cpus_per_worker=1, device=device))


@pytest.mark.parametrize("workloads", [("pingpong", "merge"), ("pingpong",)])
def test_a_placement_of_the_command_line_is_for_cases_with_a_cluster(write, workloads):
    write(TWO_WORKERS.replace("gpu = 3\n", ""))
    cases = "".join(f'[[case]]\nworkload = "{name}"\n' for name in workloads)
    path = write(cases, "both.toml")
    given = {"placement": str(path.with_name("placement.toml"))}
    if len(workloads) == 1:
        with pytest.raises(UsageError, match="--placement: no case of the suite 'both' has a clus"):
            suite.read_suite(path, given)
        return
    bound = {case.workload: case.cluster.placement for case in suite.read_suite(path, given).cases}
    assert bound["pingpong"] == ()
    assert [each.cpus for each in bound["merge"]] == ["0", "1"]


@pytest.mark.slow
def test_a_run_binds_its_workers_to_separate_cpus(tmp_path):
    given = ("all-to-all", "--sizes", "1KiB", "--launches", 1, "--iterations", 1)
    run = processes.measured(*given, "--cpus-per-worker", 1, "--output", tmp_path)
    one, other = sorted(run.places["cpus"])
    assert one != other
    assert len(cores.parse(one)) == len(cores.parse(other)) == 1
