"""Starting runs: new ones, and the same again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from durable import backend
from durable.backend import Backend
from durable.core.current import running_run
from durable.core.entries import RunRecord
from durable.core.errors import RunConflictError
from durable.ids import check_id, check_queue, new_id
from durable.operations.common import announce, require_step, tell
from durable.operations.reading import record

__all__ = ["StartRequest", "restart", "start"]

Call = tuple[str | None, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What to start, and how. `delay` is in seconds."""

    workflow: str
    signature: inspect.Signature
    queue: str
    delay: float = 0.0
    refuses_existing: bool = False


def start(request: StartRequest, calls: Sequence[Call]) -> list[str]:
    """Start a run for each call (id or None, arguments, keywords), in one statement; their ids, in order.

    Raises TypeError for arguments that do not fit, ValueError for an id that cannot be one, PayloadError, and
    RunConflictError for an id that is taken by another workflow or input.
    """
    if any(run_id is None for run_id, _, _ in calls):
        require_step(
            f"starting {request.workflow} without an id", "start it in a step, or with using(id=...) made of ctx.run_id"
        )
    at = backend.current()
    runs = [_new_run(at, request, call) for call in calls]
    if not runs:
        return []
    may_conflict = len(calls) > 1 and any(run_id is not None for run_id, _, _ in calls)
    with at.store.transaction() if may_conflict else nullcontext():  # all of them or none
        created = at.store.create(runs)
        for wanted, (found, is_new) in zip(runs, created, strict=True):
            if not is_new:
                _check_same(at, request, wanted, found)
    new = [run for run, is_new in created if is_new]
    if new:
        announce(at, request.queue, new[0].wake_at)
        for run in new:
            tell(run, previous="")
    return [run.id for run in runs]


def _new_run(at: Backend, request: StartRequest, call: Call) -> RunRecord:
    run_id, args, kwargs = call
    try:
        request.signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{request.workflow} cannot be started with these arguments: {error}") from None
    now = at.now()
    return RunRecord(
        id=new_id() if run_id is None else check_id(run_id),
        workflow=request.workflow,
        queue=check_queue(request.queue),
        input=at.codec.encode({"args": list(args), "kwargs": kwargs}, what=f"the input of {request.workflow}"),
        created_at=now,
        wake_at=now + timedelta(seconds=request.delay),
        parent_id=running_run(),
    )


def _check_same(at: Backend, request: StartRequest, wanted: RunRecord, found: RunRecord) -> None:
    if request.refuses_existing:
        raise RunConflictError(found.id, 'and on_conflict="error" was asked for')
    if found.workflow != wanted.workflow:
        raise RunConflictError(found.id, f'as a run of "{found.workflow}", not of "{wanted.workflow}"')
    if found.input != wanted.input and at.codec.decode(found.input) != at.codec.decode(wanted.input):
        raise RunConflictError(found.id, f'as a run of "{found.workflow}" with another input')


def restart(run_id: str) -> str:
    """Start a new run of the same workflow with the same input; its id."""
    at = backend.current()
    old = record(run_id)
    now = at.now()
    new = RunRecord(
        id=new_id(),
        workflow=old.workflow,
        queue=old.queue,
        input=old.input,
        created_at=now,
        wake_at=now,
        replay_of_id=old.id,
    )
    at.store.create([new])
    at.ring({new.queue})
    tell(new, previous="")
    return new.id
