"""The tutorial, followed to the letter: in an empty directory, with bash, Redis, workers, and `kill -9`.

Blocks of Python are the files that their first line names; commands are typed one after the other into one shell. `cat`
is repeated until it shows what the page says: that is how its reader watches a worker, too. The development server gets
a port that is free, in place of Django's own. The programs are those of this environment, or of the one that
TUTORIAL_PROGRAMS names: `.ci/check_release.py` follows the page with what a release installs.
"""

from __future__ import annotations

import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import redis

from tests.docs.pages import TUTORIAL, is_run, language, page
from tests.docs.shell import Command, commands, fits
from tests.support.child_path import child_path

pytestmark = pytest.mark.slow

PATIENCE: Final = 120.0  # seconds for one command, or for what a worker does meanwhile
MARK: Final = "this command has ended with"
_FILE: Final = re.compile(r"# (?P<path>[\w/]+\.py)(?P<at_the_end>, at the end)?\n")


class Shell:
    """One bash, in which commands are typed."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        with (directory / "bash.log").open("w") as log:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,  # where bash reports jobs that ended
                text=True,
                bufsize=1,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line)

    def type(self, line: str) -> tuple[str, int]:
        """What the command prints, and its exit status."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(f'{{ {line}\n}} 2>&1; echo "{MARK} $?"\n')
        self._bash.stdin.flush()
        printed = ""
        while (read := self._lines.get(timeout=PATIENCE)).partition(f"{MARK} ")[1] == "":
            printed += read
        before, _, status = read.partition(f"{MARK} ")
        return printed + before, int(status)

    def close(self) -> None:
        """End what was started in the shell: its workers end when the command that started them is gone."""
        assert self._bash.stdin is not None
        self._bash.stdin.write("kill -9 $(jobs -p); exit\n")
        self._bash.stdin.close()
        self._bash.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._bash.stdout is not None
        self._bash.stdout.close()


@pytest.fixture
def shell(tmp_path: Path, redis_connection: redis.Redis) -> Iterator[Shell]:
    from django.conf import settings

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DATABASE_"))}
    programs = environment.pop("TUTORIAL_PROGRAMS", "")
    if not programs:
        programs = str(Path(sys.executable).parent)
        environment["PYTHONPATH"] = child_path()  # for a cheaper start of each command
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    shell = Shell(tmp_path, {**environment, "REDIS_URL": settings.REDIS_URL, "COLUMNS": "100", "PACKING_SECONDS": "2"})
    yield shell
    shell.close()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.redis
def test_the_tutorial_does_what_it_says(shell: Shell, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for example in page(TUTORIAL).examples():
        if not is_run(example):
            continue
        if language(example) == "python":
            write(tmp_path, example.parsed)
        else:
            assert language(example) == "console"
            for command in commands(example.parsed):
                follow(
                    shell,
                    replace(command, line=command.line.replace("durable_dev", f"durable_dev {port}")),
                    example.line,
                )


def write(directory: Path, source: str) -> None:
    named = _FILE.match(source)
    assert named is not None, f"which file is this?\n{source}"
    path = directory / named["path"]
    if named["at_the_end"]:
        with path.open("a") as file:
            file.write(source)
    else:
        path.write_text(source)


def follow(shell: Shell, command: Command, line: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        printed, status = shell.type(command.line)
        is_ended_worker = command.line.startswith("wait ")
        if command.output is None or fits(command.output, printed):
            assert status == 0 or is_ended_worker, f"line {line}: {command.line!r} ended with {status}: {printed}"
            return
        if not command.line.startswith("cat ") or time.monotonic() > until:
            pytest.fail(f"line {line}: {command.line!r} printed\n{printed}\nand the page shows\n{command.output}")
        time.sleep(0.2)  # the reader's pause between two looks
