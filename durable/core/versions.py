"""Operations about the code's own history: checkpoints, removed operations, version pins."""

from __future__ import annotations

from durable.core.effects import Operation
from durable.core.journal import Node
from durable.core.records import EntryKind
from durable.core.scope import Scope


def rollback_checkpoint(scope: Scope, name: str) -> Operation:
    """Mark that from here on steps of this scope, and of scopes in it, may have rollback handlers."""
    node = scope.cursor.match(EntryKind.ROLLBACK_CHECKPOINT, name)
    if node.entry is None:
        scope.journal.finish(scope.create(node, EntryKind.ROLLBACK_CHECKPOINT))
    scope.has_checkpoint = True
    yield from ()  # an operation is a generator, even if it yields no effect


def removed(scope: Scope, name: str, kind: str) -> Operation:
    """Stand in for the entry `name` of this kind, which the code no longer makes."""
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
    yield from ()


def _match(scope: Scope, name: str, kind: str) -> Node:
    # sends, compensations and tags have no names: they are numbered, and a removed one keeps its number
    if kind == EntryKind.SEND:
        return scope.cursor.match_send(EntryKind.REMOVED)
    if kind == EntryKind.COMPENSATE:
        return scope.cursor.match_compensation(EntryKind.REMOVED)
    if kind == EntryKind.TAG:
        return scope.cursor.match_tag(EntryKind.REMOVED)
    return scope.cursor.match(EntryKind.REMOVED, name)


def get_version(scope: Scope, name: str, latest: int) -> Operation:
    """Return this run's version of the code path `name`, and record it.

    A run that reaches this call for the first time gets `latest`; a run whose history already continues past it gets 1.
    """
    if not isinstance(latest, int) or isinstance(latest, bool) or latest < 1:
        raise ValueError(f"latest must be a whole number of at least 1, not {latest!r}")
    node = scope.cursor.match(EntryKind.VERSION_CHECK, name)
    entry = node.entry
    if entry is None:
        resolved = 1 if scope.cursor.unvisited() else latest
        entry = scope.create(node, EntryKind.VERSION_CHECK, data={"resolved": resolved, "latest": latest})
        scope.journal.finish(entry)
    scope.determinism.observe(entry)
    yield from ()
    return entry.data["resolved"]
