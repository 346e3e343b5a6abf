"""Every command in the README and the other pages is one that programs understand.

Blocks marked ``shell``, ``console``, ``python`` and ``toml`` are taken from the pages as they
stand (``pages.py`` says how); ``test_doc_runs.py`` runs them. Here every command is parsed, also
those that carry a reason why they can't run in the tests, and the names in its arguments are looked
up.
``WORKLOAD``, ``SIZE`` and the like stand for `_STANDS_FOR`.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import click
import pages
import pytest
import shims

from commbench.analysis import references
from commbench.cli import run_command
from commbench.cli.main import main
from commbench.errors import CommbenchError
from commbench.harness import suite
from commbench.model import registry

_STANDS_FOR = {
    "WORKLOAD": "merge", "BACKEND": "tcp", "SIZE": "1MiB", "FORMAT": "csv",
    "SUITE.toml": "suites/smoke.toml",
}  # fmt: skip
_IN_THE_PROJECT = re.compile(r"(?:tests|docs|suites|notebooks|results/reference)/[\w./-]*\w")
_OTHERS_OPTIONS = ("--target",)
"""Options in the text that are not commbench's."""
BLOCKS = [block for page in pages.PAGES for block in pages.blocks(page)]


def _ids(given):
    if isinstance(given, pages.Block):
        return f"{pages.name(given.page)}-{given.line}"
    return pages.name(given) if isinstance(given, Path) else None


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
    monkeypatch.setattr(run_command, "_start", lambda *_, **__: 0)

    def understand(words, *, whole=True):
        nonlocal deep
        words, deep = [_STANDS_FOR.get(word, word) for word in words], whole
        if whole:
            paths = [path for word in words for path in _IN_THE_PROJECT.findall(word)]
            assert [path for path in paths if not Path(path).exists()] == []
        _check_names(words)
        if words[0] == "commbench":
            main.main(words[1:], standalone_mode=False)
        elif words[0] == "dask":
            (point,) = entry_points(group="dask_cli", name=words[1])
            point.load().main(words[2:], standalone_mode=False)

    return understand


def _check_names(words):
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


def test_there_is_something_to_test():
    """Commands, Python and TOML are found in the pages."""
    assert {"shell", "python", "toml"} <= {block.language for block in BLOCKS}
    assert len({block.page for block in BLOCKS}) > 4


@pytest.mark.parametrize("block", BLOCKS, ids=_ids)
def test_every_block_says_what_it_is(block):
    """A block of commands that does not say so would never be tried."""
    assert block.language in ("", *pages.LANGUAGES)
    if block.language == "":
        first = {line.split()[0] for line in block.text.splitlines() if line.strip()}
        assert not first & {"commbench", "make", "pip", "python", "dask", "mpiexec", "git", "$"}


@pytest.mark.parametrize("page", pages.PAGES, ids=_ids)
def test_every_command_is_understood(page, prepare, parse):
    """Programs know the commands, options, names and files that a page gives them."""
    prepare(page)
    for block in pages.blocks(page):
        if block.language in pages.SHELL and not block.file:
            for words in pages.commands(block.script):
                try:
                    parse(words, whole=not block.reason)
                except Exception as error:
                    error.add_note(f"{pages.name(page)}, line {block.line}: {' '.join(words)}")
                    raise


@pytest.mark.parametrize("page", pages.PAGES, ids=_ids)
def test_every_command_within_the_text_is_understood(page, prepare, parse):
    """So it is with commands that stand in a sentence, which may leave out the arguments."""
    prepare(page)
    for span in pages.spans(page):
        if "…" in span or not re.match(r"(\w+=\S* )*(commbench|make|pytest|python) ", span):
            continue
        for words in pages.commands(span):
            try:
                parse(words)
            except click.MissingParameter:
                continue
            except Exception as error:
                error.add_note(f"{pages.name(page)}: {span}")
                raise


@pytest.mark.parametrize("page", pages.PAGES, ids=_ids)
def test_every_option_within_the_text_exists(page):
    """An option that is spoken of is one of commbench's."""
    named = {match[0] for span in pages.spans(page) if (match := re.match(r"--[a-z-]+", span))}
    assert named - _known_options() <= {*_OTHERS_OPTIONS}


def _known_options():
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in main.list_commands(context)]
    commands += [run_command.run.get_command(context, name) for name in registry.names("workload")]
    commands.append(run_command.run.get_command(context, str(pages.ROOT / "suites/smoke.toml")))
    options = {name for command in commands for param in command.params for name in param.opts}
    return options | {"--help", "--version"}


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=_ids)
def test_every_toml_block_is_what_it_seems(block, prepare, tmp_path):
    """A block with cases is a suite that could run, one with references is a file of these."""
    prepare(block.page)
    file = tmp_path / "block.toml"
    file.write_text(block.text)
    content = tomllib.loads(block.text)
    if "case" in content:
        assert suite.read_suite(file).cases
    if "reference" in content:
        assert references.read(file)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=_ids)
def test_every_python_block_can_be_parsed(block):
    """Python is Python."""
    compile(block.text, f"{pages.name(block.page)}, line {block.line}", "exec")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("a --b c  # d", [["a", "--b", "c"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("X=1 a 'b c' | d > e 2>&1 && f", [["a", "b c"], ["d"], ["f"]]),
        ("X=$(a b | c)\nd", [["a", "b"], ["c"], ["d"]]),
        ("for x in 1 2; do a $x; done", [["a", "$x"]]),
        ("# nothing\nexport X=1", []),
    ],
)
def test_commands_are_found_in_shell(script, found):
    """Continued lines, pipes, assignments and loops hide no command."""
    assert list(pages.commands(script)) == found


def test_notes_belong_to_the_block_that_follows(tmp_path):
    """A comment says what its block is, and nothing of a later one."""
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- any -->\nText.\n\n<!-- not run in tests: a\nreason -->\n```shell\na\n```\n\n"
        "<!-- file: x.toml -->\n```toml\nb = 1\n```\n\n1. List:\n   ```console\n   $ c \\\n"
        "     d\n   said\n   ```\n"
    )
    first, second, third = pages.blocks(page)
    assert (first.reason, first.file, first.line) == ("a reason", "", 6)
    assert (second.reason, second.file) == ("", "x.toml")
    assert third.script == "c \\\n  d\n"
    assert pages.spans(page) == []


def test_a_command_that_is_wrong_is_noticed(parse, folder):
    """Commands, options, names, values and files that don't exist are errors."""
    for line in (
        "commbench rnu merge", "commbench run merge --row 3", "commbench run marge",
        "commbench run merge --backends tpc", "commbench run suites/none.toml",
        "commbench report RUN --form x", "make rnu", "python -m pytest tests/none.py",
    ):  # fmt: skip
        with pytest.raises((click.ClickException, CommbenchError, AssertionError)):
            parse(line.split())


def test_a_shortened_run_keeps_its_words():
    """What is added comes last, and only where something is measured."""
    words = ["run", "merge", "--rows", "5", "--rigorous"]
    assert shims.shortened(words)[: len(words)] == words
    assert shims.shortened(words)[-6:] == shims._LESS["--rigorous"].split()
    for other in (["run", "--resume", "RUN"], ["report", "RUN"], ["run", "merge", "--help"]):
        assert shims.shortened(other) == other
