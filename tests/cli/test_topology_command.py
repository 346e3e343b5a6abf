import tomllib

import processes
import pytest
import trees
from trees import DGX1

from commbench.harness import suite as files
from commbench.machine.topology.hosts import parse, read_host
from commbench.machine.topology.workers import auto
from commbench.model import ClusterSpec


def topology(*arguments):
    return processes.invoke("topology", *arguments)


def test_the_first_line_counts_the_devices_of_this_machine():
    result = topology()
    assert result.exit_code == 0, result.output
    assert "NUMA node" in result.output.splitlines()[0]


def test_the_matrix_of_a_dgx_1_fits_80_columns():
    result = topology(DGX1)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "dgx1.txt: 0 NUMA nodes, 8 GPUs, 4 NICs"
    assert max(map(len, lines)) <= 80
    matrix = parse(DGX1.read_text())
    for one in matrix.devices:
        cells = [matrix.links.get((one, other), "X") for other in matrix.devices]
        assert any(line.split() == [one, *cells] for line in lines)
    text = " ".join(result.output.split())
    assert "PIX: at most one PCIe bridge" in text
    assert "NODE:" not in text


def test_a_driver_without_a_gpu_is_mentioned(tmp_path, monkeypatch):
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, "", "")
    result = topology()
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "no GPUs are known: the driver is there, but shows none" in text


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("absent.txt",), 2, "can't read absent.txt"),
        ((".",), 2, "can't read ."),
        ((str(DGX1), "--write-placement", "x.toml", "--workers", "9"), 2,
         "each of the 9 workers one GPU, and dgx1.txt has 8"),
        ((str(DGX1), "--write-placement", "nowhere/x.toml"), 1, "can't write nowhere"),
        (("--workers", "2"), 2, "--workers is for --write-placement"),
        (("--workers", "0"), 2, "0 is too small; it must be at least 1"),
    ],
)  # fmt: skip
def test_invalid_arguments_end_with_a_message(arguments, status, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = topology(*arguments)
    assert result.exit_code == status, result.output
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_the_written_placement_is_that_of_auto(tmp_path):
    path = tmp_path / "dgx1.toml"
    assert topology(DGX1, "--write-placement", path).exit_code == 0
    assert files.choose_placement(str(path), ClusterSpec(n_workers=8, device="gpu")) == auto(
        read_host(DGX1), 8, "gpu"
    )
    assert topology(DGX1, "--write-placement", path, "--workers", "2").exit_code == 0
    assert len(tomllib.loads(path.read_text())["worker"]) == 2


def test_the_written_placement_has_visible_gpus_only(tmp_path, monkeypatch):
    rows = "".join(f"{i}, A100, GPU-{i}, 00000000:0{i}:00.0, 1, 5\n" for i in range(3))
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, rows, "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-0")
    path = tmp_path / "placement.toml"
    assert topology("--write-placement", path).exit_code == 0
    assert [worker["gpu"] for worker in tomllib.loads(path.read_text())["worker"]] == [2, 0]


def test_hidden_gpus_are_not_in_the_written_placement(tmp_path, monkeypatch):
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, "0, A100, GPU-0, 00000000:00:00.0, 1, 5\n", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "placement.toml"
    assert topology("--write-placement", path).exit_code == 0
    (worker,) = tomllib.loads(path.read_text())["worker"]
    assert "gpu" not in worker
    assert worker["cpus"]


def test_quotes_in_a_device_name_are_escaped_in_the_written_placement(tmp_path):
    matrix = tmp_path / "matrix.txt"
    matrix.write_text('  GPU0 mlx"\\\nGPU0 X PIX\nmlx"\\ PIX X\n')
    path = tmp_path / "placement.toml"
    assert topology(matrix, "--write-placement", path).exit_code == 0
    (placement,) = files.choose_placement(str(path), ClusterSpec(n_workers=1, device="gpu"))
    assert placement.nic == 'mlx"\\:1'
