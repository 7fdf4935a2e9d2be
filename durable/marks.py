"""The mark: how far the database has come, kept outside of it, so that a database that went back in time is noticed.

A database goes back when a backup is restored, or when a standby that lagged is promoted. Its runs then do again what
their steps did outside of it. Nothing inside of such a database shows that: it looks as it did then.

- **The row.** `durable_databasemark` has one row: a random name of the database, and a counter that the sweep raises.
  Runs neither read nor write it.
- **The mark.** After the commit of a raise, its process writes the new counter to the file that `DURABLE["MARK"]`
  names, or else to Redis. It never lowers the mark. So a database whose counter is below its mark has lost commits.
- **The token.** Each raise draws a random token, which goes with the counter. Two histories that have come to the same
  counter have different tokens: a copy of a database, or a primary that goes on beside the standby that was promoted.
- **The generation.** A decision of an operator (`durable.operations.restored`) raises it. It counts before the counter,
  so that the mark follows the history that was decided for, and what is left of the other one is behind.
- **The process.** Each process remembers the furthest that it has seen, and writes it again if the mark was lost.

What is not noticed: a loss between two sweeps, in which the counter was not raised; a database that was restored
together with its mark; a mark that was lost while no worker ran. `core/witnesses.py` notices each commit that is lost
behind a pass.

No clock decides. Moments are shown to people, and say whether a raise is due. Tried and dropped: positions in
PostgreSQL's log, which cannot be compared across a restored dump or a new timeline; the timeline, which a restored dump
keeps and some services hide; the newest change of a run, which costs an index, and which deletes lower.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from django.db import connections
from django.db.models import Func, IntegerField
from redis.client import Pipeline
from redis.exceptions import RedisError

from durable.conf import conf
from durable.core import clock
from durable.models.workers import ONLY, DatabaseMark
from durable.notifier import redis_clients

logger = logging.getLogger("durable.marks")

KEY: Final = "durable:mark:"
#: The fewest seconds between two raises, whatever number of processes sweep.
RAISE_EVERY: Final = timedelta(seconds=1)
_KEPT: Final = 400 * 86_400  # seconds for which Redis keeps a mark that nothing raises

_log_this = redis_clients.LogThrottle(60.0)


class MarkUnreadableError(Exception):
    """The place of the mark does not answer, or has something else there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far the database `name` had come at `at`, as the process `by` has seen it in the database at `place`."""

    name: str
    generation: int
    counter: int
    token: str
    at: datetime
    place: str = ""
    by: str = ""

    @classmethod
    def of(cls, row: DatabaseMark, by: str = "") -> Self:
        """Return the mark that belongs to a row."""
        return cls(
            name=row.name,
            generation=row.generation,
            counter=row.counter,
            token=row.token,
            at=row.written_at,
            place=place_of_database(),
            by=by,
        )

    @property
    def order(self) -> tuple[int, int]:
        """What marks of one database are compared by."""
        return self.generation, self.counter

    def is_ahead_of(self, other: Mark | None) -> bool:
        """Return True if a history that came to this mark has what the other one lacks."""
        return other is None or self.order > other.order

    def as_text(self) -> str:
        """Return the mark as JSON."""
        return json.dumps(asdict(self) | {"at": self.at.isoformat()})

    @classmethod
    def from_data(cls, data: Any) -> Self:
        """Return the mark of decoded JSON. Raises MarkUnreadableError."""
        try:
            at = datetime.fromisoformat(data["at"])
            if at.utcoffset() is None:
                raise ValueError("a moment without an offset from UTC")
            return cls(
                name=str(data["name"]),
                generation=int(data["generation"]),
                counter=int(data["counter"]),
                token=str(data["token"]),
                at=at,
                place=str(data["place"]),
                by=str(data["by"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MarkUnreadableError(f"the mark has another shape: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The database beside its mark, as one look has found them.

    `row` is None before the first sweep. `mark` is the furthest that is known, None if nothing is. `problem` says why
    the mark could not be read, else "".
    """

    row: DatabaseMark | None
    mark: Mark | None = None
    problem: str = ""

    @property
    def session(self) -> int | None:
        """PostgreSQL's number of the session that has answered; None if it is not known."""
        return getattr(self.row, "session", None)

    @property
    def is_behind(self) -> bool:
        """Whether the database lacks what it had when the mark was written."""
        if self.row is None or self.mark is None:
            return False
        return self.mark.is_ahead_of(Mark.of(self.row)) or self.is_another_history

    @property
    def is_another_history(self) -> bool:
        """Whether the database has come as far as the mark on a way of its own."""
        if self.row is None or self.mark is None:
            return False
        mine = Mark.of(self.row)
        return mine.order == self.mark.order and mine.token != self.mark.token

    @property
    def is_holding(self) -> bool:
        """Whether a decision about all open runs is being carried out: to pause them, or to put them in doubt."""
        return self.row is not None and self.row.holding_since is not None

    @property
    def may_claim(self) -> bool:
        """Whether workers may claim runs."""
        return not self.is_behind and not self.is_holding

    @property
    def lost(self) -> timedelta:
        """How much was lost, as the sweep knows it: between its last moment in the database and the mark's."""
        if self.row is None or self.mark is None:
            return timedelta()
        return max(self.mark.at - self.row.written_at, timedelta())

    def in_words(self) -> str:
        """Return why workers claim nothing, in a sentence for the log; "" if they may."""
        if self.is_holding:
            return "the runs that were open after a restore are being paused, or marked as in doubt"
        if self.row is None or self.mark is None or not self.is_behind:
            return ""
        kept = f" in {place_of_mark()}" if is_kept() else ""
        if self.is_another_history:
            what = "has come as far as its mark on a way of its own: two databases with its name are in use"
        else:
            what = f"went back in time, by {self.lost.total_seconds():.0f} s: it is behind its mark{kept}"
        by = f", by {self.mark.by}" if self.mark.by else ""
        return (
            f"the database {place_of_database()} {what}. It is as of {self.row.written_at:%Y-%m-%d %H:%M:%S} UTC, and the "
            f"mark was written at {self.mark.at:%Y-%m-%d %H:%M:%S} UTC in {self.mark.place}{by}"
        )

    def in_short(self) -> str:
        """Return the same for probes: without names of servers, and with what to do."""
        if self.is_holding or not self.is_behind:
            return self.in_words()
        what = "two databases with its name are in use" if self.is_another_history else "it went back in time"
        return f"{what}: no run is claimed until it is decided with `manage.py durable restored`"

    def moves(self, now: datetime) -> bool:
        """Return True if the mark was written so lately that another database with this name seems to be in use."""
        return self.mark is not None and abs(now - self.mark.at) < quiet()


