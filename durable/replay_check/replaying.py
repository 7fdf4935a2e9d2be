"""The replay of one recorded run with this process's code, and the verdict.

Owns the judgement: what counts as a finding, and of which kind. Calls no step, no rollback handler and no store;
everything that it needs has been read before.
"""

from __future__ import annotations

import contextvars
import inspect
import io
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from durable import carriers
from durable.codec import Codec, JsonCodec
from durable.codec.binding import decode_at
from durable.core import registry
from durable.core.bodies import run_body
from durable.core.control_flow import ControlFlow
from durable.core.current import running_workflow
from durable.core.divergences import Divergence, DivergenceKind, OperationAt
from durable.core.effects import Operation
from durable.core.errors import ContractError, ErrorInfo, HistoryDivergedError, OutsideStepError, PayloadError
from durable.core.location import escape, join
from durable.core.mistakes import is_mistake
from durable.core.names.recorded_names import resolve_used
from durable.core.places import Place
from durable.core.records import ENDED, EntryKind, EntryRecord, Request, RunRecord, RunState
from durable.core.registry import WorkflowDefinition
from durable.core.scope import Scope
from durable.core.simple_operations import get_version
from durable.core.steps import step, try_step
from durable.core.time_limits import History
from durable.core.witnesses import raised
from durable.drivers.aio import AsyncDriver
from durable.drivers.sync import SyncDriver
from durable.mistakes import mistakes_of
from durable.replay_check.findings import Finding, FindingKind, Verdict
from durable.replay_check.mends import mend_of, named
from durable.replay_check.outcomes import Outcome, RecordsHost, decision_of, refusing_runtime, unreadable_value
from durable.replay_check.read_only import is_refused_write
from durable.runtime import Runtime

