"""Read files of histories, one run at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

from durable.codec import Codec
from durable.core.records import EntryRecord, Message, RunRecord
from durable.core.tags import check_stored
from durable.histories.records import ENTRY, FORMAT, MESSAGE, RUN, HistoryFileError
from durable.histories.values import PLAIN, Values
from durable.replay_check import RecordedRun

#: Characters of a line: many times the largest value that can be recorded.
LONGEST: Final = 256 * 2**20
_AGAIN: Final = "export the run again with `manage.py durable export --history`"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """A run as a file has it: its row, its entries in order, and its messages in order.

    `exported_at` is when it was written. `codec` reads its values; None for the project's. `source` is the file and the
    line where it begins. `tags` and `tags_at_start` have values by name, as they are stored.
    """

    run: RunRecord
    entries: list[EntryRecord]
    messages: list[Message]
    values: Values
    exported_at: datetime
    source: str
    tags: Mapping[str, str] = field(default_factory=dict)
    tags_at_start: Mapping[str, str] = field(default_factory=dict)

    @property
    def codec(self) -> Codec | None:
        """The codec that reads the values; None: the codec of the project."""
        return None if self.values is Values.STORED else PLAIN

    @property
    def recorded(self) -> RecordedRun:
        """The run for `durable.replay_check`."""
        return RecordedRun(run=self.run, entries=self.entries, codec=self.codec)


def read_files(paths: Iterable[str | Path]) -> Iterator[StoredHistory]:
    """Yield the histories of the files in their order. Raises HistoryFileError as `read_histories` does."""
    for path in paths:
        try:
            with Path(path).open(encoding="utf-8") as file:
                yield from read_histories(_lines(file, str(path)), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise HistoryFileError(f"{path} cannot be read: {error}") from error


def _lines(file: IO[str], name: str) -> Iterator[str]:
    """Yield the lines of a file, none of them longer than memory can be expected to hold."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise HistoryFileError(
                f"{name}, line {number}: longer than {LONGEST:,} characters, this is no file of histories"
            )
        yield line


def read_histories(lines: Iterable[str], name: str = "the file") -> Iterator[StoredHistory]:
    """Yield the histories of a file, one at a time. `name` names the file in errors.

    Raises HistoryFileError for a format that this release does not know, for a history that was cut or has another
    number of entries or messages than it says, and for a line that is none of such a file.
    """
    history: StoredHistory | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        at = f"{name}, line {number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise HistoryFileError(f"{at}: expected a line of JSON: {_AGAIN}") from error
        if not isinstance(data, dict):
            raise HistoryFileError(f"{at}: expected an object of JSON: {_AGAIN}")
        try:
            if history is None:
                history = _begun(data, at)
            elif "entry" in data:
                history.entries.append(ENTRY.load(data["entry"]))
            elif "message" in data:
                history.messages.append(MESSAGE.load(data["message"]))
            else:
                _check_end(history, data)
                yield history
                history = None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise HistoryFileError(f"{at}: not a line of a history ({error}): {_AGAIN}") from error
    if history is not None:
        raise HistoryFileError(f"{history.source}: the history of {history.run.id} has no end, it was cut: {_AGAIN}")


def _begun(data: dict[str, Any], at: str) -> StoredHistory:
    if "durable_history" not in data:
        raise HistoryFileError(
            f"{at}: expected the beginning of a history, an object with durable_history. What `durable export` writes without "
            "--history is for reading: it cannot be replayed or imported. Export the run with --history"
        )
    found = data["durable_history"]
    if found != FORMAT or isinstance(found, bool):
        raise HistoryFileError(
            f"{at}: the history has format {found!r}, and this release of durable reads format {FORMAT}: read it with the "
            "release that has written it, or export the run again with this one"
        )
    tags, at_start = check_stored(data.get("tags", {})), check_stored(data.get("tags_at_start", {}))
    if lost := sorted(at_start.keys() - tags.keys()):
        raise ValueError(f'the start has given the tag "{lost[0]}", which the run does not have')
    return StoredHistory(
        run=RUN.load(data["run"]),
        entries=[],
        messages=[],
        values=Values(data["values"]),
        exported_at=datetime.fromisoformat(data["exported_at"]),
        source=at,
        tags=tags,
        tags_at_start=at_start,
    )


def _check_end(history: StoredHistory, data: dict[str, Any]) -> None:
    said = data["end"]
    found = {"entries": len(history.entries), "messages": len(history.messages)}
    if said != found:
        raise ValueError(f"the history of {history.run.id} says {said} and has {found}")