def quiet() -> timedelta:
    """Return for how long a mark must have rested before its database counts as unused: three sweeps, and a margin."""
    return timedelta(seconds=3 * conf.SWEEP_INTERVAL + 5)


def revision_of(row: DatabaseMark | None) -> str:
    """Return an opaque text for the database's row as an operator saw it, for `acting_as(expected=)`."""
    if row is None:
        return "none"
    return f"{row.name} {row.generation}{' holding' if row.holding_since is not None else ''}"


def is_kept() -> bool:
    """Return whether a mark is kept at all."""
    return bool(conf.MARK or conf.REDIS)


def place_of_mark() -> str:
    """Return where the mark is kept: the path of a file, "Redis", or "" if none is."""
    return str(conf.MARK) if conf.MARK else "Redis" if conf.REDIS else ""


def place_of_database() -> str:
    """Return the name and host of the database, as the settings have them: "shop@db.example.org:5432"."""
    settings = connections[conf.DATABASE].settings_dict
    place = ":".join(str(each) for each in (settings.get("HOST"), settings.get("PORT")) if each)
    return f"{settings.get('NAME')}{f'@{place}' if place else ''}"


# -- the place outside


def read(name: str) -> Mark | None:
    """Return the mark of the database; None if there is none. Raises MarkUnreadableError."""
    if conf.MARK:
        return _in_file().get(name)
    found: list[Mark] = []
    problems: list[str] = []
    for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
        try:
            text = redis.get(f"{KEY}{name}")
            if text is not None:
                found.append(_from_text(text))
        except (RedisError, OSError, MarkUnreadableError) as error:
            problems.append(f"{type(error).__name__}: {error}")
    if problems and not found:
        raise MarkUnreadableError("; ".join(problems))
    return max(found, key=lambda each: each.order, default=None)


def write(mark: Mark) -> None:
    """Raise the mark of its database to this one; leave a higher one. Raises MarkUnreadableError."""
    if conf.MARK:
        _write_file(mark)
        return
    for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
        key = f"{KEY}{mark.name}"

        def replace(pipeline: Pipeline, key: str = key) -> None:
            before = None
            with suppress(MarkUnreadableError):
                text: Any = pipeline.get(key)
                before = None if text is None else _from_text(text)
            pipeline.multi()
            if mark.is_ahead_of(before):
                pipeline.set(key, mark.as_text(), ex=_KEPT)

        try:
            redis.transaction(replace, key)
        except (RedisError, OSError) as error:
            raise MarkUnreadableError(f"{type(error).__name__}: {error}") from error


