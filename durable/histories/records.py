"""Files of histories: their lines, the records that these stand for, and how they are written, a run at a time.

A history is a line with `durable_history`, the number of the format, and the run's row; a line for each entry in the
order of their ordinals; one for each message in its order; and a last line with the numbers of both, so that a file
that was cut is noticed. The first line of a run with tags has them too. Times are ISO 8601 text, errors are objects,
and values are codec text. A history of any number of entries is written in a bounded memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import IO, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from django.db.models import QuerySet
from django.utils import timezone

from durable import runtime
from durable.codec import Codec
from durable.conf import conf
from durable.core.entry_shapes import check_shape
from durable.core.errors import DurableError, ErrorInfo, RunNotFoundError
from durable.core.new_runs import MAX_KEY, Subject
from durable.core.numbers import is_whole
from durable.core.places import Place
from durable.core.records import EntryRecord, Message, RunRecord
from durable.core.rewind.replay import moved_entry, moved_message
from durable.core.summary import Summary
from durable.core.tags import check_stored
from durable.histories.values import PLAIN, Values, converted_entry, converted_message, converted_run, converted_tags
from durable.models import Entry, QueueMessage
from durable.models.rows import in_batches, weight
from durable.models.starts import MAX_LABEL
from durable.replay_check import RecordedRun
from durable.replay_check.read_only import snapshot

#: The number of the format that this release writes, and the only one that it reads.
FORMAT: Final = 1
#: Fields that the first files of this format lack: None is left out.
_ADDED: Final = frozenset({"carried"})

T = TypeVar("T")

_YEARS: Final = range(1900, 9999)  # in any time zone


class HistoryFileError(DurableError):
    """A file of histories that this release cannot read. The text names the file, the line and what to do."""


class Kind:
    """One kind of record: its fields as JSON data, and back."""

    def __init__(self, record: type[Any]) -> None:
        self._record = record
        self._hints = hints = get_type_hints(record)
        self._names = [each.name for each in fields(record)]
        self._moments = [name for name in self._names if hints[name] in (datetime, datetime | None)]
        self._errors = [name for name in self._names if hints[name] == ErrorInfo | None]

    def data(self, record: Any) -> dict[str, Any]:
        """Return the record as JSON data."""
        data = {name: getattr(record, name) for name in self._names}
        for name in self._moments:
            data[name] = None if data[name] is None else data[name].isoformat()
        for name in self._errors:
            error = data[name]
            data[name] = error and error.data
        if isinstance(data.get("summary"), Summary):
            data["summary"] = data["summary"].stored
        return {name: value for name, value in data.items() if value is not None or name not in _ADDED}

    def load(self, data: Mapping[str, Any]) -> Any:
        """Return the record. Raises ValueError, TypeError or LookupError for other data."""
        loaded = {**dict.fromkeys(_ADDED.intersection(self._names)), **data}
        if set(loaded) != set(self._names):
            raise ValueError(f"expected the fields {', '.join(self._names)}")
        for name in self._moments:
            loaded[name] = _or_none(datetime.fromisoformat, loaded[name])
        for name in self._errors:
            loaded[name] = _or_none(ErrorInfo.read, loaded[name])
        if "summary" in loaded:
            _check("summary", str, loaded["summary"])
            loaded["summary"] = Summary.load(loaded["summary"]) if loaded["summary"] else ""
        for name in self._names:
            _check(name, self._hints[name], loaded[name])
        return self._record(**loaded)


def _check(name: str, hint: Any, value: Any) -> None:
    """Raise TypeError or ValueError for a value that the field cannot have, or that a database cannot hold."""
    if isinstance(hint, UnionType):
        if value is None:
            return
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    kind = get_origin(hint) or hint
    if kind is not Any and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise TypeError(f"{name} is of the type {kind.__name__}, not {value!r:.100}")
    if kind is int and not is_whole(value):
        raise ValueError(f"{name} is larger than a database holds")
    if kind is datetime and (value.utcoffset() is None or value.year not in _YEARS):
        raise ValueError(f"{name} is a time with its offset from UTC, of a year from 1900 on, not {value.isoformat()}")
    if kind is ErrorInfo:
        for each in (value.type, value.message, value.traceback):
            _check(name, str, each)
    if kind is list:
        (inner,) = get_args(hint)
        for each in value:
            _check(name, inner, each)
    if kind is dict:
        inner = get_args(hint)[1]
        for each in value.values():
            _check(name, inner, each)


def _or_none(convert: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else convert(value)


RUN: Final = Kind(RunRecord)
ENTRY: Final = Kind(EntryRecord)
MESSAGE: Final = Kind(Message)


#: The most characters of a line: many times the largest value that can be recorded.
LONGEST: Final = 256 * 2**20
_AGAIN: Final = "export the run again with `manage.py durable export --history`"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """A run as a file has it: its row, its entries in order, and its messages in order.

    `exported_at` is when it was written. `codec` reads its values; None for the project's. `source` is the file and the
    line where it begins. `tags` and `tags_at_start` have values by name, as they are stored. `subjects` are what the
    run is about.
    """

    run: RunRecord
    entries: list[EntryRecord]
    messages: list[Message]
    values: Values
    exported_at: datetime
    source: str
    tags: Mapping[str, str] = field(default_factory=dict)
    tags_at_start: Mapping[str, str] = field(default_factory=dict)
    subjects: Sequence[Subject] = ()

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
    """Yield the lines of a file, refusing lines too long for memory."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise HistoryFileError(
                f"{name}, line {number}: longer than {LONGEST:,} characters, this is not a file of histories"
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
        subjects=[_subject(*each) for each in data.get("subjects", [])],
    )


