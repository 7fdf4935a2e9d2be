"""Steps with `once=True`: asking whether an attempt was done of which nobody knows.

Each attempt of such a step is committed before its function is called. If it neither returns nor says that nothing has
happened (`NotDone`), its outcome is unknown, and its step's `verify` is asked; if that does not know either, a person
is. This holds for a step that the code has reached (`durable.core.steps`), for one whose run is being rolled back, and
for one in a branch that has lost its race: the last two are asked by the function's recorded name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from durable.core.control_flow import ControlFlow, Park
from durable.core.effects import SAVE, Call, Operation, Save, StepInfo
from durable.core.errors import ErrorInfo, PayloadError
from durable.core.journal import Event, Journal
from durable.core.options import DEFAULTS, StepPolicy, importable_name
from durable.core.outcomes import (
    AS_TEXT,
    COPIED,
    FAILURE,
    HELD,
    ONCE,
    UNDOING,
    UNSETTLED,
    VERIFY,
    Found,
    HeldReason,
    NotDone,
    Unknown,
    is_unsettled,
    without,
)
from durable.core.records import AttemptRecord, EntryRecord, EntryStatus
from durable.core.retries import members_of, retry_delay
from durable.core.saves import idempotency_key
from durable.core.scope import IN_DOUBT
from durable.core.summary import asking, held

#: How a step fails whose attempts are used up, and one that a person fails.
EXHAUSTED: Final = {"kind": "exhausted", "raises": "exhausted"}
#: The columns of an entry that has no outcome, or none any more.
NO_OUTCOME: Final[dict[str, Any]] = {"output": None, "completed_at": None, "finished_ordinal": None}
_REASON = 300  # characters of an answer's reason that are recorded

Answer = Found[Any] | NotDone | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How to ask whether the last attempt of a step was done. `timeout` is in seconds, 0 for none.

    It is asked again `retries` times, with the backoff of `policy`, if it raises.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    timeout: float
    retries: int
    policy: StepPolicy = DEFAULTS


def intent(journal: Journal, entry: EntryRecord, options: StepPolicy) -> dict[str, Any]:
    """Return what is recorded of an attempt before its call: its idempotency key, and how to ask about it later."""
    once: dict[str, Any] = {"key": idempotency_key(journal.run, entry.location)}
    if options.verify is not None:
        timeout = options.timeout_or(journal.environment.step_timeout)
        name = importable_name(options.verify) or ""
        once |= {"verify": name, "retries": options.verify_retries, "timeout": timeout}
    return {**without(entry, HELD), ONCE: once}


def is_not_done(error: Exception, options: StepPolicy) -> bool:
    """Return True if the error says that nothing has happened; of a group, if each of its errors does."""
    members = list(members_of(error))
    return bool(members) and all(isinstance(each, (NotDone, *options.not_done)) for each in members)


def note_attempt(journal: Journal, entry: EntryRecord, error: ErrorInfo) -> None:
    """Add the last attempt, which ended with `error`, to the next commit."""
    now = journal.environment.now()
    began = entry.last_attempt_at or now
    journal.add(AttemptRecord(entry.location, entry.attempts, journal.environment.worker, began, now, error))


def hold(
    journal: Journal,
    entry: EntryRecord,
    reason: HeldReason,
    *,
    failure: dict[str, Any] | None = None,
    error: ErrorInfo | None = None,
    until: datetime | None = None,
    is_undoing: bool = False,
) -> None:
    """Hold the entry. `failure` is how the step fails if a person says so, or if nobody has by `until`.

    `is_undoing`: it is a rollback that waits.
    """
    held: dict[str, Any] = {
        "reason": str(reason),
        "since": journal.environment.now().isoformat(),
        "failure": failure or EXHAUSTED,
    }
    if is_undoing:
        held[UNDOING] = True
    with journal.lock:
        journal.update(
            entry,
            status=EntryStatus.HELD,
            error=error or entry.error,
            data={**entry.data, HELD: held},
            next_attempt_at=until,
            **NO_OUTCOME,
        )
        journal.note_held(entry)


def commit_held(journal: Journal, entry: EntryRecord) -> Operation:
    yield Save(is_failure=True)
    until = entry.next_attempt_at
    if until is not None and until <= journal.environment.now():
        return  # the next pass fails it: nobody is asked
    held = entry.data[HELD]
    details = {
        "location": entry.location,
        "attempt": entry.attempts,
        "reason": held["reason"],
        "error": entry.error or ErrorInfo("Exception", "unknown"),
        "until": until,
    }
    journal.environment.emit(Event("step_held", details))


def hold_anew(journal: Journal, entry: EntryRecord) -> Operation:
    """Say again that a held step waits for a person, if its run has been copied, or was reopened after its end."""
    held = entry.data[HELD]
    if COPIED not in held:
        return
    with journal.lock:
        known = {name: value for name, value in held.items() if name != COPIED}
        journal.update(entry, data={**entry.data, HELD: known})
        journal.note_held(entry)
    yield from commit_held(journal, entry)


def held_park(entry: EntryRecord) -> Park:
    return Park(entry.next_attempt_at, doing=[held(entry)])


def failed_by(entry: EntryRecord, *, is_decided: bool = False) -> dict[str, Any]:
    """Return the columns of a held step that has failed. If nobody knows whether it was done, its failure says so.

    A recovery then asks about it before the step is tried again, and a rollback before it undoes the step. Not if it is
    decided that the step is left as it is.
    """
    failure = _settled(entry.data.get(FAILURE, entry.data[HELD]["failure"]))
    if is_unsettled(entry) and not is_decided:
        failure = {**failure, UNSETTLED: True}
    return {
        "status": EntryStatus.EXHAUSTED,
        "data": {**without(entry, HELD), FAILURE: failure},
        "next_attempt_at": None,
    }


def _settled(failure: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in failure.items() if name != UNSETTLED}


def not_begun(entry: EntryRecord) -> dict[str, Any]:
    """Return the columns of a step in doubt whose next attempt has turned out not to have been made: it is made now.

    It does not use up an attempt. A step without `once=True` is a plain one again.
    """
    gone = (IN_DOUBT, HELD) if entry.data[IN_DOUBT] else (IN_DOUBT, HELD, ONCE)
    is_first = entry.attempts == 0
    return {
        "status": EntryStatus.PENDING if is_first else EntryStatus.FAILED,
        "error": None if is_first else entry.error,
        "data": without(entry, *gone),
        "next_attempt_at": None,
    }


def asked_anew(entry: EntryRecord) -> dict[str, Any]:
    """Return the columns of a step of which nobody knows whether it was done, and about which `verify` is asked again.

    No person is asked, and no failure of the step counts.
    """
    data = {**without(entry, HELD, FAILURE), ONCE: _not_asked(entry)}
    return {"status": EntryStatus.UNKNOWN, "data": data, "next_attempt_at": None}


def undoing_anew(entry: EntryRecord) -> dict[str, Any]:
    """Return the columns of a step that has failed, and about which a rollback that waits for a person asks again."""
    columns = failed_by(entry)
    return {**columns, "data": {**columns["data"], ONCE: _not_asked(entry)}}


def _not_asked(entry: EntryRecord) -> dict[str, Any]:
    return {name: value for name, value in entry.data[ONCE].items() if name != "asked"}


def ask(journal: Journal, entry: EntryRecord, question: Question, *, is_concurrent: bool) -> Operation:
    """Ask whether the last attempt was done. Return the answer. Raises Park if it has to be asked again later.

    `Unknown` also answers for a function that goes on raising, or returns something else.
    """
    now, due = journal.environment.now(), entry.next_attempt_at
    if due is not None and due > now:
        raise Park(due, doing=[asking(entry)])
    number = entry.data[ONCE].get("asked", 0) + 1
    if journal.commit_before_attempt:  # it may be what kills the worker
        journal.update(entry, data=_asked(entry, number))
        yield SAVE
    info = StepInfo(
        journal.run,
        entry.location,
        entry.attempts,
        journal.eviction_reason,
        "verify",
        timeout=question.timeout,
        _key=entry.data[ONCE]["key"],
    )
    name = f"verify of {entry.location}"
    try:
        answer = yield Call(question.function, question.args, name, question.timeout, info, is_concurrent=is_concurrent)
        if not isinstance(answer, Found | NotDone | Unknown):
            raise TypeError(
                f"verify returns Found(value), NotDone(reason) or Unknown(reason) of durable, not {answer!r:.200}"
            )
    except ControlFlow:
        raise
    except NotDone as answer:
        return answer
    except Exception as error:
        if number > question.retries:
            times = "" if number == 1 else f" {number} times"
            return Unknown(f"verify has failed{times}: {ErrorInfo.of(error)}")
        retry_at = now + timedelta(seconds=retry_delay(question.policy, number))
        journal.update(entry, data=_asked(entry, number), next_attempt_at=retry_at)
        yield Save(is_failure=True)
        raise Park(retry_at, doing=[asking(entry)]) from None
    return answer


def find_out(
    journal: Journal,
    entry: EntryRecord,
    question: Question | None,
    record: Callable[[Any], None],
    *,
    is_concurrent: bool,
) -> Operation:
    """Ask whether the last attempt was done. Return the answer; None if there is no question.

    A value that was found is recorded by `record`, and committed. `Unknown` also answers for one that it refuses.
    Raises Park if it has to be asked again later.
    """
    if question is None:
        return None
    answer: Answer = yield from ask(journal, entry, question, is_concurrent=is_concurrent)
    if isinstance(answer, Found):
        try:
            record(answer.value)
        except PayloadError as refused:
            return Unknown(str(refused))
        yield SAVE
    return answer


def hold_unknown(
    journal: Journal, entry: EntryRecord, answer: Unknown | None, until: datetime | None, *, is_undoing: bool = False
) -> Operation:
    """Hold a step of which nobody knows whether it was done. Raises Park."""
    error = entry.error if FAILURE in entry.data else with_answer(entry.error, answer)
    hold(journal, entry, HeldReason.UNKNOWN, error=error, until=until, is_undoing=is_undoing)
    yield from commit_held(journal, entry)
    raise held_park(entry)


def _asked(entry: EntryRecord, number: int) -> dict[str, Any]:
    return {**entry.data, ONCE: {**entry.data[ONCE], "asked": number}}


def with_answer(error: ErrorInfo | None, answer: NotDone | Unknown | None) -> ErrorInfo:
    """Return the error of an attempt, with what `verify` says of it now; None if it was not asked."""
    error = error or ErrorInfo("Exception", "unknown")
    if answer is None:
        return error
    what = "it was not done" if isinstance(answer, NotDone) else "it is unknown whether it was done"
    reason = f": {answer.reason}"[:_REASON] if answer.reason else ""
    return replace(error, message=f"{error.message.partition(VERIFY)[0]}{VERIFY}{what}{reason}")


# -- outside of the step's own place in the code


def settle(journal: Journal, entry: EntryRecord, error: ErrorInfo, *, holds: bool) -> Operation:
    """Ask about an attempt of a step whose code is not reached any more; record the answer.

    `error` is how the attempt ended, if that is not recorded. Return True if it was done, so that it may have to be
    undone, False if it was not, None if nobody knows. With `holds`, the run then waits for a person: raises Park.
    """
    if entry.status == EntryStatus.HELD:
        if entry.next_attempt_at is not None:  # its `unknown_timeout`: a rollback waits however long it takes
            journal.update(entry, next_attempt_at=None)
        yield from hold_anew(journal, entry)
        raise held_park(entry)
    if entry.status == EntryStatus.RUNNING:
        with journal.lock:
            note_attempt(journal, entry, error)
            journal.update(entry, status=EntryStatus.UNKNOWN, error=error, next_attempt_at=None)
        yield Save(is_failure=True)

    def record(value: Any) -> None:
        what = f'the output of step "{entry.location}", as verify has found it'
        output = journal.environment.encode(value, what, "output", entry.location)
        error = entry.error
        journal.finish(entry, output=output)
        if (failure := entry.data.get(FAILURE)) is not None:
            journal.update(entry, error=error, data={**entry.data, FAILURE: _settled(failure)})

    question = journal.questions.get(entry.location) or _recorded(journal, entry)
    if question is not None and not holds:
        question = replace(question, retries=0)
    answer = yield from find_out(journal, entry, question, record, is_concurrent=False)
    if isinstance(answer, Found):
        return True
    if isinstance(answer, NotDone):
        failure = entry.data.get(FAILURE)
        journal.update(
            entry,
            status=EntryStatus.EXHAUSTED,
            error=with_answer(entry.error, answer) if failure is None else entry.error,
            data={**entry.data, FAILURE: _settled(failure or EXHAUSTED)},
            next_attempt_at=None,
        )
        yield SAVE
        return False
    if holds:
        yield from hold_unknown(journal, entry, answer, until=None, is_undoing=True)
    return None


def _recorded(journal: Journal, entry: EntryRecord) -> Question | None:
    """Return the recorded question; None if there is none, or if the step's arguments may not be recorded as such."""
    once, policy, environment = entry.data[ONCE], entry.data.get("rollback"), journal.environment
    if not once.get("verify") or AS_TEXT in entry.data:
        return None

    def verify() -> Any:
        function = environment.resolve(once["verify"])
        return function(*(environment.decode(entry.arguments, "arguments", entry.location) or ()))

    backoff = DEFAULTS  # of a step in a lost branch, about which is asked once
    if policy is not None:
        backoff = StepPolicy(
            retry_backoff_base=policy["base"], retry_backoff_max=policy["max"], backoff=policy["backoff"]
        )
    return Question(function=verify, args=(), timeout=once["timeout"], retries=once["retries"], policy=backoff)
