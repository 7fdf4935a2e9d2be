"""What a pass notes beside its history: saves of a running step's progress, the status of the run; and idempotency
keys of a step's effects.

Owns when a save counts as a heartbeat, and which save is the newest. The step does not write its saves: the worker's
lease manager does once a second, and so do the commit of a failed attempt and the change that gives a run up.

A status is not an entry: the newest one wins, and none is kept. A pass holds its newest in a slot. The next commit of
the run writes it; if none comes, the lease manager does within a second. A status costs no commit of its own, and one
that was not written when a worker died is lost.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from durable.core.clock import to_utc
from durable.core.duration import check_moment
from durable.core.errors import PayloadError, cut_tokens
from durable.core.names.renames import canonical, names_of
from durable.core.numbers import is_number
from durable.core.records import RunRecord, SavedDetails, StatusRecord

if TYPE_CHECKING:
    from durable.core.journal import Journal


def idempotency_key(run: RunRecord, location: str, purpose: str = "step") -> str:
    """Return 32 hexadecimal digits: the same for all attempts, different for each run, location and purpose.

    A step that is executed again after a compensation or a replay gets a new key: the external system must not answer
    with the earlier result.
    """
    oldest = canonical(run.workflow, location)  # a rename must not make another effect of it
    text = f"{run.id}\0{oldest}\0{generation(run, location)}\0{purpose}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def generation(run: RunRecord, location: str) -> int:
    """Return how often `location` was begun again, alone or with something around it.

    Locations around it count too, because a loop's pruned iterations have no entries left to count.
    """
    generations: Mapping[str, int] = run.generations
    if not generations:  # the usual case
        return 0
    if (names := names_of(run.workflow)) is not None:
        location = names.canonical(location)
        found: dict[str, int] = {}
        for each, number in generations.items():
            oldest = names.canonical(each)
            found[oldest] = found.get(oldest, 0) + number
        generations = found
    count = generations.get(location, 0) + generations.get("", 0)
    end = location.rfind("/")
    while end > 0:
        count += generations.get(location[:end], 0)
        end = location.rfind("/", 0, end)
    return count


MOST_BYTES: Final = 4096  # of the details as codec text

R = TypeVar("R", SavedDetails, StatusRecord)


class _Newest(Generic[R]):
    """The newest of records that replace each other. A pass and the lease manager take it, each time for one write."""

    __slots__ = ("_lock", "_newest", "_taken")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: R | None = None
        self._taken = 0

    def _next_number(self) -> int:
        return 1 if self._newest is None else self._newest.number + 1

    def take(self, fence: int) -> R | None:
        """Return the newest record, or None if it was taken before. The caller writes it under the lease's fence."""
        with self._lock:
            if self._newest is None or self._newest.number <= self._taken:
                return None
            self._taken = self._newest.number
            return replace(self._newest, fence=fence)

    def put_back(self, record: R) -> None:
        """Mark the record as unwritten again, because the write failed."""
        with self._lock:
            self._taken = min(self._taken, record.number - 1)


