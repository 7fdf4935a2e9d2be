"""The pages for developers and the docstrings name what is there: packages, files, and names in them."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from durable import models

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "durable"
PAGES: Final = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/guarantees.md", "tests/README.md"]
#: Where a page may begin its paths.
BASES: Final = [ROOT, PACKAGE, ROOT / "tests", ROOT / "docs"]
#: A file or a folder as code: `core/steps.py`, `worker/rq*.py`, `tests/e2e`, `ranks.sql`.
PATH: Final = re.compile(r"`((?:[\w.]+/)+[\w*]*(?:\.(?:py|sql|md|html|po))?|[\w*]+\.(?:py|sql))`")
#: A name in a file: `core/scope.py`: `check_may_go_on`.
NAME_IN: Final = re.compile(r"`((?:\w+/)*\w+\.py)`: `([A-Za-z_][\w.]*)`(?![\w/]*/)")
DOTTED: Final = re.compile(r"(?<![\w@])`(durable(?:\.\w+)+)(?:\([^`]*\))?`")
#: What else begins with the name of the app: a check, the workflow of bulks and the permissions.
OTHER_NAMES: Final = re.compile(r"durable\.(?:[WE]\d{3}|bulk)")


def parts_of(page: str) -> Iterator[str]:
    """The paragraphs of a page, and each row of its tables."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for paragraph in re.split(r"\n\s*\n", text):
        yield from paragraph.splitlines() if paragraph.lstrip().startswith("|") else [" ".join(paragraph.split())]


def is_there(path: str, folders: list[Path]) -> bool:
    return any(any(folder.glob(path.rstrip("/"))) for folder in folders)


def lost_paths(part: str) -> list[str]:
    """The paths of a paragraph or row that lead nowhere. A bare name is in a folder that the same part names."""
    paths = PATH.findall(part)
    near = [base / path.rpartition("/")[0] for path in paths if "/" in path for base in BASES]
    return [path for path in paths if not is_there(path, BASES if "/" in path else [*BASES, *near])]


@functools.cache
def identifiers(path: Path) -> frozenset[str]:
    """What the code of a module defines, its attributes and parameters included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
    return frozenset(found)


def lost_names(part: str) -> list[str]:
    lost = []
    for path, name in NAME_IN.findall(part):
        files = [base / path for base in BASES if (base / path).is_file()]
        if not any(set(name.split(".")) <= identifiers(file) for file in files):
            lost.append(f"{path}: {name}")
    return lost


@functools.cache
def docstrings() -> list[tuple[Path, str]]:
    return [
        (path.relative_to(ROOT), text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
    ]


@functools.cache
def leads_somewhere(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if part in getattr(found, "__annotations__", ()):
                return True
            try:
                found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
            except AttributeError:
                return False
        return True
    return False


def permissions() -> set[str]:
    of_rows = {
        f"durable.{verb}_{each._meta.model_name}"
        for each in vars(models).values()
        if inspect.isclass(each) and hasattr(each, "_meta")
        for verb in each._meta.default_permissions
    }
    own = {
        f"durable.{codename}"
        for each in vars(models).values()
        if inspect.isclass(each) and hasattr(each, "_meta")
        for codename, _ in each._meta.permissions
    }
    return of_rows | own


def test_architecture_has_each_package_of_the_root() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in PACKAGE.iterdir()
        if not path.name.startswith("__") and path.suffix in ("", ".py")
    ]
    assert "core/" in names
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    parts = list(parts_of(page))
    assert any(PATH.search(part) for part in parts)
    assert [lost for part in parts for lost in lost_paths(part)] == []
    assert [lost for part in parts for lost in lost_names(part)] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_list_of_a_page_names_a_file_twice(page: str) -> None:
    doubles = re.compile(r"(`[\w/.*]+`)(?:, | and |, and |, `[\w/.*]+` and )\1")
    assert [found[0] for part in parts_of(page) for found in doubles.finditer(part)] == []


def test_what_a_docstring_names_is_there() -> None:
    known = permissions()
    named = [(path, name) for path, text in docstrings() for name in DOTTED.findall(text)]
    assert len(named) > 100
    assert [
        f"{path}: {name}"
        for path, name in named
        if name not in known and not OTHER_NAMES.fullmatch(name) and not leads_somewhere(name)
    ] == []


def test_a_file_that_a_docstring_names_is_there() -> None:
    assert [
        f"{path}: {name}"
        for path, text in docstrings()
        for name in PATH.findall(text)
        if "/" in name
        and name.endswith((".py", ".sql"))
        and not is_there(name, [*BASES, (ROOT / path).parent, PACKAGE / "store"])
    ] == []


def test_the_docstring_of_a_package_names_its_modules() -> None:
    """Each name that begins a fact of a list there is a module of the package, or is defined in one."""
    lost = []
    for path, text in docstrings():
        if path.name != "__init__.py" or not (items := re.findall(r"^- (.+(?:\n  .+)*)", text, re.MULTILINE)):
            continue
        folder = (ROOT / path).parent
        there = {each.stem for each in folder.rglob("*")} | {
            name for each in folder.rglob("*.py") for name in identifiers(each)
        }
        for item in items:
            names = re.findall(r"(?:^|[;:.,] )`([a-z_]+(?:\.\w+)?)`", " ".join(item.split()))
            lost += [f"{path}: {name}" for name in names if not there.issuperset(name.split("."))]
    assert lost == []