def _check_end(history: StoredHistory, data: dict[str, Any]) -> None:
    said = data["end"]
    found = {"entries": len(history.entries), "messages": len(history.messages)}
    if said != found:
        raise ValueError(f"the history of {history.run.id} says {said} and has {found}")


_encode: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def moved_history(history: StoredHistory, prefix: str = "") -> tuple[RunRecord, list[EntryRecord], list[Message]]:
    """Return the run, its entries and its messages for this project, the ids of the run and its messages with `prefix`.

    Times and random numbers of a run under another id stay those of its original. Raises PayloadError for a value that
    cannot be written for this project, and ValueError for an entry that durable does not write so.
    """
    at, old = runtime.current(), history.run
    for each in history.entries:
        try:
            check_shape(each)
        except ValueError as error:
            raise ValueError(f'the entry "{each.location}" is of another shape: {error}') from error
    new_id = f"{prefix}{old.id}"

    def copied(text: str, place: Place, new: Place) -> str:
        if history.values is Values.STORED:
            return at.copied(text, place, new)
        return at.encode(PLAIN.decode(text), f"the {new.field} to import", new)

    def own(text: str, field: str) -> str:
        return copied(text, Place(old.id, field), Place(new_id, field))

    ids = {each.id: f"{prefix}{each.id}" for each in history.messages}
    run = replace(
        old,
        id=new_id,
        input=own(old.input, "input"),
        output=None if old.output is None else own(old.output, "output"),
    )
    if prefix:
        run.seed, run.began_at = old.seed or old.id, old.began_at or old.created_at
    entries = [moved_entry(each, old.id, new_id, ids, copied) for each in history.entries]
    return run, entries, [moved_message(each, new_id, ids[each.id], copied) for each in history.messages]


def digest_of(history: StoredHistory) -> str:
    """Return an identifier of the content: 32 hexadecimal digits, the same for each export of the same records."""
    found = hashlib.sha256()
    lines: list[Any] = [RUN.data(history.run)]
    lines += [ENTRY.data(each) for each in history.entries]
    lines += [MESSAGE.data(each) for each in history.messages]
    if history.tags:
        lines += [history.tags, history.tags_at_start]
    if history.subjects:
        lines.append(list(map(astuple, history.subjects)))
    for each in lines:
        found.update(_encode(each).encode())
    return found.hexdigest()[:32]


