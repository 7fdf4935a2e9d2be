"""Children: runs that workflow code starts as its own, and waits for.

If a run that is not a child of this operation has the key, the start is refused, or that run is cancelled
(`if_open="replace"`). A run that others have started is never taken as the child: it would neither end with this parent
nor wake it. The key itself is taken by the commit that starts the child.

Owns their records. The entry that starts a child and the child itself are one commit. A wait for a child is an entry
that exists from the start of the wait and has its deadline; the child's output or error is copied into it when the
parent sees it, so the child may be pruned afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from durable.core import transitions
from durable.core.children.entries import ANEW, CALL, DEADLOCK, RESULT, START, TIMEOUT, is_taken_back, is_to_start
from durable.core.children.questions import KeyOwner, PeekChild, PeekKey, Supersede
from durable.core.children.rollback import LOOK_EVERY, POLICY, undo_before_anew
from durable.core.compatibility import unreadable
from durable.core.control_flow import Park, StartRefused
from durable.core.duration import later
from durable.core.effects import SAVE, Operation, Save
from durable.core.errors import (
    ChildCancelledError,
    ChildFailedError,
    ChildTimeoutError,
    DeadlockError,
    ErrorInfo,
    KeyConflictError,
    PayloadError,
    RollbackCheckpointError,
    RunConflictError,
)
from durable.core.ids import MAX_ID, check_id
from durable.core.limits.slot_records import SlotKind, SlotWant
from durable.core.limits.slots import Deadlock, PeekDeadlock
from durable.core.limits.workflow_limits import WorkflowLimits
from durable.core.names.renames import canonical, is_same, is_same_workflow
from durable.core.new_runs import How, NewRun
from durable.core.records import (
    ENDED,
    ChildRecord,
    ChildStart,
    EntryKind,
    EntryRecord,
    EntryStatus,
    Request,
    RunChange,
    RunRecord,
    RunState,
    WhenParentEnds,
    is_leased,
)
from durable.core.results import Failure, with_failure
from durable.core.scope import Scope
from durable.core.summary import Summary, SummaryKind, awaiting

_REASON: Final = 'replaced by run "{child}", which was started with its key'


@dataclass(frozen=True, slots=True)
class ChildKey:
    """The key of a child, and whether an open run that has it is cancelled so that the child can start."""

    key: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """A start that was refused because an open run has the key. `chain` leads from that run to this one, if it does."""

    key: str
    owner: str
    chain: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: dict[str, Any]) -> KeyRefusal:
        """Read the refusal from an entry's data."""
        return cls(data["key"], data["owner"], tuple(data["chain"]))

    def to_data(self) -> dict[str, Any]:
        return {"key": self.key, "owner": self.owner, "chain": list(self.chain)}

    def error(self) -> KeyConflictError:
        return KeyConflictError(self.owner, self.key, is_child=True, chain=self.chain)


def freed(run: RunRecord, location: str, workflow: str, wanted: ChildKey, child_id: str) -> Operation:
    """Free the key for the child that is about to start, or return a `KeyRefusal`.

    An earlier child of this operation that was taken back and has not ended gives up its key.
    """
    while True:
        owner: KeyOwner | None = yield PeekKey(workflow, wanted.key)
        if owner is None:
            return None
        child = owner.child
        is_own = child is not None and child.parent_id == run.id and is_same(run.workflow, child.location, location)
        refusal = KeyRefusal(wanted.key, owner.run_id, owner.chain)
        if owner.chain or not (is_own or wanted.replaces):
            return refusal
        has_gone = yield Supersede(workflow, wanted.key, owner.run_id, _REASON.format(child=child_id))
        if not has_gone:
            return refusal


