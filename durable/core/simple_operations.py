"""Operations with one entry: sleeps, tags that a run gives itself, values that it publishes, and versions of the code.

Owns their records. A sleep is one entry, which exists from the start of the sleep and has its deadline.

A call that tags the run has no name: it is numbered in its scope, as a send is. Its entry has the stored values and
those that they replaced, so that a replay can restore them (`durable.core.tags`). A later step begins after the commit
of the tags, so that the run is found by them while the step is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from durable.core.control_flow import Park
from durable.core.duration import later
from durable.core.effects import SAVE, Ask, Operation, ShortSleep
from durable.core.journal import Node
from durable.core.numbers import check_whole
from durable.core.once import asked_anew, failed_by
from durable.core.outcomes import is_unsettled
from durable.core.records import EntryKind, EntryRecord, EntryStatus
from durable.core.results import Markdown
from durable.core.scope import Scope
from durable.core.summary import asleep
from durable.core.tags import TagValue, check_number, check_tags


def sleep(scope: Scope, name: str, duration: timedelta | None, moment: datetime | None) -> Operation:
    """Wait for `duration` to pass, or until `moment`."""
    node = scope.cursor.match(EntryKind.SLEEP, name)
    entry = node.entry
    if entry is None:
        deadline = moment if moment is not None else later(scope.environment.now(), duration or timedelta(), "a wait")
        entry = scope.create(node, EntryKind.SLEEP, data={"state": "pending", "deadline": deadline.isoformat()})
        scope.journal.update(entry)
        is_new = True
    elif entry.data["state"] != "pending":
        scope.determinism.observe(entry)
        return
    else:
        deadline = datetime.fromisoformat(entry.data["deadline"])
        is_new = False
    yield from _wait_until(scope, entry, deadline, is_new)
    if scope.doubt is not None:
        scope.doubt.end_behind(scope.journal, entry, deadline)
    scope.journal.finish(entry, data={**entry.data, "state": "completed"})
    scope.determinism.observe(entry)


def _wait_until(scope: Scope, entry: EntryRecord, deadline: datetime, is_new: bool) -> Operation:
    remaining = (deadline - scope.environment.now()).total_seconds()
    if remaining <= 0:
        return
    if remaining < scope.environment.short_sleep:
        yield ShortSleep(remaining)
        return
    if is_new and scope.is_concurrent:
        yield SAVE  # another branch may run for long before this pass parks and commits
    raise Park(deadline, doing=[asleep(entry.location)])


@dataclass(frozen=True, slots=True)
class PeekTags(Ask):
    """Query the tags of the run, as they are stored. Answer: a dict of values by name."""


def tag(scope: Scope, tags: Mapping[str, TagValue]) -> Operation:
    """Set these tags of the run. Raises TypeError and ValueError for an invalid tag, and for more than 8 tags in all.

    If the recorded call set none of these tags, the code does not fit the history.
    """
    if not tags:
        raise TypeError('tag() takes at least one tag: ctx.tag(stage="paid")')
    texts = check_tags(tags)
    node = scope.cursor.match_numbered(EntryKind.TAG)
    entry = node.entry
    if entry is None:
        journal = scope.journal
        stored = scope.environment.stored_tags(texts)
        if journal.tags is None:
            found = yield PeekTags()
            with journal.lock:
                journal.tags = found if journal.tags is None else journal.tags  # set by another branch meanwhile
        with journal.lock:
            check_number({*journal.tags, *stored})
            before = {name: journal.tags.get(name) for name in stored}
            entry = scope.create(node, EntryKind.TAG, data={"tags": stored, "before": before})
            journal.set_tags(stored)
            journal.finish(entry)
        if scope.is_concurrent:
            yield SAVE  # another branch may be executed for long before this pass commits
    elif not texts.keys() & entry.data["tags"].keys():
        old, new = (", ".join(sorted(names)) for names in (entry.data["tags"], texts))
        scope.cursor.diverged(f'"{node.location}" set the tag {old:.200}, the code now sets {new:.200}', node.location)
    scope.determinism.observe(entry)


def publish(scope: Scope, name: str, value: Any) -> Operation:
    """Record a value under this name, for readers of the run. It is committed at once, and once."""
    node = scope.cursor.match_value(name)
    entry = node.entry
    if entry is None:
        text = scope.environment.encode(value, f'the value "{name}"', "output", node.location)
        entry = scope.create(node, EntryKind.PUBLISH, data={"as": kind_of_value(value)})
        scope.journal.finish(entry, output=text)
        scope.journal.note_value(entry)
        yield SAVE
    scope.determinism.observe(entry)


def kind_of_value(value: Any) -> str:
    """Return how a value is shown: "number", "text", "markdown", "table" (a list of dicts) or "json"."""
    if isinstance(value, Markdown):
        return "markdown"
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return "number"
    if isinstance(value, str):
        return "text"
    is_table = isinstance(value, list) and value and all(isinstance(each, dict) and each for each in value)
    return "table" if is_table else "json"


def rollback_checkpoint(scope: Scope, name: str) -> Operation:
    """Mark that later steps of this scope, and of scopes inside, may have rollback handlers."""
    node = scope.cursor.match(EntryKind.ROLLBACK_CHECKPOINT, name)
    if node.entry is None:
        scope.journal.finish(scope.create(node, EntryKind.ROLLBACK_CHECKPOINT))
    scope.has_checkpoint = True
    yield from ()  # an operation is a generator, even if it yields no effect


def removed(scope: Scope, name: str, kind: str) -> Operation:
    """Stand in for an operation that the code no longer has: the entry `name` of this kind."""
    if kind not in set(EntryKind):
        raise ValueError(f"removed knows the kinds {', '.join(EntryKind)}, not {kind!r}")
    node = _match(scope, name, kind)
    entry = node.entry
    if entry is not None and entry.kind not in (EntryKind.REMOVED, kind):
        scope.cursor.diverged(
            f'expected a {kind} or its removal at "{node.location}", found a {entry.kind}', node.location
        )
    if entry is None and not node.children:
        scope.journal.finish(scope.create(node, EntryKind.REMOVED, data={"original": str(kind)}))
    for within in [node, *node.walk()]:
        held = within.entry
        if held is not None and held.status == EntryStatus.HELD:  # the code does not wait for a person any more
            scope.journal.update(held, **(asked_anew(held) if is_unsettled(held) else failed_by(held)))
    yield from ()


def _match(scope: Scope, name: str, kind: str) -> Node:
    # sends, compensations and tags have no names: they are numbered, and a removed one keeps its number
    if kind in (EntryKind.SEND, EntryKind.COMPENSATE, EntryKind.TAG):
        return scope.cursor.match_numbered(EntryKind(kind), is_removed=True)
    if kind == EntryKind.PUBLISH:  # a name may be used again
        return scope.cursor.match_value(name, EntryKind.REMOVED)
    return scope.cursor.match(EntryKind.REMOVED, name)


def get_version(scope: Scope, name: str, latest: int) -> Operation:
    """Return this run's version of the code path `name`, and record it.

    A run that comes to this call for the first time gets `latest`. A run whose history already goes past it gets 1.
    """
    check_whole("latest", latest, least=1)
    node = scope.cursor.match(EntryKind.VERSION_CHECK, name)
    entry = node.entry
    if entry is None:
        resolved = 1 if scope.cursor.unvisited() else latest
        entry = scope.create(node, EntryKind.VERSION_CHECK, data={"resolved": resolved, "latest": latest})
        scope.journal.finish(entry)
    scope.determinism.observe(entry)
    yield from ()
    return entry.data["resolved"]
