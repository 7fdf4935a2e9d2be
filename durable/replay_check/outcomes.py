"""The parts and the outcome of a replay: its host, decoded values, and stand-ins for starts and sends.

The host refuses every effect, and imports nothing just because a record names it. Its contexts log nothing. A start or
send with an id is allowed: each pass repeats it and finds the result of the first, so a replay treats it as done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

from durable import runtime
from durable.codec import Codec, JsonCodec
from durable.codec.binding import binding, decode_at
from durable.context import AsyncContext, Context
from durable.core.divergences import Divergence, DivergenceKind
from durable.core.errors import ContractError, ErrorInfo, HistoryDivergedError, PayloadError
from durable.core.location import escape, general_location, join
from durable.core.names.recorded_names import resolve_used
from durable.core.places import Place, values_of
from durable.core.records import ENDED, EntryRecord, EntryStatus, Message, OutgoingMessage, RunRecord, RunState
from durable.core.scope import SILENT, Scope
from durable.execution.passes import NotRecorded, RecordedHost, RefusingJournal
from durable.replay_check.findings import Decision
from durable.replay_check.mends import named
from durable.runtime import Runtime
from durable.store import Store

T = TypeVar("T")


class RecordsJournal(RefusingJournal):
    """A journal that records branches which fail although their records have no failure."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.failed_branches: list[tuple[str, ErrorInfo]] = []

    def update(self, entry: EntryRecord, **columns: Any) -> None:
        if entry.kind in self._FORKS and "data" in columns:
            before = entry.data["branches"]
            for name, now in columns["data"]["branches"].items():
                is_new = now["status"] == EntryStatus.FAILED and before.get(name) != now
                if is_new and not now["origins"]:
                    self.failed_branches.append((join(entry.location, escape(name)), ErrorInfo(*now["error"])))
        super().update(entry, **columns)

    def forget(self) -> None:
        """Release the history, which the frames of an ended pass would keep in memory until the next garbage
        collection.
        """
        self.root.children = None


class RecordsHost(RecordedHost):
    """A host that answers from the records, which anybody may have written; its contexts log nothing."""

    journal_class = RecordsJournal
    journal: RecordsJournal

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.environment.resolve = resolve_used

    def sync_context(self, scope: Scope, driver: Any) -> Context:
        return _silent(super().sync_context(scope, driver))

    def async_context(self, scope: Scope, driver: Any) -> AsyncContext:
        return _silent(super().async_context(scope, driver))


def _silent(context: T) -> T:
    logged: Any = context
    logged.logger.logger = SILENT
    return context


_MOST_KNOWN: Final = 10_000
_LONGEST_KNOWN: Final = 500  # the longest text to remember

#: An unreadable value: its place, its field, and the reason.
UnreadableValue = tuple[str, str, PayloadError]


def unreadable_value(run: RunRecord, entries: Iterable[EntryRecord], codec: Codec) -> UnreadableValue | None:
    """Return the first recorded value that this code cannot read, or None."""
    looker = _Looker(codec)
    for each in entries:
        looker.location = each.location
        for value in values_of(run.id, each):
            if value.text is not None:
                looker.look(value.text, value.place)
        if looker.found is not None:
            return looker.found
    looker.location = ""
    if run.output is not None and run.state == RunState.COMPLETED:
        looker.look(run.output, Place(run.id, "output"))
    return looker.found


class _Looker:
    """Decodes texts, equal ones once; keeps the first that cannot be decoded."""

    def __init__(self, codec: Codec) -> None:
        self.location = ""
        self.found: UnreadableValue | None = None
        self._codec = codec
        self._is_bound = binding(codec) is not None
        self._known: set[str] = set()

    def look(self, text: str, place: Place) -> None:
        """Decode the text."""
        if text in self._known or self.found is not None:
            return
        try:
            decode_at(self._codec, text, place)
        except PayloadError as error:
            self.found = (self.location, place.field, error)
            return
        if not self._is_bound and len(text) <= _LONGEST_KNOWN and len(self._known) < _MOST_KNOWN:
            self._known.add(text)