def change_of(owner: RunRecord, reason: str, now: datetime, *, hands_over: bool) -> RunChange | None:
    """Return the change that cancels the run that has the key; None if that run is being compensated.

    The caller has locked the run's row. `hands_over`: a worker has to end it, if none has it now.
    """
    if owner.state == RunState.ROLLING_BACK or owner.state_after_rollback:
        return None
    if owner.state in ENDED or owner.pending_request in (Request.CANCEL, Request.CANCEL_ROLLBACK):
        return RunChange(run={"change_seq": owner.change_seq})
    if is_leased(owner, now):
        return RunChange(run=transitions.cancel_requested(owner, request=Request.CANCEL, reason=reason))
    if hands_over:
        summary = Summary(SummaryKind.CANCELLING, reason=reason)
        return RunChange(run=transitions.cancel_handed_over(owner, now=now, reason=reason, summary=summary))
    summary = Summary(SummaryKind.CANCELLED, reason=reason)
    return RunChange(run=transitions.cancelled_at_once(owner, now=now, reason=reason, summary=summary))


_HASHED_PREFIX: Final = 150  # characters of the parent's id in an id that is hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest:
    """The child to start, and how. `handle` makes the handle of a run's id."""

    workflow: str
    queue: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    handle: Callable[[str], Any]
    how: How
    run_id: str | None = None
    when_parent_ends: str = WhenParentEnds.CANCEL
    rollback: bool = False
    key: ChildKey | None = None
    #: The limits of the workflow, None for none.
    limits: WorkflowLimits | None = None

    def wants(self) -> tuple[SlotWant, ...]:
        """Return the slots that the child will want. Returns () if a key cannot be computed; the child reports that
        error.
        """
        if self.limits is None:
            return ()
        try:
            return tuple(self.limits.wants(self.args, self.kwargs))
        except Exception:  # of the function that makes the key
            return ()


def call_child(scope: Scope, name: str, request: ChildRequest) -> Operation:
    """Start a child and return its output. Raises ChildFailedError and ChildCancelledError."""
    _check_checkpoint(scope, name, request)
    entry, is_new = _matched(scope, name, CALL, request.workflow)
    if entry.status == EntryStatus.EXHAUSTED:
        raise _failure(name, entry)
    if entry.status != EntryStatus.COMPLETED:
        if is_started := is_to_start(entry):
            yield from _refuse_deadlock(scope, name, entry, request)
            yield from _start(scope, entry, request)
        if "refused" in entry.data:
            scope.journal.finish(entry)
            yield SAVE
        else:
            yield from _wait(scope, name, entry, None, is_new=is_new, is_started=is_started)
    return _ended(scope, name, entry)


def start_child(scope: Scope, name: str, request: ChildRequest) -> Operation:
    """Start a child; return the location of its start and its id."""
    _check_checkpoint(scope, name, request)
    entry, _ = _matched(scope, name, START, request.workflow)
    if is_to_start(entry):
        yield from _start(scope, entry, request)
        scope.journal.finish(entry)
        yield SAVE
    scope.determinism.observe(entry)
    _raise_refusal(name, entry)
    return entry.location, entry.data["child"]


def child_result(
    scope: Scope, name: str, of: str, child_id: str, request: ChildRequest, timeout: timedelta | None
) -> Operation:
    """Wait for the child that was started at `of`, and return its output.

    Raises ChildTimeoutError when `timeout` has passed, and the errors of `call_child`.
    """
    entry, is_new = _matched(scope, name, RESULT, request.workflow)
    if entry.status == EntryStatus.EXHAUSTED:
        raise _failure(name, entry)
    if entry.status != EntryStatus.COMPLETED:
        if (entry.data.get("of"), entry.data.get("child")) != (of, child_id):  # new, or the child was started anew
            scope.journal.update(entry, data={**entry.data, "of": of, "child": child_id})
        yield from _wait(scope, name, entry, timeout, is_new=is_new, is_started=False, request=request)
    return _ended(scope, name, entry)


def _check_checkpoint(scope: Scope, name: str, request: ChildRequest) -> None:
    if request.rollback and not scope.has_checkpoint:
        raise RollbackCheckpointError(name)


