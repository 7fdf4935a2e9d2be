"""The processes that tests begin by a fork are what executed ones would be."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.child_path import child_path
from tests.support.forkserver import client
from tests.support.forkserver.clone import is_possible

ROOT = Path(__file__).resolve().parent.parent
MANAGE = str(ROOT / "manage.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_possible(), reason="only Linux forks on behalf of another process"),
]

# What a program can see of its beginning. Names that only the interpreter's own start imports are of no interest.
SEEN = """
import gc, json, os, resource, signal, sys, threading
try:
    terminal = os.isatty(0)
except OSError:
    terminal = None
streams = [
    (each.encoding, each.errors, each.line_buffering, each.write_through, each.name, each.mode, type(each.buffer).__name__)
    for each in (sys.stdin, sys.stdout, sys.stderr)
]
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path,
    "flags": str(sys.flags),
    "warnings": sys.warnoptions,
    "main": sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__")),
    "name": __name__,
    "file": globals().get("__file__"),
    "environment": dict(os.environ),
    "directory": os.getcwd(),
    "parent": os.getppid(),
    "group": os.getpgid(0) == os.getpgid(os.getppid()),
    "session": os.getsid(0) == os.getsid(os.getppid()),
    "leads": os.getsid(0) == os.getpid(),
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals()) if str(signal.getsignal(each)).find("default_int") < 0],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "threads": [each.name for each in threading.enumerate()],
    "thread": threading.get_native_id() == os.getpid(),
    "files": sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1],
    "umask": os.umask(0),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "streams": streams,
    "terminal": terminal,
    "tests": sorted(name for name in sys.modules if name.startswith("tests")),
    "collector": gc.get_threshold(),
    "process": open("/proc/self/comm").read(),
}, default=str))
"""


SIGNAL_ITSELF = """
import signal, threading
me = threading.main_thread().ident
threading.Thread(target=signal.pthread_kill, args=(me, signal.SIGUSR1)).start()
signal.pause()
"""
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
PIPE = subprocess.PIPE


@pytest.fixture
def environment() -> dict[str, str]:
    others = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "PYTEST_CURRENT_TEST")
    }
    settings = {"DATABASE_URL": "sqlite:////nowhere/db", "REDIS_URL": "redis://127.0.0.1:1/0", "DEBUG": "1"}
    return {**others, **settings, "PYTHONPATH": child_path(ROOT)}


@contextmanager
def executing() -> Iterator[None]:
    """Let Python itself begin processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", client._execute)
        yield


def both(run: Callable[[], Any]) -> tuple[Any, Any]:
    """What it returns with a process that is executed, and with one that is forked."""
    with executing():
        expected = run()
    return expected, run()


def is_forked(pid: int) -> bool:
    return client.SERVER in Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.mark.parametrize(
    "options", [{}, {"start_new_session": True}, {"cwd": "/"}], ids=["plain", "session", "directory"]
)
@pytest.mark.parametrize(
    "extra", [{}, UNBUFFERED, {"TZ": "Asia/Tokyo", "NEW": "\udcff"}], ids=["buffered", "unbuffered", "other"]
)
@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_a_program_begins_as_if_it_were_executed(
    kind: str, extra: dict[str, str], options: dict[str, Any], environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "seen_program.py"
    path.write_text(SEEN)
    environment = {**environment, **extra, "PYTHONPATH": child_path(ROOT, tmp_path)}
    arguments = {"-c": ["-c", SEEN], "-m": ["-m", "seen_program"], "script": [str(path)]}[kind]

    def run() -> tuple[Any, str]:
        command = [sys.executable, *arguments, "one", "--two"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, **options)
        return json.loads(done.stdout), done.stderr

    expected, seen = both(run)
    assert seen == expected
    assert expected[0]["parent"] == os.getpid()


def test_streams_are_those_that_were_given(environment: dict[str, str], tmp_path: Path) -> None:
    def run() -> tuple[Any, bytes]:
        master, slave = pty.openpty()
        log = tmp_path / "log"
        with log.open("wb") as file:
            subprocess.run(
                [sys.executable, "-c", SEEN], env=environment, stdin=slave, stdout=file, stderr=slave, check=True
            )
        os.close(master)
        os.close(slave)
        return json.loads(log.read_text()), log.read_bytes()[-1:]

    expected, seen = both(run)
    assert seen == expected
    assert seen[0]["terminal"] is True


def test_a_descriptor_keeps_its_number_and_no_other_is_passed_on(environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.dup2(writer, 77)
    code = "import os; os.write(77, b'here'); print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    expected, seen = both(
        lambda: (
            subprocess.run(
                [sys.executable, "-c", code], env=environment, pass_fds=[77], stdout=PIPE, check=True
            ).stdout,
            os.read(reader, 10),
        )
    )
    for each in (reader, writer, 77):
        os.close(each)
    assert seen == expected
    assert seen[1] == b"here"


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('why')",
        "def f():\n    1 / 0\nf()",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; os.abort()",
        "import atexit; atexit.register(print, 'last'); print('first', end=' ')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
        SIGNAL_ITSELF,
        "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))",
        "import os, sys\nif os.fork() == 0: sys.exit(4)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
        "print(len(input()), end='')",
    ],
)
def test_it_ends_as_if_it_were_executed(code: str, environment: dict[str, str]) -> None:
    def run() -> tuple[int, str, str]:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, input="some\n", capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    expected, seen = both(run)
    assert seen == expected