_READS: Final = frozenset(
    {
        *("get", "get_many", "states", "history", "limits", "attempts", "failure", "messages", "message"),
        *("sent_before", "key_holder", "keys", "held", "children", "children_of", "count_children", "group"),
        *("groups_of", "members", "at_once", "slots"),
    }
)


@contextmanager
def refusing_runtime(at: Runtime) -> Iterator[None]:
    """Within the block, calls of durable's own functions only read; starts and sends count as already done."""
    refusing = replace(
        at,
        store=cast("Store", _Store(at.store)),
        notify=_ignore,
        notify_at=_ignore,
        poll_wait=_end,
        after_commit=_ignore,
    )
    runtime.activate(refusing)
    try:
        yield
    finally:
        runtime.deactivate(refusing)


def _ignore(*_: object) -> None:
    """Do nothing: the recorded pass has done it already."""


def _end(*_: object, **__: object) -> Any:
    raise NotRecorded


class _Store:
    """A store that reads, and treats starts and sends as done. Any other call ends the replay."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        return [(each, False) for each in runs]

    def send(self, messages: Iterable[OutgoingMessage]) -> tuple[list[Message], frozenset[str]]:
        sent = [
            Message(id=each.id, run_id=each.to, queue=each.queue, body=each.body, sent_at=each.sent_at, order=0)
            for each in messages
        ]
        return sent, frozenset()

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._store, name) if name in _READS else _end


_CODEC: Final = JsonCodec().unlimited


@dataclass(slots=True)
class Outcome:
    """The outcome of the code: an error, a value, or (`has_ended` is False) an operation that is not recorded."""

    has_ended: bool = False
    value: Any = None
    error: Exception | None = None
    journal: RecordsJournal | None = None


def decision_of(run: RunRecord, outcome: Outcome, codec: Codec) -> Decision | None:
    """Return how the code's decision differs from that of an ended run.

    Return None if it is the same, as far as is known.
    """
    if run.state not in ENDED or outcome.journal is None:
        return None
    error = outcome.error
    if isinstance(error, HistoryDivergedError) and error.divergence is not None:
        return _diverged(run, error.divergence)
    if isinstance(error, ContractError):
        return None
    if run.state == RunState.CANCELLED and error is None:
        return None  # caused from outside: the record does not say what the run would have done
    if error is not None:
        kind = ErrorInfo.of(error).type
        if run.state == RunState.FAILED and run.error is not None and run.error.type == kind:
            return None
        return Decision(run.workflow, "", f"raised {kind}", _end_of_code(run))
    for each in [] if outcome.has_ended else outcome.journal.not_answered:
        if outcome.journal.entry_at(each.location) is None:
            return Decision(
                run.workflow, general_location(each.location), f"gone on with {named(each)}", _end_of_code(run)
            )
    if not outcome.has_ended:
        return None
    if run.state == RunState.FAILED:
        return Decision(run.workflow, "", "completed", _end_of_code(run))
    if run.state == RunState.COMPLETED and _differs(run, outcome.value, codec):
        return Decision(run.workflow, "", "returned another result", "the recorded one")
    return None


def _diverged(run: RunRecord, found: Divergence) -> Decision:
    instead = next(iter(map(named, found.recorded)), _end_of_code(run))
    if found.raised is not None:
        place = general_location(found.recorded[0].location)
        return Decision(run.workflow, place, f"raised {ErrorInfo.of(found.raised).type}", instead)
    if found.code is None:
        return Decision(run.workflow, general_location(found.recorded[0].location), "ended", instead)
    another = "another " if found.kind == DivergenceKind.CHANGED else ""
    does = f"done {another}{named(found.code)}"
    return Decision(run.workflow, general_location(found.code.location), does, instead)


def _end_of_code(run: RunRecord) -> str:
    if run.state == RunState.COMPLETED:
        return "completing"
    if run.state == RunState.FAILED:
        return f"failing with {run.error.type}" if run.error is not None else "failing"
    return "being cancelled"


def _differs(run: RunRecord, value: Any, codec: Codec) -> bool:
    """Return True if the value certainly differs from the recorded output."""
    try:
        recorded = None if run.output is None else decode_at(codec, run.output, Place(run.id, "output"))
        texts = [_CODEC.encode(each) for each in (recorded, value)]
    except PayloadError:
        return False
    return texts[0] != texts[1]
