"""The step: attempts, retries, and the record of its result or final failure.

Owns these records. A step's value or final error is built from its record, the first time as on every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from durable.core.control_flow import BranchCancelled, ControlFlow, Evicted, Park
from durable.core.effects import SAVE, Call, Operation, Save, StepInfo
from durable.core.errors import (
    AttemptAbandonedError,
    ContractError,
    CriticalError,
    DeadlockError,
    ErrorInfo,
    HeartbeatTimeoutError,
    PayloadError,
    RollbackCheckpointError,
    RollbackError,
    StepExhaustedError,
    StepTimeoutError,
)
from durable.core.journal import Event
from durable.core.limits.rates import RATE, RateWant
from durable.core.limits.slot_records import LIMIT, SlotWant
from durable.core.limits.slots import acquired, closed, reserved
from durable.core.once import (
    EXHAUSTED,
    NO_OUTCOME,
    Question,
    commit_held,
    failed_by,
    find_out,
    held_park,
    hold,
    hold_anew,
    hold_unknown,
    intent,
    is_not_done,
    not_begun,
    note_attempt,
    with_answer,
)
from durable.core.options import StepPolicy, handler_name
from durable.core.outcomes import AS_TEXT, FAILURE, ONCE, Found, HeldReason, NotDone
from durable.core.records import (
    EntryKind,
    EntryRecord,
    EntryStatus,
    SavesForgotten,
)
from durable.core.results import Failure, StepCatch, StepFailure, StepResult, failure_of, with_failure
from durable.core.retries import FailedAttempt, RetryLater, asked_by, described, members_of, retry_of
from durable.core.saves import StepProgress, show
from durable.core.scope import IN_DOUBT, NOT_DONE, Scope
from durable.core.signatures import check_call
from durable.core.summary import backing_off
from durable.core.words import message_of

STEP_CATCHES: tuple[StepCatch, ...] = ("critical", "timeout", "exhausted", "rollback")
STEP_CATCHES_DEFAULT: tuple[StepCatch, ...] = ("critical", "timeout", "exhausted")
#: The key in an entry's data: an operator has abandoned the attempt, and its worker could not interrupt it.
ABANDONED: Final = "abandoned"
#: The key in an entry's data: the attempt was running when its worker gave the run up because of another step.
GIVEN_UP: Final = "given_up"
#: The key in an entry's data: an attempt of this atomic step has failed, and its rows were not written.
ATOMIC: Final = "atomic"
#: The key in an entry's data of the number of attempts that did not count, if there are any.
UNCOUNTED: Final = "uncounted"
#: The key in an entry's data of the line of text that the call has for people.
SUMMARY: Final = "summary"
_TYPE_LIMIT = 60  # characters of an error's type that lists show
_REPR_LIMIT = 200  # characters of an argument that the codec refuses, shown to operators


def step(
    scope: Scope,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: StepPolicy,
    caught: Collection[str] = (),
) -> Operation:
    """Return the recorded result, raise the recorded failure, or make the next attempt.

    `caught` are the kinds of failures that the caller turns into a value.
    """
    node = scope.cursor.match(EntryKind.STEP, name)
    entry = node.entry
    has_failed = entry is not None and FAILURE in entry.data
    if entry is not None and entry.status == EntryStatus.COMPLETED and not has_failed:
        if options.rollback is not None:
            _check_checkpoint(scope, node.location)
        scope.determinism.observe(entry)
        return scope.recorded(entry.location, "the output of the step", entry.output)
    if options.rollback is not None:
        _check_checkpoint(scope, node.location)
    if not has_failed:
        check_call(f'step "{name}"', function, args)
    if entry is None:
        entry = scope.create(node, EntryKind.STEP, data={SUMMARY: options.summary} if options.summary else {})
    attempt = _Attempt(scope, entry, name, args, options, caught)
    return (yield from attempt.make(function))


def try_step(
    scope: Scope,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: StepPolicy,
    catch: Collection[str],
) -> Operation:
    """Return a `StepResult` with the step's value, or with its failure if that kind is caught."""
    try:
        value = yield from step(scope, name, function, args, options, catch)
    except ContractError:
        raise
    except Exception as error:
        failure = failure_of(error)
        if failure is None or failure.step is None or failure.step.kind not in catch:
            raise
        return StepResult(ok=False, failure=failure.step)
    return StepResult(ok=True, value=value)


