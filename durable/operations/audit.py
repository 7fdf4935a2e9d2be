"""Who acts: the operator behind the verbs that are called here and now, and what they may do.

A surface says who its user is with `acting_as`; every verb of `durable.operations` inside it checks that actor's
permission first and is written to the audit log, refusals included. Without it a verb is called by the application's own
code: steering, restarting and replaying are logged with the source "code", starting and sending are plain traffic.
Nothing here reads or writes a run.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

from django.core.exceptions import PermissionDenied
from django.db import connections

from durable import runtime
from durable.conf import conf
from durable.core.current import running_run
from durable.core.errors import DurableError
from durable.core.ids import check_reason
from durable.core.records import ActionRecord
from durable.models import OperatorAction

__all__ = [
    "DENIALS_TOGETHER",
    "PERMISSIONS",
    "SOURCES",
    "Actor",
    "ActorScope",
    "OperationDeniedError",
    "Outcome",
    "acting",
    "acting_as",
    "code_actor",
    "log_refused",
    "reason",
    "revision",
]

logger = logging.getLogger("durable.operations.audit")

SOURCES: Final = ("admin", "api", "cli", "code")

#: Denials of one verb to one actor within this time of the first are counted in its row: whoever may do nothing must not
#: be able to bury what others did.
DENIALS_TOGETHER: Final = timedelta(minutes=10)

_TRUSTED: Final = frozenset({"cli", "code"})  # whoever calls these without a user could write the rows as well

#: The permission, of the app `durable`, that each action needs.
PERMISSIONS: Final[Mapping[str, str]] = {
    "start": "start_run",
    "restart": "start_run",
    "send": "operate_run",
    "ask": "operate_run",
    "wake": "operate_run",
    "pause": "operate_run",
    "resume": "operate_run",
    "cancel": "operate_run",
    "recover": "operate_run",
    "replay": "replay_run",
    "prune": "delete_run",
}


class Outcome(StrEnum):
    """What came of an action. All but the first changed nothing."""

    DONE = "done"
    DENIED = "denied"  # the actor has not the permission
    REFUSED = "refused"  # the state of the run does not allow it
    STALE = "stale"  # the run is not as the actor saw it
    CONFLICT = "conflict"  # the id is taken
    MISSING = "missing"  # there is no such run, or no such place in its history
    INVALID = "invalid"  # what was given with it cannot be


class OperationDeniedError(DurableError, PermissionDenied):
    """The actor has not the permission that the action needs. Django answers it with 403."""

    def __init__(self, action: str, permission: str, who: str) -> None:
        self.action = action
        self.permission = permission
        self.who = who
        super().__init__(
            f"{who or 'nobody'} may not {action} a run: that needs the permission durable.{permission}; ask whoever "
            "gives permissions to users and groups"
        )


@dataclass(frozen=True, slots=True)
class Actor:
    """Who calls a verb, and through what: `source` is one of "admin", "api", "cli" and "code".

    `user` is one of Django's, or None; `label` names an actor that is no user (a system's user, a job), and stands
    in the log beside the user's own name. Raises ValueError for another source.
    """

    source: str
    user: Any = None
    label: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"the source of an action is one of {', '.join(SOURCES)}, not {self.source!r}")

    def may(self, permission: str) -> bool:
        """Whether the actor has this permission of durable's: "operate_run", say.

        A user has it as Django says; being staff alone allows nothing. Without a user, the command line and code may
        do anything, and the others nothing.
        """
        if self.user is None:
            return self.source in _TRUSTED
        return bool(self.user.has_perm(f"durable.{permission}"))

    @property
    def name(self) -> str:
        """The actor in words: the user's name, the label, or both."""
        user = "" if self.user is None else str(self.user)
        return f"{user} ({self.label})" if user and self.label else user or self.label

    @property
    def user_key(self) -> Any:
        """The user's key, for a reference from the log; None where the log is in a database that has no such user."""
        if self.user is None or self.user.pk is None or self.user._state.db not in (None, conf.DATABASE):
            return None
        return self.user.pk


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorScope:
    """An actor at work: why, and, if `expected` is not None, on which revision of the run."""

    actor: Actor
    reason: str = ""
    expected: str | None = None
    sees: Callable[[str], bool] | None = None  # whether the run with this id is there for the actor; None: all are
    inside_run: str | None = None  # the run whose pass the block stands in
    is_async: bool = False  # whether the block stands in a coroutine, around which no transaction can be
    refused: list[ActionRecord] = field(default_factory=list)  # to be logged when the block ends

    def may_compare(self, run_id: str, actions: Sequence[str], detail: str = "") -> bool:
        """Whether the actor may learn whether a value is the one that is recorded with the run.

        That is a way to guess it. So a user needs the permission to see payloads, or has recorded the value: one of the
        `actions` on the run, with this `detail` if one is given, is the user's in the audit log.
        """
        if self.actor.source in _TRUSTED or self.actor.may("view_payload"):
            return True
        if self.actor.user_key is None:
            return False
        own = OperatorAction.objects.using(conf.DATABASE).filter(run_id=run_id, actor_id=self.actor.user_key)
        own = own.filter(action__in=actions, outcome=Outcome.DONE.value)
        return (own.filter(detail=detail) if detail else own.filter(before="")).exists()

    def check(self, action: str) -> None:
        """Raises OperationDeniedError unless the actor may do this."""
        permission = PERMISSIONS[action]
        if not self.actor.may(permission):
            raise OperationDeniedError(action, permission, self.actor.name)