_CODEC: Final = JsonCodec().unlimited
_STEPS: Final = frozenset({step.__code__, try_step.__code__})
_SHOWN: Final = 2  # operations of the history to name in a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A recorded run: its row, and its entries in any order.

    `codec` reads its values; None for the project's.
    """

    run: RunRecord
    entries: Iterable[EntryRecord]
    codec: Codec | None = None


class _UnknownVersion(ContractError):
    """The run follows a version of the code that this code does not have."""

    def __init__(self, name: str, location: str, recorded: int, latest: int) -> None:
        self.name = name
        self.location = location
        self.recorded = recorded
        self.latest = latest
        super().__init__(f'version {recorded} of "{name}"; the code knows {latest}')


def replayed(recorded: RecordedRun, at: Runtime, *, with_decision: bool = False) -> Verdict:
    """Replay the run until its records end. With `with_decision`, say what the code decides differently."""
    replay = _Replay(recorded, at)
    try:
        return replay.verdict(with_decision=with_decision)
    finally:
        replay.forget()


class _Replay:
    def __init__(self, recorded: RecordedRun, at: Runtime) -> None:
        self.run = recorded.run
        self.codec = recorded.codec or at.codec
        self.history = History(recorded.entries)
        self.at = replace(
            at, codec=self.codec, sequential_branches=True, on_operation=self._note, on_call=None, sleep=None
        )
        self.operations = 0
        self.outcome = Outcome()
        #: The last step that the code has come to: its scope, name and arguments.
        self._step: tuple[str, Any, tuple[Any, ...]] | None = None

    def verdict(self, *, with_decision: bool) -> Verdict:
        finding = self._finding()
        return Verdict(
            run_id=self.run.id,
            workflow=self.run.workflow,
            state=str(self.run.state),
            finding=finding,
            decision=decision_of(self.run, self.outcome, self.codec) if with_decision else None,
            operations=self.operations,
            is_whole=self.outcome.has_ended and finding is None,
        )

    def forget(self) -> None:
        """Release the history, so that only one is in memory at a time."""
        self.history.clear()
        self._step = None
        if self.outcome.journal is not None:
            self.outcome.journal.forget()
        if self.outcome.error is not None:
            self.outcome.error.__traceback__ = None

    def _finding(self) -> Finding | None:
        try:
            definition = self._definition()
        except registry.UnknownWorkflowError as error:
            return self._made(
                FindingKind.UNKNOWN_WORKFLOW,
                "",
                f"a run of {self.run.workflow}",
                "has no workflow of this name",
                "keep a workflow of this name until its runs have ended"
                + (f" (did you mean {' or '.join(error.nearest)}?)" if error.nearest else ""),
            )
        if self.run.state != RunState.ROLLING_BACK and (found := self._replay(definition)) is not None:
            return found
        return self._unreadable() or self._without_handler()

    def _definition(self) -> WorkflowDefinition:
        try:
            return registry.get(self.run.workflow)
        except registry.UnknownWorkflowError:
            find = self.at.find_workflow
            found = None if find is None else find(self.run.workflow)
            if found is None:
                raise
            return found

    # -- the replay

    def _replay(self, definition: WorkflowDefinition) -> Finding | None:
        # as the next worker would claim it, ignoring operators' requests; at the first claim there is no history
        claimed = replace(
            self.run,
            fence=raised(max(self.run.fence, 1)),
            pending_request=Request.NONE,
            crashes=0,
            state=RunState.RUNNING,
        )
        host = RecordsHost(claimed, self.history, self.at)
        host.environment.mistakes = mistakes_of(definition)
        if host.journal.unreadable:
            first = host.journal.unreadable[0]
            return self._made(
                FindingKind.FORMAT,
                first.location,
                f"a record of kind {first.kind!r}, which a newer release of durable has written",
                "cannot read it",
                "deploy the release of durable that wrote it",
            )
        if host.journal.doubled:
            one, other = host.journal.doubled[0]
            return self._made(
                FindingKind.USED_TWICE,
                one,
                f'both "{one}" and "{other}"',
                "takes them for one operation, which a migration renames",
                "choose a name that no history has",
            )
        try:
            given = host.environment.decode_input()
            args, kwargs = list(given["args"]), dict(given["kwargs"])
        except PayloadError as error:
            return self._unreadable_text("", "an input", error)
        except (TypeError, KeyError, ValueError):
            return self._made(FindingKind.VALUE, "", "an input", "cannot read it", "restore the input of the run")
        if (problem := _does_not_fit(definition.function, args, kwargs)) is not None:
            return self._made(
                FindingKind.SIGNATURE,
                "",
                f"an input of {_counted(args, kwargs)}",
                f"does not take it: {problem}",
                "give new parameters a default, and keep the old ones until every run that has them has ended",
            )
        host.journal.scheduled_for = given.get("scheduled_for")
        outcome = self.outcome
        outcome.journal = host.journal

        def drive() -> None:
            operation = _ended(host, lambda context: definition.function(context, *args, **kwargs), outcome)
            if definition.is_async:
                operation = AsyncDriver(host).with_loops(operation)
            with running_workflow(self.run.id, self.run.workflow), carriers.restored_for_replay(self.run):
                SyncDriver(host).drive(operation)

        with _quiet(), refusing_runtime(self.at):
            contextvars.copy_context().run(drive)
        return self._of_outcome(outcome, definition)

    def _note(self, scope: Scope, _label: str, operation: Operation) -> None:
        """Count an operation before it begins, and refuse a version that the code does not have."""
        self.operations += 1
        frame = getattr(operation, "gi_frame", None)
        if frame is None:
            return
        if frame.f_code in _STEPS:
            given = frame.f_locals
            self._step = (scope.cursor.location, given["name"], given["args"])
        elif frame.f_code is get_version.__code__:
            given = frame.f_locals
            name, latest = given["name"], given["latest"]
            node = scope.cursor.node.child(scope.cursor.key(escape(name)))
            entry = None if node is None else node.entry
            if entry is None or entry.kind != EntryKind.VERSION_CHECK or not isinstance(latest, int):
                return
            if (resolved := entry.data["resolved"]) > latest:
                scope.journal.stop(_UnknownVersion(name, entry.location, resolved, latest))

    # -- findings

    def _of_outcome(self, outcome: Outcome, definition: WorkflowDefinition) -> Finding | None:
        error = outcome.error
        if error is None:
            return self._of_branches(outcome)
        if isinstance(error, HistoryDivergedError):
            return self._diverged(error, definition)
        if isinstance(error, _UnknownVersion):
            return self._made(
                FindingKind.UNKNOWN_VERSION,
                error.location,
                f'version {error.recorded} of "{error.name}"',
                f"knows version {error.latest} as the latest",
                f'bring version {error.recorded} back, and write `ctx.get_version("{error.name}", {error.recorded})`',
                (f'ctx.get_version("{error.name}", {error.recorded})',),
            )
        if isinstance(error, OutsideStepError):
            return self._effect(error.action, error.remedy)
        if is_refused_write(error):
            return self._effect(f"a write ({error})", "put it into a step")
        if isinstance(error, ContractError):
            info = ErrorInfo.of(error)
            return self._made(FindingKind.RULE, "", "no such error", f"stops with {info}", "fix the code")
        return self._of_exception(error, definition)

    def _diverged(self, error: HistoryDivergedError, definition: WorkflowDefinition) -> Finding:
        found = error.divergence
        if found is None:  # a value that cannot be read
            where = error.locations[0] if error.locations else ""
            cause = error.__cause__ or error.__context__
            if isinstance(cause, PayloadError):
                return self._unreadable_text(where, "a value", cause)
            return self._made(FindingKind.VALUE, where, "a value", f"cannot read it: {error}", "restore its class")
        if found.raised is not None:
            if is_refused_write(found.raised):
                return self._effect(f"a write ({found.raised})", "put it into a step")
            return self._raised(found.recorded[0].location, ErrorInfo.of(found.raised), _listed(found))
        mend, lines = mend_of(
            found,
            definition.function,
            workflow=self.run.workflow,
            is_async=definition.is_async,
            takes_the_same=lambda recorded: self._takes_the_same(recorded, found.code),
        )
        history, code = _sides(found)
        where = found.code.location if found.code is not None else found.recorded[0].location
        return self._made(FindingKind(found.kind), where, history, code, mend, lines)

    def _takes_the_same(self, recorded: OperationAt, code: OperationAt | None) -> bool:
        """Return True unless the recorded operation is a step whose arguments differ from those of the code's step."""
        if recorded.kind != EntryKind.STEP:
            return True
        journal = self.outcome.journal
        entry = None if journal is None else journal.entry_at(recorded.location)
        if entry is None or code is None or self._step is None:
            return False
        scope, name, args = self._step
        if join(scope, escape(name)) != code.location:
            return False
        if entry.arguments is None or not args:
            return entry.arguments is None and not args
        try:
            before = decode_at(self.codec, entry.arguments, Place(self.run.id, "arguments", entry.location))
            return _CODEC.encode(list(before)) == _CODEC.encode(list(args))
        except (PayloadError, TypeError):  # TypeError: the record has no list
            return False

    def _of_exception(self, error: Exception, definition: WorkflowDefinition) -> Finding | None:
        """Return the finding for an exception that the workflow's code raised, unless the run may end that way or
        continue.
        """
        info = ErrorInfo.of(error)
        is_recorded = self.run.state == RunState.FAILED and self.run.error is not None
        if is_recorded and self.run.error is not None and self.run.error.type == info.type:
            return None
        if _is_of_the_record(error):
            raise error
        is_code = is_mistake(error, mistakes_of(definition))
        if self.run.state != RunState.COMPLETED and not is_code:
            return None  # beyond the record: the run may end like this
        return self._raised("", info)

    def _of_branches(self, outcome: Outcome) -> Finding | None:
        """Return the finding for an error that left a branch whose record has no failure.

        None for a run that is not at rest.
        """
        if self.run.state in (RunState.RUNNING, RunState.PENDING) or outcome.journal is None:
            return None
        for location, info in outcome.journal.failed_branches:
            return self._raised(location, info)
        return None

    def _effect(self, action: str, mend: str) -> Finding:
        return self._made(FindingKind.EFFECT, "", "nothing of it", f"does what belongs into a step: {action}", mend)

    def _raised(self, location: str, info: ErrorInfo, history: str = "no such error") -> Finding:
        return self._made(
            FindingKind.EXCEPTION,
            location,
            history,
            f"raises {info.type}: {info.message}",
            "fix the code, or let these runs go the old way: branch on ctx.get_version(name, latest)",
        )

    def _unreadable(self) -> Finding | None:
        found = unreadable_value(self.run, self.history, self.codec)
        if found is None:
            return None
        location, field, error = found
        return self._unreadable_text(location, f"the {field} of an operation" if location else "an output", error)

    def _unreadable_text(self, location: str, what: str, error: PayloadError) -> Finding:
        code = f"cannot read it at {error.path}: {error.problem}"
        return self._made(FindingKind.VALUE, location, what, code, error.advice)

    def _without_handler(self) -> Finding | None:
        """Return the finding for a missing rollback handler of a step that may still be undone."""
        if self.run.state in ENDED:
            return None
        for each in self.history:
            if each.kind != EntryKind.STEP or not each.is_compensable:
                continue
            name = str(each.data["rollback"].get("handler", ""))
            try:
                resolve_used(name)
            except Exception as error:  # noqa: BLE001  # whatever importing raises
                return self._made(
                    FindingKind.HANDLER,
                    each.location,
                    f"the rollback handler {name}",
                    f"has none of this name ({type(error).__name__}: {error})",
                    "keep a function of this name until the runs that may call it have ended",
                )
        return None

    def _made(
        self, kind: FindingKind, location: str, history: str, code: str, mend: str, add: tuple[str, ...] = ()
    ) -> Finding:
        return Finding(
            run_id=self.run.id,
            workflow=self.run.workflow,
            state=str(self.run.state),
            kind=kind,
            location=location,
            history=history,
            code=code,
            mend=mend,
            add=add,
        )


