"""Actors, their permissions, and the attribution of verbs to them; the table of all actions (`ACTIONS`).

A surface names its user with `acting_as`. Inside that block every verb of `durable.operations` first checks the actor's
permission, and then writes to the audit log, refusals included. Outside such a block the application's own code calls
the verb: steering, restarting and replaying are logged with the source "code"; starting and sending are not logged.

The row of a successful action is written in the transaction of its change. A denied or refused action changes nothing;
its row is written once that is certain.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from django.core.exceptions import PermissionDenied
from django.db import Error, connections, router
from django.db.models import Model
from django.utils.translation import pgettext_lazy

from durable import runtime
from durable.conf import conf
from durable.core.current import running_run
from durable.core.errors import (
    DurableError,
    EntryNotFoundError,
    EventConflictError,
    FormInvalidError,
    MessageConflictError,
    MessageNotAcceptedError,
    MessageNotPendingError,
    NotAllowedError,
    OperationError,
    PayloadError,
    RunConflictError,
    RunNotFoundError,
    ScheduleNotFoundError,
    StalePlanError,
    StaleRunError,
    StaleScheduleError,
)
from durable.core.ids import check_reason
from durable.core.records import ActionOutcome, ActionRecord, RunChange, RunRecord
from durable.core.words import Sentence, gettext_noop
from durable.instrumentation.observers import observe_verb
from durable.models import OperatorAction
from durable.runtime import Runtime

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

logger = logging.getLogger("durable.audit")

SOURCES: Final = ("admin", "api", "cli", "code")

#: Denials of one verb to one actor within this time of the first one are counted in its row, so that an actor without
#: permissions cannot bury what others did.
DENIALS_TOGETHER: Final = timedelta(minutes=10)

_TRUSTED: Final = frozenset({"cli", "code"})  # a caller from these sources without a user could write the rows as well


@dataclass(frozen=True, slots=True)
class Action:
    """An action: the permission of the app `durable` that it needs, its words in the audit log, and what it is in full
    if it is not about a run.

    `also` is a second permission: a schedule starts runs of any workflow with any arguments.
    """

    permission: str
    words: StrPromise
    act: str = ""
    also: str = ""


ACTIONS: Final[Mapping[str, Action]] = {
    "start": Action("start_run", pgettext_lazy("verb", "start")),
    "restart": Action("start_run", pgettext_lazy("verb", "restart")),
    "send": Action("operate_run", pgettext_lazy("verb", "send")),
    "publish": Action("operate_run", pgettext_lazy("verb", "publish"), gettext_noop("publish an event")),
    "ask": Action("operate_run", pgettext_lazy("verb", "ask")),
    "delete_message": Action("operate_run", pgettext_lazy("verb", "delete message")),
    "move_message": Action("operate_run", pgettext_lazy("verb", "move message")),
    "wake": Action("operate_run", pgettext_lazy("verb", "wake")),
    "move": Action("operate_run", pgettext_lazy("verb", "move")),
    "pause": Action("operate_run", pgettext_lazy("verb", "pause")),
    "resume": Action("operate_run", pgettext_lazy("verb", "resume")),
    "cancel": Action("operate_run", pgettext_lazy("verb", "cancel")),
    "abandon": Action("operate_run", pgettext_lazy("verb", "abandon")),
    "take_stack": Action("view_payload", pgettext_lazy("verb", "take stack")),
    "recover": Action("operate_run", pgettext_lazy("verb", "recover")),
    "replay": Action("replay_run", pgettext_lazy("verb", "replay")),
    "give_output": Action("give_output", pgettext_lazy("verb", "give output")),
    "edit_input": Action("edit_input", pgettext_lazy("verb", "edit input")),
    "settle": Action("settle_step", pgettext_lazy("verb", "settle")),
    "import": Action("give_output", pgettext_lazy("verb", "import")),
    "prune": Action("delete_run", pgettext_lazy("verb", "prune")),
    "forget": Action("delete_run", pgettext_lazy("verb", "forget")),
    "mute": Action("operate_run", pgettext_lazy("verb", "mute")),
    "unmute": Action("operate_run", pgettext_lazy("verb", "unmute")),
    "note": Action("operate_run", pgettext_lazy("verb", "note")),
    "pause_queue": Action("pause_queue", pgettext_lazy("verb", "pause queue"), gettext_noop("pause a queue")),
    "resume_queue": Action("pause_queue", pgettext_lazy("verb", "resume queue"), gettext_noop("resume a queue")),
    "hold_starts": Action(
        "hold_workflow", pgettext_lazy("verb", "hold starts"), gettext_noop("hold the new starts of a workflow")
    ),
    "release_starts": Action(
        "hold_workflow", pgettext_lazy("verb", "release starts"), gettext_noop("release the new starts of a workflow")
    ),
    "share": Action("share_savedview", pgettext_lazy("verb", "share")),
    "create_schedule": Action(
        "add_schedule", pgettext_lazy("verb", "create schedule"), gettext_noop("create a schedule"), also="start_run"
    ),
    "edit_schedule": Action(
        "change_schedule", pgettext_lazy("verb", "edit schedule"), gettext_noop("edit a schedule"), also="start_run"
    ),
    "override_schedule": Action(
        "change_schedule", pgettext_lazy("verb", "override schedule"), gettext_noop("override the rule of a schedule")
    ),
    "take_back_override": Action(
        "change_schedule",
        pgettext_lazy("verb", "take back override"),
        gettext_noop("take back the override of a schedule"),
    ),
    "delete_schedule": Action(
        "delete_schedule", pgettext_lazy("verb", "delete schedule"), gettext_noop("delete a schedule")
    ),
    "pause_schedule": Action(
        "operate_schedule", pgettext_lazy("verb", "pause schedule"), gettext_noop("pause a schedule")
    ),
    "resume_schedule": Action(
        "operate_schedule", pgettext_lazy("verb", "resume schedule"), gettext_noop("resume a schedule")
    ),
    "run_schedule": Action(
        "operate_schedule", pgettext_lazy("verb", "run schedule now"), gettext_noop("run a schedule now")
    ),
    "backfill_schedule": Action(
        "operate_schedule", pgettext_lazy("verb", "backfill schedule"), gettext_noop("backfill a schedule")
    ),
    "set_limit": Action("change_limit", pgettext_lazy("verb", "set limit"), gettext_noop("set the number of a limit")),
    "take_back_limit": Action(
        "change_limit", pgettext_lazy("verb", "take back limit"), gettext_noop("take back the number of a limit")
    ),
    "set_rate": Action("change_limit", pgettext_lazy("verb", "set rate"), gettext_noop("set the rate of a limit")),
    "take_back_rate": Action(
        "change_limit", pgettext_lazy("verb", "take back rate"), gettext_noop("take back the rate of a limit")
    ),
    "close_limit": Action("change_limit", pgettext_lazy("verb", "close limit"), gettext_noop("close a limit")),
    "open_limit": Action("change_limit", pgettext_lazy("verb", "open limit"), gettext_noop("open a limit")),
    "go_on": Action("operate_run", pgettext_lazy("verb", "go on")),
    "stop_here": Action("operate_run", pgettext_lazy("verb", "stop here")),
    "restored": Action(
        "change_databasemark",
        pgettext_lazy("verb", "decide about a restored database"),
        gettext_noop("decide about a restored database"),
    ),
}
#: The permission of the app `durable` that each action needs.
PERMISSIONS: Final[Mapping[str, str]] = {name: each.permission for name, each in ACTIONS.items()}

#: The actions on a question to people, which says itself who may do them (`durable.operations.people`).
OF_PEOPLE: Final = frozenset({"answer", "hand_over", "claim", "comment"})


def needed_by(action: str) -> tuple[str, ...]:
    """Return the permissions of the app `durable` that an action needs."""
    if action in OF_PEOPLE:
        return ()
    return tuple(filter(None, (ACTIONS[action].permission, ACTIONS[action].also)))


class OperationDeniedError(OperationError, PermissionDenied):
    """The actor lacks the permission that the action needs. Django answers it with 403."""

    def __init__(self, action: str, permission: str, who: str) -> None:
        self.action = action
        self.permission = permission
        self.who = who
        act = Sentence(ACTIONS[action].act or gettext_noop("{verb} a run"), verb=action)
        text = gettext_noop(
            "{who} may not {act}: that needs the permission durable.{permission}; ask an administrator to grant it to the user "
            "or to a group"
        )
        caller = who or Sentence(gettext_noop("a caller without a user"))
        super().__init__(Sentence(text, who=caller, act=act, permission=permission))


class RowlessUserError(OperationDeniedError):
    """A user without a row requested work that goes on after the request, and no token says what the user may do."""

    def __init__(self, action: str, who: str) -> None:
        self.action = action
        self.permission = ""
        self.who = who
        text = gettext_noop(
            "{who} has no row in the table of users, and a bulk reads the user's permissions again for each run: name the runs one "
            "by one, or order the bulk as a user that has one"
        )
        OperationError.__init__(self, Sentence(text, who=who))


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller of a verb and the surface: `source` is one of "admin", "api", "cli" and "code".

    `user` is a Django user, a user without a row that a token describes, or None. `label` names an actor that is not a
    Django user, such as a system user or a job; the log shows the label beside the user's name. Raises ValueError for
    any other source.
    """

    source: str
    user: Any = None
    label: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"the source of an action is one of {', '.join(SOURCES)}, not {self.source!r}")

    def may(self, permission: str) -> bool:
        """Return whether the actor has this permission of the app durable, such as "operate_run".

        A user has the permissions that Django grants; being staff alone allows nothing. Without a user, the command
        line and code may do anything, and the other sources nothing.
        """
        if self.user is None:
            return self.source in _TRUSTED
        return bool(self.user.has_perm(f"durable.{permission}"))

    @property
    def is_rowless(self) -> bool:
        """Whether the user has no row and is known only from a token or a gateway's header."""
        return self.user is not None and not isinstance(self.user, Model)

    @property
    def name(self) -> str:
        """The actor's name for display: the user's name, the label, or both."""
        user = "" if self.user is None else str(self.user)
        if self.is_rowless:
            user = getattr(self.user, "username", "") or user
        return f"{user} ({self.label})" if user and self.label else user or self.label

    @property
    def user_key(self) -> Any:
        """The user's key, for a reference in the log; None if the log's database has no row of the user.

        If the user was read from a replica of that database, the router decides where users are written.
        """
        if not isinstance(self.user, Model):
            return None
        is_there = self.user._state.db in (None, conf.DATABASE)
        if is_there or router.db_for_write(self.user.__class__, instance=self.user) == conf.DATABASE:
            return self.user.pk
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorScope:
    """The settings of an `acting_as` block: the actor, the reason and the run's expected revision, if not None."""

    actor: Actor
    reason: str = ""
    expected: str | None = None
    sees: Callable[[str], bool] | None = None  # whether the actor may see the run with this id; None: every run
    inside_run: str | None = None  # the run whose pass contains the block
    is_async: bool = False  # whether a coroutine contains the block; a coroutine cannot be inside a transaction
    refused: list[ActionRecord] = field(default_factory=list)  # to be logged when the block ends

    def may_compare(self, run_id: str, actions: Sequence[str], detail: str = "") -> bool:
        """Return whether the actor may learn that a value equals a recorded one.

        Such an answer lets the actor guess the value. So the user needs the permission to see payloads, or must have
        recorded the value: the audit log names the user for one of the `actions` on the run, with this `detail` if one
        is given.
        """
        if self.actor.source in _TRUSTED or self.actor.may("view_payload"):
            return True
        if self.actor.user_key is None:
            return False
        own = OperatorAction.objects.using(conf.DATABASE).filter(run_id=run_id, actor_id=self.actor.user_key)
        own = own.filter(action__in=actions, outcome=ActionOutcome.DONE.value)
        return (own.filter(detail=detail) if detail else own.filter(before="")).exists()

    def check(self, action: str) -> None:
        """Check the permissions. Raises OperationDeniedError if the actor lacks one that `action` needs."""
        for permission in needed_by(action):
            if not self.actor.may(permission):
                raise OperationDeniedError(action, permission, self.actor.name)


