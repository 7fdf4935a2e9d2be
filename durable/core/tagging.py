"""Tags that a run gives itself: one entry for each call, and the rows of the tags in the commit of the entry.

A step begins after that commit, so that the run is found by its tags while the step is executed.

A call has no name: as a send, it is numbered in its scope. The entry has the values as they are stored, and those that
they have replaced, so that a replay can take them back (`durable.core.tag_entries`).
"""

from __future__ import annotations

from collections.abc import Mapping

from durable.core.effects import SAVE, Operation, PeekTags
from durable.core.records import EntryKind
from durable.core.scope import Scope
from durable.core.tags import TagValue, check_number, check_tags


def tag(scope: Scope, tags: Mapping[str, TagValue]) -> Operation:
    """Set these tags of the run. Raises TypeError and ValueError for what is no tag, and for more than 8 tags in all.

    A recorded call that has set none of these tags was another one: the code does not fit the history.
    """
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
        if scope.is_concurrent:
            yield SAVE  # another branch may be executed for long before this pass commits
    elif not texts.keys() & entry.data["tags"].keys():
        old, new = (", ".join(sorted(names)) for names in (entry.data["tags"], texts))
        scope.cursor.diverged(f'"{node.location}" set the tag {old:.200}, the code now sets {new:.200}', node.location)
    scope.determinism.observe(entry)
