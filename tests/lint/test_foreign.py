"""Workflows after ideas of other engines' examples, written as somebody writes them who comes from there.

What is wrong in them was marked by hand before the linter read them.
"""

from pathlib import Path

from durable.lint import lint
from tests.lint.corpus_files import FOREIGN, expected, workflows_in


def test_the_findings_are_those_that_a_reader_marked() -> None:
    found = sorted((str(Path(each.path).relative_to(FOREIGN)), each.line, each.id) for each in lint([FOREIGN]))
    assert found == expected(FOREIGN)


def test_there_are_enough_of_them() -> None:
    assert workflows_in(FOREIGN) >= 15
