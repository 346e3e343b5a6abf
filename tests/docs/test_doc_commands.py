"""Every command in the README and the other pages is parsed; ``test_doc_runs.py`` runs them.

So are commands that have a reason why they can't run in the tests.
"""

import contextlib
import functools
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import click
import pages
import pytest
import yaml

from commbench.analysis import references
from commbench.cli import run_command
from commbench.cli.main import main
from commbench.errors import CommbenchError
from commbench.harness import suite
from commbench.model import ClusterSpec, registry

PLACEHOLDERS = {
    "WORKLOAD": "merge", "BACKEND": "tcp", "SIZE": "1MiB", "FORMAT": "csv",
    "my_job.py": "tests/docs/my_job.py", "package.jobs:merge": "tests.docs.my_job:main",
    "SUITE.toml": "suites/smoke.toml", "latest": "results/reference/20261125-make-run",
}  # fmt: skip
PROJECT_PATH = re.compile(r"(?:tests|docs|suites|notebooks|results/reference)/[\w./-]*\w")
FOREIGN_OPTIONS = ("--target",)
"""Options in the text that are not commbench's."""
BLOCKS = [block for page in pages.PAGES for block in pages.blocks(page)]


def ids(value):
    if isinstance(value, pages.Block):
        return f"{pages.name(value.page)}-{value.line}"
    return pages.name(value) if isinstance(value, Path) else None


@pytest.fixture
def parse(monkeypatch):
    """Return a function that lets click parse a command, and of ``run`` makes the cases, too."""
    invoke = click.Command.invoke
    deep = False

    def parse_only(command, context):
        if deep and context.parent is not None and context.parent.command is run_command.run:
            return invoke(command, context)
        return None

    monkeypatch.setattr(click.Command, "invoke", parse_only)
    monkeypatch.setattr(run_command, "start", lambda *_, **__: 0)

    def parse_words(words, *, whole=True):
        nonlocal deep
        print(" ".join(words))  # pytest shows the last one of a test that fails.
        words, deep = [PLACEHOLDERS.get(word, word) for word in words], whole
        if whole:
            paths = [path for word in words for path in PROJECT_PATH.findall(word)]
            assert [path for path in paths if not Path(path).exists()] == []
        check_names(words)
        if words[0] == "commbench":
            main.main(words[1:], standalone_mode=False)
        elif words[0] == "dask":
            (point,) = entry_points(group="dask_cli", name=words[1])
            point.load().main(words[2:], standalone_mode=False)

    return parse_words


def check_names(words):
    """Check what click does not: goals of make, extras of pip, formats of reports."""
    match words:
        case ["make", *goals]:
            makefile = (pages.ROOT / "Makefile").read_text(encoding="utf-8")
            known = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
            assert {goal for goal in goals if "=" not in goal} <= {*known}
        case ["pip", "install", *packages]:
            project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
            known = {*project["project"]["optional-dependencies"]}
            for package in packages:
                if named := re.fullmatch(r"(?:\.|commbench)\[(.*)\]", package):
                    assert {*named[1].split(",")} <= known
        case ["commbench", "report", *_] if "--format" in words:
            registry.load("report", words[words.index("--format") + 1])


WORKFLOWS = {
    **{path.name: path.read_text() for path in (pages.ROOT / ".github/workflows").glob("*.yml")},
    **{ids(block): block.text for block in BLOCKS if "\njobs:\n" in block.text},
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_command_of_a_workflow_is_parsed(name, parse, monkeypatch):
    monkeypatch.chdir(pages.ROOT)
    jobs = yaml.safe_load(WORKFLOWS[name])["jobs"].values()
    scripts = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    commands = [words for script in scripts for words in pages.commands(script)]
    programs = [(Path(program).name, *words) for program, *words in commands]
    assert "commbench" in {program for program, *_ in programs}
    for words in programs:
        # A project that copies a page has the files that it names.
        parse([*words], whole=name.endswith(".yml"))


def test_the_pages_have_blocks_of_shell_python_and_toml():
    assert {"shell", "python", "toml"} <= {block.language for block in BLOCKS}
    assert len({block.page for block in BLOCKS}) > 4


@pytest.mark.parametrize("block", BLOCKS, ids=ids)
def test_a_block_of_commands_has_a_language(block):
    assert block.language in ("", *pages.LANGUAGES)
    if block.language == "":
        first = {line.split()[0] for line in block.text.splitlines() if line.strip()}
        assert not first & {"commbench", "make", "pip", "python", "dask", "mpiexec", "git", "$"}


@pytest.mark.parametrize("page", pages.PAGES, ids=ids)
def test_every_command_of_a_page_is_parsed(page, prepare, parse):
    prepare(page)
    for block in pages.blocks(page):
        if block.language in pages.SHELL and not block.file:
            for words in pages.commands(block.script):
                parse(words, whole=not block.reason)
    for span in pages.spans(page):
        if "…" not in span and re.match(r"(\w+=\S* )*(commbench|make|pytest|python) ", span):
            for words in pages.commands(span):
                # A sentence may leave out the arguments.
                with contextlib.suppress(click.MissingParameter):
                    parse(words)


@pytest.mark.parametrize("page", pages.PAGES, ids=ids)
def test_every_option_within_the_text_exists(page):
    named = {match[0] for span in pages.spans(page) if (match := re.match(r"--[a-z-]+", span))}
    assert named - known_options() <= {*FOREIGN_OPTIONS}


@functools.cache
def known_options():
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in main.list_commands(context)]
    commands += [run_command.run.get_command(context, name) for name in registry.names("workload")]
    commands.append(run_command.run.get_command(context, str(pages.ROOT / "suites/smoke.toml")))
    options = {name for command in commands for param in command.params for name in param.opts}
    return options | {"--help", "--version"}


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=ids)
def test_every_toml_block_is_a_valid_file_of_its_kind(block, prepare, tmp_path):
    prepare(block.page)
    file = tmp_path / "block.toml"
    file.write_text(block.text)
    match tomllib.loads(block.text):
        case {"case": _}:
            assert suite.read_suite(file).cases
        case {"reference": _}:
            assert references.read(file)
        case {"racks": _}:
            assert suite.read_racks(file)
        case {"worker": workers}:
            cluster = ClusterSpec(n_workers=len(workers))
            assert suite.choose_placement(file.name, cluster, folder=tmp_path)
        case {"scaling": _}:
            # Lines of a case.
            file.write_text('scale = 0.25\n[[case]]\nworkload = "transpose-sum"\n' + block.text)
            assert suite.read_suite(file).cases
        case {"project": _}:
            # Installed by the commands of its page.
            assert block.file.endswith("pyproject.toml")
        case others:
            pytest.fail(f"nothing reads {list(others)}")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=ids)
def test_every_python_block_compiles(block):
    compile(block.text, f"{pages.name(block.page)}, line {block.line}", "exec")


def test_an_invalid_command_is_an_error(parse, folder):
    for line in (
        "commbench rnu merge", "commbench run merge --row 3", "commbench run marge",
        "commbench run merge --backends tpc", "commbench run suites/none.toml",
        "commbench report RUN --form x", "make rnu", "python -m pytest tests/none.py",
    ):  # fmt: skip
        with pytest.raises((click.ClickException, CommbenchError, AssertionError)):
            parse(line.split())
