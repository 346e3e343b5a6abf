"""Count the words that names, docstrings, comments and messages should not have: ``make count``.

``python tests/words.py [FOLDER] [--list]`` counts in the ``commbench`` of another checkout, or
prints each name, line of prose and message with such a word.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

NAMES = {"told", "held", "of", "own", "place", "found", "took", "beside", "whatever"}
PROSE = re.compile(
    r"\b(told|tells of|held|own|place|found|took|so many|beside|whatever)\b", re.IGNORECASE
)
MESSAGES = re.compile(r"\b(told|tells|held|holds a|so many|beside|whatever)\b", re.IGNORECASE)


def defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every function, class, argument and variable defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield each line of a docstring or comment."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                for number, line in enumerate(text.splitlines()):
                    yield node.lineno + number, line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def hits(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the kind (name, prose or message) and the word of each hit in a file."""
    source = path.read_text(encoding="utf-8")
    for line, name in defined(ast.parse(source)):
        for word in NAMES & set(name.lower().strip("_").split("_")):
            yield line, "name", f"{word} ({name})"
    for line, text in prose(source):
        for match in PROSE.finditer(text):
            yield line, "prose", f"{match[0].lower()} ({text.strip()})"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in MESSAGES.finditer(node.value):
                yield node.lineno, "message", f"{match[0].lower()} ({node.value})"


def main(arguments: list[str]) -> None:
    """Print the counts, or every hit."""
    folders = [argument for argument in arguments if not argument.startswith("--")]
    root = Path(folders[0] if folders else ".") / "commbench"
    counts: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        for line, kind, word in sorted(hits(path)):
            counts[kind] += 1
            if "--list" in arguments:
                print(f"{path}:{line}: {kind}: {word}")
    print(f"words to avoid: {counts['name']} in names, {counts['prose']} in docstrings and "
          f"comments, {counts['message']} in messages")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
