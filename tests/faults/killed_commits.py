"""`python -m tests.faults.killed_commits SCENARIO`: passes by processes that SIGKILL ends at each commit.

Each process is forked from this one, goes on where the last one died, and dies right after its first call of the store
that has led a run to where no process has died yet. A call inside a larger transaction is among them: the transaction
is lost then, and is made again. So is the moment between the records of a commit and its rows of tags. Prints as JSON
what the real database has in the end, and what it has when nothing is killed.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

#: What of a store writes: each call is one transaction, or is inside a larger one.
_WRITES: Final = ("change", "commit", "create", "start_keyed")
_MOST: Final = 2_000  # processes of a scenario


def main(name: str) -> dict[str, Any]:
    """Return what a scenario comes to with and without kills, and how many processes were killed."""
    import django

    django.setup()
    from tests.faults.killed_scenarios import SCENARIOS, found, prepare

    drive = SCENARIOS[name]
    prepare()
    with tempfile.NamedTemporaryFile() as imported:
        _fork(lambda: _note_imports(drive, Path(imported.name)))
        _import(Path(imported.name))
    undisturbed = found()
    prepare()
    kills = 0
    with tempfile.NamedTemporaryFile() as deaths:
        while _fork(lambda: _drive_to_a_death(drive, Path(deaths.name))):
            kills += 1
            assert kills < _MOST, "the scenario does not come to its end"
    return {"undisturbed": undisturbed, "killed": found(), "kills": kills}


def _note_imports(drive: Callable[[], None], file: Path) -> None:
    drive()
    file.write_text("\n".join(sys.modules))


def _import(file: Path) -> None:
    """Import what the first process has needed, so that those that are killed do not import it one by one."""
    for name in file.read_text().splitlines():
        with suppress(ImportError):  # a module that has put itself there by another name
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no process looks through it again


def _drive_to_a_death(drive: Callable[[], None], deaths: Path) -> None:
    """Drive the scenario until this process dies; `deaths` has a line for each death."""
    _expire_leases()
    _arm(deaths)
    drive()


def _fork(work: Callable[[], None]) -> bool:
    """Let another process do the work; return True if SIGKILL has ended that before it was done."""
    from django.db import connections

    connections.close_all()
    pid = os.fork()
    if pid == 0:
        work()
        connections.close_all()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"the process has ended with {status}"
    return False


def _arm(deaths: Path) -> None:
    """Let this process die after a call that writes, where none has died."""
    from durable.core.records import TagChange
    from durable.store.database import WRITERS
    from durable.store.postgres import PostgresStore
    from tests.faults.killed_scenarios import situation

    survived = set(deaths.read_text().splitlines())

    def dying(name: str) -> Callable[..., Any]:
        call = getattr(PostgresStore, name)

        def method(self: PostgresStore, *args: Any, **kwargs: Any) -> Any:
            answer = call(self, *args, **kwargs)
            here = hashlib.sha256(f"{name} {situation()}".encode()).hexdigest()
            if here not in survived:
                with deaths.open("a") as lines:
                    lines.write(f"{here}\n")
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return method

    def dying_before(name: str) -> Callable[..., Any]:
        call = getattr(PostgresStore, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            here = hashlib.sha256(f"before {name} {situation()}".encode()).hexdigest()
            if here not in survived:
                with deaths.open("a") as lines:
                    lines.write(f"{here}\n")
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return method

    PostgresStore._describe = dying_before("_describe")  # type: ignore[method-assign]
    WRITERS[TagChange] = dying_before("_change_tags")
    for name in _WRITES:
        setattr(PostgresStore, name, dying(name))


def _expire_leases() -> None:
    """The worker before this one is dead: let its leases be over."""
    from durable.core import clock
    from durable.models import Run

    Run.objects.filter(lease_expires_at__isnull=False).update(lease_expires_at=clock.now())


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