class StepProgress(_Newest[SavedDetails]):
    """The saves of one attempt.

    The step's function calls `save`; the engine and the lease manager call the rest.
    """

    __slots__ = ("_attempt", "_journal", "_location", "signed_at")

    def __init__(self, journal: Journal, location: str, attempt: int) -> None:
        super().__init__()
        self._journal = journal
        self._location = location
        self._attempt = attempt
        #: The time of the last heartbeat, monotonic; None before the first.
        self.signed_at: float | None = None

    def save(self, details: Any) -> None:
        """Keep `details` as the newest save, and count it as a heartbeat. Raises PayloadError."""
        what = f'what step "{self._location}" saves'
        text = self._journal.environment.encode(details, what, "saved", self._location)
        if (size := len(text.encode(errors="surrogatepass"))) > MOST_BYTES:
            advice = (
                "save where the step is, such as a row's key or an offset, and keep the rest in a table of your own"
            )
            raise PayloadError(what, "$", f"{size:,} bytes as text, and {MOST_BYTES:,} are allowed", advice)
        run = self._journal.run
        with self._lock:
            self._newest = SavedDetails(
                run_id=run.id,
                location=self._location,
                generation=generation(run, self._location),
                fence=run.fence,
                attempt=self._attempt,
                number=self._next_number(),
                details=text,
            )
            self.sign()
        self._journal.environment.on_save(self._newest)

    def sign(self) -> None:
        self.signed_at = time.monotonic()

    def before(self) -> Any:
        """Return the details that the previous attempt saved; None if there are none."""
        found = self._journal.saved_at(self._location)
        if found is None or found.generation != generation(self._journal.run, self._location):
            return None
        return self._journal.environment.decode(found.details, "saved", found.location)

    def newest(self) -> SavedDetails | None:
        with self._lock:
            return None if self._newest is None else replace(self._newest, fence=self._journal.run.fence)

    @property
    def may_be_stored(self) -> bool:
        """True if a save of this attempt may have been written."""
        return self._taken > 0


MOST_TEXT: Final = 500  # characters of a status
_MOST_NUMBER: Final = 2**53  # up to which each whole number has a float of its own


def checked_status(text: Any, done: Any, of: Any, eta: Any = None) -> dict[str, Any]:
    """Return the parts of a status; a text of None stays None. Raises TypeError and ValueError for what is none."""
    if text is not None and not isinstance(text, str):
        raise TypeError(f"a status is text, not {text!r}: write str(...)")
    if text is not None and len(text) > MOST_TEXT:
        raise ValueError(
            f'the status "{text[:32]}..." has {len(text):,} characters, and {MOST_TEXT} are allowed: say in one line what '
            "the run does, and record the rest as the result of a step"
        )
    numbers = {"done": _number("done", done), "of": _number("of", of)}
    if numbers["of"] is not None and numbers["done"] is None:
        raise ValueError("of= is of done=: add how much is done, such as done=0")
    return {"text": text, **numbers, "eta": None if eta is None else to_utc(check_moment(eta, "eta"))}


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not is_number(value):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not 0 <= value <= _MOST_NUMBER:  # NaN neither
        raise ValueError(f"{name} is a number from 0 to 2**53, not {value!r}")
    return value


class StatusSlot(_Newest[StatusRecord]):
    """The newest status of one pass. Its code and its steps set it, the pass and the lease manager take it."""

    __slots__ = ("_run", "_text")

    def __init__(self, run: RunRecord) -> None:
        super().__init__()
        self._run = run
        self._text = ""

    def recall(self, text: str) -> None:
        """Note the text of a status that an earlier pass has set. It is not written again."""
        self._text = text

    def put(self, parts: dict[str, Any], at: datetime) -> None:
        """Replace the status. If the text is None, the one before stays."""
        with self._lock:
            self._text = self._text if parts["text"] is None else cut_tokens(parts["text"])
            number, fence = self._next_number(), self._run.fence
            place: dict[str, Any] = {"run_id": self._run.id, "fence": fence, "number": number, "at": at}
            self._newest = StatusRecord(**{**parts, "text": self._text}, **place)

    def newest(self) -> StatusRecord | None:
        with self._lock:
            return self._newest


def show(journal: Journal, parts: dict[str, Any], *, in_step: bool = False) -> None:
    """Let the next commit write this status of the run, or the worker within a second; make no commit for it."""
    slot = _slot_of(journal)
    slot.put(parts, journal.environment.now())
    journal.environment.on_status(slot, in_step=in_step)


def recall(journal: Journal, text: str) -> None:
    """Note the text of a status that an earlier pass has set."""
    _slot_of(journal).recall(text)


def _slot_of(journal: Journal) -> StatusSlot:
    with journal.lock:
        if journal.status is None:
            journal.status = StatusSlot(journal.run)
        slot: StatusSlot = journal.status
        return slot
