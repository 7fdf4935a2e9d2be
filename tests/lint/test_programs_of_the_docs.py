"""The programs of the docs keep the rules that the docs teach; docs/rules.md shows what breaks them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from durable.lint import lint
from tests.docs.pages import PAGES, language, page

_FILE: Final = re.compile(r"# (?P<path>[\w/]+\.py)\b")


@pytest.mark.parametrize("name", [each for each in PAGES if each != "docs/rules.md"])
def test_a_page_has_no_findings(name: str, tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    for example in page(name).examples():
        if language(example) == "python":
            named = _FILE.match(example.parsed)
            path = named["path"] if named is not None else "main.py"
            texts[path] = f"{texts.get(path, '')}\n{example.parsed}"
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert lint([tmp_path]) == []