_acting: contextvars.ContextVar[ActorScope | None] = contextvars.ContextVar("durable_acting", default=None)
_bulk: contextvars.ContextVar[str] = contextvars.ContextVar("durable_bulk", default="")


@contextmanager
def acting_as(
    actor: Actor, *, reason: str = "", expected: str | None = None, sees: Callable[[str], bool] | None = None
) -> Iterator[None]:
    """Attribute the verbs called inside the block to `actor`, for `reason`.

    `expected` is a `revision` of the one run that the block acts on. If the run has changed since, the verb raises
    StaleRunError; this is decided under the run's lock. A denied or refused action is logged in a transaction of its
    own.

    `sees` returns whether the actor may see the run with a given id. A run that the actor could not see is not created,
    and an existing run with that id is not disclosed.

    A refusal inside the caller's transaction is logged when the block ends. Put the block around the transaction, so
    that the log keeps the refusal even though the refusal rolled the transaction back.
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
    """Log a refusal now or, if an open transaction could roll the row back, when the block ends. Never raises."""
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
                is_denied = row.outcome == ActionOutcome.DENIED
                if not (is_denied and store.log_repeat(row, row.created_at - DENIALS_TOGETHER)):
                    store.log([row])
    except Exception:  # the caller must see the refusal, not this error
        actions = ", ".join(f"{row.action} of run {row.run_id} by {row.actor_label}: {row.outcome}" for row in rows)
        logger.exception("could not be written to the audit log: %s", actions)


def acting() -> ActorScope | None:
    """Return the scope of the enclosing `acting_as` block; None if the application's own code acts.

    A pass that runs inside the block, as in a test's harness, does not inherit the block's actor.
    """
    found = _acting.get()
    return found if found is not None and found.inside_run == running_run() else None


@contextmanager
def as_code() -> Iterator[None]:
    """Attribute the verbs called inside the block to the application's own code, whoever acts around it."""
    token = _acting.set(None)
    try:
        yield
    finally:
        _acting.reset(token)