_acting: contextvars.ContextVar[ActorScope | None] = contextvars.ContextVar("durable_acting", default=None)


@contextmanager
def acting_as(
    actor: Actor, *, reason: str = "", expected: str | None = None, sees: Callable[[str], bool] | None = None
) -> Iterator[None]:
    """Inside the block `actor` calls the verbs, for `reason`.

    With `expected`, a `revision` of the one run that the block is about, a run that has moved on since is refused with
    StaleRunError, decided under the run's lock. A denied or refused action is logged apart from the change that did not
    happen. With `sees`, which says of a run's id whether that run is there for the actor, no run is made that would not be, and
    one that has the id already is not told of. What is refused inside a transaction of the caller's is logged when the block ends: put the block around the
    transaction, and the log has it although the refusal rolled the transaction back.
    """
    at_work = ActorScope(
        actor=actor,
        reason=check_reason(reason),
        expected=expected,
        sees=sees,
        inside_run=running_run(),
        is_async=_is_in_event_loop(),
    )
    token = _acting.set(at_work)
    try:
        yield
    finally:
        _acting.reset(token)
        if at_work.refused:
            _write_refused(at_work.refused)


def log_refused(acting: ActorScope, row: ActionRecord) -> None:
    """Log what `acting` was refused, now or, where a transaction could take it back, when its block ends. Never raises."""
    if connections[conf.DATABASE].in_atomic_block and not acting.is_async:
        acting.refused.append(row)
    else:
        _write_refused([row])


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _write_refused(rows: Sequence[ActionRecord]) -> None:
    store = runtime.current().store
    try:
        with store.transaction():  # a failure must not break a transaction around it
            for row in rows:
                is_denied = row.outcome == Outcome.DENIED
                if not (is_denied and store.log_repeat(row, row.created_at - DENIALS_TOGETHER)):
                    store.log([row])
    except Exception:  # what the caller has to hear of is the refusal
        actions = ", ".join(f"{row.action} of run {row.run_id} by {row.actor_label}: {row.outcome}" for row in rows)
        logger.exception("could not be written to the audit log: %s", actions)


def acting() -> ActorScope | None:
    """Who is at work here; None if it is the application's own code.

    A pass that happens inside the block, as in a test's harness, is nobody's but its own.
    """
    found = _acting.get()
    return found if found is not None and found.inside_run == running_run() else None


def reason() -> str:
    """Why the actor at work acts; "" if it does not say, or there is none."""
    found = acting()
    return "" if found is None else found.reason


def code_actor() -> Actor:
    """The application's own code, as an actor."""
    run_id = running_run()
    return Actor("code", label="" if run_id is None else f"run {run_id}")


class _Seen(Protocol):
    """A run as anybody sees it: its record or its row."""

    @property
    def state(self) -> str: ...
    @property
    def request(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def signal(self) -> int: ...


def revision(run: _Seen) -> str:
    """What an operator decides by, as an opaque text: for `acting_as(expected=)`.

    Another after each verb, message and change of state; the same after a heartbeat, a step, or a pass that left the run
    as it was.
    """
    return f"{run.signal}-{run.state}-{run.request}-{run.outcome}"