def _from_text(text: Any) -> Mark:
    try:
        return Mark.from_data(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise MarkUnreadableError(f"the mark is not JSON: {error}") from error


def _in_file() -> Mapping[str, Mark]:
    """Return the marks of the file, by the names of their databases. Raises MarkUnreadableError."""
    try:
        text = Path(conf.MARK).read_bytes()
    except FileNotFoundError:
        if Path(conf.MARK).parent.is_dir():
            return {}
        raise MarkUnreadableError(f"the directory of {conf.MARK} does not exist") from None
    except OSError as error:
        raise MarkUnreadableError(f"{conf.MARK} cannot be read: {error}") from error
    try:
        return {name: Mark.from_data(data) for name, data in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise MarkUnreadableError(f"{conf.MARK} is not a file of marks: {error}") from error


def _write_file(mark: Mark) -> None:
    """Write the file anew and put it in the place of the old one, so that each reader finds a whole file."""
    path = Path(conf.MARK)
    try:
        with _locked(path):
            try:
                marks = dict(_in_file())
            except MarkUnreadableError as error:
                if _log_this("file"):
                    logger.error("the file of marks is written anew, what it had is lost: %s", error)
                marks = {}
            if not mark.is_ahead_of(marks.get(mark.name)):
                return
            marks[mark.name] = mark
            new = path.with_name(f"{path.name}.new")
            with new.open("w") as file:
                json.dump({name: json.loads(each.as_text()) for name, each in marks.items()}, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
    except OSError as error:
        raise MarkUnreadableError(f"{conf.MARK} cannot be written: {error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time write the file. A process that is killed gives the lock up."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


# -- looking and raising

# Seconds without a further try after Redis did not answer: each would cost a claim a timeout.
QUIET: Final = 5.0

_lock = threading.Lock()
_unread: tuple[float, str] = (0.0, "")  # until when (monotonic) Redis is not asked, and why
_seen: dict[str, Mark] = {}  # the furthest that this process has seen, by the names of databases


def look() -> Position:
    """Compare the database with its mark: one statement, and one command to Redis.

    The row is read before the mark. If the mark is ahead, a raise may have come between: the row is read again. Raises
    the database's errors.
    """
    row = _row()
    if row is None:
        return Position(row=None)
    mark, problem = _known(row.name)
    position = Position(row=row, mark=mark, problem=problem)
    if position.is_behind:
        position = Position(row=_row(), mark=mark, problem=problem)
    if position.row is not None and not position.is_behind:
        _remember(Mark.of(position.row))
    return position


def keep(by: str) -> Position:
    """Look, and raise the counter and the mark if the last raise was long ago. Called by the sweep.

    A database that is behind is left as it is, so that it does not catch up with the mark. `by` is the name of this
    process. Raises the database's errors.
    """
    position = look()
    rows = DatabaseMark.objects.using(conf.DATABASE)
    now = clock.now()
    if position.row is None:
        row = DatabaseMark(pk=ONLY, name=new_name(), token=new_token(), written_at=now)
        rows.bulk_create([row], ignore_conflicts=True)
        return look()
    before = position.row
    mine = rows.filter(pk=ONLY, name=before.name, generation=before.generation, token=before.token)
    if position.is_behind and position.mark is not None:
        if before.mark_at != position.mark.at:
            mine.update(mark_at=position.mark.at)
        return position
    # a clock that was set back must not end the raises
    if before.written_at <= now < before.written_at + RAISE_EVERY:
        return position
    values = {"counter": before.counter + 1, "token": new_token(), "written_at": now, "mark_at": None}
    if mine.update(**values):
        for name, value in values.items():
            setattr(before, name, value)
        publish(Mark.of(before, by))
    return position


def publish(mark: Mark) -> None:
    """Write a mark, whose row is committed, where marks are kept. Log what fails: the next sweep writes a later one."""
    _remember(mark)
    if not is_kept():
        return
    try:
        write(mark)
    except MarkUnreadableError as error:
        if _log_this("write"):
            text = "the mark of the database is not written: %s. Should it go back now, only this process may notice"
            logger.warning(text, error)
    else:
        if _log_this.clear("write"):
            logger.warning("the mark of the database is written again")


def new_name() -> str:
    return secrets.token_hex(16)


def new_token() -> str:
    return secrets.token_hex(8)


def forget() -> None:
    """Forget what this process has seen. For tests, which play several processes."""
    global _unread
    _unread = (0.0, "")
    with _lock:
        _seen.clear()


def _row() -> DatabaseMark | None:
    rows = DatabaseMark.objects.using(conf.DATABASE).filter(pk=ONLY)
    if connections[conf.DATABASE].vendor == "postgresql":
        rows = rows.annotate(session=Func(function="pg_backend_pid", output_field=IntegerField()))
    return rows.first()


def _known(name: str) -> tuple[Mark | None, str]:
    """Return the furthest that is known of the database, and why the mark could not be read."""
    global _unread
    mark, (until, problem) = None, _unread
    if is_kept() and time.monotonic() >= until:
        problem = ""
        try:
            mark = read(name)
        except MarkUnreadableError as error:
            problem = str(error)
            _unread = (time.monotonic() + (0.0 if conf.MARK else QUIET), problem)
            if _log_this("read"):
                logger.warning("the mark of the database cannot be read from %s: %s", place_of_mark(), error)
    with _lock:
        seen = _seen.get(name)
    if seen is None or not seen.is_ahead_of(mark):
        return mark, problem
    if not problem and is_kept():  # it was lost, or not written
        publish(seen)
    return seen, problem


def _remember(mark: Mark) -> None:
    with _lock:
        if mark.is_ahead_of(_seen.get(mark.name)):
            _seen[mark.name] = mark