def _matched(scope: Scope, name: str, action: str, workflow: str) -> tuple[EntryRecord, bool]:
    """Return the entry of the operation, and whether it is new."""
    node = scope.cursor.match(EntryKind.CHILD, name)
    entry = node.entry
    if entry is None:
        return scope.create(node, EntryKind.CHILD, data={"action": action, "workflow": workflow}), True
    found = entry.data["action"], entry.data["workflow"]
    if found[0] != action or not is_same_workflow(found[1], workflow):
        scope.cursor.diverged(
            f'"{node.location}" was recorded as the {found[0]} of a child of {found[1]}, the code now has the {action} of '
            f"one of {workflow}",
            node.location,
        )
    return entry, False


def _ended(scope: Scope, name: str, entry: EntryRecord) -> Any:
    """Return the output of an operation that has completed."""
    scope.determinism.observe(entry)
    _raise_refusal(name, entry)
    return scope.recorded(entry.location, "the output of the child", entry.output)


# -- the start


def _start(scope: Scope, entry: EntryRecord, request: ChildRequest) -> Operation:
    """Let the next commit start the child under the first free id, or record why the start is refused.

    An earlier child of the operation is undone first. Raises Park until that is done.
    """
    run = scope.journal.run
    if ANEW in entry.data:
        yield from undo_before_anew(scope.journal, entry.location, entry.data["child"])
    before: str | None = None  # the child of this operation that was started last, and taken back
    chosen = [request.run_id] if request.run_id is not None else list(ids_at(run, entry.location))
    for base in chosen:
        generation = 0
        while True:
            child_id = _of_generation(base, generation)
            found, child = yield PeekChild(child_id, with_origin=True)
            if found is None:
                if before is not None and request.rollback and is_taken_back(run, entry.location):
                    yield from undo_before_anew(scope.journal, entry.location, before)
                if request.key is not None:
                    refusal = yield from freed(run, entry.location, request.workflow, request.key, child_id)
                    if refusal is not None:
                        problem = f'and has the key "{refusal.key}"'
                        _refuse(scope, entry, child_id, problem, of_key=refusal.to_data())
                        return
                other = _begin(scope, entry, request, child_id, generation)
                if other is None:
                    return
                if other.run.id != child_id:  # another branch is about to start the child with the key
                    yield SAVE
                    continue
                taken_by = other.run.workflow
                break  # another branch has just taken it
            taken_by = found.workflow
            if child is None or child.parent_id != run.id or not is_same(run.workflow, child.location, entry.location):
                break  # the id is taken by another run
            generation, before = generation + 1, child_id
    _refuse(scope, entry, child_id, f'as a run of "{taken_by}", and is not this child')


def _refuse(scope: Scope, entry: EntryRecord, child_id: str, problem: str, **more: Any) -> None:
    """Record that no child was started. An earlier child that was compensated is not compensated again.

    Raises StartRefused where another child was to take the place of a lost one, and the code has gone on behind the
    start: it cannot get an error from it now. The next pass starts the child again.
    """
    data = {name: value for name, value in entry.data.items() if name not in ("rollback", ANEW)}
    data = {**data, "child": child_id, "refused": problem, **more}
    if entry.status == EntryStatus.COMPLETED:
        raise StartRefused(_refusal(data))
    scope.journal.update(entry, data=data)


def child_run(scope: Scope, request: ChildRequest, child_id: str, what: str) -> NewRun:
    """Return the row of a child that is started now. `what` names its input in errors."""
    environment, parent = scope.environment, scope.journal.run
    now = environment.now()
    given = {"args": list(request.args), "kwargs": dict(request.kwargs)}
    run = request.how.new_run(
        now,
        id=check_id(child_id),
        workflow=request.workflow,
        queue=request.queue,
        input=environment.encode(given, what, "input", "", child_id),
        created_at=created_at(parent, now),
        parent_id=parent.id,
        carried=parent.carried,
        key=None if request.key is None else request.key.key,
    )
    return run if scope.doubt is None or scope.doubt.is_over else run.in_doubt(scope.doubt.since)


