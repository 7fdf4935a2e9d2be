"""Maps: one child for each input, of which a bounded number runs at a time.

Owns the records of maps. A map is one entry, whatever the number of children. The entry is written with each batch of
children that it starts, in one commit; then the parent parks. The group counts its children and lets the next one begin
when another ends (`durable.store.rules.child_rules`). So the parent has no pass until all have ended or, with
`on_failure="stop"`, one has failed. The outputs are then copied into the entry, so the children may be pruned
afterwards.

A recovery of the parent recovers the failed children in batches, each child in a transaction of its own. The entry
records the progress, so a crash repeats one batch at most. The parent stays open meanwhile, so no sweep cancels the
children that continue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from durable.core.children.entries import AGAIN, ANEW, CLOSED, REPLACED, group_of, is_taken_back
from durable.core.children.operations import ChildRequest, child_run, ids_at
from durable.core.children.questions import PeekGroup, PeekMembers, PeekTaken, RecoverChild
from durable.core.children.rollback import POLICY, cancel_open, replace_undone, undo_group_before_anew
from durable.core.compatibility import unmarked, unreadable
from durable.core.control_flow import Park
from durable.core.effects import SAVE, Operation, Save
from durable.core.errors import ErrorInfo, MapError, PayloadError, RollbackCheckpointError
from durable.core.ids import MAX_ID
from durable.core.names.renames import is_same, is_same_workflow
from durable.core.records import (
    ChildRecord,
    ChildStart,
    EntryKind,
    EntryRecord,
    EntryStatus,
    GroupChange,
    GroupRecord,
    GroupSpec,
    Member,
    OnFailure,
    RunState,
    WhenHeld,
)
from durable.core.results import Failure, MapChild, MapResult, with_failure
from durable.core.scope import Scope
from durable.core.summary import awaiting_group

_BATCH: Final = 100  # children recovered between two commits, which record the progress


def recover_failed(scope: Scope, entry: EntryRecord) -> Operation:
    """Recover the failed children of the map, so that the group counts them as running or waiting again."""
    journal, group_id = scope.journal, entry.data["group"]
    group: GroupRecord | None = yield PeekGroup(group_id)
    again = entry.data[AGAIN]
    if group is not None and "of" not in again:
        again = {**again, "of": group.failed, "done": 0, "after": -1}
        with journal.lock:  # the group is open again before the first child continues
            journal.add(GroupChange(id=group_id, is_continued=True))
            journal.update(entry, data={**entry.data, AGAIN: again})
        yield SAVE
    while group is not None:
        found: list[Member] = yield PeekMembers(group_id, again["after"], _BATCH)
        for member in found:
            if member.state == RunState.FAILED:
                scope.guard.check_may_go_on()
                yield RecoverChild(member.run_id, again["by"])
        if len(found) < _BATCH:
            break
        group = yield PeekGroup(group_id)
        left = 0 if group is None else group.failed
        again = {**again, "done": max(0, again["of"] - left), "after": found[-1].position}
        journal.update(entry, data={**entry.data, AGAIN: again})
        yield SAVE
    journal.update(entry, data={name: value for name, value in entry.data.items() if name != AGAIN})
    yield SAVE


_START_BATCH: Final = 500  # children that one commit starts, or one query reads
_LONGEST: Final = MAX_ID - 16  # characters of a group's id; those of its children have a number more
_HASHED_PREFIX: Final = 150  # characters of the group's id in an id that is hashed
_LISTED: Final = 3  # failed children that the text of an error names
_MESSAGE: Final = 500  # characters of a child's error that are copied; the child has the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRequest:
    """The children to start, in the order of the inputs. `at_once` is how many run at a time; None for all.

    With `when_held` "free", children whose steps are held do not count among them.
    """

    workflow: str
    children: Sequence[ChildRequest]
    at_once: int | None = None
    on_failure: str = OnFailure.STOP
    when_held: str = WhenHeld.KEEP


def map_children(scope: Scope, name: str, request: MapRequest) -> Operation:
    """Start a child for each input, wait, and return how they ended, as a MapResult. Raises MapError."""
    if (has_rollback := any(each.rollback for each in request.children[:1])) and not scope.has_checkpoint:
        raise RollbackCheckpointError(name)
    entry = _matched(scope, name, request, POLICY if has_rollback else None)
    if entry.status == EntryStatus.EXHAUSTED:
        raise _failure(name, entry)
    if entry.status != EntryStatus.COMPLETED:
        if not request.children:
            yield from _finish(scope, entry, [])
        else:
            if entry.data.get(ANEW):
                yield from _check_is_own(scope, entry)
            yield from _start_all(scope, entry, request)
            if AGAIN in entry.data:
                yield from recover_failed(scope, entry)
            if entry.data.get(ANEW):
                yield from _start_lost(scope, entry, request)
            yield from _wait(scope, name, entry)
    scope.determinism.observe(entry)
    return _result(scope, entry)


def _matched(scope: Scope, name: str, request: MapRequest, rollback: dict[str, Any] | None) -> EntryRecord:
    """Return the entry of the map, new or recorded. Raises HistoryDivergedError if the recorded one does not fit."""
    node = scope.cursor.match(EntryKind.MAP, name)
    entry = node.entry
    size = len(request.children)
    if entry is not None:
        found = entry.data["workflow"], entry.data["size"]
        if found[1] != size or not is_same_workflow(found[0], request.workflow):
            scope.cursor.diverged(
                f'"{node.location}" was recorded as a map of {found[0]} over {found[1]} inputs, the code now has one of '
                f"{request.workflow} over {size}",
                node.location,
            )
        return entry
    position = scope.journal.reserve(size)  # before the entry, whose number keeps them taken
    data: dict[str, Any] = {
        "workflow": request.workflow,
        "size": size,
        "position": position,
        "at_once": request.at_once,
        "on_failure": str(request.on_failure),
    }
    if request.when_held != WhenHeld.KEEP:
        data["when_held"] = str(request.when_held)
    if request.children:
        data["when_parent_ends"] = str(request.children[0].when_parent_ends)
    if rollback is not None:
        data["rollback"] = rollback
    return scope.create(node, EntryKind.MAP, data=data)


# -- the start


def _start_all(scope: Scope, entry: EntryRecord, request: MapRequest) -> Operation:
    """Start the children that were not started yet, one batch for each commit."""
    size = len(request.children)
    if group_of(entry) is None:
        yield from _choose_group(scope, entry)
    while (created := entry.data.get("created", 0)) < size:
        numbers = range(created, min(created + _START_BATCH, size))
        yield from _start(scope, entry, request, numbers)
        scope.guard.check_may_go_on()


def _check_is_own(scope: Scope, entry: EntryRecord) -> Operation:
    """Forget the group if another run owns it: a replay copied the entry, and this run starts its own children."""
    group: GroupRecord | None = yield PeekGroup(entry.data["group"])
    if group is None or group.spec.parent_id != scope.journal.run.id:
        gone = ("group", "generation", "created", "ids", ANEW, AGAIN, REPLACED)
        data = {name: value for name, value in entry.data.items() if name not in gone}
        scope.journal.update(entry, data=unmarked(data))


def _choose_group(scope: Scope, entry: EntryRecord) -> Operation:
    """Choose the first free id for the group and note it in the entry, without a commit."""
    run = scope.journal.run
    before: GroupRecord | None = None  # the group of this operation that was made last, and taken back
    for base in ids_at(run, entry.location):
        if len(base) > _LONGEST:
            continue
        generation = 0
        while True:
            group_id = f"{base}~{generation}" if generation else base
            found: GroupRecord | None = yield PeekGroup(group_id)
            if found is None:
                if before is not None and "rollback" in entry.data and is_taken_back(run, entry.location):
                    yield from undo_group_before_anew(
                        scope.journal, entry.location, before, scope.guard.check_may_go_on
                    )
                data = {**entry.data, "group": group_id, "generation": generation, "created": 0}
                scope.journal.update(entry, data=data)
                return
            if found.spec.parent_id != run.id or not is_same(run.workflow, found.spec.location, entry.location):
                break  # the id is taken by another run's group, or by that of another place
            generation, before = generation + 1, found
    raise AssertionError("a hashed id is free")


def _start(scope: Scope, entry: EntryRecord, request: MapRequest, numbers: Sequence[int]) -> Operation:
    data = entry.data
    group_id = data["group"]
    wanted = [_child_id(group_id, number) for number in numbers]
    taken: set[str] = yield PeekTaken(wanted)
    ids = [_other_id(group_id, number) if each in taken else each for number, each in zip(numbers, wanted, strict=True)]
    starts = [
        _begin(scope, entry, request.children[number], number, child_id, data["generation"])
        for number, child_id in zip(numbers, ids, strict=True)
    ]
    others = {
        str(number): child_id for number, child_id, own in zip(numbers, ids, wanted, strict=True) if child_id != own
    }
    spec = None
    if numbers[0] == 0:
        spec = GroupSpec(
            id=group_id,
            parent_id=scope.journal.run.id,
            location=entry.location,
            size=data["size"],
            position=data["position"],
            at_once=data["at_once"],
            on_failure=data["on_failure"],
            generation=data["generation"],
            when_parent_ends=data["when_parent_ends"],
            when_held=data.get("when_held", WhenHeld.KEEP),
        )
    created = numbers[-1] + 1
    with scope.journal.lock:  # both in one commit, whichever branch makes it
        scope.journal.add(GroupChange(id=group_id, new=spec, starts=starts, created=created))
        more = {"ids": {**data.get("ids", {}), **others}} if others else {}
        scope.journal.update(entry, data={**data, **more, "created": created})
    yield SAVE


def _start_lost(scope: Scope, entry: EntryRecord, request: MapRequest) -> Operation:
    """Start new children in the places of the cancelled ones, and continue the group, after a recovery of the run.

    With `rollback=True`, what the cancelled ones did is undone first.
    """

    def begin(number: int, child_id: str, generation: int) -> ChildStart:
        plain = child_id.removesuffix(f"~{generation}") if generation else child_id
        new_id = f"{plain}~{generation + 1}"
        return _begin(scope, entry, request.children[number], number, new_id, generation + 1)

    if "rollback" in entry.data:
        yield from replace_undone(scope, entry, begin)
        return
    group_id = entry.data["group"]
    after = -1
    while True:
        found: list[Member] = yield PeekMembers(group_id, after, _START_BATCH, is_lost=True)
        starts = []
        others = dict(entry.data.get("ids", {}))
        for member in found:
            number = member.position - entry.data["position"]
            starts.append(begin(number, member.run_id, member.generation))
            others[str(number)] = starts[-1].run.id
            after = member.position
        change = GroupChange(
            id=group_id, starts=starts, renewed=[each.run_id for each in found], is_continued=len(found) < _START_BATCH
        )
        data = {**entry.data, "ids": others}
        if change.is_continued:
            del data[ANEW]
        with scope.journal.lock:
            scope.journal.add(change)
            scope.journal.update(entry, data=data)
        yield SAVE
        if change.is_continued:
            return
        scope.guard.check_may_go_on()


def _begin(
    scope: Scope, entry: EntryRecord, request: ChildRequest, number: int, child_id: str, generation: int
) -> ChildStart:
    run = child_run(scope, request, child_id, f"input {number} of {request.workflow}")
    child = ChildRecord(
        run_id=child_id,
        parent_id=scope.journal.run.id,
        location=entry.location,
        position=entry.data["position"] + number,
        generation=generation,
        when_parent_ends=request.when_parent_ends,
        group=entry.location,
        member_of=entry.data["group"],
    )
    return ChildStart(run, child)


def _child_id(group_id: str, number: int) -> str:
    return f"{group_id}:{number}"


def _other_id(group_id: str, number: int) -> str:
    """Return the id of a child whose usual id another run has taken."""
    digest = hashlib.sha256(f"{group_id}\0{number}".encode()).hexdigest()[:32]
    return f"{group_id[:_HASHED_PREFIX]}:{digest}"


# -- the wait


def _wait(scope: Scope, name: str, entry: EntryRecord) -> Operation:
    """Record how the children have ended, or park."""
    group_id = entry.data["group"]
    if entry.data.get(CLOSED):
        yield from cancel_open(scope.journal, entry, scope.guard.check_may_go_on)
    group: GroupRecord | None = yield PeekGroup(group_id)
    if group is not None and not group.is_settled:
        doing = [awaiting_group(entry.location, group.spec.size)]
        raise Park(None, doing=doing, groups=frozenset({group_id}))
    members: list[Member] = yield from _read(group_id)
    if entry.data["on_failure"] == OnFailure.STOP and not _all_completed(entry, members):
        if "rollback" in entry.data:
            yield from cancel_open(scope.journal, entry, scope.guard.check_may_go_on)
            members = yield from _read(group_id)
        yield from _fail(scope, name, entry, members)
    yield from _finish(scope, entry, members)


def _read(group_id: str) -> Operation:
    found: list[Member] = []
    while True:
        batch: list[Member] = yield PeekMembers(group_id, found[-1].position if found else -1, _START_BATCH)
        found += batch
        if len(batch) < _START_BATCH:
            return found


def _all_completed(entry: EntryRecord, members: Sequence[Member]) -> bool:
    return len(members) == entry.data["size"] and all(each.state == RunState.COMPLETED for each in members)


# -- the end


def _finish(scope: Scope, entry: EntryRecord, members: Sequence[Member]) -> Operation:
    """Record the results of the children."""
    found = {member.position - entry.data["position"]: member for member in members}
    outputs: list[Any] = []
    failed: list[list[Any]] = []
    cancelled: list[list[Any]] = []
    for number in range(entry.data["size"]):
        member = found.get(number)
        if member is None:
            cancelled.append([number, "its run was deleted"])
        elif member.state == RunState.COMPLETED:
            outputs.append(_output(scope, entry, member))
        elif member.state == RunState.FAILED:
            error = _shortened(member.error)
            failed.append([number, error.type, error.message])
        else:
            cancelled.append([number, member.reason])
    value = {"outputs": outputs, "failed": failed, "cancelled": cancelled}
    text = scope.environment.encode(value, "the results of the map", "output", entry.location, is_collected=True)
    counts = {"completed": len(outputs), "failed": len(failed), "cancelled": len(cancelled)}
    if (group_id := group_of(entry)) is not None:
        scope.journal.add(GroupChange(id=group_id, is_read=True))
    scope.journal.finish(entry, output=text, data={**entry.data, "ended": counts})
    yield SAVE


def _output(scope: Scope, entry: EntryRecord, member: Member) -> Any:
    environment = scope.environment
    try:
        text = environment.adopt(member.output or "null", member.run_id, entry.location)
        return environment.decode(text, "output", entry.location)
    except PayloadError as error:
        scope.journal.stop(unreadable(entry.location, f'the output of the child "{member.run_id}"', error))


def _shortened(error: ErrorInfo | None) -> ErrorInfo:
    if error is None:
        return ErrorInfo("Exception", "unknown")
    return ErrorInfo(error.type, error.message[:_MESSAGE])


def _result(scope: Scope, entry: EntryRecord) -> MapResult[Any]:
    value = scope.recorded(entry.location, "the results of the map", entry.output)
    failed = {number: ErrorInfo(*error) for number, *error in value["failed"]}
    cancelled = dict(value["cancelled"])
    outputs = iter(value["outputs"])
    children: list[MapChild[Any]] = []
    for number in range(entry.data["size"]):
        child_id = _id_of(entry, number)
        if number in failed:
            children.append(MapChild(number, child_id, "failed", error=failed[number]))
        elif number in cancelled:
            children.append(MapChild(number, child_id, "cancelled", reason=cancelled[number]))
        else:
            children.append(MapChild(number, child_id, "completed", output=next(outputs)))
    return MapResult(children)


def _id_of(entry: EntryRecord, number: int) -> str:
    found: str = entry.data.get("ids", {}).get(str(number)) or _child_id(entry.data["group"], number)
    return found


def _fail(scope: Scope, name: str, entry: EntryRecord, members: Iterable[Member]) -> Operation:
    """Record that the map has failed; the commit cancels the children that have not ended."""
    ended = [(each.position - entry.data["position"], each) for each in members]
    failed = [(number, each) for number, each in ended if each.state == RunState.FAILED]
    completed = sum(each.state == RunState.COMPLETED for _, each in ended)
    cancelled = entry.data["size"] - len(failed) - completed
    first = [[number, each.run_id, *_listed(each)] for number, each in failed[:_LISTED]]
    counts = {"completed": completed, "failed": len(failed), "cancelled": cancelled}
    data = {**entry.data, "ended": counts, "failure": {"kind": "failed", "first": first}}
    scope.journal.add(GroupChange(id=data["group"], is_read=True, is_dropped=True))
    scope.journal.update(
        entry,
        status=EntryStatus.EXHAUSTED,
        error=ErrorInfo.of(_error(name, data)),
        last_attempt_at=scope.environment.now(),
        data=data,
    )
    yield Save(is_failure=True)
    raise _failure(name, entry)


def _listed(member: Member) -> tuple[str, str]:
    error = _shortened(member.error)
    return error.type, error.message


def _error(name: str, data: dict[str, Any]) -> MapError:
    first = [(child_id, ErrorInfo(*error)) for _, child_id, *error in data["failure"]["first"]]
    ended = data["ended"]
    return MapError(name, data["workflow"], data["size"], ended["failed"], ended["cancelled"], first)


def _failure(name: str, entry: EntryRecord) -> Exception:
    info = entry.error or ErrorInfo("MapError", "unknown")
    return with_failure(_error(name, entry.data), Failure("map", name, (entry.location,), info))
