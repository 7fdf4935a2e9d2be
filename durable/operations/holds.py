"""Holds: pause and resume a queue, and hold and release the new starts of a workflow.

The runs of a paused queue are not claimed; passes under way continue until they park. A run that is started while its
workflow is held is created as paused, with a summary that names the hold.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from durable import runtime
from durable.conf import conf
from durable.core import registry
from durable.core.errors import HoldError
from durable.core.ids import check_queue
from durable.core.names.renames import names_of_queue, names_of_workflow
from durable.core.records import Hold, HoldKind, RunState
from durable.core.words import Sentence, gettext_noop
from durable.models import Run
from durable.notifier import redis_clients
from durable.operations.audit import Attribution, audited
from durable.operations.common import announce, check_not_an_order, send_run_changed
from durable.runtime import Runtime

if TYPE_CHECKING:
    from durable.definitions import Workflow

#: Seconds during which a release itself resumes runs; the sweep resumes the others.
RELEASE_FOR: Final = 5.0
_AT_ONCE: Final = 100  # runs of one query


def pause_queue(queue: str) -> Hold:
    """Pause the queue: no worker claims its runs until it is resumed. Passes under way continue until they park.

    Raises OperationDeniedError, HoldError if it is paused already, and ValueError for an unknown queue.
    """
    return _hold("pause_queue", HoldKind.QUEUE, queue)


def resume_queue(queue: str) -> None:
    """Resume the queue: workers claim its runs again, at once.

    Raises OperationDeniedError, HoldError if it is not paused, and ValueError for an unknown queue.
    """
    at = runtime.current()
    _lift(at, "resume_queue", HoldKind.QUEUE, queue)
    at.notify({queue})


def hold_starts(workflow: str | Workflow[..., Any]) -> Hold:
    """Hold the workflow: its new runs wait, paused, until it is released. Existing runs continue.

    Raises OperationDeniedError, HoldError if it is held already, and ValueError for an unknown workflow.
    """
    return _hold("hold_starts", HoldKind.WORKFLOW, _name_of(workflow))


def release_starts(workflow: str | Workflow[..., Any]) -> int:
    """Release the workflow: new runs start again, and the runs that the hold has paused are resumed.

    Return how many were resumed by this call; if there are many, the sweep resumes the rest within minutes. Raises
    OperationDeniedError, HoldError if it is not held, and ValueError for an unknown workflow.
    """
    at = runtime.current()
    _lift(at, "release_starts", HoldKind.WORKFLOW, _name_of(workflow))
    until = time.monotonic() + RELEASE_FOR
    resumed = 0
    while runs := at.store.release_starts(at.now(), _AT_ONCE):
        resumed += len(runs)
        for run in runs:
            announce(at, run.queue, run.wake_at)
        send_run_changed(at, runs, previous=RunState.PAUSED)
        if len(runs) < _AT_ONCE or time.monotonic() >= until:
            break
    return resumed


def revision_of(hold: Hold | None) -> str:
    """Return an opaque text for the hold (or None) that an operator saw, for `acting_as(expected=)`."""
    return "free" if hold is None else f"held {hold.held_at.isoformat()}"


def _hold(action: str, kind: HoldKind, name: str) -> Hold:
    at = runtime.current()
    with audited(at, action, "", subject=(kind, name)) as by, at.store.transaction():
        _check_known(action, kind, name)
        found = at.store.held(kind, name)
        _check_seen(by, kind, name, found)
        done = by.done(before="", after="held", detail=_named(kind, name))
        hold = Hold(kind=kind, name=name, held_at=at.now(), held_by=done.actor_label, reason=by.reason)
        if found is not None or not at.store.hold(hold):
            raise HoldError(Sentence(_ALREADY[kind], name=name, since=_by(found)))
        for other in _others(at, kind, name):
            at.store.hold(replace(hold, name=other))
        at.store.log([done])
    return hold


def _lift(at: Runtime, action: str, kind: HoldKind, name: str) -> None:
    with audited(at, action, "", subject=(kind, name)) as by, at.store.transaction():
        found = at.store.held(kind, name)
        if found is None:  # a hold can be lifted even if its name is unknown by now
            _check_known(action, kind, name)
        _check_seen(by, kind, name, found)
        if not at.store.lift(kind, name):
            raise HoldError(Sentence(_NOT_HELD[kind], name=name))
        for other in _others(at, kind, name):
            at.store.lift(kind, other)
        at.store.log([by.done(before="held", after="", detail=_named(kind, name))])


_ALREADY: Final = {
    HoldKind.QUEUE: gettext_noop('queue "{name}" is paused already{since}'),
    HoldKind.WORKFLOW: gettext_noop('workflow "{name}" is held already{since}'),
}
_NOT_HELD: Final = {
    HoldKind.QUEUE: gettext_noop('queue "{name}" is not paused'),
    HoldKind.WORKFLOW: gettext_noop('workflow "{name}" is not held'),
}
_NOW_HELD: Final = {
    HoldKind.QUEUE: gettext_noop(
        'queue "{name}" is paused{since}: it has changed since this page was made; look again'
    ),
    HoldKind.WORKFLOW: gettext_noop(
        'workflow "{name}" is held{since}: it has changed since this page was made; look again'
    ),
}
_NO_MORE: Final = {
    HoldKind.QUEUE: gettext_noop(
        'queue "{name}" is not paused any more: it has changed since this page was made; look again'
    ),
    HoldKind.WORKFLOW: gettext_noop(
        'workflow "{name}" is not held any more: it has changed since this page was made; look again'
    ),
}


def _others(at: Runtime, kind: HoldKind, name: str) -> list[str]:
    """Return the other names of the held queue or workflow: code starts runs under any name given by a migration."""
    at.store.learn_names()
    names = names_of_workflow(name) if kind is HoldKind.WORKFLOW else names_of_queue(name)
    return [each for each in names if each != name]


def _named(kind: HoldKind, name: str) -> str:
    return f'{"queue" if kind is HoldKind.QUEUE else "workflow"} "{name}"'


def _by(hold: Hold | None) -> str:
    """Say since when, by whom and why the queue or workflow is held; "" if it is not."""
    if hold is None:
        return ""
    text = gettext_noop(", since {when} by {who}{reason}") if hold.held_by else gettext_noop(", since {when}{reason}")
    when = f"{hold.held_at:%Y-%m-%d %H:%M:%S} UTC"
    return Sentence(text, when=when, who=hold.held_by, reason=f": {hold.reason}" if hold.reason else "")


def _name_of(workflow: str | Workflow[..., Any]) -> str:
    return workflow if isinstance(workflow, str) else workflow.name


def _check_seen(by: Attribution, kind: HoldKind, name: str, found: Hold | None) -> None:
    if by.saw_other(revision_of(found)):
        text = _NOW_HELD[kind] if found is not None else _NO_MORE[kind]
        raise HoldError(Sentence(text, name=name, since=_by(found)))


def _check_known(action: str, kind: HoldKind, name: str) -> None:
    """Raise ValueError for a name that no worker, workflow or run uses: it is probably mistyped."""
    runs = Run.objects.using(conf.DATABASE)
    if kind is HoldKind.QUEUE:
        check_queue(name)
        known = {*redis_clients.queue_names(), conf.QUEUE, *(each.queue for each in registry.all())}
        if name not in known:
            runtime.current().store.learn_names()
            known |= {each for one in known for each in names_of_queue(one)}
        if name not in known and not runs.filter(queue=name, wake_at__isnull=False).exclude(state="paused").exists():
            raise ValueError(f'no queue has the name "{name[:64]}"; there are {", ".join(sorted(known))}')
        return
    check_not_an_order(name, action)
    runtime.current().store.learn_names()
    names = names_of_workflow(name)
    if not any(each in registry.registry for each in names) and not runs.filter(workflow__in=names).exists():
        raise ValueError(f'no workflow has the name "{name[:64]}"')
