"""``commbench topology`` shows, draws and writes what it knows, and says what it doesn't."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import trees
from click.testing import CliRunner, Result

from commbench.cli.main import main
from commbench.harness import suite as files
from commbench.machine.topology import auto, parse, read_host

DGX1 = Path(__file__).parents[1] / "topology/dgx1.txt"


def topology(*words: str | Path, columns: int = 80) -> Result:
    """Return how the command ended."""
    environ = {"COLUMNS": str(columns)}
    return CliRunner().invoke(main, ["topology", *map(str, words)], env=environ)


def test_this_machine_is_shown() -> None:
    """Whatever the machine, there is a line about it, and no traceback."""
    ended = topology()
    assert ended.exit_code == 0, ended.output
    assert "NUMA node" in ended.output.splitlines()[0]


def test_the_published_matrix_fits_a_terminal() -> None:
    """Eight GPUs, four NICs, and a legend of the classes that occur."""
    ended = topology("--file", DGX1)
    assert ended.exit_code == 0, ended.output
    lines = ended.output.splitlines()
    assert lines[0] == "dgx1.txt: 0 NUMA nodes, 8 GPUs, 4 NICs"
    assert max(map(len, lines)) <= 80
    matrix = parse(DGX1.read_text())
    for one in matrix.devices:
        cells = [matrix.links.get((one, other), "X") for other in matrix.devices]
        assert any(line.split() == [one, *cells] for line in lines)
    said = " ".join(ended.output.split())
    assert "PIX: at most one PCIe bridge" in said
    assert "NODE:" not in said


def test_a_driver_without_a_gpu_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the machine is shown all the same."""
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, "", "")
    ended = topology()
    assert ended.exit_code == 0
    said = " ".join(ended.output.split())
    assert "no GPUs are known: the driver is there, but shows none" in said


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--file", "absent.txt"), 2, "can't read absent.txt"),
        (("--file", "."), 2, "can't read ."),
        (("--figure", "links.pdf"), 2, "a figure is FILE.svg or FILE.png"),
        (("--figure", "nowhere/links.svg"), 1, "can't write nowhere/links.svg"),
        (("--file", str(DGX1), "--write-placement", "x.toml", "--workers", "9"), 2,
         "each of the 9 workers one GPU, and dgx1.txt has 8"),
        (("--file", str(DGX1), "--write-placement", "nowhere/x.toml"), 1, "can't write nowhere"),
        (("--workers", "0"), 2, "0 is not in the range"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(
    words: tuple[str, ...], status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be read, drawn, placed or written."""
    monkeypatch.chdir(tmp_path)
    ended = topology(*words)
    assert ended.exit_code == status, ended.output
    assert says in " ".join(ended.output.split())
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("form", ["svg", "png"])
def test_the_links_are_drawn(form: str, tmp_path: Path) -> None:
    """As a picture of the form that the suffix names."""
    path = tmp_path / f"links.{form}"
    ended = topology("--file", DGX1, "--figure", path)
    assert ended.exit_code == 0, ended.output
    assert ended.output.endswith(f"wrote {path}\n")
    assert path.read_bytes()[:5] == {"svg": b"<?xml", "png": b"\x89PNG\r"}[form]


def test_the_placement_that_is_written_is_the_one_of_auto(tmp_path: Path) -> None:
    """A file for --placement, as it stands or edited."""
    path = tmp_path / "dgx1.toml"
    assert topology("--file", DGX1, "--write-placement", path).exit_code == 0
    assert files.choose_placement(str(path), 8, "gpu") == auto(read_host(DGX1), 8, "gpu")
    assert topology("--file", DGX1, "--write-placement", path, "--workers", "2").exit_code == 0
    assert len(tomllib.loads(path.read_text())["worker"]) == 2


def test_devices_of_any_name_make_a_sound_file(tmp_path: Path) -> None:
    """Quotes in a name end up in the name, not in the file's syntax."""
    matrix = tmp_path / "matrix.txt"
    matrix.write_text('  GPU0 mlx"\\\nGPU0 X PIX\nmlx"\\ PIX X\n')
    path = tmp_path / "placement.toml"
    assert topology("--file", matrix, "--write-placement", path).exit_code == 0
    (place,) = files.choose_placement(str(path), 1, "gpu")
    assert place.nic == 'mlx"\\:1'