def _ended(host: RecordsHost, call: Callable[[Any], Any], outcome: Outcome) -> Operation:
    try:
        outcome.value = yield from run_body(Scope(host.journal, host.journal.root), call)
        outcome.has_ended = True
    except ControlFlow as ending:
        outcome.error = host.journal.poison
        ending.__traceback__ = None  # whose frames would keep the pass in memory
    except Exception as error:  # noqa: BLE001  # whatever the code raises
        outcome.error = host.journal.poison or error
        outcome.has_ended = True


def _listed(found: Divergence) -> str:
    shown = ", ".join(map(named, found.recorded[:_SHOWN])) or "it once"
    return f"{shown} and more" if len(found.recorded) > _SHOWN else shown


def _sides(found: Divergence) -> tuple[str, str]:
    """Describe what the history has and what the code does."""
    history = _listed(found)
    if found.code is None:
        return history, "ends before"
    if found.kind == DivergenceKind.USED_TWICE:
        return history, f"uses {named(found.code)} twice in one scope"
    if found.kind == DivergenceKind.CHANGED:
        return history, f"has another one: {found.problem}"
    return history, f"comes to {named(found.code)}"


def _is_of_the_record(error: Exception) -> bool:
    """Return True for an error in durable that a damaged record causes; not for the refusal of a call."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == "durable" and isinstance(error, LookupError | AttributeError)


@lru_cache(maxsize=256)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _does_not_fit(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> str | None:
    signature = _signature(function)
    if signature is None:
        return None
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def _counted(args: list[Any], kwargs: dict[str, Any]) -> str:
    words = [f"{len(args)} by position"] if args else []
    words += [f"by name {', '.join(sorted(kwargs))}"] if kwargs else []
    return " and ".join(words) or "no arguments"


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the block, code prints and logs nothing, and does not change the process's random numbers."""
    dice, level = random.getstate(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
        random.setstate(dice)