_AT_ONCE: Final = 1024 * 1024  # bytes of recorded text in memory at a time
_OF_ENTRY: Final = [each.name for each in fields(EntryRecord)]
_OWN: Final = frozenset(each.attname for each in Entry._meta.concrete_fields)
_OF_MESSAGE: Final = [each.name for each in fields(Message)]
_encoded: Final = json.JSONEncoder(separators=(",", ":")).encode


def written_history(run_id: str, values: Values = Values.STORED) -> Iterator[str]:
    """Yield the lines of a run's history, without line ends: a snapshot of one moment.

    Raises RunNotFoundError, and PayloadError for a value that has to be read and cannot be. The lines are read in one
    transaction, which ends with the last one.
    """
    with snapshot(conf.DATABASE):
        run = runtime.current().store.get(run_id)
        if run is None:
            raise RunNotFoundError(run_id)
        first = {
            "durable_history": FORMAT,
            "exported_at": timezone.now().isoformat(),
            "values": values.value,
            "run": RUN.data(converted_run(run, values)),
        }
        yield _encoded({**first, **_tags(run, values), **_subjects(run)})
        entries = messages = 0
        found: QuerySet[Any] = Entry.objects.using(conf.DATABASE).with_metadata_of(run_id)
        columns = ("output", "arguments", "data")
        for entry in _batched(found.select_related("metadata").order_by("ordinal"), columns, _entry):
            yield _encoded({"entry": ENTRY.data(converted_entry(run, entry, values))})
            entries += 1
        found = QueueMessage.objects.using(conf.DATABASE).filter(run=run_id).order_by("order")
        for message in _batched(found, ("body", "response"), _message):
            yield _encoded({"message": MESSAGE.data(converted_message(run, message, values))})
            messages += 1
        yield _encoded({"end": {"entries": entries, "messages": messages}})


def _tags(run: RunRecord, values: Values) -> dict[str, dict[str, str]]:
    """Return the fields of the first line that hold the tags; none if the run has no tags."""
    store = runtime.current().store
    now = store.tags([run.id]).get(run.id)
    if now is None:
        return {}
    at_start = store.tags([run.id], at_start=True).get(run.id, {})
    return {"tags": converted_tags(run, now, values), "tags_at_start": converted_tags(run, at_start, values)}


def _batched(found: QuerySet[Any], columns: tuple[str, ...], record: Callable[[Any], Any]) -> Iterator[Any]:
    for keys in in_batches(found.values_list("pk", weight(*columns)).iterator(), _AT_ONCE):
        rows = list(found.filter(pk__in=keys))
        rows.reverse()
        while rows:
            yield record(rows.pop())


def _entry(row: Entry) -> EntryRecord:
    about = row.metadata
    values = {name: getattr(row if name in _OWN else about, name) for name in _OF_ENTRY}
    row._state.fields_cache.clear()  # break the cycle of an entry and its metadata
    return EntryRecord(**values)


def _message(row: QueueMessage) -> Message:
    return Message(**{name: getattr(row, name) for name in _OF_MESSAGE})


def _subjects(run: RunRecord) -> dict[str, list[Any]]:
    """Return the field of the first line that says what the run is about; none if it is about nothing."""
    found = runtime.current().store.subjects([run.id]).get(run.id)
    return {} if found is None else {"subjects": list(map(astuple, found))}


def _subject(model: str, key: str, cancels: bool) -> Subject:  # as it is written
    if not (isinstance(model, str) and isinstance(key, str) and isinstance(cancels, bool)):
        raise TypeError("what a run is about is a model's label, a key, and whether its deletion cancels the run")
    if not (0 < len(model) <= MAX_LABEL and 0 < len(key) <= MAX_KEY):
        raise ValueError(f"what the run is about does not fit: {model[:64]!r}, {key[:64]!r}")
    return Subject(model, key, cancels)
