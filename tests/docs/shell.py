"""Blocks of commands: `$ ` begins one, what follows it is what it prints, `...` in that stands for anything.

In this process a command of `manage.py durable` or `manage.py check` runs for real, through pipes too, on the test's
database, and `curl` asks this project. What serves until it is stopped, or depends on the machine, is read by its own
parser: every option has to exist.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import re
import shlex
import sys
import tomllib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import httpx
import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from packaging.requirements import Requirement

from tests.docs.pages import ROOT

MANAGE: Final = (("python", "manage.py"), ("uv", "run", "manage.py"), ("manage.py",))
RUNS_HERE: Final = frozenset({"check", "durable"})
OF_THE_MACHINE: Final = frozenset({"doctor", "workers"})  # subcommands of durable that look at servers and processes
_OPERATORS: Final = {"|", "&&", ";", "&", ">", "<"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line and the output that the page shows for it, None if it shows none."""

    line: str
    output: str | None


def commands(block: str) -> Iterator[Command]:
    """The commands of a block of language `console`."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        while (found := re.search(r"\\\n\s*(?:> )?", part)) is not None and "\n" not in part[: found.start()]:
            part = part[: found.start()] + part[found.end() :]
        line, _, output = part.partition("\n")
        yield Command(line=line, output=output.rstrip() or None)


def fits(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows: however wide its columns, `...` being anything."""
    pattern = ".*?".join(re.escape(part) for part in _trimmed(shown).split("..."))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def run(command: Command) -> None:
    """Run the command, or have its parser read it. Raises AssertionError if the page is wrong about it."""
    words = shlex.split(command.line, comments=True)
    stages: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    unknown = _OPERATORS.intersection(words) - {"|"}
    assert not unknown, f"{command.line!r} needs a shell: {unknown}"
    printed: str | None = ""
    for stage in stages:
        assert printed is not None, f"{command.line!r} reads what an earlier command does not print here"
        printed = _stage(stage, printed)
    if command.output is not None:
        assert printed is not None, f"{command.line!r} is not run here, so the page must not show what it prints"
        assert fits(command.output, printed), (
            f"{command.line!r} printed\n{printed}\nand the page shows\n{command.output}"
        )


def _stage(words: list[str], piped: str) -> str | None:
    while re.match(r"[A-Z_]+=", words[0]):  # for the environment of the command
        words = words[1:]
    for prefix in MANAGE:
        if tuple(words[: len(prefix)]) == prefix:
            return _manage(words[len(prefix) :], piped)
    if words[0] == "curl":
        return _curl(words[1:])
    reader = next((read for prefix, read in READERS.items() if tuple(words[: len(prefix)]) == prefix), None)
    assert reader is not None, f"nothing here runs or reads {' '.join(words)!r}: teach it to, or mark the block"
    reader(words)
    return None


def _manage(words: list[str], piped: str) -> str | None:
    name, *arguments = words
    if name not in RUNS_HERE or OF_THE_MACHINE.intersection(arguments[:1]):
        command = load_command_class(get_commands()[name], name)
        command.create_parser("manage.py", name).parse_args(arguments)  # raises CommandError for what it does not know
        return None
    out = io.StringIO()
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(piped))
        try:
            call_command(name, *arguments, stdout=out, stderr=err)
        except (SystemExit, CommandError) as ending:
            status = ending.code if isinstance(ending, SystemExit) else ending.returncode
            if status:
                raise AssertionError(f"{name} {arguments} ended with {status}: {ending} {err.getvalue()}") from ending
    return out.getvalue() + err.getvalue()


def _curl(words: list[str]) -> str:
    """What the server answers. Raises AssertionError for a status of 400 or more."""
    parser = argparse.ArgumentParser("curl")
    parser.add_argument("-u", default=":")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    parser.add_argument("address")
    given = parser.parse_args(words)
    headers = dict(each.replace("$(uuidgen)", str(uuid.uuid4())).split(": ", 1) for each in given.H)
    user, _, password = given.u.partition(":")
    with httpx.Client(auth=(user, password)) as client:
        method = "GET" if given.d is None else "POST"
        answer = client.request(method, given.address, headers=headers, content=given.d)
    assert answer.status_code < 400, answer.text
    return answer.text


def _pip(words: list[str]) -> None:
    """Every requirement is one, and every extra of durable's exists."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words[2:]:
        wanted = Requirement(word.removeprefix("./"))
        if wanted.name == "durable":
            assert wanted.extras <= extras.keys(), f"durable has no extras {wanted.extras - extras.keys()}"


def _module(words: list[str]) -> None:
    """`python -m` of a program of the repository: its own parser reads the options, and then it goes no further."""
    words = words[words.index("-m") + 1 :]
    assert importlib.util.find_spec(f"{words[0]}.__main__") or importlib.util.find_spec(words[0]), words[0]
    main = importlib.import_module(f"{words[0]}.__main__")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["-m", *words[1:], "--help"])
        with pytest.raises(SystemExit) as stopped:
            main.main()
    assert stopped.value.code == 0, words


def _pytest(words: list[str]) -> None:
    """What is to be tested is there."""
    for word in words[words.index("pytest") + 1 :]:
        assert (ROOT / word.partition("::")[0]).exists(), f"there is no {word}"


READERS: Final[dict[tuple[str, ...], Callable[[list[str]], None]]] = {
    ("pip", "install"): _pip,
    ("uv", "run", "python", "-m"): _module,
    ("python", "-m"): _module,
    ("uv", "run", "pytest"): _pytest,
    ("pytest",): _pytest,
}