def _begin(
    scope: Scope, entry: EntryRecord, request: ChildRequest, child_id: str, generation: int
) -> ChildStart | None:
    """Let the next commit start the child.

    Return None, or the other start of this pass that has already taken the id or the key.
    """
    run = child_run(scope, request, child_id, f"the input of {request.workflow}")
    child = ChildRecord(
        run_id=child_id,
        parent_id=scope.journal.run.id,
        location=entry.location,
        position=scope.journal.next_ordinal(),
        generation=generation,
        when_parent_ends=request.when_parent_ends,
    )
    other = scope.journal.start_child(ChildStart(run, child))
    if other is None:
        data = {name: value for name, value in entry.data.items() if name not in ("rollback", ANEW)}
        data = {**data, "child": child_id}
        scope.journal.update(entry, data={**data, "rollback": POLICY} if request.rollback else data)
    return other


def created_at(parent: RunRecord, now: datetime) -> datetime:
    """Return the creation time of a child: always after its parent's, even if this worker's clock is behind.

    See `RunQuerySet.with_ids`.
    """
    return now if now >= parent.created_at else parent.created_at + timedelta(microseconds=1)


def ids_at(parent: RunRecord, location: str) -> Iterator[str]:
    """Yield the possible ids of the child of a location: first a readable one, if it is unambiguous and short; then a
    hashed one.
    """
    parent_id, location = parent.id, canonical(parent.workflow, location)
    readable = f"{parent_id}:{location.replace('/', ':')}"
    if ":" not in location and len(readable) <= MAX_ID - 8 and readable.isprintable():
        yield readable
    digest = _digest(f"{parent_id}\0{location}")
    yield f"{parent_id[:_HASHED_PREFIX]}:{digest}"


def _of_generation(base: str, generation: int) -> str:
    """Return the id of the child of this generation; hashed if the readable one is too long."""
    if not generation:
        return base
    suffix = f"~{generation}"
    if len(base) + len(suffix) <= MAX_ID:
        return base + suffix
    return f"{base[:_HASHED_PREFIX]}:{_digest(base)}{suffix}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _raise_refusal(name: str, entry: EntryRecord) -> None:
    """Raise the error of a start whose id or key was taken; a recovery of the run starts the child again."""
    if "refused" in entry.data:
        error = _refusal(entry.data)
        raise with_failure(error, Failure("child", name, (entry.location,), ErrorInfo.of(error)))


def _refusal(data: dict[str, Any]) -> RunConflictError:
    of_key = data.get("of_key")
    return RunConflictError(data["child"], data["refused"]) if of_key is None else KeyRefusal.of(of_key).error()


# -- the wait


def _refuse_deadlock(scope: Scope, name: str, entry: EntryRecord, request: ChildRequest) -> Operation:
    """Fail if the child would wait for a slot that becomes free only after this run has ended.

    This run, or a run that waits for it, keeps that slot until its end.
    """
    wants = request.wants()
    found: Deadlock | None = (yield PeekDeadlock(wants, frozenset({SlotKind.OPEN}))) if wants else None
    if found is not None and found.is_certain:
        info = ErrorInfo.of(found.error(f'child "{name}" of {request.workflow}'))
        yield from _fail(scope, name, entry, DEADLOCK, info)