@contextmanager
def within_bulk(id: str) -> Iterator[None]:
    """Record the actions inside the block as parts of the bulk with this id."""
    token = _bulk.set(id)
    try:
        yield
    finally:
        _bulk.reset(token)


def bulk_id() -> str:
    """Return the id of the bulk that the action is a part of; "" if there is none."""
    return _bulk.get()


def reason() -> str:
    """Return the acting operator's reason; "" without a reason or an operator."""
    found = acting()
    return "" if found is None else found.reason


def code_actor() -> Actor:
    """Return the application's own code as an actor."""
    run_id = running_run()
    return Actor("code", label="" if run_id is None else f"run {run_id}")


class _Seen(Protocol):
    """A run, as its record or as its row."""

    @property
    def state(self) -> str: ...
    @property
    def pending_request(self) -> str: ...
    @property
    def state_after_rollback(self) -> str: ...
    @property
    def change_seq(self) -> int: ...


def revision(run: _Seen) -> str:
    """Return an opaque text for the state that an operator bases a decision on, for `acting_as(expected=)`.

    The text changes with each verb, message and change of state. It stays the same after a heartbeat, a step, or a pass
    that left the run as it was.
    """
    return f"{run.change_seq}-{run.state}-{run.pending_request}-{run.state_after_rollback}"


