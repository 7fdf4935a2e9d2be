"""The logging handler that keeps the log of each run in a table, for the run's page, REST and `durable logs`.

Records wait in memory, and a thread with a connection of its own writes them: a pass does not wait, and a rollback does
not lose lines. What a process had not written when it was killed is lost, and so is what waits beyond `waiting` records
while the database does not answer. The log is not the record of what happened: the history is.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db import Error, connections, transaction
from django.db.models.functions import Length

from durable.conf import conf
from durable.core.current import running_place
from durable.core.errors import cut_tokens

_PAUSE: Final = 0.25  # seconds that lines wait for more lines
_BATCH: Final = 500
_MOST_TEXT: Final = 8_000  # characters of a line
_RETRY: Final = 2.0
_PATIENCE: Final = 5.0  # seconds that the end of the process waits for the thread


@dataclass(frozen=True, slots=True)
class _Line:
    run_id: str
    at: datetime
    level: int
    logger: str
    location: str
    text: str


class RunLogHandler(logging.Handler):
    """Keep the records logged while a run is executed, and those that name a run in their attribute `run_id`.

    Of each run the newest `lines` records are kept, and of these as many as fit into `max_bytes` characters of text; a
    tenth more may be there for a while. At most `waiting` records wait in memory.
    """

    def __init__(
        self, level: int | str = logging.NOTSET, *, lines: int = 1_000, max_bytes: int = 500_000, waiting: int = 10_000
    ) -> None:
        super().__init__(level)
        self._lines = lines
        self._max_bytes = max_bytes
        self._waiting: deque[_Line] = deque(maxlen=waiting)
        self._since_cut: Counter[str] = Counter()
        self._some = threading.Event()
        self._written = threading.Condition()
        self._is_writing = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record if it is about a run."""
        run_id, _, place = running_place()
        run_id = getattr(record, "run_id", "") or run_id
        if not run_id:
            return
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - as logging's own handlers treat a wrong format
            self.handleError(record)
            return
        location = getattr(record, "location", "") or place
        at = datetime.fromtimestamp(record.created, UTC)
        line = _Line(
            str(run_id)[:200],
            at,
            record.levelno,
            record.name[:200],
            str(location)[:1024],
            cut_tokens(text)[:_MOST_TEXT],
        )
        self._start()
        self._waiting.append(line)
        self._some.set()

    def flush(self) -> None:
        """Wait until all queued records are written, for a few seconds at most."""
        if self._thread is None or self._pid != os.getpid():
            return
        self._some.set()
        with self._written:
            self._written.wait_for(lambda: not self._waiting and not self._is_writing, timeout=_PATIENCE)

    def close(self) -> None:
        """Write the queued records, and end the thread."""
        self.flush()
        self._is_closing = True
        self._some.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(_PATIENCE)
        super().close()

    def _start(self) -> None:
        if self._pid != os.getpid():  # forked: the thread and the queued records belong to the parent
            self._pid, self._thread = os.getpid(), None
            self._waiting.clear()
            self._some, self._written = threading.Event(), threading.Condition()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_always, name="durable-logs", daemon=True)
            self._thread.start()

    def _write_always(self) -> None:
        while not self._is_closing or self._waiting:
            self._some.wait(None if not self._is_idle_open() else _RETRY)
            if not self._some.is_set():
                connections[conf.DATABASE].close()  # nothing came for a while
                continue
            self._some.clear()
            if not self._is_closing:
                time.sleep(_PAUSE)
            self._write_all()
        connections[conf.DATABASE].close()

    @staticmethod
    def _is_idle_open() -> bool:
        return connections[conf.DATABASE].connection is not None

    def _write_all(self) -> None:
        while self._waiting:
            self._is_writing = True
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                self._write(batch)
            except Error:
                connections[conf.DATABASE].close()
                room = (self._waiting.maxlen or 0) - len(self._waiting)
                self._waiting.extendleft(reversed(batch[max(0, len(batch) - room) :]))
                if self._is_closing:
                    break
                time.sleep(_RETRY)
            except Exception:  # noqa: BLE001 - the thread must survive every error, and may not log: that would come back here
                connections[conf.DATABASE].close()
            finally:
                with self._written:
                    self._is_writing = False
                    self._written.notify_all()

    def _write(self, batch: Sequence[_Line]) -> None:
        from durable.models import LogLine, Run

        alias = conf.DATABASE
        with transaction.atomic(using=alias):
            known = set(
                Run.objects.using(alias).filter(pk__in={each.run_id for each in batch}).values_list("pk", flat=True)
            )
            rows = [
                LogLine(
                    run_id=each.run_id,
                    at=each.at,
                    level=each.level,
                    logger=each.logger,
                    location=each.location,
                    text=each.text,
                )
                for each in batch
                if each.run_id in known
            ]
            LogLine.objects.using(alias).bulk_create(rows)
        self._since_cut.update(row.run_id for row in rows)
        for run_id in [each for each, number in self._since_cut.items() if number >= self._lines / 10]:
            del self._since_cut[run_id]
            self._cut(run_id)
        if len(self._since_cut) > self._lines:
            self._since_cut.clear()

    def _cut(self, run_id: str) -> None:
        """Delete the oldest lines of the run, so that the rest is within the limits."""
        from durable.models import LogLine

        lines = LogLine.objects.using(conf.DATABASE).filter(run_id=run_id).order_by("-id")
        left = self._max_bytes
        for position, (key, size) in enumerate(lines.values_list("id", Length("text"))[: self._lines + 1]):
            left -= size
            if position >= self._lines or left < 0:
                lines.filter(id__lte=key).delete()
                return