def test_it_is_a_child_that_can_be_killed_and_waited_for(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    with subprocess.Popen(command, env=environment, stdout=PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_forked(process.pid)
        assert psutil.Process(process.pid).ppid() == os.getpid()
        assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)


def test_random_numbers_differ(environment: dict[str, str]) -> None:
    code = "import os, random, tempfile, uuid; print(random.random(), uuid.uuid4(), tempfile.mktemp())"
    said = {subprocess.check_output([sys.executable, "-c", code], env=environment) for _ in range(3)}
    assert len(said) == 3


def test_a_command_of_django_says_the_same_each_time(environment: dict[str, str]) -> None:
    """The first one sets Django up.

    For the second one a process is made that has done so, and is forked for that one and the third.
    """
    command = [sys.executable, MANAGE, "durable", "show", "nothing"]

    def run() -> tuple[int, bytes, bytes]:
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    expected, first = both(run)
    assert [first, run(), run()] == [expected] * 3


def test_settings_are_those_of_its_own_environment(environment: dict[str, str]) -> None:
    command = [sys.executable, MANAGE, "diffsettings", "--output=unified"]
    found = []
    for number in (1, 1, 1, 2, 2, 2):
        own = {**environment, "DATABASE_URL": f"sqlite:////nowhere/{number}"}
        said = subprocess.check_output(command, env=own, text=True)
        found += [
            line.endswith(f"'sqlite:////nowhere/{number}'") for line in said.splitlines() if "DATABASE_URL" in line
        ]
    assert found == [True] * 6


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["-c", "pass"], {"PYTHONPATH": str(ROOT)}),
        (["-c", "pass"], {"PYTHONHASHSEED": "1"}),
        (["-c", "pass"], {"PYTHONWARNINGS": "error"}),
        (["-W", "error", "-c", "pass"], {}),
        (["-I", "-c", "pass"], {}),
    ],
)
def test_what_the_interpreter_reads_at_its_start_is_executed(
    arguments: list[str], changes: dict[str, str], environment: dict[str, str]
) -> None:
    waiting = [*arguments[:-1], "print(flush=True); input()"]
    with subprocess.Popen(
        [sys.executable, *waiting], env={**environment, **changes}, stdin=PIPE, stdout=PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_forked(process.pid)
        process.communicate(b"\n")


def test_what_cannot_begin_is_an_error_here(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run([sys.executable, "-c", "pass"], env=environment, cwd=tmp_path / "none", check=True)


def test_the_server_ends_when_its_client_is_killed(environment: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "client.py"
    program.write_text(
        "import subprocess, sys, time\n"
        "from tests.support.forkserver import client\n"
        "client.install()\n"
        "subprocess.run([sys.executable, '-c', 'pass'], check=True)\n"
        "print(client._hook.forks._first.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, str(program)]
    with executing(), subprocess.Popen(command, env=environment, stdout=PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))
        process.kill()
    server.wait(60)