def check_catch(catch: Collection[str], known: Collection[str]) -> Collection[str]:
    """Return `catch` if each of its kinds is known; else raise ValueError."""
    kinds = (catch,) if isinstance(catch, str) else catch
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"catch knows the kinds {', '.join(known)}, not {kind!r}")
    return kinds


def _check_checkpoint(scope: Scope, location: str) -> None:
    if not scope.has_checkpoint:
        raise RollbackCheckpointError(location)


class _Attempt:
    """The next attempt of one step, in stages."""

    __slots__ = ("args", "caught", "entry", "environment", "info", "journal", "name", "options", "scope")

    def __init__(
        self,
        scope: Scope,
        entry: EntryRecord,
        name: str,
        args: tuple[Any, ...],
        options: StepPolicy,
        caught: Collection[str],
    ) -> None:
        self.scope = scope
        self.journal = scope.journal
        self.environment = scope.environment
        self.entry = entry
        self.name = name
        self.args = args
        self.options = options
        self.caught = caught
        self.info: StepInfo | None = None  # of the call

    def make(self, function: Callable[..., Any]) -> Operation:
        if FAILURE in self.entry.data:
            raise self._failure_error()
        if self.entry.status == EntryStatus.RUNNING:
            yield from self._settle_lost()
        elif self.entry.status == EntryStatus.HELD:
            yield from self._stay_held()
        if self.entry.status == EntryStatus.HELD:
            raise held_park(self.entry)
        if self.entry.status == EntryStatus.UNKNOWN and (yield from self._is_found()):
            return self._recorded()
        if self.entry.status == EntryStatus.EXHAUSTED:
            raise self._failure_error()
        self._wait_for_backoff()
        if self._is_in_doubt():
            yield from self._note_unknown(_forgotten(self.name), is_in_doubt=True)
            if self.entry.status == EntryStatus.UNKNOWN and (yield from self._is_found()):
                return self._recorded()
            if self.entry.status == EntryStatus.HELD:
                raise held_park(self.entry)
        rate, limit = self.options.rate, self.options.limit
        if rate is not None:
            yield from self._reserve(rate, may_begin=limit is None)
        if limit is not None:
            yield from self._take_slot(limit)
            if rate is not None:
                yield from self._begin_with_slot(rate)
        self._start()
        if self.journal.commit_before_attempt or self.options.once:
            self.journal.update(self.entry)
            yield SAVE
        elif self.options.atomic and self.scope.is_concurrent:
            yield SAVE  # commit earlier records first: the commit of this step writes its own record only
        elif self.journal.has_tags_to_set:
            yield SAVE  # the run is found by its new tags while the step is executed, however long that takes
        try:
            yield from self._call(function)
        except ControlFlow as ending:
            if self.options.limit is not None and isinstance(ending, BranchCancelled | Evicted):
                self.journal.release_slots(self.entry.location)
            raise
        except Exception as error:
            if self.options.once and not is_not_done(error, self.options):
                yield from self._note_unknown(described(asked_by(error) or error, within=error), error)
                if self.entry.status == EntryStatus.UNKNOWN and (yield from self._is_found()):
                    return self._recorded()
                raise self._outcome() from None
            try:
                verdict, cause = _verdict(error, self.options)
            except Exception as broken:  # raised by the user's retry_if, which counts as False
                verdict, cause = "critical", broken
            yield from self._record_failure(described(cause, within=error), verdict, cause)
            raise self._outcome() from None
        if self.journal.commit_before_attempt and not self.scope.is_concurrent:
            self.journal.note_safe()
        return self._recorded()

    # -- an attempt that has begun earlier

    def _settle_lost(self) -> Operation:
        """Record a begun attempt as failed, because its worker died or gave it up."""
        data = self.entry.data
        attempt = f'attempt {self.entry.attempts} of step "{self.name}"'
        if ABANDONED in data:
            error = ErrorInfo.of(AttemptAbandonedError(self.name))
        elif GIVEN_UP in data:
            what = f"the worker gave the run up during {attempt}, because a step of another branch could not be interrupted"
            error = ErrorInfo("WorkerDied", what)
        else:
            error = ErrorInfo("WorkerDied", f"the worker died during {attempt}")
        self.entry.data = {key: value for key, value in data.items() if key not in (ABANDONED, GIVEN_UP)}
        if self.options.once or ONCE in data:
            yield from self._note_unknown(error)
        else:
            yield from self._record_failure(error, _RETRY)

    def _stay_held(self) -> Operation:
        """Wait for a person. Fail the step if its `unknown_timeout` is over."""
        entry = self.entry
        if self.options.verify is not None:  # asked about it once more if this branch loses its race
            self.journal.questions[entry.location] = self._question()
        yield from hold_anew(self.journal, entry)
        due = entry.next_attempt_at
        if due is None or due > self.environment.now():
            raise held_park(entry)
        self.journal.update(self.entry, **failed_by(self.entry))
        yield Save(is_failure=True)
        self._tell(self.entry.error or ErrorInfo("Exception", "unknown"))

    # -- an attempt of which nobody knows whether it was done

    def _is_in_doubt(self) -> bool:
        """Return True if the next attempt may have been made already, in time that the database has lost."""
        doubt, options = self.scope.doubt, self.options
        return doubt is not None and not (options.atomic or options.ephemeral) and doubt.is_about(self.entry)

    def _note_unknown(
        self, error: ErrorInfo, cause: Exception | None = None, *, is_in_doubt: bool = False
    ) -> Operation:
        """Record how the attempt ended. Then `verify` is asked; without one, a person is.

        `is_in_doubt`: the attempt, if there was one, is not recorded.
        """
        entry = self.entry
        with self.journal.lock:
            if is_in_doubt:
                self._note_call()
                entry.data = {**intent(self.journal, entry, self.options), IN_DOUBT: self.options.once}
            else:
                self._end_attempt(error)
            if ONCE not in entry.data:  # begun by code that lacked once=True
                entry.data = intent(self.journal, entry, self.options)
            if self.options.verify is not None:
                self.journal.update(
                    entry,
                    status=EntryStatus.UNKNOWN,
                    error=error,
                    **NO_OUTCOME,
                    next_attempt_at=None,
                )
            else:
                hold(self.journal, entry, HeldReason.UNKNOWN, error=error, until=self._held_until())
        yield from self._commit_failure()
        if cause is not None:
            self.journal.note_raised(entry.location, cause)
        if entry.status == EntryStatus.UNKNOWN:
            details = {"location": entry.location, "attempt": entry.attempts, "error": error}
            self.environment.emit(Event("step_unknown", details))

    def _is_found(self) -> Operation:
        """Ask `verify`, and record its answer. Return True if the attempt was done, and its value is recorded."""
        question = None if self.options.verify is None else self._question()  # the code may have it no more
        answer = yield from find_out(
            self.journal, self.entry, question, self._record, is_concurrent=self.scope.is_concurrent
        )
        if isinstance(answer, Found):
            return True
        if isinstance(answer, NotDone):
            error = with_answer(self.entry.error, answer)
            if self.scope.doubt is not None:
                self.entry.data = {**self.entry.data, NOT_DONE: self.environment.now().isoformat()}
            if IN_DOUBT in self.entry.data:
                self.journal.update(self.entry, **not_begun(self.entry))
                yield SAVE
                return False
            yield from self._record_failure(error, _RETRY, is_noted=True)
            if self.entry.status != EntryStatus.FAILED:
                raise self._outcome()
            return False
        return (yield from hold_unknown(self.journal, self.entry, answer, self._held_until()))

    def _commit_failure(self) -> Operation:
        if self.entry.status == EntryStatus.HELD:
            yield from commit_held(self.journal, self.entry)
        else:
            yield Save(is_failure=True)

    def _question(self) -> Question:
        options = self.options
        assert options.verify is not None
        return Question(
            function=options.verify,
            args=self.args,
            timeout=options.timeout_or(self.environment.step_timeout),
            retries=options.verify_retries,
            policy=options,
        )

    def _held_until(self) -> datetime | None:
        """Return when a step whose outcome is unknown fails by itself; None for never."""
        within = self.options.unknown_timeout
        return None if within is None else self.environment.now() + timedelta(seconds=float(within))  # type: ignore[arg-type]  # normalised

    def _recorded(self) -> Any:
        """Return the step's recorded output. An error of the codec is no failure of the attempt, which has ended."""
        self.scope.determinism.observe(self.entry)
        return self.scope.recorded(self.entry.location, "the output of the step", self.entry.output)

    # -- before the attempt

    def _wait_for_backoff(self) -> None:
        if self.entry.status != EntryStatus.FAILED:
            return
        due = self.entry.next_attempt_at
        if due is not None and due > self.environment.now():
            raise self._park()

    def _take_slot(self, want: SlotWant) -> Operation:
        """Hold a slot of the step's limit while its function runs. Raises Park while the run waits in its line."""
        entry = self.entry
        try:
            yield from acquired(self.journal, entry.location, [want])
        except Park:
            if LIMIT not in entry.data:  # so that whatever takes the step back gives up its place too
                self.journal.update(entry, data={**entry.data, LIMIT: want.label})
            raise
        except DeadlockError as error:
            entry.data = {**entry.data, LIMIT: want.label}
            self._start()
            yield from self._record_failure(ErrorInfo.of(error), "critical", error)
            raise self._outcome() from None
        entry.data = {**entry.data, LIMIT: want.label}

    def _reserve(self, want: RateWant, *, may_begin: bool) -> Operation:
        """Wait for the attempt's moment in a limit's rate. Raises Park if that is not soon."""
        entry, now = self.entry, self.environment.now()
        try:
            moment = yield from reserved(self.journal, entry.location, want, may_begin=may_begin)
        except Park as park:
            self.journal.update(entry, data=self._with_moment(want, park.deadline or now))
            if self.scope.is_concurrent:
                yield SAVE  # another branch may run for long before this pass parks and commits
            raise
        entry.data = self._with_moment(want, moment)

    def _with_moment(self, want: RateWant, moment: datetime) -> dict[str, Any]:
        return {**self.entry.data, RATE: {"limit": want.label, "units": want.units, "at": moment.isoformat()}}

    def _begin_with_slot(self, want: RateWant) -> Operation:
        """Begin in the rate while holding a slot; give the slot up if the attempt has to wait for long."""
        try:
            yield from self._reserve(want, may_begin=True)
        except Park:
            self.journal.release_slots(self.entry.location)
            raise

    def _start(self) -> None:
        entry, options = self.entry, self.options
        with self.journal.lock:
            self._note_call()
            if options.once:
                entry.data = intent(self.journal, entry, options)
                if options.verify is not None:
                    self.journal.questions[entry.location] = self._question()
            entry.status = EntryStatus.RUNNING
            entry.attempts += 1
            entry.last_attempt_at = self.environment.now()
            entry.next_attempt_at = None

    def _note_call(self) -> None:
        """Note in the entry what is called, and how it is undone."""
        entry = self.entry
        if entry.arguments is None:
            entry.arguments = self._arguments()
        if self.options.summary:
            entry.data = {**entry.data, SUMMARY: self.options.summary}
        if self.options.rollback is not None:
            entry.data = {**entry.data, "rollback": self._compensation(self.options)}

    def _arguments(self) -> str | None:
        """Return the encoded arguments, for operators and for a rollback handler; with a handler they must be
        encodable.
        """
        if not self.args:
            return None
        try:
            return self.environment.encode(
                self.args, f'the arguments of step "{self.name}"', "arguments", self.entry.location
            )
        except PayloadError:
            if self.options.rollback is not None:
                raise
            self.entry.data = {**self.entry.data, AS_TEXT: True}
            shown = [_shown(each) for each in self.args]
            return self.environment.encode(tuple(shown), "arguments shown as text", "arguments", self.entry.location)

    def _compensation(self, options: StepPolicy) -> dict[str, Any]:
        assert options.rollback is not None
        return {
            "handler": handler_name(options.rollback),
            "timeout": options.timeout_or(self.environment.step_timeout),
            "max_retries": options.max_retries,
            "base": options.retry_backoff_base,
            "max": options.retry_backoff_max,
            "backoff": options.backoff,
            **({"jitter": options.retry_jitter} if options.retry_jitter else {}),
        }

    # -- the attempt

    def _call(self, function: Callable[..., Any]) -> Operation:
        record = self._record if self.options.atomic else None
        timeout = self.options.timeout_or(self.environment.step_timeout)
        info = StepInfo(
            self.journal.run,
            self.entry.location,
            self.entry.attempts,
            self.journal.eviction_reason,
            timeout=timeout,
            heartbeat=self.options.heartbeat,
            _begin_progress=None if self.options.atomic else self._begin_progress,
            _show=partial(show, self.journal),
            _on_chunk=self.environment.on_chunk,
        )
        self.info = info
        value = yield Call(
            function,
            self.args,
            self.name,
            timeout,
            info,
            record,
            is_concurrent=self.scope.is_concurrent,
            entry=self.entry,
            uncommitted=self.journal.uncommitted,
        )
        if record is None:
            self._record(value)
            if not self.options.ephemeral:
                yield SAVE
        if info.has_emitted:
            self.environment.on_stream_end(info.location, info.attempt)

    def _begin_progress(self) -> StepProgress:
        return StepProgress(self.journal, self.entry.location, self.entry.attempts)

    def _record(self, value: Any) -> None:
        what = f'the output of step "{self.name}"'
        output = self.environment.encode(value, what, "output", self.entry.location)
        progress = self.info.begun_progress if self.info is not None else None
        with self.journal.lock:  # what ends with the step is in the commit of its record, whichever branch makes that
            self.journal.finish(self.entry, output=output)
            if self.scope.doubt is not None:
                self.scope.doubt.end_with(self.journal, self.entry)
            if self.options.limit is not None:
                self.journal.release_slots(self.entry.location)
            saved = self.journal.saved_at(self.entry.location)
            if saved is not None or (progress is not None and progress.may_be_stored):
                self.journal.add(SavesForgotten(self.entry.location))
            if saved is not None and saved.location != self.entry.location:
                self.journal.add(SavesForgotten(saved.location))

    # -- after a failure

    def _outcome(self) -> BaseException:
        if self.entry.status == EntryStatus.EXHAUSTED:
            return self._failure_error()
        return held_park(self.entry) if self.entry.status == EntryStatus.HELD else self._park()

    def _park(self) -> Park:
        entry = self.entry
        kind = entry.error.type[:_TYPE_LIMIT] if entry.error is not None else "unknown"
        most = self.options.max_retries
        attempts = None if most is None else most + 1 + entry.data.get(UNCOUNTED, 0)
        doing = backing_off(entry.location, kind, entry.attempts, attempts)
        return Park(entry.next_attempt_at, doing=[doing])

    def _record_failure(
        self, error: ErrorInfo, verdict: str, cause: Exception | None = None, *, is_noted: bool = False
    ) -> Operation:
        """Record a failed attempt, and what follows. `is_noted`: the attempt itself is recorded already."""
        entry, options = self.entry, self.options
        now = self.environment.now()
        last_attempt_at = entry.last_attempt_at or now
        data = {**entry.data, ATOMIC: True} if options.atomic else entry.data
        retry_at = None
        if verdict == _RETRY:
            failed = FailedAttempt(
                run=self.journal.run,
                location=entry.location,
                purpose="step",
                attempts=entry.attempts,
                uncounted=entry.data.get(UNCOUNTED, 0),
                began_at=last_attempt_at,
                failed_at=now,
            )
            retry = retry_of(failed, options, cause, error, self.environment.max_uncounted_retries)
            retry_at, error = retry.at, retry.error
            if isinstance(cause, RetryLater):
                yield from closed(self.journal, cause, retry_at, now)
            if retry.uncounted:
                data = {**data, UNCOUNTED: retry.uncounted}
        will_retry = retry_at is not None
        failure = None if will_retry else self._failure_data(verdict, cause)
        is_held = failure is not None and self._is_to_hold(failure["kind"])
        if failure is not None and not is_held:
            data = {**data, FAILURE: failure}
        with self.journal.lock:
            if not is_noted:
                self._end_attempt(error)
            self.journal.update(
                entry,
                status=EntryStatus.FAILED if will_retry else EntryStatus.EXHAUSTED,
                error=error,
                data=data,
                **NO_OUTCOME,
                next_attempt_at=retry_at,
            )
            if is_held:
                hold(self.journal, entry, HeldReason.EXHAUSTED, failure=failure)
        yield from self._commit_failure()
        if not will_retry and self.info is not None and self.info.has_emitted:
            self.environment.on_stream_end(self.info.location, self.info.attempt)
        if not will_retry and cause is not None:
            self.journal.note_raised(entry.location, cause)
        self._tell(error, retry_at)

    def _end_attempt(self, error: ErrorInfo) -> None:
        """Add what every failed attempt leaves to the next commit: its record, its saves and its slots."""
        progress = self.info.begun_progress if self.info is not None else None
        if (saved := progress.newest() if progress is not None else None) is not None:
            self.journal.add(saved)
        if LIMIT in self.entry.data:
            self.journal.release_slots(self.entry.location)
        note_attempt(self.journal, self.entry, error)

    def _is_to_hold(self, kind: str) -> bool:
        """Return True if the step waits for a person instead of failing, now that its attempts are used up.

        The workflow's default leaves out failures that the code asks for as a value.
        """
        if kind not in ("exhausted", "timeout"):
            return False
        wanted = self.options.when_exhausted
        if wanted is None and kind not in self.caught:
            wanted = self.journal.when_exhausted
        return wanted == "hold"

    def _failure_data(self, verdict: str, cause: Exception | None) -> dict[str, Any]:
        if verdict == _RETRY:  # all attempts are used up
            kind = "timeout" if isinstance(cause, StepTimeoutError) else "exhausted"
            return {**EXHAUSTED, "kind": kind}
        data: dict[str, Any] = {"kind": verdict, "raises": verdict}
        if isinstance(cause, PayloadError):
            data["payload"] = [cause.what, cause.path, cause.problem, cause.advice]
        elif isinstance(cause, CriticalError | RollbackError):
            data["class"] = f"{type(cause).__module__}:{type(cause).__qualname__}"
        return data

    def _tell(self, error: ErrorInfo, retry_at: datetime | None = None) -> None:
        entry, will_retry = self.entry, retry_at is not None
        counted, most = entry.attempts - entry.data.get(UNCOUNTED, 0), self.options.max_retries
        left = 0 if not will_retry else None if most is None else max(0, most - max(0, counted - 1))
        details = {
            "location": entry.location,
            "attempt": entry.attempts,
            "retries_left": left,
            "will_retry": will_retry,
            "retry_at": retry_at,
            "is_caught": not will_retry and entry.data.get(FAILURE, {}).get("kind") in self.caught,
            "error": error,
        }
        self.environment.emit(Event("step_failed", details))

    def _failure_error(self) -> Exception:
        entry = self.entry
        recorded = entry.data.get(FAILURE, {})
        info = entry.error or ErrorInfo("Exception", "unknown")
        if "payload" in recorded:
            error: Exception = PayloadError(*recorded["payload"])
        elif recorded.get("raises") == "exhausted":
            error = StepExhaustedError(self.name, info)
        elif recorded.get("kind") == "rollback":
            error = self._rebuilt(recorded.get("class"), RollbackError, info.message)
        else:
            error = self._rebuilt(recorded.get("class"), CriticalError, info.message)
        step_failure = StepFailure(recorded.get("kind", "exhausted"), self.name, entry.attempts, info)
        return with_failure(error, Failure("step", self.name, (entry.location,), info, step_failure))

    def _rebuilt(self, name: str | None, base: type[Exception], message: str) -> Exception:
        """Return the user's subclass of `base`, so that code can catch it on replay too; `base` if it cannot be
        rebuilt.
        """
        if name:
            try:
                found = self.environment.resolve(name)
                if isinstance(found, type) and issubclass(found, base):
                    return _made(found, base, message)
            except Exception:  # removed, local, or with another constructor: the base class is enough
                return base(message)
        return base(message)


