"""The pages of the documentation and their code blocks, found by Sybil.

A block that no test runs says so on the page, for its readers: a line before it reads *Not run by the tests: reason.*
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from sybil import Document, Example, Region
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SITE: Final = ROOT / "docs"
#: What coding agents read; it is in the wheel.
SKILL: Final = "durable/.agents/skills/durable/SKILL.md"
PAGES: Final = tuple(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / SKILL, *sorted(SITE.rglob("*.md")))
    if "_build" not in path.parts
)
TUTORIAL: Final = "docs/tutorial.md"  # has a project and servers of its own: see test_tutorial
_NOT_RUN: Final = re.compile(r"\*Not run by the tests: (?P<reason>[^*]+)\*\s*\Z")
_INFO: Final = re.compile(r"(?P<language>[^\n{]*)\n")  # a language in braces is a directive of the site's


class _Blocks:
    """Sybil's parser of fenced blocks of every language."""

    def __init__(self, evaluate: Callable[[Example], None] | None) -> None:
        self._lexer = RawFencedCodeBlockLexer(_INFO)
        self._evaluate = evaluate

    def __call__(self, document: Document) -> Iterable[Region]:
        for region in self._lexer(document):
            region.parsed = region.lexemes["source"]
            region.evaluator = self._evaluate
            yield region


def page(name: str, evaluate: Callable[[Example], None] | None = None) -> Document:
    """A page by its path in the repository; its examples are its blocks, which `evaluate` runs."""
    return Document.parse(str(ROOT / name), _Blocks(evaluate))


def language(example: Example) -> str:
    """What the fence says."""
    return str(example.region.lexemes["language"]).strip()


def reason_not_to_run(example: Example) -> str | None:
    """What the page says before the block, if it says that the tests do not run it."""
    found = _NOT_RUN.search(example.document.text[: example.start])
    return found["reason"] if found else None


def is_run(example: Example) -> bool:
    """Whether the tests have to do something with this block."""
    return reason_not_to_run(example) is None


def lines_of(name: str) -> Iterator[tuple[int, str]]:
    """The lines of a page with their numbers, for checks of its text."""
    return enumerate((ROOT / name).read_text().splitlines(), start=1)
