"""The command as a process of its own: pipes that break, real terminals, exit statuses."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from durable.models import Run
from tests.cli.workflows import napping

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, str(ROOT / "manage.py"), "durable"]

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.mark.slow
def test_pipes_terminals_and_statuses(child_environment: dict[str, str], tmp_path: Path) -> None:
    """One test, because each process takes a second to begin."""
    for number in range(3):
        napping.using(id=f"run {number}").start()
    _assert_a_pipe_that_breaks_is_silent(child_environment)
    _assert_ids_go_from_command_to_command(child_environment)
    _assert_a_terminal_has_colours(child_environment)
    _assert_wrong_usage_has_its_status(child_environment)
    _assert_missing_migrations_are_named({**child_environment, "DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"})


def _assert_missing_migrations_are_named(environment: dict[str, str]) -> None:
    done = subprocess.run([*COMMAND, "list"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("durable: migrations are missing: ")
    assert done.stderr.endswith("Run: manage.py migrate durable --database default\n")
    assert len(done.stderr.splitlines()) == 1


def _assert_a_pipe_that_breaks_is_silent(environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "list", "-o", "ids"], env=environment, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def _assert_ids_go_from_command_to_command(environment: dict[str, str]) -> None:
    line = f"'{COMMAND[0]}' '{COMMAND[1]}' durable list -o ids | '{COMMAND[0]}' '{COMMAND[1]}' durable pause - --reason deploy"
    done = subprocess.run(["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "3 paused, or asked to\n")
    assert set(Run.objects.values_list("state", flat=True)) == {"paused"}


def _assert_a_terminal_has_colours(environment: dict[str, str]) -> None:
    for extra, is_coloured in (
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
    ):
        master, slave = pty.openpty()
        base = {name: value for name, value in environment.items() if name not in ("NO_COLOR", "TERM", "FORCE_COLOR")}
        with subprocess.Popen(
            [*COMMAND, "list"], env={**base, **extra}, stdout=slave, stdin=slave, stderr=slave
        ) as process:
            os.close(slave)
            written = b""
            while True:
                try:
                    chunk = os.read(master, 65536)
                except OSError:  # Linux's way to say that the other side is closed
                    break
                if not chunk:
                    break
                written += chunk
        os.close(master)
        assert process.returncode == 0
        assert b"run 2" in written
        assert (b"\x1b[33mpaused" in written) is is_coloured, written


def _assert_wrong_usage_has_its_status(environment: dict[str, str]) -> None:
    for arguments in (["nonsense"], ["list", "--state", "sleping"], ["start"]):
        done = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2, arguments
        assert "usage:" in done.stderr
        assert done.stdout == ""
