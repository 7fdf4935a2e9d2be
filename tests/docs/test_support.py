"""What durable claims to run with is what CI tries: the page, the README, and the metadata of the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import OLDEST_POSTGRES
from tests.tools import matrix
from tests.tools.matrix import Library

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRIED = matrix.combinations()
REQUIRED = [each for each in matrix.libraries() if not each.is_optional]


def next_release(library: Library) -> str:
    """The first release above the newest one that is tried which may break what uses it."""
    major, minor, *_ = map(int, library.locked.split("."))
    return f"{major}.{minor + 1}" if library.name == "Django" else str(major + 1)


def in_words(versions: list[str]) -> str:
    return f"{', '.join(versions[:-1])} or {versions[-1]}"


def test_the_page_is_made_of_the_combinations() -> None:
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(), "run python -m tests.tools.matrix write"


@pytest.mark.parametrize(
    ("name", "prefix"), [("python", "Programming Language :: Python ::"), ("django", "Framework :: Django ::")]
)
def test_the_classifiers_are_the_versions_that_are_tried(name: str, prefix: str) -> None:
    claimed = {found[1] for each in PROJECT["classifiers"] if (found := re.fullmatch(rf"{prefix} (\d+\.\d+)", each))}
    assert claimed == {getattr(each, name) for each in TRIED}


def test_no_older_python_is_allowed() -> None:
    assert PROJECT["requires-python"] == f">={TRIED[0].python}"


@pytest.mark.parametrize("library", REQUIRED, ids=lambda library: library.name)
def test_a_dependency_is_allowed_from_the_oldest_that_is_tried_up_to_the_newest(library: Library) -> None:
    oldest = [each for each in TRIED if each.libraries == "oldest"]
    assert oldest
    if library.name == "Django":
        assert library.lower == TRIED[0].django
        assert ".".join(library.locked.split(".")[:2]) == TRIED[-1].django
    else:
        assert all(f"{library.name}{library.extras}=={library.lower}" in matrix.requirements(each) for each in oldest)
    assert library.upper == next_release(library)


def test_one_combination_runs_all_tests_on_what_the_lock_has() -> None:
    whole, *others = TRIED
    assert (whole.tests, whole.slow, whole.libraries) == ((), (), "newest")
    assert all(each.tests and each.slow for each in others)


@pytest.mark.parametrize("path", sorted({path for each in TRIED for path in (*each.tests, *each.slow)}))
def test_the_tests_of_a_combination_are_there(path: str) -> None:
    assert list(ROOT.glob(path))


def test_the_oldest_postgresql_is_tried() -> None:
    assert min(int(each.postgres) for each in TRIED) == OLDEST_POSTGRES


def test_the_readme_claims_the_same() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for name, title in (("python", "Python"), ("django", "Django")):
        assert f"{title} {in_words([getattr(each, name) for each in TRIED])}" in text
    assert f"PostgreSQL {OLDEST_POSTGRES} or later" in text
