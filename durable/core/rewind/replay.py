"""Replaying a run from a location in its history: which entries are deleted, which stay, and what is written.

Pure functions of a run's row, its entries and its messages. The rule: everything that began after the boundary, in
program order, is deleted; the other branches of a join around it, which do not depend on it, stay. The boundary is the
requested location, with two exceptions. A loop or a race around it is restarted whole. If something before it was
compensated, that has to be executed again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from durable.core import transitions
from durable.core.children.entries import left_by_replay
from durable.core.errors import EntryNotFoundError
from durable.core.location import check_location, escape, is_within, parent
from durable.core.outcomes import held_anew
from durable.core.places import Place, of_message, values_of, with_values
from durable.core.records import ENDED, EntryKind, EntryRecord, EntryStatus, Message, MessageState, RunChange, RunRecord
from durable.core.rewind.recovery import rewind_compensated
from durable.core.rewind.rewinding import FORKS, Rewind, first_try
from durable.core.steps import ATOMIC
from durable.core.summary import Summary, SummaryKind
from durable.core.words import Sentence, gettext_noop

#: Re-encodes codec text of the first place for the second.
Copied: TypeAlias = Callable[[str, Place, Place], str]


def moved_message(message: Message, run_id: str, message_id: str, copied: Copied) -> Message:
    """Return the message as one of the inbox of the run `run_id`, with a new id."""

    def text(field: str, found: str) -> str:
        old = of_message(message.run_id, field, message.id, message.queue)
        return copied(found, old, of_message(run_id, field, message_id, message.queue))

    body = text("message", message.body)
    response = None if message.response is None else text("response", message.response)
    return replace(message, id=message_id, run_id=run_id, body=body, response=response)


def moved_entry(entry: EntryRecord, old_id: str, run_id: str, ids: Mapping[str, str], copied: Copied) -> EntryRecord:
    """Return the entry of the run `old_id`, rewritten for the history of the run `run_id`.

    `ids` maps old ids of messages to new ones.
    """
    moved = entry
    if entry.kind == EntryKind.MESSAGE and "received" in entry.data:
        received = [{**each, "id": ids.get(each["id"], each["id"])} for each in entry.data["received"]]
        moved = replace(entry, data={**entry.data, "received": received})
    elif entry.kind == EntryKind.SEND and entry.data["to"] == old_id:
        message_id = entry.data["message_id"]
        moved = replace(entry, data={**entry.data, "to": run_id, "message_id": ids.get(message_id, message_id)})
    old = (each.place for each in values_of(old_id, entry) if each.text is not None)
    arguments, output, data = with_values(run_id, moved, lambda text, new: copied(text, next(old), new))
    return replace(entry, arguments=arguments, output=output, data=data)


_ITERATION = re.compile(r"~(\d+)")


class Replay:
    """The plan to take a run back to `target`. Raises EntryNotFoundError if its history has no such location.

    `boundary` is where the run continues. `moved` lists the locations that moved the boundary, with the reason: "loop",
    "race" or "compensated". `history` has the kept and the deleted entries; `returned` are the messages that are
    pending again.
    """

    def __init__(
        self, run: RunRecord, entries: Iterable[EntryRecord], messages: Sequence[Message], target: str
    ) -> None:
        self.run = run
        self.target = target
        self.moved: list[tuple[str, str]] = []
        self.history = Rewind(sorted(entries, key=lambda entry: entry.ordinal))
        self._messages = messages
        place, ordinal = self._find(target)
        self.boundary = self._rewind(place, ordinal)
        if compensated := rewind_compensated(self.history):
            self.moved += [(location, "compensated") for location in compensated]
            self.boundary = min([self.boundary, *self._tops()], key=lambda each: self._began(each, ordinal))
        self.returned = self.history.returned(messages)
        self._retracted = self.history.sent_again(run.id, messages)
        self._refresh_handlers()

    # -- where it begins

    def _find(self, target: str) -> tuple[str, int]:
        """Return the location and the ordinal of the first entry that began there.

        A branch, a block and an iteration have locations too.
        """
        check_location(target)
        entry = self.history.get(target)
        if entry is not None:
            return target, entry.ordinal
        within = next((each for each in self.history if is_within(each.location, target)), None)
        if within is not None:
            return target, within.ordinal
        around = self.history.get(parent(target))
        segment = target.rpartition("/")[2]
        if around is not None and _has_place(around, segment):
            return target, around.ordinal
        locations = [each.location for each in self.history]
        raise EntryNotFoundError(self.run.id, target, nearest(target, locations[:2_000]))

    def _rewind(self, location: str, ordinal: int) -> str:
        """Go back to the location, or to the loop or race around it, which is restarted whole; return where the run
        continues.
        """
        around = self.history.around(location)
        if around is None:
            self.history.rewind_to(location, ordinal)
            return location
        self.moved.append((around.location, str(around.kind)))
        self.history.rewind_to(around.location, around.ordinal)
        return around.location

    def _began(self, location: str, ordinal: int) -> int:
        entry = self.history.deleted.get(location)
        return ordinal if entry is None else entry.ordinal

    # -- what follows from it

    def _tops(self) -> Iterator[str]:
        """Return the topmost deleted locations."""
        return (each for each in self.history.deleted if not self.history.is_gone(parent(each)))

    def _refresh_handlers(self) -> None:
        """Restore all attempts of the kept rollback handlers that have failed."""
        for entry in self.history:
            if entry.is_compensable and (entry.rollback_error or entry.data["rollback"].get("attempts")):
                policy = first_try(entry.data["rollback"])
                self.history.put(entry, data={**entry.data, "rollback": policy}, rollback_error=None)

    def pending_again(self) -> list[Message]:
        """Return the messages that are pending again, except those that the run will send to itself again."""
        return [each for each in self.returned if each.id not in self._retracted]

    def siblings(self) -> Iterator[tuple[str, str]]:
        """Yield the other branches of the joins around the boundary, each with its status."""
        segments = self.boundary.split("/")
        for depth in range(1, len(segments)):
            around = self.history.get("/".join(segments[:depth]))
            if around is None or around.kind not in FORKS:
                continue
            for name, status in around.data["branches"].items():
                if escape(name) != segments[depth]:
                    yield f"{around.location}/{escape(name)}", status["status"]

    # -- an output that is given by hand

    def refusals_of_giving(self) -> Iterator[str]:
        """Yield the reasons why the output of the target cannot be given by hand."""
        entry = self.history.deleted.get(self.target)
        if entry is None or entry.kind != EntryKind.STEP:
            text = gettext_noop('"{place}" is not a step: only the output of a step can be given')
            yield Sentence(text, place=self.target)
            return
        if self.boundary != self.target:
            text = gettext_noop('"{boundary}" starts again, and "{place}" with it: its output would be gone')
            yield Sentence(text, boundary=self.boundary, place=self.target)
        if "rollback" in entry.data:
            text = gettext_noop(
                '"{place}" has a rollback handler, which would undo what the step has not done: recover the run, or replay it'
            )
            yield Sentence(text, place=self.target)
        if entry.data.get(ATOMIC) and entry.status != EntryStatus.COMPLETED:
            text = gettext_noop(
                '"{place}" is atomic and has failed: its rows were not written, and an output would say they were'
            )
            yield Sentence(text, place=self.target)

    def give(self, output: str | None, given: dict[str, str], now: datetime) -> None:
        """Keep the target as a step completed with this output, which is codec text for the target of this run.

        `given` records who gave it, why and when. The failed attempts of the step stay. None of them produced this
        output, so the entry has no last attempt and no duration.
        """
        entry = self.history.deleted.pop(self.target)
        newest = max(max(each.ordinal, each.finished_ordinal or 0) for each in (entry, *self.history))
        data = {name: value for name, value in entry.data.items() if name != "failure"}
        self.history.put(
            entry,
            status=EntryStatus.COMPLETED,
            output=output,
            error=None,
            data={**data, "given": given},
            last_attempt_at=None,
            next_attempt_at=None,
            completed_at=now,
            finished_ordinal=newest + 1,
        )

    # -- an earlier replay

    def begins_elsewhere(self, earlier: RunRecord, entries: Sequence[EntryRecord]) -> bool:
        """Return True if an earlier replay of the run kept other entries than this one would; `entries` are its entries
        now.

        A kept entry has the time of its original, and is older than the new run. Entries that prove nothing are
        ignored: those that the original has since made anew, that a loop pruned, or that a replay in place removed.
        """
        if earlier.generations:
            return False
        there = {each.location: each for each in entries}

        def is_kept(entry: EntryRecord) -> bool | None:
            copy = there.get(entry.location)
            if entry.created_at > earlier.created_at or (copy is None and _ITERATION.search(entry.location)):
                return None
            if copy is None or copy.created_at != entry.created_at:
                return False
            # created at the same moment of a frozen clock
            return True if entry.created_at < earlier.created_at else None

        lacks = any(is_kept(each) is False for each in self.history)
        return lacks or any(is_kept(each) is True for each in self.history.deleted.values())

    # -- the changes to write

    def in_place(self, now: datetime) -> RunChange:
        """Return the change for a replay in place, which continues at `now`."""
        patch = transitions.replayed(self.run, now=now, generations=self._generations(), summary=self.summary)
        if self.run.state in ENDED:
            for entry in self.history:
                if entry.status == EntryStatus.HELD:
                    self.history.put(held_anew(entry))
        change = self.history.change(self.run, patch, lambda: self._messages)
        change.is_status_over = True  # what it says may not be so any more
        change.is_held_over = _any_held(self.history.deleted.values()) and not _any_held(self.history)
        return change

    @property
    def summary(self) -> Summary:
        return Summary(SummaryKind.REPLAYED, location=self.boundary)

    def _generations(self) -> dict[str, int]:
        """Raise the generations of the steps that run again, pruned iterations included, so that they get new
        idempotency keys.
        """
        generations = left_by_replay(self.run, self.history.deleted.values())
        kinds = (EntryKind.STEP, EntryKind.LOOP, *FORKS)
        tops = [each for each in self._tops() if self.history.deleted[each].kind in kinds]
        for location in tops if self.history.kept else [""]:
            generations[location] = generations.get(location, 0) + 1
        return generations

    def history_of(
        self, run_id: str, new_id: Callable[[], str], copied: Copied
    ) -> tuple[list[EntryRecord], list[Message]]:
        """Return the kept entries and messages as the history and the inbox of a new run.

        Messages get new ids, and references to a message or to the run itself are rewritten. `copied(text, old, new)`
        re-encodes codec text for another place; it may raise PayloadError.
        """
        staying = [each for each in self._messages if each.id not in self._retracted]
        ids = {each.id: new_id() for each in staying}
        returned = {each.id for each in self.returned}
        inbox = []
        for each in staying:
            copy = moved_message(each, run_id, ids[each.id], copied)
            if each.id in returned:
                copy = replace(copy, state=str(MessageState.PENDING), received_by="", response=None)
            inbox.append(copy)
        return [moved_entry(entry, self.run.id, run_id, ids, copied) for entry in self.history], inbox


def _any_held(entries: Iterable[EntryRecord]) -> bool:
    return any(each.status == EntryStatus.HELD for each in entries)


def nearest(target: str, locations: Sequence[str]) -> list[str]:
    """Return the locations most similar to the requested one, for an error text."""
    return difflib.get_close_matches(target, locations, n=3)


def _has_place(around: EntryRecord, segment: str) -> bool:
    """Whether a branch or an iteration of `around` that recorded nothing is called `segment`."""
    if around.kind in FORKS:
        return any(escape(name) == segment for name in around.data["branches"])
    number = _ITERATION.fullmatch(segment)
    return around.kind == EntryKind.LOOP and number is not None and int(number[1]) <= around.data["iteration"]
