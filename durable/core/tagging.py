"""Tags that a run gives itself: one entry for each call, and the rows of the tags in the commit of the entry.

A call has no name: as a send, it is numbered in its scope. The entry has the values as they are stored, and those that
they have replaced, so that a replay can take them back (`rewound`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from durable.core.effects import Operation, PeekTags
from durable.core.records import EntryKind, EntryRecord
from durable.core.scope import Scope
from durable.core.tags import TagValue, check_number, check_tags

__all__ = ["rewound", "tag"]


def tag(scope: Scope, tags: Mapping[str, TagValue]) -> Operation:
    """Set these tags of the run. Raises TypeError and ValueError for what is no tag, or for more than 8 tags in all."""
    if not tags:
        raise TypeError('tag() takes at least one tag: ctx.tag(stage="paid")')
    texts = check_tags(tags)
    node = scope.cursor.match_tag()
    entry = node.entry
    if entry is None:
        journal = scope.journal
        stored = scope.environment.stored_tags(texts)
        if journal.tags is None:
            found = yield PeekTags()
            with journal.lock:
                journal.tags = found if journal.tags is None else journal.tags  # of another branch meanwhile
        with journal.lock:
            check_number({*journal.tags, *stored})
            before = {name: journal.tags.get(name) for name in stored}
            entry = scope.create(node, EntryKind.TAG, data={"tags": stored, "before": before})
            journal.set_tags(stored)
            journal.finish(entry)
    scope.determinism.observe(entry)


def rewound(entries: Iterable[EntryRecord], gone: Collection[str]) -> dict[str, str | None]:
    """Return what is left of tags once the entries at these locations are gone: the values that they have replaced.

    None for a tag that the run did not have before. A tag that an entry which stays has set later keeps its value.
    """
    of_tags = [entry for entry in entries if entry.kind == EntryKind.TAG]
    newest_first = sorted(of_tags, key=lambda entry: entry.ordinal, reverse=True)
    by_name: dict[str, list[EntryRecord]] = {}
    for entry in newest_first:
        for name in entry.data["tags"]:
            by_name.setdefault(name, []).append(entry)
    found: dict[str, str | None] = {}
    for name, of_name in by_name.items():
        is_gone, first = next(groupby(of_name, key=lambda entry: entry.location in gone))
        if is_gone:
            *_, oldest = first
            found[name] = oldest.data["before"].get(name)
    return found