def _wait(
    scope: Scope,
    name: str,
    entry: EntryRecord,
    timeout: timedelta | None,
    *,
    is_new: bool,
    is_started: bool,
    request: ChildRequest | None = None,
) -> Operation:
    """Record how the child has ended, or park. A child that the next commit starts has not ended.

    `request` describes the start, if it was not known then that the run would wait for the child.
    """
    child_id = entry.data["child"]
    if is_new or (timeout is not None and entry.data.get("deadline") is None):
        ends = None if timeout is None else later(scope.environment.now(), timeout, "a wait")
        scope.journal.update(entry, data={**entry.data, "deadline": None if ends is None else ends.isoformat()})
    text = entry.data.get("deadline")
    deadline = None if text is None else datetime.fromisoformat(text)
    if not is_started:
        is_past = deadline is not None and deadline <= scope.environment.now()
        found, _ = yield PeekChild(child_id)
        # An end in time counts, however late this worker is. A new wait takes a child that has ended.
        if _has_ended(found, None if is_new or not is_past else deadline):
            yield from _record(scope, name, entry, found)
            return
        if is_past:
            yield from _fail(scope, name, entry, TIMEOUT, ErrorInfo.of(ChildTimeoutError(name, child_id)))
        if is_new and request is not None:
            yield from _refuse_deadlock(scope, name, entry, request)
        if found is not None and found.parent_id != scope.journal.run.id:  # its end does not wake this run
            look_again = scope.environment.now() + LOOK_EVERY
            deadline = look_again if deadline is None else min(deadline, look_again)
    if (is_new or is_started) and scope.is_concurrent:
        yield SAVE  # another branch may run for long before this pass parks and commits
    raise Park(deadline, doing=[awaiting(entry.location, child_id)], children=frozenset({child_id}))


def _has_ended(found: RunRecord | None, before: datetime | None) -> bool:
    """Return True if the child is gone or has ended; with `before`, only if it ended before that time."""
    if found is None:
        return True
    return found.state in ENDED and (before is None or (found.finished_at is not None and found.finished_at < before))


def _record(scope: Scope, name: str, entry: EntryRecord, found: RunRecord | None) -> Operation:
    """Record the end of the child. Raises the child's failure, if it failed."""
    workflow, child_id = entry.data["workflow"], entry.data["child"]
    if found is None:
        gone = ChildCancelledError(child_id, workflow, "its run was deleted")
        yield from _fail(scope, name, entry, "gone", ErrorInfo.of(gone), reason=gone.reason)
    elif found.state == RunState.CANCELLED:
        cancelled = ChildCancelledError(child_id, workflow, found.request_reason)
        yield from _fail(scope, name, entry, "cancelled", ErrorInfo.of(cancelled), reason=cancelled.reason)
    elif found.state == RunState.FAILED:
        yield from _fail(scope, name, entry, "failed", found.error or ErrorInfo("Exception", "unknown"))
    else:
        try:
            output = scope.environment.adopt(found.output or "null", found.id, entry.location)
        except PayloadError as error:
            scope.journal.stop(unreadable(entry.location, "the output of the child", error))
        scope.journal.finish(entry, output=output)
        yield SAVE


def _fail(scope: Scope, name: str, entry: EntryRecord, kind: str, error: ErrorInfo, reason: str = "") -> Operation:
    scope.journal.update(
        entry,
        status=EntryStatus.EXHAUSTED,
        error=error,
        last_attempt_at=scope.environment.now(),
        data={**entry.data, "failure": {"kind": kind, "reason": reason}},
    )
    yield Save(is_failure=True)
    raise _failure(name, entry)


def _failure(name: str, entry: EntryRecord) -> Exception:
    recorded = entry.data.get("failure", {})
    info = entry.error or ErrorInfo("Exception", "unknown")
    workflow, child_id = entry.data["workflow"], entry.data.get("child", "")
    error: Exception
    if recorded.get("kind") == DEADLOCK:
        error = DeadlockError(info.message)
    elif recorded.get("kind") == "failed":
        error = ChildFailedError(child_id, workflow, info)
    elif recorded.get("kind") == TIMEOUT:
        error = ChildTimeoutError(name, child_id)
    else:
        error = ChildCancelledError(child_id, workflow, recorded.get("reason", ""))
    return with_failure(error, Failure("child", name, (entry.location,), info))
