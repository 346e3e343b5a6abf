"""What the Markdown pages tell people to run: fenced blocks, and commands within the text.

A comment before a block says what the block can't say itself::

    <!-- not run in tests: it needs a GPU -->     its commands are only parsed
    <!-- file: mine/suite.toml -->                it is this file, in the folder where commands run

``python tests/docs/pages.py docs/tutorial.md`` prints a page's commands as one script.
"""

import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "notebooks/README.md", ROOT / "results/reference/README.md",
]  # fmt: skip

SHELL = ("shell", "sh", "bash", "console")
LANGUAGES = (*SHELL, "python", "toml", "text", "yaml", "json", "diff")
_BLOCK = re.compile(
    r"(?P<notes>(?:^ *<!--(?:(?!-->).)*-->\n\n?)*)"
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOTE = re.compile(r"<!-- (not run in tests|file): ((?:(?!-->).)*) -->", re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPENERS = ("do", "then", "else", "!", "time", "sudo", "if", "while")
_SYNTAX = ("for", "done", "fi", "export", "set", "{", "}")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its fence, from 1."""

    page: Path
    line: int
    language: str
    text: str
    file: str
    reason: str
    """Why it is not run in the tests; empty where it is."""

    @property
    def script(self) -> str:
        """What to type of a block of shell: all of it, or in a console what follows a ``$``."""
        if self.language != "console":
            return self.text
        typed = re.findall(r"^\$ ((?:.*\\\n)*.*)", self.text, re.MULTILINE)
        return "\n".join(typed) + "\n"


def name(page: Path) -> str:
    """Return a page's name: three of them are a ``README.md``."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    all_blocks = []
    for match in _BLOCK.finditer(text):
        notes = dict(_NOTE.findall(match["notes"]))
        all_blocks.append(
            Block(
                page=page,
                line=text[: match.start("language")].count("\n") + 1,
                language=match["language"],
                text=textwrap.dedent(match["text"]),
                file=notes.get("file", ""),
                reason=" ".join(notes.get("not run in tests", "").split()),
            )
        )
    return all_blocks


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of every simple command in a piece of shell, without its variables."""
    for line in script.replace("\\\n", " ").splitlines():
        words: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        redirected = False
        for token in lexer:
            if not set(token) <= set("();<>|&"):
                if not redirected:
                    words.append(token)
                redirected = False
            elif "<" in token or ">" in token:
                redirected = True
                if words and words[-1].isdigit():
                    words.pop()
            else:
                yield from _simple(words)
                words = []
        yield from _simple(words)


def _simple(words: list[str]) -> Iterator[list[str]]:
    while words and (words[0] in _OPENERS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if words and words[0] not in _SYNTAX:
        yield words


def spans(page: Path) -> list[str]:
    """Return the code within the text of a page, each on one line."""
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(span.split()) for span in _SPAN.findall(prose)]


def script(page: Path) -> str:
    """Return one script of all blocks of a page that are run, in their order.

    A Python block sees the names that those before it have made.
    """
    parts, python = ["set -euo pipefail"], ""
    for block in blocks(page):
        where = f"{name(page)}, line {block.line}"
        if block.reason:
            continue
        if block.file:
            folder = shlex.quote(str(Path(block.file).parent))
            parts.append(
                f"mkdir -p {folder}\ncat > {shlex.quote(block.file)} {_quoted(block.text)}"
            )
        elif block.language in SHELL:
            parts.append(f"echo '### {where}' >&2\n{block.script}")
        elif block.language == "python":
            python += block.text
            parts.append(f"echo '### {where}' >&2\npython -c {shlex.quote(python)}")
    return "\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    return f"<<'END OF FILE'\n{text}END OF FILE"


if __name__ == "__main__":
    print(script(Path(sys.argv[1]).resolve()), end="")
