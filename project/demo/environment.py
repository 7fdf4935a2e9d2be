"""The demo's surroundings: PostgreSQL, Redis, a directory, and a second process that is born into them.

Settings are read when a command starts, so the servers have to be there before. The first process starts them, and runs
the same command again as a child whose environment names them; it passes signals on and tidies up when the child ends.
The child holds a leash, its standard input: should the first process be killed, it closes, and the child ends too.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from django.conf import settings

from project.servers import EmbeddedPostgres, EmbeddedRedis, ServerError

__all__ = ["directory", "is_inside", "leash", "run_inside"]

_DIRECTORY = "DURABLE_DEMO_DIRECTORY"  # set for the child, and so the sign that it is the child
_TEMPORARY = "DURABLE_DEMO_TEMPORARY"  # set if that directory is to be deleted

#: Seconds until the runs of a killed worker are taken over; the default of 30 is long to watch.
_LEASE = 4

# A value that is set already wins.
_PACE = {
    "DURABLE_LEASE": str(_LEASE),
    "SHOP_APPROVAL_DEADLINE": "10 minutes",
    "SHOP_CART_PATIENCE": "10 minutes",
    "SHOP_COOL_OFF": "2 seconds",
    "SHOP_MAIL_PAUSE": "3 seconds",
    "SHOP_MONTH": "10 seconds",
    "SHOP_NAP": "15 seconds",
    "SHOP_SERVICE_LATENCY": "0.25",
}


def is_inside() -> bool:
    """Whether this process was born into the demo's surroundings."""
    return _DIRECTORY in os.environ


def directory() -> Path:
    """Where the demo writes its logs."""
    return Path(os.environ[_DIRECTORY])


def run_inside(arguments: Sequence[str], *, keep_in: Path | None) -> int:
    """Run `manage.py demo` with these arguments inside servers of its own; its exit code.

    The database and the logs are kept in the directory `keep_in`, or in a temporary one.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(_passed_on())
        surroundings = stack.enter_context(_surroundings(keep_in))
        child = subprocess.Popen(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), "demo", *arguments],
            env={**os.environ, **surroundings},
            stdin=subprocess.PIPE,
            # Ctrl-C reaches the child through this process, once.
            start_new_session=True,
        )
        signals.child = child
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def leash() -> Iterator[None]:
    """End this process, in order, when the one that started it has died; and then tidy up in its place."""

    def wait_for_the_end() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_the_end, name="leash", daemon=True).start()
    try:
        yield
    finally:
        if _TEMPORARY in os.environ:
            shutil.rmtree(directory(), ignore_errors=True)


class _PassedOn:
    """The handler of signals: tells the child, or, before there is one, this process to stop."""

    child: subprocess.Popen[bytes] | None = None

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.child is None:
            raise KeyboardInterrupt
        self.child.send_signal(signal.SIGTERM)


@contextmanager
def _passed_on() -> Iterator[_PassedOn]:
    handler = _PassedOn()
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield handler
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def _surroundings(keep_in: Path | None) -> Iterator[dict[str, str]]:
    """The environment of the child: servers, a directory, a pace to watch."""
    with ExitStack() as stack:
        place = stack.enter_context(_locked(keep_in)) if keep_in else None
        if place is None:
            place = Path(tempfile.mkdtemp(prefix="durable-demo-"))
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            is_temporary, postgres_place = True, None
        else:
            is_temporary, postgres_place = False, place / "postgres"
        env = {**_PACE, **{name: os.environ[name] for name in _PACE if name in os.environ}, _DIRECTORY: str(place)}
        if is_temporary:
            env[_TEMPORARY] = "1"
        if not os.environ.get("DATABASE_URL"):
            _say("Starting a PostgreSQL of the demo's own.")
            env["DATABASE_URL"] = stack.enter_context(_postgres(postgres_place)).url
        if not os.environ.get("REDIS_URL"):
            _say("Starting a Redis of the demo's own.")
            env["REDIS_URL"] = stack.enter_context(EmbeddedRedis()).url
        yield env


@contextmanager
def _locked(place: Path) -> Iterator[Path | None]:
    """`place`, which keeps its orders from one demo to the next; None while another demo uses it."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _say(f"Another demo uses {place}; this one uses a temporary directory.")
            yield None
            return
        yield place


def _postgres(place: Path | None) -> EmbeddedPostgres:
    if place is not None:
        try:
            return EmbeddedPostgres(place)
        except ServerError as error:
            _say(f"{error} Using a temporary directory.")
    return EmbeddedPostgres(fsync=False)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
