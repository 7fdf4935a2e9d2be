"""docs/rules.md has a section for each rule, whose first program breaks that rule alone and whose second keeps all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from durable.lint import ALLOW, RULES, UNREADABLE, Rule, lint

PAGE: Final = Path(__file__).resolve().parent.parent.parent / "docs" / "rules.md"
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

before, *SECTIONS = re.split(r"^## (?=W\d)", PAGE.read_text(), flags=re.MULTILINE)


def found(program: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "workflows.py"
    path.write_text(program)
    return [each.id for each in lint([path])]


def test_every_rule_has_its_section() -> None:
    assert [each.partition("\n")[0] for each in SECTIONS] == [f"{rule.id}: {rule.title}" for rule in RULES]
    assert ALLOW in before
    assert UNREADABLE in before


@pytest.mark.parametrize(
    ("rule", "section"), list(zip(RULES, SECTIONS, strict=False)), ids=lambda each: getattr(each, "id", "")
)
def test_the_programs_of_a_section(rule: Rule, section: str, tmp_path: Path) -> None:
    bad, good = _BLOCK.findall(section)
    assert set(found(bad, tmp_path)) == {rule.id}
    assert found(good, tmp_path) == []
    assert " ".join(section.split()).count(rule.why) == 1


def test_the_comment_of_the_page_silences(tmp_path: Path) -> None:
    [program] = _BLOCK.findall(before)
    assert found(program, tmp_path) == []
    assert found(program.replace("for the log alone", ""), tmp_path) == ["W101", ALLOW]