_DETAIL = 2_000  # characters of an error that the log keeps

#: The errors of a verb that was refused and changed nothing.
REFUSALS = (DurableError, ValueError, TypeError)

_OUTCOMES: tuple[tuple[tuple[type[Exception], ...], ActionOutcome], ...] = (
    ((OperationDeniedError, NotAllowedError), ActionOutcome.DENIED),
    ((StaleRunError, StalePlanError, StaleScheduleError), ActionOutcome.STALE),
    ((RunNotFoundError, EntryNotFoundError, MessageNotPendingError, ScheduleNotFoundError), ActionOutcome.MISSING),
    ((RunConflictError, MessageConflictError, EventConflictError), ActionOutcome.CONFLICT),
    ((PayloadError, MessageNotAcceptedError, FormInvalidError, ValueError, TypeError), ActionOutcome.INVALID),
    ((DurableError,), ActionOutcome.REFUSED),
)


class UnseenRunError(RunNotFoundError):
    """The actor may not see the run that a verb created, or that already has the id or the key; nothing was done.

    `key` is the key of an open run, whose id the text does not reveal; "" if the conflict is about an id.
    """

    def __init__(self, run_id: str, *, key: str = "") -> None:
        super().__init__(run_id)
        self.key = key
        if key:
            text = gettext_noop('an open run that the user may not see has the key "{key}"; start one with another key')
            OperationError.__init__(self, Sentence(text, key=key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One call of a verb, with its actor; `acting` is None for the application's own code.

    `subject` is the kind and the name of the subject of a verb that is not about a run.
    """

    at: Runtime
    action: str
    run_id: str
    acting: ActorScope | None
    reason: str
    subject: tuple[str, str] = ("", "")

    def check_seen(self, run: RunRecord) -> None:
        """Compare the locked run with what the actor saw. Raises StaleRunError if it has changed."""
        if self.saw_other(revision(run)):
            raise StaleRunError(run.id, run.state, self.action)

    def saw_other(self, revision: str) -> bool:
        """Return whether the actor decided by another revision of the subject than this one."""
        return self.acting is not None and self.acting.expected not in (None, revision)

    def sees(self, run_id: str) -> bool:
        """Return whether the actor may see the run."""
        return self.acting is None or self.acting.sees is None or self.acting.sees(run_id)

    def check_sees(self, run_id: str, *, key: str = "") -> None:
        """Raise UnseenRunError if the actor may not see the run. `key` is given if the run was found by its key.

        Call this in the transaction that may have created it.
        """
        if not self.sees(run_id):
            raise UnseenRunError(run_id, key=key)

    def lock(self) -> RunRecord:
        """Lock the run until the transaction ends, and return it. Raises RunNotFoundError, StaleRunError."""

        def decide(run: RunRecord, _entries: object) -> RunChange:
            self.check_seen(run)
            return RunChange(run={"change_seq": run.change_seq})

        return self.at.store.change(self.run_id, decide)

    def done(
        self, *, before: str, after: str, detail: str = "", run_id: str | None = None, number: int = 0
    ) -> ActionRecord:
        """Return the audit row for a completed change, to be written in the transaction of that change."""
        return self._row(ActionOutcome.DONE, before, after, detail, run_id, number)

    def _row(
        self, outcome: ActionOutcome, before: str, after: str, detail: str, run_id: str | None = None, number: int = 0
    ) -> ActionRecord:
        kind, name = self.subject
        actor = code_actor() if self.acting is None else self.acting.actor
        return ActionRecord(
            action=self.action,
            run_id=self.run_id if run_id is None else run_id,
            source=actor.source,
            outcome=str(outcome),
            created_at=self.at.now(),
            actor_id=actor.user_key,
            actor_label=actor.name,
            reason=self.reason,
            before=str(before),
            after=str(after),
            detail=detail[:_DETAIL],
            bulk_id=bulk_id(),
            subject_kind=str(kind),
            subject=_known(name),
            number=number,
            actor_key=_key_of(actor.user),
        )

    def _state(self) -> str:
        """The run's current state for the log after a refusal, or "" if it cannot be read."""
        try:
            run = self.at.store.get(self.run_id) if self.run_id else None
        except Error:  # the caller's transaction is broken
            return ""
        return "" if run is None else str(run.state)

    def refused(self, error: Exception) -> None:
        """Log that the verb changed nothing, and why."""
        if self.acting is not None:
            state = self._state()
            log_refused(self.acting, self._row(outcome_of(error), state, state, str(error)))


def _key_of(user: Any) -> str:
    """Return the key of a user as questions to people have it, "" for none, and for one without a row."""
    is_person = isinstance(user, Model) and hasattr(user, "get_username") and user.pk is not None
    if not is_person:
        return ""
    from durable.core.people import key_of_user  # loaded where people act

    return key_of_user(user)


def outcome_of(error: Exception) -> ActionOutcome:
    return next(outcome for kinds, outcome in _OUTCOMES if isinstance(error, kinds))


@contextmanager
def audited(
    at: Runtime, action: str, run_id: str, *, reason: str = "", subject: tuple[str, str] = ("", "")
) -> Iterator[Attribution]:
    """Attribute one call of a verb on a run ("" if it has no id yet). Raises OperationDeniedError before any change.

    `reason` is the verb's own argument; without it the actor's reason is used. `subject` is the kind and the name of
    the subject of a verb that is not about a run.
    """
    scope = acting()
    attribution = Attribution(
        at=at,
        action=action,
        run_id=_known(run_id),
        acting=scope,
        reason=reason or (scope.reason if scope else ""),
        subject=subject,
    )
    with observe_verb(action, subject[1], [run_id] if run_id else ()):
        if scope is None:
            yield attribution
            return
        try:
            scope.check(action)
            yield attribution
        except REFUSALS as error:
            attribution.refused(error)
            raise


def _known(run_id: object) -> str:
    """Return the id if it has a valid form, else "".

    The verb refuses other ids, and the log's column has room for valid ones only.
    """
    return run_id if isinstance(run_id, str) and len(run_id) <= 200 else ""