def _made(kind: type[Exception], base: type[Exception], message: str) -> Exception:
    """Build an error of `kind` with this message; of `base` if `kind` changes the message."""
    error = kind(message)
    if message_of(error) != message:  # the constructor formats its argument
        error = kind.__new__(kind, message)
        error.args = (message,)
    return error if message_of(error) == message else base(message)


def _forgotten(name: str) -> ErrorInfo:
    what = f'the database went back in time, and lacks what step "{name}" may have done in the time that it lost'
    return ErrorInfo("DatabaseWentBack", what)


_RETRY = "retry"


def _verdict(error: Exception, options: StepPolicy) -> tuple[str, Exception]:
    """Decide what to do after this error: retry, or a kind of final failure. Return that with the error that explains
    it.
    """
    asked = asked_by(error)
    if isinstance(asked, PayloadError):
        return "payload", asked
    if isinstance(asked, RollbackError):
        return "rollback", asked
    if isinstance(asked, CriticalError):
        return "critical", asked
    if isinstance(asked, RetryLater):  # `retry_if` judges errors of the function
        return _RETRY, asked
    if isinstance(error, AttemptAbandonedError | HeartbeatTimeoutError):
        return _RETRY, error  # as in Temporal: the attempt may have lost its thread, or its network
    if isinstance(error, StepTimeoutError) and not options.retry_on_timeout:
        return "timeout", error
    if options.retry_if is not None and not all(map(options.retry_if, members_of(error))):
        return "critical", error
    return _RETRY, error


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:  # a user's __repr__ may raise anything
        shown = f"<{type(value).__name__}>"
    return shown if len(shown) <= _REPR_LIMIT else f"{shown[:_REPR_LIMIT]}..."
