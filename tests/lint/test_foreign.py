"""Workflows after ideas of other engines' examples, written as somebody writes them who comes from there.

What is wrong in them was marked by hand before the linter read them: `# expect:` where it says so, `# missed:` where it
does not. Every finding was looked at by hand, and each line that is not marked is right.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from durable.lint import lint
from tests.lint.corpus_files import FOREIGN, expected, missed, workflows_in

#: Of each engine: workflows, right findings, and mistakes that the linter does not see.
NUMBERS: Final = {
    "dbos": (11, 15, 0),
    "inngest": (9, 17, 0),
    "prefect": (9, 12, 1),
    "restate": (9, 15, 0),
    "temporal": (12, 20, 0),
}


def test_the_findings_are_those_that_a_reader_marked() -> None:
    found = sorted((str(Path(each.path).relative_to(FOREIGN)), each.line, each.id) for each in lint([FOREIGN]))
    assert found == expected(FOREIGN)


def test_the_numbers_of_each_engine() -> None:
    right = Counter(path.removesuffix(".py") for path, *_ in expected(FOREIGN))
    unseen = Counter(path.removesuffix(".py") for path, *_ in missed(FOREIGN))
    names = Counter(
        name for path in FOREIGN.glob("*.py") for name in re.findall(r'@workflow\(name="(\w+)\.', path.read_text())
    )
    assert {each: (names[each], right[each], unseen[each]) for each in names} == NUMBERS
    assert sum(names.values()) == workflows_in(FOREIGN)
