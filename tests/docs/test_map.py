"""The pages for developers name what is there: each package of the root, and no file that has gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/guarantees.md", "tests/README.md"]
#: Where a page may begin its paths.
BASES = [ROOT, ROOT / "durable", ROOT / "tests", ROOT / "docs"]


def paths_of(page: str) -> Iterator[str]:
    """The paths with a folder that a page names as code: `core/steps.py`, `worker/rq*.py`, `tests/e2e`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in re.finditer(r"`((?:[\w.]+/)+[\w*]*(?:\.(?:py|md|html|po))?)`", text):
        yield match[1]


def test_architecture_has_each_package_of_the_root() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "durable").iterdir()
        if not path.name.startswith("__") and path.suffix in ("", ".py")
    ]
    assert "core/" in names
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    paths = list(paths_of(page))
    assert paths
    assert [path for path in paths if not any(any(base.glob(path.rstrip("/"))) for base in BASES)] == []
