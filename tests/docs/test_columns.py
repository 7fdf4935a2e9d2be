"""Lines of prose in Markdown have at most 100 columns. Code and tables are as wide as they must be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
COLUMNS = 100


def prose_of(name: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a document that are neither of a block of code nor of a table."""
    fence = ""
    for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), start=1):
        text = line.lstrip()
        if fence:
            fence = "" if text.startswith(fence) else fence
        elif text.startswith(("```", "~~~")):
            fence = text[:3]
        elif not text.startswith("|"):
            yield number, line


def test_documents_are_found() -> None:
    assert {"README.md", "docs/cli.md", "docs/guides/writing.md", "tests/README.md"} <= set(DOCUMENTS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_line_of_prose_is_too_wide(name: str) -> None:
    assert [(number, line) for number, line in prose_of(name) if len(line) > COLUMNS] == []
